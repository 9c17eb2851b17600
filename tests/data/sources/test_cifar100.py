import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.sources.cifar100 import contents

NAMES = ("apple", "bear", "crab", "dolphin")
SPLITS = dict(zip(NAMES, ("train", "train", "val", "test"), strict=True))
PER_CLASS = 5
IMAGES = np.random.default_rng(0).integers(0, 256, size=(len(NAMES), PER_CLASS, 3, 32, 32), dtype=np.uint8)


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, format="PNG")
    return file.getvalue()


def published_zip(folder, skip=(), spoil=()):
    path = folder / "cifar100.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cifar100/data/", b"")
        archive.writestr("cifar100/splits/bertinetto/train.txt", "apple\n")
        for name, images in zip(NAMES, IMAGES, strict=True):
            for number, image in enumerate(images):
                member = f"cifar100/data/{name}/{name}_s_{number:06d}.png"
                if (name, number) not in skip:
                    archive.writestr(member, b"no image" if (name, number) in spoil else png(image))
    return path


def shuffled():
    """(images, labels) as in the official files: in no order of classes, the first 12 for training."""
    order = np.random.default_rng(1).permutation(len(NAMES) * PER_CLASS)
    return IMAGES.reshape(-1, 3072)[order], (order // PER_CLASS).tolist()


def python_files(protocol=2):
    images, labels = shuffled()
    parts = {"train": slice(None, 12), "test": slice(12, None)}
    files = {name: {"data": images[part], "fine_labels": labels[part]} for name, part in parts.items()}
    files["meta"] = {"fine_label_names": list(NAMES), "coarse_label_names": ["all"]}
    return {name: pickle.dumps(content, protocol=protocol) for name, content in files.items()}


def binary_files():
    images, labels = shuffled()
    rows = np.concatenate([np.zeros((20, 1), np.uint8), np.array(labels, np.uint8)[:, None], images], axis=1)
    names = "".join(f"{name}\n" for name in NAMES).encode()
    return {"train.bin": rows[:12].tobytes(), "test.bin": rows[12:].tobytes(), "fine_label_names.txt": names}


def packed(folder, name, files):
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def extracted(folder, name, files):
    (folder / name).mkdir()
    for file, content in files.items():
        (folder / name / file).write_bytes(content)
    return folder / name


FORMS = {
    "zip": published_zip,
    "python, packed": lambda folder: packed(folder, "cifar-100-python", python_files()),
    "python, extracted": lambda folder: extracted(folder, "cifar-100-python", python_files(protocol=4)),
    "binary, packed": lambda folder: packed(folder, "cifar-100-binary", binary_files()),
    "binary, extracted": lambda folder: extracted(folder, "cifar-100-binary", binary_files()),
}


def decoded(path, splits=SPLITS, size=32):
    found = contents(path, splits, size, PER_CLASS)
    return found, np.concatenate(list(found.decode()))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_in_the_same_order(tmp_path, form):
    (tmp_path / "zip").mkdir()
    _, expected = decoded(published_zip(tmp_path / "zip"))
    found, images = decoded(FORMS[form](tmp_path))
    assert [(entry.name, entry.split, entry.images) for entry in found.classes] == [(n, SPLITS[n], 5) for n in NAMES]
    assert np.array_equal(images, expected)
    for block, original in zip(images.reshape(IMAGES.shape), IMAGES, strict=True):
        assert {image.tobytes() for image in block} == {image.tobytes() for image in original}


def test_other_sizes_and_fewer_classes(tmp_path):
    found, images = decoded(published_zip(tmp_path), {"crab": "train"}, 16)
    assert images.shape == (PER_CLASS, 3, 16, 16)
    assert [entry.name for entry in found.classes] == ["crab"]


@pytest.mark.parametrize("form", FORMS)
def test_missing_images_are_counted_and_named(tmp_path, form):
    with pytest.raises(InputError, match=r"1 of 5 classes do not have 5 images \(first: unicorn, 0 found\)"):
        contents(FORMS[form](tmp_path), {**SPLITS, "unicorn": "test"}, 32, PER_CLASS)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("form", ["zip", "python, packed", "binary, packed"])
def test_a_truncated_archive_is_named(tmp_path, form, share):
    path = FORMS[form](tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=f"{path.name}.*fetch it again") as caught:
        contents(path, SPLITS, 32, PER_CLASS)
    assert "\n" not in str(caught.value)


def test_an_image_that_does_not_decode_names_archive_and_member(tmp_path):
    with pytest.raises(InputError, match=r"cifar100\.zip: cifar100/data/bear/bear_s_000002\.png does not decode"):
        decoded(published_zip(tmp_path, spoil={("bear", 2)}))


class Attack:
    def __reduce__(self):
        return pytest.fail, ("executed",)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"meta": pickle.dumps([Attack()])}, "meta: not read, nothing of it was executed"),
        ({"meta": pickle.dumps({})}, "not the Python version.*fine_label_names"),
        ({"train": pickle.dumps({"data": np.zeros((2, 3072)), "fine_labels": [0, 1]})}, "do not fit together"),
        (
            {"train": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 99]})},
            "label 99, but only 4",
        ),
    ],
)
def test_wrong_pickles_are_one_line(tmp_path, files, reason):
    with pytest.raises(InputError, match=reason):
        contents(packed(tmp_path, "cifar-100-python", python_files() | files), SPLITS, 32, PER_CLASS)


