"""Task files: built-in ones by name, files by path, and data of the user's own without one."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding, read_text
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, adapter_of, first_problem, nearest, read_yaml, shown
from dpfedmeta.data.encoders.encoding import Encoding
from dpfedmeta.data.missing import missing_of
from dpfedmeta.data.names import check_spellings
from dpfedmeta.data.parts import part_of
from dpfedmeta.data.sources import DrawnSource, PublishedReader, Source, published_reader
from dpfedmeta.data.storage.decoded_cache import SPLITS, Split
from dpfedmeta.data.storage.downloads import default_data_folder
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.user_sources.csv_table import not_a_part
from dpfedmeta.data.user_sources.readers import READERS, not_there, reader_name

TASK_ENDINGS = (".yaml", ".yml")


def task_names() -> list[str]:
    """Names of the built-in tasks."""
    files = resources.files("dpfedmeta.tasks").iterdir()
    return sorted(file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml"))


def load_task(
    name: str, data_folder: Path | None = None, encoding: Encoding | None = None
) -> tuple[Task, dict[str, Split]]:
    """A built-in task by name, a task file by path, or data of the user's own: a folder or a file.

    Args:
        name: As --dataset.
        data_folder: Where data are looked for that are not where they were; None: as in `open_dataset`.
        encoding: Public encoder of the images; None: none.

    Returns:
        The task, with the path of its data resolved, and its classes' splits (empty where no CSV file says them).

    Raises:
        InputError: Unknown, unreadable or wrong; says which key. Or the encoder is for images, and there are none.
    """
    try:
        task, splits = _loaded(name, data_folder)
    except OSError as error:  # too long a name, a folder that nobody may look into
        raise InputError(f"dataset = {shown(name)}: cannot be looked for ({error.strerror})") from None
    if encoding is None:
        return task, splits
    if task.form.kind != "images" or task.shared_classes is not None:
        what = "one classifier for all clients" if task.shared_classes else task.form.words
        raise InputError(
            f"model.encoder = {encoding.name}: it encodes few-shot images, and {name} has {what}; leave it out"
        )
    return replace(task, encoding=encoding), splits


def _loaded(name: str, data_folder: Path | None) -> tuple[Task, dict[str, Split]]:
    path = _where(name, data_folder)
    if name in task_names():
        folder = resources.files("dpfedmeta.tasks")
        where, text = f"tasks/{name}.yaml", (folder / f"{name}.yaml").read_text(encoding="utf-8")
    elif path.suffix.lower() in TASK_ENDINGS and path.is_file():
        where = str(path)
        try:
            text = read_text(path)
        except (OSError, WrongEncoding) as error:
            raise InputError(f"{where}: cannot be read ({error})") from error
    elif path.is_dir() or (path.suffix.lower() in (".csv", ".parquet", ".npz") and path.is_file()):
        return _own_task(path), {}
    elif path.is_absolute() and not path.exists():
        raise InputError(f"dataset = {name}: no such task; {not_there(name)}")
    else:
        known = ", ".join(task_names())
        if path.is_file():
            raise InputError(
                f"dataset = {name}: a file of a kind that is not read; give a task file (.yaml), a table with commas "
                "(.csv, .parquet), arrays (.npz), or a folder of images"
            )
        raise InputError(
            f"dataset = {name}: no such task{nearest(name, task_names())}; known are {known}, or the path of a task "
            "file (.yaml), of a folder of images, or of a .csv, .parquet or .npz file"
        )
    task = _beside(_parse(text, where), path.parent)
    if not isinstance(task.split, str):
        return task, {}
    beside = path.parent / task.split
    try:
        rows = (
            (resources.files("dpfedmeta.tasks") / task.split).read_text(encoding="utf-8")
            if name in task_names()
            else read_text(beside)
        )
    except (OSError, WrongEncoding) as error:
        raise InputError(f"{where}: split: cannot read {task.split} ({error})") from error
    return task, _read_split(rows, task.split)


def _where(name: str, data_folder: Path | None) -> Path:
    """Data that moved are looked for, by their own name, in the data folder."""
    path = Path(name)
    moved = (data_folder or default_data_folder()) / path.name
    return moved if path.is_absolute() and not path.exists() and moved.exists() else path


def _own_task(path: Path) -> Task:
    """Data without a task file take their form from the first record."""
    reader = reader_name(path)
    source = _source({"reader": reader, "path": str(path)}, str(path))
    content = {"name": path.resolve().stem or "folder", "source": source}
    task: Task = adapter_of(Task).validate_python(content | READERS[reader].guess(path))
    return task


def _beside(task: Task, folder: Path) -> Task:
    """A relative path in a task file starts where the file is."""
    if not isinstance(task.source, OwnSource):
        return task
    return replace(task, source=replace(task.source, path=str(folder / task.source.path)))


def _parse(text: str, where: str) -> Task:
    try:
        content: Any = read_yaml(text)
    except YAML_ERRORS as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    if isinstance(content, dict) and "encoding" in content:
        raise InputError(f"{where}: encoding: unknown; an encoder is a setting of a run: --model.encoder lite0")
    if isinstance(content, dict) and "labels" in content:
        content = {**content, "labels": _labels(content["labels"], where)}
    if isinstance(content, dict) and content.get("missing") is not None:
        content = {**content, "missing": missing_of(content["missing"], where)}
    if isinstance(content, dict) and isinstance(content.get("source"), dict):
        content = {**content, "source": _source(content["source"], where)}
    if isinstance(content, dict):
        _check_lists(content, where)
    try:
        task: Task = adapter_of(Task).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, Task)}") from error
    except InputError as error:  # of a range of numbers
        raise InputError(f"{where}: {error}") from error
    _check_split(task, where)
    _check_form(task, where)
    check_missing(task, where)
    check_labels(task, where)
    return task


def _check_lists(content: Mapping[str, Any], where: str) -> None:
    """Refuse one value where a list is expected, and say the list; YAML reads 0,5 as a text."""
    for key in ("mean", "deviation", "pixel_range"):
        given = content.get(key)
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            text = str(given)
            if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text):
                text = text.replace(",", ".")
            meant = "[0, 4095]" if key == "pixel_range" else f"[{text.strip()}]"
            raise InputError(
                f"{where}: {key}: expected a list, with a point in fractions, found {given!r}; write {key}: {meant}"
            )


def _labels(given: object, where: str) -> tuple[str, ...]:
    """Key `labels`: `own`, or a list of names; YAML reads 0 as a number, and no as false."""
    if given == "own":
        return ()
    if isinstance(given, list | tuple) and all(
        isinstance(name, str | int) and not isinstance(name, bool) for name in given
    ):
        return tuple(str(name) for name in given)
    if isinstance(given, str):
        names = [f'"{name}"' if name.lower() in _NO_TEXT else name for name in map(str.strip, given.split(","))]
        raise InputError(
            f"{where}: labels: expected own, or a list, found {given!r}; write labels: [{', '.join(names)}]"
        )
    raise InputError(
        f"{where}: labels: expected own, or a list of names that all clients share ([healthy, ill]), found {given!r}; "
        "put yes, no, on, off and true into quotes"
    )


# Unquoted, YAML reads these as true and false.
_NO_TEXT = ("yes", "no", "on", "off", "true", "false", "y", "n")
_LONGEST_LABEL = 200


def check_missing(task: Task, where: str) -> None:
    """Check that values that say that nothing was measured fit the data.

    Raises:
        InputError: They do not.
    """
    if task.missing is None:
        return
    if task.features is None or _reader(task) is not None:
        raise InputError(f"{where}: missing: only tables and arrays of your own have missing values; drop it")
    task.missing.check(where, task.features)


def check_labels(task: Task, where: str) -> None:
    """Check that the public list of labels, or the range of numbers, fits the data.

    Raises:
        InputError: It does not.
    """
    if not task.labels and task.targets is None:
        return
    key = "targets" if task.targets is not None else "labels"
    if task.labels and (len(set(task.labels)) != len(task.labels) or len(task.labels) < 2 or not all(task.labels)):
        found = shown(", ".join(task.labels))
        raise InputError(f"{where}: labels: expected two names or more, each once, found {found}")
    check_spellings(f"{where}: labels", [("label", name, f"number {n + 1}") for n, name in enumerate(task.labels)])
    if any(len(name) > _LONGEST_LABEL for name in task.labels):
        raise InputError(f"{where}: labels: expected at most {_LONGEST_LABEL} letters each")
    published = _reader(task)
    if task.shared_classes is not None or not (published is None or published.numbers):
        raise InputError(
            f"{where}: {key}: for data of your own that name clients; reader {task.source.reader} has none"
        )
    if task.train_rotations != 1:
        raise InputError(
            f"{where}: train_rotations: makes four classes of one, but labels are those of the list; drop it"
        )
    if task.targets is not None and task.features is None:
        raise InputError(f"{where}: targets: only vectors have numbers to predict; use reader vectors")


def _source(given: Mapping[str, Any], where: str) -> Source:
    """Section `source`, in the form of the reader that it names."""
    name = given.get("reader")
    if not isinstance(name, str):
        raise InputError(f"{where}: source.reader: missing" if name is None else f"{where}: source.reader: {name!r}")
    try:
        form = OwnSource if name in READERS else published_reader(name).form
    except InputError as error:
        raise InputError(f"{where}: {error}; or of data of your own: {', '.join(READERS)}") from error
    try:
        source: Source = adapter_of(form).validate_python(given)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, form, 'source.')}") from error
    return source


def _reader(task: Task) -> type[PublishedReader] | None:
    """The reader of published data; None: they are the user's own."""
    return None if isinstance(task.source, OwnSource) else published_reader(task.source.reader)


