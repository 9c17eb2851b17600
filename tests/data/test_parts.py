"""Names of parts mean parts, wherever they stand, and what does not fit together is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from own_data import vector_rows, write_csv, write_image, write_task

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.parts import check_clients_are_no_parts, part_of, parts_taken
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources import folder
from dpfedmeta.data.user_sources.csv_table import part_words
from dpfedmeta.data.user_sources.sound_rows import own_digests

PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))


def tree(root, *folders, images=2):
    """An image or two of their own in each folder."""
    for number, inside in enumerate(folders):
        for image in range(images):
            write_image(root / inside / f"{image}.png", number * 10 + image)
    return root


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(
            (name, "train")
            for name in ("train", "TRAIN", "Training", "meta_train", "images-train", "trainset", "metaTrain")
        ),
        *((name, "val") for name in ("val", "Valid", "validation", "DEV", "meta-val", "val_images", "val2017")),
        *((name, "test") for name in ("test", "Testing", "meta test", "images_test", "Test Set")),
        *((name, None) for name in ("trains", "contest", "valley", "latest", "train0", "device", "anna", "", "1")),
    ],
)
def test_names_of_parts(name, part):
    assert part_of(name) == part


NAMES = [
    ("train", "valid", "test"),
    ("Train", "Val", "Test"),
    ("meta_train", "meta_val", "meta_test"),
    ("images_training", "images_validation", "images_testing"),
    ("TRAIN", "dev", "test"),
]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("inside", ["{}c0 {}c1", "{}p0/a {}p0/b {}p1/a"])
def test_folders_of_parts_in_any_case_are_parts(tmp_path, names, inside):
    own = [f"{name}/{place.format(part)}" for name, part in zip(names, PARTS, strict=True) for place in inside.split()]
    root = tree(tmp_path / "mine", *own)
    dataset = open_dataset(str(root))
    for part in PARTS:
        pool = getattr(dataset, part)
        assert all(name.startswith(part) for name in pool.clients or pool.names), part
    said = folder.remarks(root, load_task(str(root))[0], public=True)
    assert said == parts_taken(names)
    assert all(f"{name} is {part}" in said[0] for name, part in zip(names, PARTS, strict=True) if name != part)
    if "/" not in inside:
        assert {name for name, _ in own_digests(root)} == {"trainc0", "trainc1"}


@pytest.mark.parametrize(
    ("folders", "part"),
    [
        ("train/a train/b test/c test/d", "no part val; make a folder val"),
        ("Train/a Valid/b", "no part test"),
        ("training/a training/b", "no part val and no part test"),
        ("train/a val/b test/c Testing/d", "a part is there twice"),
        ("train/a val/b test/c anna/d", "and beside them anna"),
        ("train/a vall/b test/c", "or rename vall to val if that is the part"),
        ("Test/a Anna/b Bob/c", "or Test if that is a client"),
        ("train_1/a val_1/b test_1/c", "test_1 looks like the part test"),
        ("train1 train2 test1 test2 a b", "test1; test2; train1; train2 look like parts"),
        ("train Training test a", "Training; test; train look like parts"),
        ("train/a/x val/b/x test/c/x anna/x", "beside them anna"),
        ("train/a/x anna/b/x ben/c/x", "no part val and no part test"),
        ("train/train/a train/train/b val/c test/d", "parts in parts (train/train)"),
        ("train/p/a train/p/b val/p/c val/p/d test/p/e test/p/f", "every part holds one folder only, p"),
        ("train val test", "train; val look like parts, but would be read as classes"),
        ("train test a b c", "test; train look like parts"),
        ("cat/train cat/test dog/train dog/test cow/train cow/test", "test; train look like parts"),
        ("anna/train/a anna/test/a", "name"),
        ("fold_0/a fold_1/a fold_2/a fold_3/a", "look like folds of a cross-validation, but would be read as clients"),
        (
            "Fold1 Fold2 Fold3 a",
            "Fold1; Fold2; Fold3 look like folds of a cross-validation, but would be read as classes",
        ),
        ("split1/a split2/a anna/b", "split1; split2 look like folds"),
        ("train/n1/images train/n2/images val/n3/images test/n4/images", "in an extra folder images (first: train/n1/"),
        ("train/n1/images train/n2/images val/images test/images", "those in val/images; test/images are of no class"),
        ("all/train/a all/val/b all/test/c", "one folder deeper; name"),
        ("all/anna/a all/ben/a all/carl/a", "one folder deeper; name"),
        ("all/cat all/cow all/dog all/pig", "one folder deeper; name"),
    ],
)
def test_folders_that_look_like_parts_and_do_not_fit_are_refused(tmp_path, folders, part):
    root = tree(tmp_path / "mine", *folders.split(), images=1)
    with pytest.raises(InputError) as caught:
        open_dataset(str(root), ways=1)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [("fold1", "a", "b"), ("scaffold1", "scaffold2", "c"), ("fold", "unfold", "folded")])
def test_other_names_with_fold(names):
    check_clients_are_no_parts("f", names)


def test_a_link_to_a_folder_that_holds_it_is_named(tmp_path):
    root = tree(tmp_path / "mine", "a", "b", "c", images=1)
    (root / "d").symlink_to(root)
    with pytest.raises(InputError, match=r"mine/d: a link to .*mine, a folder that holds the link; remove the link"):
        open_dataset(str(root), ways=1)
    (root / "d").unlink()
    (root / "d").symlink_to(root / "a")
    assert open_dataset(str(root), ways=1).train.classes >= 1


def test_one_class_may_be_named_as_a_part(tmp_path):
    names = ["bus", "train", "tram", "car", "bike", "ship"]
    dataset = open_dataset(str(tree(tmp_path / "vehicles", *names)), ways=2)
    assert sorted([*dataset.train.names, *dataset.val.names, *dataset.test.names]) == sorted(names)
    dataset = open_dataset(str(tree(tmp_path / "mine", "Train/train", "Train/bus", "Val/car", "Test/ship")))
    assert dataset.train.names == ("bus", "train")


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", ["csv", "npz", "list"])
def test_splits_of_tables_arrays_and_lists_in_any_case(tmp_path, names, kind):
    rows = vector_rows()
    parts = [names[number // 6 % 3] for number in range(len(rows) - 1)]
    path = tmp_path / "v.csv"
    if kind == "csv":
        write_csv(path, [[*rows[0], "split"], *([*row, part] for row, part in zip(rows[1:], parts, strict=True))])
    elif kind == "npz":
        path = tmp_path / "v.npz"
        records = np.array([row[1:] for row in rows[1:]], dtype=np.float32)
        np.savez(path, records=records, classes=[row[0] for row in rows[1:]], splits=parts)
    else:
        write_csv(path, rows)
        write_csv(tmp_path / "s.csv", [["class", "split"], *([f"c{label}", names[label % 3]] for label in range(9))])
        path = write_task(tmp_path / "t.yaml", "vectors", "v.csv", features=5, split="s.csv")
    dataset = open_dataset(str(path))
    assert [getattr(dataset, part).names for part in PARTS] == [
        tuple(f"c{k}" for k in (o, o + 3, o + 6)) for o in range(3)
    ]


@pytest.mark.parametrize(
    ("column", "names", "part"),
    [
        ("client", ("Train", "Valid", "Test"), "Test looks like the part test"),
        ("client", ("anna", "ben", "test"), "test looks like the part test"),
        ("class", ("train", "val", "test"), "would be read as classes"),
        ("client", ("fold 1", "fold 2", "fold 3"), "look like folds of a cross-validation"),
    ],
)
def test_parts_in_the_wrong_column_of_a_table(tmp_path, column, names, part):
    rows = [[names[number % 3], f"c{number}", number / 7] for number in range(9)]
    head = ["client", "class", "x"] if column == "client" else ["class", "client", "x"]
    write_csv(tmp_path / "v.csv", [head, *rows])
    with pytest.raises(InputError, match=part):
        open_dataset(str(tmp_path / "v.csv"), ways=1)


@pytest.mark.parametrize("public", [True, False])
def test_words_that_training_rows_write_are_for_their_clients_alone(public):
    rows = [
        SimpleNamespace(written=word, split=split) for word, split in (("training", "train"), ("validation", "val"))
    ]
    words = " ".join(part_words(rows, public=public))
    assert "validation is val" in words
    assert ("training" in words) == (not public)


@pytest.mark.parametrize("split", [True, False])
def test_people_may_be_called_as_parts_where_a_column_says_what_the_parts_are(tmp_path, split):
    lines = [
        [f"{PARTS[-1 - n % 3]}{n}", *([PARTS[n % 3]] if split else []), label, str(n + row)]
        for n in range(9) for label in "ab" for row in range(3)
    ]  # fmt: skip
    header = ["client", *(["split"] if split else []), "class", "x"]
    (tmp_path / "t.csv").write_text("\n".join(",".join(line) for line in [header, *lines]))
    if split:
        assert len({*open_dataset(str(tmp_path / "t.csv"), None, 2).train.clients}) == 3
    else:
        with pytest.raises(InputError, match="looks like the part"):
            open_dataset(str(tmp_path / "t.csv"), None, 2)
