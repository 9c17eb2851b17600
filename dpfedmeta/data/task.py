"""Task files: what is learned, as data."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpfedmeta.data.archives import Archive
from dpfedmeta.data.contents import SPLITS, Split
from dpfedmeta.data.sources.image_folder import folder_form
from dpfedmeta.errors import InputError
from dpfedmeta.validation import YAML_ERRORS, first_problem, nearest, read_yaml

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class ArchiveSource:
    """Published archives: all of Omniglot's, or the first that is there of several forms of the others."""

    __pydantic_config__ = _STRICT
    reader: Literal["omniglot", "cifar100", "mini-imagenet"]
    folder: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Folders of images, a folder for each class, perhaps in folders train, val and test."""

    __pydantic_config__ = _STRICT
    reader: Literal["folder"]
    path: str


@dataclass(frozen=True, kw_only=True)
class DrawnSource:
    """Images made from a seed; `variation` is how much those of a class differ."""

    __pydantic_config__ = _STRICT
    reader: Literal["strokes", "textures"]
    seed: Annotated[int, Field(ge=0)]
    variation: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class MnistSource:
    """The four published files; the split is one of images, not of classes."""

    __pydantic_config__ = _STRICT
    reader: Literal["mnist"]


def source_name(source: ArchiveSource | FolderSource | MnistSource | DrawnSource) -> str:
    """Where images come from: the same for every path to a folder, and for every choice out of published images."""
    if isinstance(source, FolderSource):
        return f"folder {Path(source.path).resolve()}"
    if isinstance(source, DrawnSource):
        return f"{source.reader} {source.seed} {source.variation}"
    return source.reader


_Mean = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Deviation = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task file.

    Attributes:
        name: Name of the benchmark.
        source: Where images come from.
        split: A CSV file with the columns class,split beside the task file; or, for made images, the number
            of classes per split; or, for a folder, nothing: the folders train, val and test, or a hash of the name.
        image_size: Height and width.
        channels: 1 or 3.
        images_per_class: The same for every class; None: as many as there are.
        train_rotations: 4 makes every rotation by 90 degrees of a training class a further class.
        train_flip: Whether training images are mirrored at random.
        mean: Per channel, of pixels in [0, 1]; taken off. A constant, whatever the images.
        deviation: Per channel; divided by.
        shared_classes: How many classes all splits and all clients share: one classifier for all is learned from
            clients of two shards. None: few-shot, every split has classes of its own.
    """

    __pydantic_config__ = _STRICT
    name: str
    source: Annotated[ArchiveSource | FolderSource | MnistSource | DrawnSource, Field(discriminator="reader")]
    split: str | dict[Split, Annotated[int, Field(ge=1)]] | None = None
    image_size: Annotated[int, Field(ge=8, le=512)]
    channels: Literal[1, 3]
    images_per_class: Annotated[int, Field(ge=2)] | None = None
    train_rotations: Literal[1, 4] = 1
    train_flip: bool = False
    mean: tuple[_Mean, ...] = ()
    deviation: tuple[_Deviation, ...] = ()
    shared_classes: Annotated[int, Field(ge=2)] | None = None


def task_names() -> list[str]:
    """Names of the built-in tasks."""
    files = resources.files("dpfedmeta.tasks").iterdir()
    return sorted(file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml"))


def load_task(name: str) -> tuple[Task, dict[str, Split]]:
    """A built-in task by name, a task file by path, or a folder of images.

    Returns:
        The task, with the path of its folder resolved, and its classes' splits (empty where no CSV file says them).

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
    elif path.is_dir():
        return _folder_task(path), {}
    else:
        known = ", ".join(task_names())
        raise InputError(
            f"dataset = {name}: no such task{nearest(name, task_names())}; known are {known}, or the path of a task "
            "file (.yaml) or of a folder of images"
        )
    task = _beside(_parse(text, where), path.parent)
    if not isinstance(task.split, str):
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


def _folder_task(path: Path) -> Task:
    """A folder of images without a task file takes form and size from the headers of its images."""
    form = folder_form(path)
    return Task(
        name=path.resolve().name or "folder",
        source=FolderSource(reader="folder", path=str(path)),
        image_size=form.size,
        channels=1 if form.channels == 1 else 3,
    )


def _beside(task: Task, folder: Path) -> Task:
    """A relative path in a task file starts where the file is."""
    if not isinstance(task.source, FolderSource):
        return task
    source = FolderSource(reader="folder", path=str(folder / task.source.path))
    return Task(**{**vars(task), "source": source})


def _parse(text: str, where: str) -> Task:
    try:
        content: Any = read_yaml(text)
    except YAML_ERRORS as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    try:
        task: Task = TypeAdapter(Task).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, Task)}") from error
    _check_split(task, where)
    _check_form(task, where)
    return task


def _check_split(task: Task, where: str) -> None:
    made, free = isinstance(task.source, DrawnSource), isinstance(task.source, FolderSource | MnistSource)
    if made != isinstance(task.split, dict) or (isinstance(task.split, dict) and set(task.split) != set(SPLITS)):
        raise InputError(
            f"{where}: split: expected "
            + ("the number of classes for each of train, val, test" if made else "the name of a CSV file")
        )
    if task.split is None and not free:
        raise InputError(f"{where}: split: missing")
    if (task.shared_classes is not None) != isinstance(task.source, MnistSource):
        raise InputError(f"{where}: shared_classes: expected with reader mnist, and only there")


# Of those that do not take both.
_CHANNELS = {
    "strokes": (1,),
    "textures": (3,),
    "omniglot": (1,),
    "mnist": (1,),
    "cifar100": (3,),
    "mini-imagenet": (3,),
}


def _check_form(task: Task, where: str) -> None:
    reader = task.source.reader
    channels = _CHANNELS.get(reader, (1, 3))
    if task.channels not in channels:
        raise InputError(f"{where}: channels: {reader} has {channels[0]}, got {task.channels}")
    if task.images_per_class is None and reader in ("strokes", "textures", "omniglot", "cifar100"):
        raise InputError(f"{where}: images_per_class: missing")
    if any(len(values) not in (0, task.channels) for values in (task.mean, task.deviation)):
        raise InputError(f"{where}: mean and deviation: expected {task.channels} value(s) each, one per channel")


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
