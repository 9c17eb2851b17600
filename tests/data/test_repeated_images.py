"""An image that is trained on and tested on is refused by training, not only named by check-task."""

import shutil

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.repeated_images import check_parts_apart, copies_words, different, repeats, words_of_copies
from tests.conftest import dpfedmeta


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for split, classes in (("train", 3), ("val", 2), ("test", 2)):
        for number in range(classes):
            inside = tmp_path / "mine" / split / f"{split[1]}{number}"
            inside.mkdir(parents=True)
            for image in range(12):
                Image.fromarray(generator.integers(0, 256, (28, 28), np.uint8)).save(inside / f"{image}.png")
    return tmp_path / "mine"


def opened(folder):
    return open_dataset(str(folder), None, 2)


@pytest.mark.parametrize("part", ["val", "test"])
def test_training_refuses_it_and_names_the_classes(folder, part):
    check_parts_apart(opened(folder))
    (place,) = sorted((folder / part).glob("*0"))
    shutil.copy(folder / "train" / "r1" / "0.png", place / "other.png")
    with pytest.raises(InputError, match=f"1 image.s. stand in two parts, first train/r1, {part}/{place.name}: "):
        check_parts_apart(opened(folder))
    words = ["--algo", "dp-agr", "--dataset", str(folder), "--ways", "2", "--shots", "2", "--task.queries", "2"]
    words += [
        "--evaluation.queries",
        "5",
        "--clients",
        "9",
        "--cohort",
        "3",
        "--rounds",
        "2",
        "--noise-multiplier",
        "1",
    ]
    told = dpfedmeta("train", *words, "--dry-run", code=2).error
    assert "stand in two parts" in told
    assert "dpfedmeta check-task" in told
    encoded = ["--model.encoder", "tests.data.encoders.tiny_encoder:tiny", "--model.encoder_size", "16"]
    encoded += ["--model.width", "4", "--run.dir", str(folder.parent / "runs")]
    assert "stand in two parts" in dpfedmeta("train", *words, *encoded, code=2).error


def test_blank_images_and_those_of_one_part_are_let_through(folder):
    shutil.copy(folder / "train" / "r1" / "0.png", folder / "train" / "r2" / "again.png")
    shutil.copy(next((folder / "val").rglob("*.png")), folder / "test" / "e1" / "other.png")
    for split, name in (("train", "r0"), ("test", "e0")):
        Image.fromarray(np.zeros((28, 28), np.uint8)).save(folder / split / name / "blank.png")
    dataset = opened(folder)
    check_parts_apart(dataset)
    assert repeats({"train": dataset.train, "val": dataset.val, "test": dataset.test})[0] == 3


def test_two_people_may_have_the_same_few_numbers(tmp_path):
    lines = [
        "client,split,class,a",
        *(f"p{s},{s},{c},{n}" for s in ("train", "val", "test") for c in "xy" for n in range(5)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    check_parts_apart(opened(tmp_path / "t.csv"))


# Copies in one part: in the support set and in the query set.


@pytest.mark.parametrize(("copies", "said"), [(0, False), (1, False), (2, True), (50, True)])
def test_one_copy_in_fifty_is_said(copies, said):
    words = words_of_copies(100, 100 - copies)
    assert bool(words) == said
    if said:
        assert words.startswith(f"{copies} of 100 records are copies of others of their class ({100 - copies} are")


def test_records_are_different_where_one_number_is():
    block = np.zeros((4, 3), dtype=np.float32)
    block[1, 2] = 1e-30
    assert different(block) == 2


def table(path, rows):
    lines = ["class,split,a,b", *(f"{split[1]}{c},{split},{a},{b}" for split, c, a, b in rows)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("part", ["val", "test", "train"])
def test_copies_of_public_rows_are_told_and_those_of_clients_are_not(tmp_path, part):
    draw = np.random.default_rng(0)
    rows = [(s, c, *draw.normal(size=2)) for s in ("train", "val", "test") for c in range(2) for _ in range(6)]
    dataset = opened(table(tmp_path / "once.csv", rows))
    assert copies_words(dataset, "val", "test") == ()
    dataset = opened(table(tmp_path / "t.csv", rows + [row for row in rows if row[0] == part] * 2))
    said = copies_words(dataset, "val", "test")
    assert said == (() if part == "train" else (f"t: {part}: {words_of_copies(36, 12)}",))


def test_the_same_numbers_in_two_classes_are_no_copies(tmp_path):
    rows = [
        (s, c, a, ("train", "val", "test").index(s))
        for s in ("train", "val", "test")
        for c in range(2)
        for a in range(6)
    ]
    assert copies_words(opened(table(tmp_path / "t.csv", rows)), "val", "test") == ()


def test_training_evaluation_and_people_are_told_of_copies(tmp_path):
    draw = np.random.default_rng(0)
    rows = [(s, c, *draw.normal(size=2)) for s in ("train", "val", "test") for c in range(2) for _ in range(3)]
    table(tmp_path / "t.csv", rows * 4)
    words = ("--ways", "2", "--shots", "2", "--task.queries", "2", "--rounds", "1", "--clients", "9", "--cohort", "3")
    words += ("--evaluation.episodes", "2", "--evaluation.queries", "2", "--model.width", "4", "--run.workers", "1")
    done = dpfedmeta("train", "--algo", "maml", "--dataset", "t.csv", *words, "--run.name", "r", folder=tmp_path)
    assert all(f"t: {part}: 18 of 24 records are copies" in flat(done) for part in ("val", "test"))
    done = dpfedmeta("evaluate", "runs/r", "--episodes", "2", "--no-fine-tuning", folder=tmp_path)
    assert "t: test: 18 of 24 records are copies" in flat(done)
    done = dpfedmeta("evaluate", "runs/r", "--on", "t.csv", "--repeats", "2", folder=tmp_path)
    assert "36 of 48 records are copies" in flat(done)


def flat(done):
    return " ".join((done.out + done.err).split())
