import io
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.sources.mini_imagenet import contents, find_form

SPLITS = {"n01": "train", "n02": "train", "n03": "val", "n04": "test"}
LISTED = {"n01": 3, "n02": 2, "n03": 2, "n04": 4}


def picture(name, number):
    """One colour, which tells the class and the number."""
    return np.full((84, 84, 3), (60 * int(name[1:]), 50 * number, 10), dtype=np.uint8)


def jpeg(name, number):
    file = io.BytesIO()
    Image.fromarray(picture(name, number)).save(file, format="JPEG", quality=98)
    return file.getvalue()


def write_lists(folder, counts=LISTED, splits=SPLITS):
    folder.mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        rows = [(f"{n}{i:08d}.jpg", n) for n, count in counts.items() if splits[n] == split for i in range(count)]
        (folder / f"{split}.csv").write_text("filename,label\n" + "".join(f"{f},{n}\n" for f, n in rows))
    return folder


def write_zip(folder, counts=LISTED, spoil=None):
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        archive.writestr("images/", b"")
        for name, count in counts.items():
            for number in range(count):
                bad = (name, number) == spoil
                archive.writestr(f"images/{name}{number:08d}.jpg", b"no image" if bad else jpeg(name, number))


def write_folder(folder, counts=LISTED):
    (folder / "images").mkdir()
    for name, count in counts.items():
        for number in range(count):
            (folder / "images" / f"{name}{number:08d}.jpg").write_bytes(jpeg(name, number))


def write_pickles(folder, names="mini-imagenet-cache-{}.pkl", change=lambda content: content):
    for split in ("train", "val", "test"):
        rows = [(name, i) for name, count in LISTED.items() if SPLITS[name] == split for i in range(count)]
        images = np.stack([picture(*row) for row in rows])
        classes = {}
        for number, (name, _) in enumerate(rows):
            classes.setdefault(name, []).append(number)
        content = change({"image_data": images, "class_dict": classes})
        (folder / names.format(split)).write_bytes(pickle.dumps(content, protocol=2))


def write_other_pickles(folder):
    for split, part in (("train", "train_phase_train"), ("val", "val"), ("test", "test")):
        rows = [(name, i) for name, count in LISTED.items() if SPLITS[name] == split for i in range(count)]
        content = {
            "data": np.stack([picture(*row) for row in rows]),
            "labels": [int(name[1:]) for name, _ in rows],
            "catname2label": {name: int(name[1:]) for name, _ in rows},
        }
        (folder / f"miniImageNet_category_split_{part}.pickle").write_bytes(pickle.dumps(content))


def write_validation_pickles(folder):
    write_pickles(folder)
    (folder / "mini-imagenet-cache-val.pkl").rename(folder / "mini-imagenet-cache-validation.pkl")


FORMS = {
    "zip": lambda folder: (write_lists(folder), write_zip(folder)),
    "folder": lambda folder: (write_lists(folder), write_folder(folder)),
    "pickles": write_pickles,
    "pickles, validation": write_validation_pickles,
    "other pickles": write_other_pickles,
}


def read(folder, splits=SPLITS, size=84):
    found = contents(find_form(folder), splits, size)
    return found, np.concatenate(list(found.decode()))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_classes_and_images(tmp_path, form):
    FORMS[form](tmp_path)
    found, images = read(tmp_path)
    assert [(entry.name, entry.split, entry.images) for entry in found.classes] == [
        (name, SPLITS[name], count) for name, count in LISTED.items()
    ]
    expected = np.stack([picture(name, number) for name, count in LISTED.items() for number in range(count)])
    assert images.shape == (11, 3, 84, 84)
    assert np.abs(images.astype(int) - expected.transpose(0, 3, 1, 2)).max() <= 3
    assert read(tmp_path, size=42)[1].shape == (11, 3, 42, 42)


def test_the_full_lists_are_taken_where_all_of_their_images_are_there(tmp_path):
    full = dict.fromkeys(SPLITS, 6)
    write_lists(tmp_path)
    write_lists(tmp_path / "ravi-larochelle", full)
    write_zip(tmp_path)
    assert {entry.name: entry.images for entry in read(tmp_path)[0].classes} == LISTED
    write_zip(tmp_path, full)
    assert {entry.name: entry.images for entry in read(tmp_path)[0].classes} == full


