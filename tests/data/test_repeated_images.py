"""An image that is trained on and tested on is refused by training, not only named by check-task."""

import shutil

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.repeated_images import check_parts_apart, repeats
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
