import io
import os
from collections import Counter

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape, RecordForm
from dpfedmeta.data.names import split_of, splits_of, surely_public
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.user_sources import folder, manifest
from dpfedmeta.data.user_sources.image_files import check_fit, form_of_images
from dpfedmeta.data.user_sources.image_folder import contents
from dpfedmeta.data.user_sources.sound_rows import any_rows


def write_class(folder, images, *, size=(12, 12), mode="RGB", shade=100, suffix="png"):
    """A class whose image number k has the shade shade + k everywhere."""
    folder.mkdir(parents=True)
    for number in range(images):
        pixels = np.full((size[1], size[0], 3), shade + number, dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number:02d}.{suffix}")


@pytest.fixture
def in_splits(tmp_path):
    root = tmp_path / "mine"
    for split, classes in (("train", 4), ("val", 3), ("test", 3)):
        for number in range(classes):
            write_class(root / split / f"{split}{number}", 4 + number, shade=40 * number + 10)
    return root


def test_folders_of_splits_with_classes_of_unequal_size(in_splits):
    dataset = open_dataset(str(in_splits))
    assert dataset.train.names == ("train0", "train1", "train2", "train3")
    assert dataset.train.counts == (4, 5, 6, 7)
    assert dataset.val.counts == dataset.test.counts == (4, 5, 6)
    assert (dataset.task.channels, dataset.task.image_size, dataset.task.name) == (3, 12, "mine")
    last = dataset.train.images[dataset.train.first[3] : dataset.train.first[3] + 7, 0, 0, 0]
    assert last.tolist() == [130 + number for number in range(7)]
    seen = Counter()
    for seed in range(200):
        episode = draw_episode(dataset.train, np.random.default_rng(seed), EpisodeShape(ways=2, shots=2, queries=2))
        seen.update((episode.support_images[:, 0, 0, 0] * 255).round().int().tolist())
    assert set(seen) == {40 * number + 10 + image for number in range(4) for image in range(4 + number)}


def test_a_class_with_too_few_images_is_named(in_splits):
    pool = open_dataset(str(in_splits)).train
    check_shape(pool, EpisodeShape(ways=2, shots=2, queries=2), "train")
    with pytest.raises(InputError, match=r"= 6 images per class.*holds 4 of class train0 \(2 of 4 classes") as caught:
        check_shape(pool, EpisodeShape(ways=2, shots=4, queries=2), "train")
    assert "task.shots" in str(caught.value)


def test_without_folders_of_splits_the_name_decides(tmp_path):
    names = [f"class{number}" for number in range(40)]
    for name in names:
        write_class(tmp_path / "mine" / name, 2, mode="L")
    dataset = open_dataset(str(tmp_path / "mine"))
    assert dataset.task.channels == 1
    for split in ("train", "val", "test"):
        assert set(getattr(dataset, split).names) == {name for name in names if split_of(name) == split}


def test_the_split_by_name_is_fixed_and_64_16_20():
    assert [split_of(name) for name in ("cat", "dog", "plane", "naïve")] == ["train", "test", "test", "test"]
    counts = Counter(split_of(str(number)) for number in range(20_000))
    assert [counts[split] / 20_000 for split in ("train", "val", "test")] == pytest.approx([0.64, 0.16, 0.2], abs=0.01)


def test_a_task_file_with_a_list_size_and_colours(in_splits):
    flat = in_splits.parent / "flat"
    for number, name in enumerate("abcdef"):
        write_class(flat / name, 3, size=(30, 20), mode=("RGB", "L", "P", "RGBA", "1", "CMYK")[number], suffix="tif")
    (flat / "a" / "notes.txt").write_text("no image")
    (flat / "empty").mkdir()
    (in_splits.parent / "split.csv").write_text("class,split\na,train\nb,train\nc,val\ne,test\n")
    task = {
        "name": "flat",
        "source": {"reader": "folder", "path": "flat"},
        "split": "split.csv",
        "image_size": 8,
        "channels": 1,
        "train_rotations": 4,
    }
    path = in_splits.parent / "flat.yaml"
    path.write_text(yaml.safe_dump(task))
    dataset = open_dataset(str(path))
    assert dataset.train.names == ("a", "b")
    assert dataset.train.images.shape == (12, 1, 8, 8)
    assert dataset.train.rotations == 4


def test_a_listed_class_without_a_folder_is_refused(in_splits):
    with pytest.raises(InputError, match=r"2 of the listed classes have no folder.*first: x"):
        contents(in_splits, {"train0": "train", "x": "val", "y": "test"}, 8, 3)