def test_the_full_lists_alone_suffice(tmp_path):
    write_lists(tmp_path / "ravi-larochelle")
    write_zip(tmp_path)
    assert read(tmp_path)[0].images == 11


def test_a_list_that_names_missing_images_is_refused(tmp_path):
    write_lists(tmp_path, {**LISTED, "n03": 4})
    write_zip(tmp_path)
    with pytest.raises(InputError, match=r"the lists name 2 images that are not in .*images\.zip.*n0300000002\.jpg"):
        read(tmp_path)


def test_overlapping_splits_are_refused(tmp_path):
    FORMS["zip"](tmp_path)
    with (tmp_path / "test.csv").open("a") as file:
        file.write("n0100000000.jpg,n01\n")
    with pytest.raises(InputError, match="name an image twice"):
        read(tmp_path)
    write_lists(tmp_path)
    write_zip(tmp_path, {**LISTED, "n01": 4})
    with (tmp_path / "test.csv").open("a") as file:
        file.write("n0100000003.jpg,n01\n")
    with pytest.raises(InputError, match=r"the splits overlap: 1 class.*n01, in train and test"):
        read(tmp_path)


def test_a_split_that_is_not_the_tasks_is_refused(tmp_path):
    FORMS["zip"](tmp_path)
    with pytest.raises(InputError, match="class n02 is in the train split, but the task has it in val"):
        read(tmp_path, {**SPLITS, "n02": "val"})
    with pytest.raises(InputError, match=r"1 of 5 classes are missing .first: n09"):
        read(tmp_path, {**SPLITS, "n09": "val"})


def test_damaged_files_are_named(tmp_path):
    write_lists(tmp_path)
    write_zip(tmp_path, spoil=("n02", 1))
    with pytest.raises(InputError, match=r"images\.zip: images/n0200000001\.jpg does not decode"):
        read(tmp_path)
    content = (tmp_path / "images.zip").read_bytes()
    (tmp_path / "images.zip").write_bytes(content[:-30])
    with pytest.raises(InputError, match=r"images\.zip: not a readable zip archive"):
        read(tmp_path)
    (tmp_path / "val.csv").write_text("name,class\n")
    write_zip(tmp_path)
    with pytest.raises(InputError, match=r"val\.csv: the first line must be filename,label"):
        read(tmp_path)


class Attack:
    def __reduce__(self):
        return pytest.fail, ("executed",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: {**content, "more": Attack()}, "nothing of it was executed"),
        (lambda content: {"images": 1}, "not a mini-ImageNet cache"),
        (lambda content: [1], "not a mini-ImageNet cache"),
        (lambda content: {**content, "image_data": content["image_data"] / 255.0}, "must be uint8"),
        (lambda content: {**content, "class_dict": {"n01": [0, 0]}}, "image twice"),
        (lambda content: {**content, "class_dict": {"n01": [-1]}}, "not there"),
    ],
)
def test_wrong_pickles_are_one_line(tmp_path, change, reason):
    write_pickles(tmp_path, change=change)
    with pytest.raises(InputError, match=reason) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_says_what_to_put_into_it(tmp_path):
    with pytest.raises(InputError, match=r"train\.csv, val\.csv and test\.csv with images\.zip.*cache-train\.pkl"):
        open_dataset("mini-imagenet", tmp_path)


@pytest.mark.slow
@pytest.mark.data
def test_the_images_that_are_here(data_folder):
    dataset = open_dataset("mini-imagenet", data_folder)
    assert [pool.classes for pool in (dataset.train, dataset.val, dataset.test)] == [64, 16, 20]
    assert set(dataset.train.counts) <= {120, 600}
    assert dataset.train.images.shape[1:] == (3, 84, 84)
    sample = np.asarray(dataset.train.images[:7680:7], dtype=np.float64) / 255
    assert sample.mean((0, 2, 3)) == pytest.approx(dataset.train.mean, abs=0.01)
    assert sample.std((0, 2, 3)) == pytest.approx(dataset.train.deviation, abs=0.02)
