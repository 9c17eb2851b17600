"""Task files: what is learned, as data."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from platformdirs import user_data_dir
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpfedmeta.data import omniglot, strokes
from dpfedmeta.data.archives import Archive, find, warn_if_unknown
from dpfedmeta.data.cache import cache_folder, cached_images, source_key
from dpfedmeta.data.pool import ClassPool, ImageArray
from dpfedmeta.errors import InputError
from dpfedmeta.validation import YAML_ERRORS, first_problem

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class OmniglotSource:
    """The published archives."""

    __pydantic_config__ = _STRICT
    reader: Literal["omniglot"]
    folder: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True, kw_only=True)
class StrokesSource:
    """Images made from a seed."""

    __pydantic_config__ = _STRICT
    reader: Literal["strokes"]
    seed: Annotated[int, Field(ge=0)]
    variation: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task file.

    Attributes:
        name: Name of the benchmark.
        source: Where images come from.
        split: A CSV file with the columns class,split beside the task file; or, for made images, the number
            of classes per split.
        image_size: Height and width.
        channels: 1 or 3.
        images_per_class: The same for every class.
        train_rotations: 4 makes every rotation by 90 degrees of a training class a further class.
    """

    __pydantic_config__ = _STRICT
    name: str
    source: Annotated[OmniglotSource | StrokesSource, Field(discriminator="reader")]
    split: str | dict[Split, Annotated[int, Field(ge=1)]]
    image_size: Annotated[int, Field(ge=8, le=512)]
    channels: Literal[1]
    images_per_class: Annotated[int, Field(ge=2)]
    train_rotations: Literal[1, 4] = 1


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A task with its images: one class pool per split, of disjoint classes."""

    task: Task
    train: ClassPool
    val: ClassPool
    test: ClassPool


def task_names() -> list[str]:
    """Names of the built-in tasks."""
    files = resources.files("dpfedmeta.tasks").iterdir()
    return sorted(file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml"))


def load_task(name: str) -> tuple[Task, dict[str, Split]]:
    """A built-in task by name, or a task file by path, with its classes' splits (empty for made images).

    Raises:
        InputError: Unknown, unreadable or wrong; says which key.
    """
    path = Path(name)
    if name in task_names():
        folder = resources.files("dpfedmeta.tasks")
        where, text = f"tasks/{name}.yaml", (folder / f"{name}.yaml").read_text(encoding="utf-8")
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where}: cannot be read ({error})") from error
    else:
        known = ", ".join(task_names())
        raise InputError(f"--dataset {name}: no such task; known are {known}, or the path of a task file (.yaml)")
    task = _parse(text, where)
    if isinstance(task.split, dict):
        return task, {}
    beside = path.parent / task.split
    try:
        rows = (
            (resources.files("dpfedmeta.tasks") / task.split).read_text(encoding="utf-8")
            if name in task_names()
            else beside.read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: split: cannot read {task.split} ({error})") from error
    return task, _read_split(rows, task.split)


def _parse(text: str, where: str) -> Task:
    try:
        content: Any = yaml.safe_load(text)
    except YAML_ERRORS as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    try:
        task: Task = TypeAdapter(Task).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, Task)}") from error
    made = isinstance(task.source, StrokesSource)
    if made != isinstance(task.split, dict) or (isinstance(task.split, dict) and set(task.split) != set(SPLITS)):
        raise InputError(
            f"{where}: split: expected "
            + ("the number of classes for each of train, val, test" if made else "the name of a CSV file")
        )
    return task


def _read_split(text: str, where: str) -> dict[str, Split]:
    reader = csv.DictReader(io.StringIO(text))
    if reader.fieldnames != ["class", "split"]:
        raise InputError(f"{where}: the first line must be class,split, found {reader.fieldnames}")
    splits: dict[str, Split] = {}
    for number, row in enumerate(reader, start=2):
        name, split = row["class"], row["split"]
        if split not in SPLITS:
            raise InputError(f"{where}, line {number}: split must be one of {', '.join(SPLITS)}, found {split!r}")
        if name in splits:
            raise InputError(f"{where}, line {number}: class {name} occurs twice")
        splits[name] = split
    return splits


def open_dataset(name: str, data_folder: Path | None = None) -> Dataset:
    """Load a task and its images, decoding or making them at the first use.

    Args:
        name: A built-in task or the path of a task file.
        data_folder: --data-dir; None takes DPFEDMETA_DATA, else the user's data folder.
    """
    task, splits = load_task(name)
    folder = data_folder or _default_data_folder()
    if isinstance(task.source, OmniglotSource):
        path = _omniglot_images(task, task.source, tuple(splits), folder)
        names = list(splits)
        of_split = [[i for i, n in enumerate(names) if splits[n] == split] for split in SPLITS]
    else:
        assert isinstance(task.split, dict)
        path = _stroke_images(task, task.source, sum(task.split.values()))
        names = [f"character{i:04d}" for i in range(sum(task.split.values()))]
        ends = np.cumsum([task.split[split] for split in SPLITS])
        of_split = [list(range(e - task.split[s], e)) for s, e in zip(SPLITS, ends.tolist(), strict=True)]
    pools = {
        split: ClassPool(
            path=path,
            names=tuple(names[i] for i in indices),
            first=tuple(i * task.images_per_class for i in indices),
            images_per_class=task.images_per_class,
            rotations=task.train_rotations if split == "train" else 1,
        )
        for split, indices in zip(SPLITS, of_split, strict=True)
    }
    return Dataset(task=task, train=pools["train"], val=pools["val"], test=pools["test"])


def _default_data_folder() -> Path:
    named = os.environ.get("DPFEDMETA_DATA")
    return Path(named) if named else Path(user_data_dir("dpfedmeta"))


def _omniglot_images(task: Task, source: OmniglotSource, names: tuple[str, ...], folder: Path) -> Path:
    paths = [find(archive, folder / source.folder) for archive in source.archives]

    def decode() -> ImageArray:
        images = omniglot.decode(paths, names, task.image_size, task.images_per_class)
        for path, archive in zip(paths, source.archives, strict=True):
            warn_if_unknown(path, archive)
        return images

    key = [*map(source_key, paths), list(names), task.image_size, task.images_per_class]
    return cached_images(cache_folder(folder), f"{task.name}-{task.image_size}", key, decode)


def _stroke_images(task: Task, source: StrokesSource, classes: int) -> Path:
    drawers, size = task.images_per_class, task.image_size

    def decode() -> ImageArray:
        return np.concatenate(
            [strokes.draw_character(source.seed, c, drawers, size, source.variation) for c in range(classes)]
        )

    key = [source.seed, source.variation, classes, drawers, size]
    return cached_images(cache_folder(None), f"{task.name}-{size}", key, decode)