def _check_split(task: Task, where: str) -> None:
    reader, made = _reader(task), isinstance(task.source, DrawnSource)
    free = reader is None or reader.shared
    if made != isinstance(task.split, dict) or (isinstance(task.split, dict) and set(task.split) != set(SPLITS)):
        raise InputError(
            f"{where}: split: expected "
            + ("the number of classes for each of train, val, test" if made else "the name of a CSV file")
        )
    if task.split is None and not free:
        raise InputError(f"{where}: split: missing")
    if (task.shared_classes is not None) != (reader is not None and reader.shared):
        raise InputError(f"{where}: shared_classes: required with reader mnist, not allowed with other readers")


# What a task file must say of the records, by reader.
_FORMS = {"vectors": ("features",), "tokens": ("length", "vocabulary")}
_IMAGES = ("channels", "image_size")


def _check_form(task: Task, where: str) -> None:
    reader, published = task.source.reader, _reader(task)
    numbers = published is not None and published.numbers
    own = _FORMS["vectors"] if numbers else _FORMS.get(reader, _IMAGES)
    for key in (*_IMAGES, *_FORMS["vectors"], *_FORMS["tokens"]):
        if (getattr(task, key) is None) == (key in own):
            raise InputError(f"{where}: {key}: " + ("missing" if key in own else f"reader {reader} has none, drop it"))
    if task.pixel_range is not None:
        if reader not in ("folder", "manifest"):
            raise InputError(f"{where}: pixel_range: reader {reader} has none, drop it")
        if not task.pixel_range[0] < task.pixel_range[1]:
            raise InputError(f"{where}: pixel_range: expected [LOW, HIGH] with LOW < HIGH, got {[*task.pixel_range]}")
    if own is not _IMAGES:
        _check_numbers(task, where)
        return
    channels = (1, 3) if published is None else published.channels
    if task.channels not in channels:
        raise InputError(f"{where}: channels: {reader} has {channels[0]}, got {task.channels}")
    if task.images_per_class is None and published is not None and published.counted:
        raise InputError(f"{where}: images_per_class: missing")
    if any(len(values) not in (0, task.channels) for values in (task.mean, task.deviation)):
        raise InputError(f"{where}: mean and deviation: expected {task.channels} value(s) each, one per channel")
    beyond = [value for value in (*task.mean, *task.deviation) if not 0 <= value <= 1]
    if beyond:
        raise InputError(f"{where}: mean and deviation: expected values from 0 to 1, as pixels have, got {beyond[0]:g}")


