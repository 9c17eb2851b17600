import io
import os
from collections import Counter

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.enough import check_shape
from dpfedmeta.data.episode import draw_episode
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.data.sources import folder
from dpfedmeta.data.sources.image_folder import contents
from dpfedmeta.data.sources.image_form import form_of_images
from dpfedmeta.data.splitting import split_of
from dpfedmeta.errors import InputError


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


def test_a_first_image_that_does_not_decode_is_named(in_splits):
    (in_splits / "train" / "train0" / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"train0/00\.png: does not decode"):
        open_dataset(str(in_splits))


def test_a_changed_file_is_decoded_again(in_splits):
    before = folder.key(in_splits)
    first = open_dataset(str(in_splits))
    assert open_dataset(str(in_splits)) == first
    os.utime(in_splits / "train" / "train0" / "00.png", ns=(0, 0))
    assert folder.key(in_splits) != before
    write_class(in_splits / "train" / "new", 5)
    assert open_dataset(str(in_splits)).train.classes == 5


def test_all_headers_decide_the_form_and_not_the_first_file(tmp_path):
    root = tmp_path / "mine"
    for number in range(30):
        write_class(root / f"class{number:02d}", 4, size=(20 + number % 3, 30))
    Image.new("L", (3, 3)).save(root / "class00" / "00.png")
    form = form_of_images(folder.files_of(root))
    assert (form.channels, form.size) == (3, 21)
    assert "120 files; 1 have less than half of it" in form.words
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
    root = tmp_path / "mine"
    write_class(root / "a", 3, size=(5, 9))
    write_class(root / "b", 8, size=(40, 40))
    with pytest.raises(InputError, match=r"3 of 11 images have less than half.*40 pixels.*00\.png, 5 x 9.*task file"):
        form_of_images(folder.files_of(root))
    with pytest.raises(InputError, match="3 of 11 images"):
        open_dataset(str(root))
