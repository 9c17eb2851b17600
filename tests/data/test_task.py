import copy
import csv
from collections import Counter
from importlib import resources

import pytest
import yaml

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.sources import DrawnSource
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task, task_names

STROKES = {
    "name": "mine",
    "source": {"reader": "strokes", "seed": 1, "variation": 1.0},
    "split": {"train": 3, "val": 2, "test": 2},
    "image_size": 8,
    "channels": 1,
    "images_per_class": 4,
}
ARCHIVE = {"file": "a.zip", "digests": ["md5:00"]}
OMNIGLOT = STROKES | {
    "source": {"reader": "omniglot", "folder": "omniglot", "archives": [ARCHIVE]},
    "split": "split.csv",
}


def write(folder, content, rows=None):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    if rows is not None:
        (folder / "split.csv").write_text(rows)
    return str(path)


def changed(content, section=None, **values):
    changes = copy.deepcopy(content)
    (changes[section] if section else changes).update(values)
    return changes


def refusal(name):
    with pytest.raises(InputError) as caught:
        load_task(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", task_names())
def test_every_built_in_task_loads(name):
    task, splits = load_task(name)
    assert task.name == name
    assert bool(splits) == isinstance(task.split, str)


def test_there_are_built_in_tasks():
    assert {"omniglot", "strokes", "cifar-fs", "fc100", "mini-imagenet"} <= set(task_names())


@pytest.mark.parametrize(
    ("name", "counts"), [("cifar-fs", (64, 16, 20)), ("fc100", (60, 20, 20)), ("mini-imagenet", (64, 16, 20))]
)
def test_the_published_splits_are_disjoint_and_complete(name, counts):
    task, splits = load_task(name)
    assert Counter(splits.values()) == dict(zip(("train", "val", "test"), counts, strict=True))
    assert len(splits) == 100
    assert task.channels == len(task.mean) == len(task.deviation) == 3
    assert task.train_rotations == 1


def test_the_omniglot_split_is_disjoint_and_complete():
    _, splits = load_task("omniglot")
    assert Counter(splits.values()) == {"train": 1150, "val": 50, "test": 423}
    rows = csv.DictReader((resources.files("dpfedmeta.tasks") / "omniglot-split.csv").read_text().splitlines())
    assert sum(1 for _ in rows) == len(splits) == 1623


def test_a_task_of_ones_own(tmp_path):
    dataset = open_dataset(write(tmp_path, STROKES))
    assert [dataset.train.classes, dataset.val.classes, dataset.test.classes] == [3, 2, 2]
    assert dataset.train.rotations == 1
    assert dataset.train.images.shape == (28, 1, 8, 8)


def test_a_split_beside_the_task_file(tmp_path):
    _, splits = load_task(write(tmp_path, OMNIGLOT, "class,split\na/b,train\nc/d,test\n"))
    assert splits == {"a/b": "train", "c/d": "test"}


@pytest.mark.parametrize(
    ("content", "key", "meant"),
    [
        (changed(STROKES, chanels=1), "chanels", "channels"),
        (changed(STROKES, train_rotation=4), "train_rotation", "train_rotations"),
        (changed(STROKES, "source", variaton=1), "variaton", "variation"),
        (changed(OMNIGLOT, "source", archves=[]), "archves", "archives"),
        (changed(OMNIGLOT, "source", archives=[ARCHIVE | {"uri": "x"}]), "uri", "url"),
    ],
)
def test_a_typo_in_a_key_names_the_nearest_key(tmp_path, content, key, meant):
    message = refusal(write(tmp_path, content))
    assert f"{key}: unknown key; did you mean {meant}?" in message
    assert "mine.yaml" in message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (changed(STROKES, image_size="big"), ("image_size", "whole number", "'big'")),
        (changed(STROKES, image_size=4), ("image_size", "8")),
        (changed(STROKES, images_per_class=1), ("images_per_class", "2")),
        (changed(STROKES, images_per_class=2.5), ("images_per_class", "whole number")),
        (changed(STROKES, channels=7), ("channels", "7")),
        (changed(STROKES, train_rotations=2), ("train_rotations", "2")),
        (changed(STROKES, "source", variation=float("nan")), ("source", "variation", "finite")),
        (changed(STROKES, "source", seed=-1), ("source", "seed", "-1")),
        (changed(STROKES, "source", reader="omniglott"), ("source", "reader", "omniglott")),
        (changed(STROKES, source="strokes"), ("source", "strokes")),
        (changed(STROKES, "split", val=0), ("split.val", "1, got 0")),
        (changed(STROKES, "split", vall=3), ("split.vall", "'vall'")),
        (changed(STROKES, split={"train": 3, "test": 2}), ("split", "each of train, val, test")),
        (changed(STROKES, split="split.csv"), ("split", "each of train, val, test")),
        (changed(OMNIGLOT, split=STROKES["split"]), ("split", "CSV")),
        (changed(OMNIGLOT, split=None), ("split", "missing")),
        (changed(STROKES, channels=3), ("channels", "strokes has 1, got 3")),
        (changed(OMNIGLOT, "source", reader="cifar100"), ("channels", "cifar100 has 3, got 1")),
        (changed(STROKES, images_per_class=None), ("images_per_class: missing",)),
        (changed(STROKES, mean=[0.5, 0.5]), ("mean", "1 value")),
        (changed(STROKES, deviation=[0.0]), ("deviation", "greater than 0")),
        ({k: v for k, v in STROKES.items() if k != "name"}, ("name: missing",)),
        (changed(STROKES, mean=0.5), ("mean: expected a list", "write mean: [0.5]")),
        (changed(STROKES, deviation="0,25"), ("deviation: expected a list", "'0,25'", "write deviation: [0.25]")),
        (changed(STROKES, labels="no, well"), ("labels: expected own, or a list", 'write labels: ["no", well]')),
        (
            changed(STROKES, labels=["no", "No"]),
            ("labels: 1 name(s) in two spellings: label 'no' (number 1) and 'No'",),
        ),
        (["a list"], ("names and values", "a list")),
        (None, ("names and values", "None")),
    ],
)
def test_wrong_values_name_the_key_and_the_value(tmp_path, content, parts):
    message = refusal(write(tmp_path, content))
    assert message.startswith(str(tmp_path / "mine.yaml"))
    assert all(part in message for part in parts), message