def test_overlapping_splits_are_refused(in_splits):
    write_class(in_splits / "test" / "train1", 4)
    with pytest.raises(InputError, match=r"the splits overlap.*train1, in train and test"):
        open_dataset(str(in_splits))


def test_a_folder_without_classes_is_one_line(tmp_path):
    (tmp_path / "mine" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "mine" / "image.png").write_bytes(b"beside the classes")
    with pytest.raises(InputError, match="a folder without classes; expected mine/CLASS/IMAGE or") as caught:
        open_dataset(str(tmp_path / "mine"))
    assert "\n" not in str(caught.value)


def test_a_split_without_classes_is_refused(tmp_path):
    write_class(tmp_path / "mine" / "cat", 3)
    with pytest.raises(InputError, match="no class in the val split"):
        open_dataset(str(tmp_path / "mine"))


def test_an_image_that_does_not_decode_is_named(in_splits):
    good = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(good, format="PNG")
    for content in (b"no image", good.getvalue()[:60], b""):
        (in_splits / "val" / "val1" / "01.png").write_bytes(content)
        with pytest.raises(InputError, match=r"val1/01\.png: does not decode .*repair or remove it"):
            open_dataset(str(in_splits))


def test_the_remedy_of_many_images_stands_once(in_splits):
    for name in ("00", "01", "02"):
        (in_splits / "val" / "val1" / f"{name}.png").write_bytes(b"no image")
    with pytest.raises(
        InputError, match=r"3 of \d+ images do not decode: .*val1/00\.png.*; repair or remove it$"
    ) as caught:
        open_dataset(str(in_splits))
    assert str(caught.value).count("repair") == 1


def test_a_first_image_that_does_not_decode_is_named(in_splits):
    (in_splits / "train" / "train0" / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"train0/00\.png: does not decode"):
        open_dataset(str(in_splits))


def test_a_changed_file_is_decoded_again(in_splits):
    before = folder.key(in_splits)
    first = open_dataset(str(in_splits))
    os.utime(in_splits / "train" / "train0" / "00.png", ns=(0, 0))
    assert folder.key(in_splits) == before
    assert open_dataset(str(in_splits)) == first
    write_class(in_splits / "train" / "new", 5)
    assert folder.key(in_splits) != before
    assert open_dataset(str(in_splits)).train.classes == 5