def test_a_cut_off_binary_version_and_a_missing_file(tmp_path):
    files = binary_files()
    with pytest.raises(InputError, match="cut off"):
        path = packed(tmp_path, "cifar-100-binary", files | {"test.bin": files["test.bin"][:-1]})
        contents(path, SPLITS, 32, PER_CLASS)
    path = packed(tmp_path, "cifar-100-binary", {"train.bin": b""})
    with pytest.raises(InputError, match=r"holds train\.bin; expected meta, train, test"):
        contents(path, SPLITS, 32, PER_CLASS)


@pytest.fixture
def task_file(tmp_path):
    (tmp_path / "split.csv").write_text("class,split\n" + "".join(f"{n},{s}\n" for n, s in SPLITS.items()))
    archives = [{"file": "cifar100.zip", "digests": []}, {"file": "cifar-100-python.tar.gz", "digests": []}]
    task = {
        "name": "small",
        "source": {"reader": "cifar100", "folder": "cifar-fs", "archives": archives},
        "split": "split.csv",
        "image_size": 32,
        "channels": 3,
        "images_per_class": PER_CLASS,
        "train_flip": True,
        "mean": [0.5, 0.4, 0.3],
        "deviation": [0.2, 0.2, 0.2],
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(task))
    return path


def test_a_task_takes_the_first_form_that_is_there(task_file):
    folder = task_file.parent
    with pytest.raises(InputError, match=r"put cifar100\.zip or cifar-100-python\.tar\.gz or cifar-100-python/"):
        open_dataset(str(task_file), folder)
    extracted(folder, "cifar-100-python", python_files())
    first = open_dataset(str(task_file), folder)
    (folder / "cifar-fs").mkdir()
    published_zip(folder / "cifar-fs")
    with pytest.warns(UserWarning, match="content is complete"):
        second = open_dataset(str(task_file), folder)
    assert first.train.path != second.train.path
    assert np.array_equal(first.train.images, second.train.images)
    assert (second.train.flip, second.val.flip) == (True, False)
    assert second.train.counts == (PER_CLASS, PER_CLASS)
    assert second.test.first == (3 * PER_CLASS,)


@pytest.mark.slow
@pytest.mark.data
def test_the_published_archive(data_folder):
    for name, counts in (("cifar-fs", [64, 16, 20]), ("fc100", [60, 20, 20])):
        dataset = open_dataset(name, data_folder)
        pools = (dataset.train, dataset.val, dataset.test)
        assert [pool.classes for pool in pools] == counts
        assert {count for pool in pools for count in pool.counts} == {600}
        assert len({name for pool in pools for name in pool.names}) == 100
        assert dataset.train.images.shape == (60_000, 3, 32, 32)
    means = np.asarray(dataset.train.images[::7], dtype=np.float64).mean((0, 2, 3)) / 255
    assert means == pytest.approx(dataset.train.mean, abs=0.01)