def test_an_unknown_name_lists_the_known_ones():
    message = refusal("omniglott")
    assert all(name in message for name in ("omniglott", *task_names()))


def test_a_task_file_that_is_absent(tmp_path):
    assert "no such task" in refusal(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(("raw", "reason"), [(b"name: [", "not valid YAML"), (b"\xff\xfe\x00", "cannot be read")])
def test_a_file_that_is_no_yaml(tmp_path, raw, reason):
    (tmp_path / "mine.yaml").write_bytes(raw)
    assert reason in refusal(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("again", ["train", "test"])
def test_a_class_in_the_split_twice_is_refused_with_its_line(tmp_path, again):
    message = refusal(write(tmp_path, OMNIGLOT, f"class,split\na/b,train\nc/d,test\na/b,{again}\n"))
    assert "split.csv, line 4: class a/b occurs twice" in message


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("class,split\na/b,trian\n", "line 2: split must be one of train, val, test, found 'trian'"),
        ("class,split\na/b\n", "line 2: split must be one of"),
        ("name,part\na/b,train\n", "the first line must be class,split"),
        ("", "the first line must be class,split"),
        pytest.param(f'class,split\na/b,train\n"{"c" * 140_000}', "field larger than field limit (131072)", id="quote"),
    ],
)
def test_a_wrong_split_file_names_the_line(tmp_path, rows, reason):
    assert reason in refusal(write(tmp_path, OMNIGLOT, rows))


def test_a_split_file_that_is_absent_or_binary(tmp_path):
    name = write(tmp_path, OMNIGLOT)
    assert "cannot read split.csv" in refusal(name)
    (tmp_path / "split.csv").write_bytes(b"class,split\n\xff\xfe,train\n")
    assert "cannot read split.csv" in refusal(name)


def test_a_folder_has_one_name_by_whatever_path(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / "real", tmp_path / "link", "real", "./link", tmp_path / "link" / ".." / "real"]
    named = {OwnSource(reader="folder", path=str(path)).name for path in paths}
    assert named == {f"folder {(tmp_path / 'real').resolve()}"}
    assert OwnSource(reader="folder", path=str(tmp_path)).name not in named
    # Two choices of the same published images; two seeds of a generator.
    cifar, fc = (load_task(name)[0].source for name in ("cifar-fs", "fc100"))
    assert cifar.name == fc.name != load_task("omniglot")[0].source.name
    seeds = [DrawnSource(reader="strokes", seed=seed, variation=1.0).name for seed in (1, 2)]
    assert seeds[0] != seeds[1]
