"""What a decoded data set is known by: each thing that its images depend on, and each part of a task beside them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.data import dataset
from dpfedmeta.data.dataset import open_task
from dpfedmeta.data.sources import DrawnSource
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.federation.client import local_data
from dpfedmeta.federation.client.local_data import open_records


class Asked(Exception):
    """The key that a cache was asked for."""


def key_of(monkeypatch, module, opened):
    """The key, as text, that `opened` asks the cache of a module for."""

    def caught(folder, name, key, shape, contents):
        raise Asked(json.dumps(list(key)))

    monkeypatch.setattr(module, "cached", caught)
    with pytest.raises(Asked) as asked:
        opened()
    return str(asked.value)


DRAWN = Task(
    name="drawn", source=DrawnSource(reader="strokes", seed=1, variation=1.0), image_size=28, channels=1,
    split={"train": 4, "val": 2, "test": 2}, images_per_class=3, mean=(0.5,), deviation=(0.5,),
)  # fmt: skip
OTHER_DRAWN = {
    "seed": {"source": DrawnSource(reader="strokes", seed=2, variation=1.0)},
    "variation": {"source": DrawnSource(reader="strokes", seed=1, variation=0.5)},
    "what is drawn": {"source": DrawnSource(reader="textures", seed=1, variation=1.0), "channels": 3},
    "images of a class": {"images_per_class": 4},
    "size": {"image_size": 32},
    "another split of as many": {"split": {"train": 3, "val": 3, "test": 2}},
    "more classes": {"split": {"train": 5, "val": 2, "test": 2}},
}


@pytest.mark.parametrize("change", OTHER_DRAWN)
def test_drawn_images_are_known_by_all_that_they_depend_on(monkeypatch, change):
    before, after = (
        key_of(monkeypatch, dataset, lambda task=task: open_task(task, {}))
        for task in (DRAWN, replace(DRAWN, **OTHER_DRAWN[change]))
    )
    assert before != after


@pytest.fixture
def folder(tmp_path):
    numbers = np.random.default_rng(1)
    for name in ("a", "b", "c", "d"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(2):
            pixels = numbers.integers(0, 256, (28, 28), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{number}.png")
    return tmp_path / "own"


def own(folder, **changes):
    source = OwnSource(reader="folder", path=str(folder))
    usual = {"name": "own", "image_size": 28, "channels": 1, "mean": (0.5,), "deviation": (0.5,)}
    return Task(source=source, **usual | changes)


SPLITS = {"a": "train", "b": "train", "c": "val", "d": "test"}
OTHER_OWN = {
    "size": ({"image_size": 32}, SPLITS, None),
    "channels": ({"channels": 3, "mean": (0.5,) * 3, "deviation": (0.5,) * 3}, SPLITS, None),
    "range of pixels": ({"pixel_range": (0.0, 4095.0)}, SPLITS, None),
    "another split": ({}, {**SPLITS, "b": "test", "d": "train"}, None),
    "no split": ({}, {}, None),
    "ways": ({}, SPLITS, 2),
}


@pytest.mark.parametrize("change", OTHER_OWN)
def test_images_of_the_user_s_own_are_known_by_all_that_they_depend_on(monkeypatch, folder, change):
    fields, splits, ways = OTHER_OWN[change]
    before = key_of(monkeypatch, dataset, lambda: open_task(own(folder), SPLITS))
    assert key_of(monkeypatch, dataset, lambda: open_task(own(folder, **fields), splits, ways=ways)) != before
    assert key_of(monkeypatch, dataset, lambda: open_task(own(folder), SPLITS)) == before


def renamed(folder):
    (folder / "a" / "0.png").rename(folder / "a" / "2.png")


def moved(folder):
    (folder / "a" / "0.png").rename(folder / "b" / "2.png")


def replaced(folder):
    (folder / "a" / "0.png").write_bytes((folder / "b" / "0.png").read_bytes())


def removed(folder):
    (folder / "a" / "0.png").unlink()


@pytest.mark.parametrize("happens", [renamed, moved, replaced, removed])
def test_whatever_happens_to_a_folder_it_is_another_one(monkeypatch, folder, happens, tmp_path):
    def keys():
        return (
            key_of(monkeypatch, dataset, lambda: open_task(own(folder), SPLITS)),
            key_of(monkeypatch, local_data, lambda: open_records(folder, own(folder), (), tmp_path)),
        )

    before = keys()
    happens(folder)
    assert all(after != one for after, one in zip(keys(), before, strict=True))


@pytest.mark.parametrize("change", ["size", "channels", "range of pixels"])
def test_a_client_s_images_are_known_by_their_form(monkeypatch, folder, tmp_path, change):
    before, after = (
        key_of(monkeypatch, local_data, lambda task=task: open_records(folder, task, (), tmp_path))
        for task in (own(folder), own(folder, **OTHER_OWN[change][0]))
    )
    assert before != after