def _check_numbers(task: Task, where: str) -> None:
    """Check that a task of vectors or tokens has no settings that apply to images only."""
    if task.train_rotations != 1 or task.train_flip:
        raise InputError(f"{where}: train_rotations, train_flip: only images can be rotated and mirrored; drop them")
    published = _reader(task)
    counted = published is not None and published.counted
    if counted != (task.images_per_class is not None):
        problem = "missing" if counted else f"reader {task.source.reader} has none, drop it"
        raise InputError(f"{where}: images_per_class: {problem}")
    count = 0 if task.features is None else task.features
    if any(len(values) not in (0, min(1, count), count) for values in (task.mean, task.deviation)):
        what = f"1 value for all numbers, or {count}" if count else "none, since tokens are not quantities"
        raise InputError(f"{where}: mean and deviation: expected {what}")


def _read_split(text: str, where: str) -> dict[str, Split]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        names, rows = reader.fieldnames, [*reader]
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}; is a quote missing?") from error
    if names != ["class", "split"]:
        raise InputError(f"{where}: the first line must be class,split, found {names}")
    splits: dict[str, Split] = {}
    for number, row in enumerate(rows, start=2):
        name, split = row["class"], part_of(row["split"] or "")
        if split is None:
            raise InputError(f"{where}, line {number}: {not_a_part(row['split'] or '')}")
        if name in splits:
            raise InputError(f"{where}, line {number}: class {name} occurs twice")
        splits[name] = split
    return splits