@pytest.mark.parametrize("kind", ["folder", "manifest", "vectors"])
def test_what_was_replaced_at_equal_size_and_time_is_not_trained_on(tmp_path, kind):
    """Consent was withdrawn, and the image gave way to another one."""
    rows, data = [], tmp_path / "mine"
    for number in range(12):
        write_class(data / f"class{number:02d}", 3, mode="L", shade=20 * number, suffix="bmp")
        rows += [(f"class{number:02d}", file) for file in sorted((data / f"class{number:02d}").iterdir())]
    path = data
    if kind == "manifest":
        path = tmp_path / "list.csv"
        path.write_text("\n".join(["path,class", *(f"{file.relative_to(tmp_path)},{name}" for name, file in rows)]))
    if kind == "vectors":
        path = tmp_path / "numbers.csv"
        path.write_text("\n".join(["one,class", *(f"{place:03d},{name}" for place, (name, _) in enumerate(rows))]))
    first = open_dataset(str(path), ways=3)
    changed = rows[0][1] if kind != "vectors" else path
    status, content = changed.stat(), changed.read_bytes()
    changed.write_bytes(content[:-1] + b"\xfe" if kind != "vectors" else content.replace(b"000,", b"999,"))
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (changed.stat().st_size, changed.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    second = open_dataset(str(path), ways=3)
    pools = {split: (getattr(first, split), getattr(second, split)) for split in ("train", "val", "test")}
    assert any(not np.array_equal(one.images, two.images) for one, two in pools.values())


def test_all_headers_decide_the_form_and_not_the_first_file(tmp_path):
    root = tmp_path / "mine"
    for number in range(30):
        write_class(root / f"class{number:02d}", 4, size=(20 + number % 3, 30))
    Image.new("L", (3, 3)).save(root / "class00" / "00.png")
    form = form_of_images(folder.files_of(root))
    assert (form.channels, form.size) == (3, 21)
    assert "120 public files; 1 have less than half of it" in form.words
    assert f"{root / 'class00' / '00.png'}, 3 x 3" in form.words
    assert form.words.endswith("1 are grey and become coloured")
    assert open_dataset(str(root)).train.images.shape[1:] == (3, 21, 21)


def test_a_changed_folder_is_looked_at_again(tmp_path):
    root = tmp_path / "mine"
    write_class(root / "a", 3, size=(16, 16))
    assert form_of_images(folder.files_of(root)).size == 16
    for file in (root / "a").iterdir():
        file.unlink()
    (root / "a").rmdir()
    write_class(root / "a", 3, size=(18, 24), mode="L")
    os.utime(root / "a" / "00.png", ns=(1, 1))
    assert (form_of_images(folder.files_of(root)).channels, form_of_images(folder.files_of(root)).size) == (1, 18)


def test_a_folder_of_which_many_images_are_tiny_has_no_form(tmp_path):
    """Whether they train or not: that is told to who holds them, and decides over nothing that is published."""
    root, names = tmp_path / "mine", [f"class{number}" for number in range(6)]
    tiny = min({*names} - surely_public(names))
    for name in names:
        write_class(root / name, 4, size=(5, 9) if name == tiny else (40, 40))
    said = rf"4 of 24 images have less than half.*40 pixels.*{tiny}/00\.png, 5 x 9.*task file"
    with pytest.raises(InputError, match=said):
        check_fit(folder.files_of(root), 40)
    with pytest.raises(InputError, match=said):
        open_dataset(str(root))


def people(root, training_side, *, mode="L", public_side=28):
    """Clients with two classes each; those that train have images of another size, colour and content."""
    names = [f"person{number:02d}" for number in range(12)]
    parts = splits_of(names, 1)
    for name in names:
        trains = parts[name] == "train"
        side = training_side if trains else public_side
        for kind in ("a", "b"):
            write_class(root / name / kind, 6, size=(side, side), mode=mode if trains else "L")
    return root


@pytest.mark.parametrize(("side", "mode"), [(40, "L"), (28, "RGB"), (60, "RGB")])
def test_no_training_client_decides_over_the_form(tmp_path, side, mode):
    """All of them differ, and most images are theirs: the network is that of the public ones."""
    found = people(tmp_path / "a", 28), people(tmp_path / "b", side, mode=mode)
    assert folder.guess(found[0]) == folder.guess(found[1]) == {"channels": 1, "image_size": 28}
    other = people(tmp_path / "c", 28, public_side=36)
    assert folder.guess(other)["image_size"] == 36
    files = folder.files_of(found[1])
    rows = [f"{file.relative_to(found[1])},{file.parent.name},{file.parent.parent.name}" for file in files]
    table = found[1] / "list.csv"
    table.write_text("\n".join(["path,class,client", *rows]))
    assert manifest.guess(table) == {"channels": 1, "image_size": 28}


@pytest.mark.parametrize("by", ["folders", "names"])
def test_no_training_class_decides_over_the_form(tmp_path, by):
    names = [f"class{number:02d}" for number in range(15)]
    parts = splits_of(names, 5)
    for name in names:
        place = tmp_path / parts[name] / name if by == "folders" else tmp_path / name
        trains = name not in surely_public(names) if by == "names" else parts[name] == "train"
        write_class(place, 4, size=(40, 40) if trains else (28, 28), mode="RGB" if trains else "L")
    assert folder.guess(tmp_path) == {"channels": 1, "image_size": 28}
    decoded = open_dataset(str(tmp_path), ways=5)
    assert decoded.train.images.shape[1:] == (1, 28, 28)


@pytest.mark.parametrize("count", [3, 4, 5, 7, 12, 31])
def test_what_is_surely_public_never_trains(count):
    for start in range(5):
        names = [f"{start}-{number}" for number in range(count)]
        public = surely_public(names)
        assert public
        for least in range(1, count // 3 + 1):
            assert not {name for name, split in splits_of(names, least).items() if split == "train"} & public


@pytest.mark.parametrize("clients", [False, True])
def test_people_of_a_folder_are_its_clients_and_a_folder_of_classes_is_one(tmp_path, clients):
    """Of several, on whom a model is judged. One who takes part has no folders of clients."""
    names = [f"{person}/{kind}" if clients else kind for person in ("ann", "bob") for kind in ("p", "q")]
    for place in dict.fromkeys(names):
        write_class(tmp_path / place, 2)
    form = RecordForm(shape=(1, 8, 8))
    if clients:
        with pytest.raises(InputError, match="without classes"):
            any_rows(tmp_path)
    found = folder.people(tmp_path, form, (), None)
    owners = ("ann", "ann", "bob", "bob") if clients else ("", "")
    assert [(entry.client, entry.name, entry.images) for entry in found.classes] == [
        (owner, kind, 2) for owner, kind in zip(owners, "pqpq", strict=False)
    ]
    assert sum(len(block) for block in found.decode()) == 2 * len(owners)
