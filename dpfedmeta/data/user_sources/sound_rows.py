"""Rows of one real client, each judged alone by the limits of the readers: a wrong one takes no other with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, reasons
from dpfedmeta.data.episodes.class_pool import FloatRecords, ImageArray
from dpfedmeta.data.missing import is_missing, look_for_missing, names_of, number_of
from dpfedmeta.data.names import same_class
from dpfedmeta.data.parts import part_of
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources import folder, manifest, tokens
from dpfedmeta.data.user_sources.csv_table import Cell, Row, check_labels, single_lines, table_of
from dpfedmeta.data.user_sources.image_files import other_images
from dpfedmeta.data.user_sources.image_folder import content_digest, decoded_all, read_image
from dpfedmeta.data.user_sources.labels import labelled
from dpfedmeta.data.user_sources.npz_arrays import arrays_of, rows_of
from dpfedmeta.data.user_sources.readers import IMAGE_READERS, columns_in, reader_name
from dpfedmeta.data.user_sources.vectors import (
    all_numbers,
    check_form,
    check_numbers,
    check_scale,
    in_order,
    without_missing,
)

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

Judge = Callable[[Any], tuple[Sequence[Row], Sequence[Any]]]
"""Reads some rows; an InputError says that one of them at least is wrong, whatever the others are."""
_TRAINS = ("", "train")
# Of pixels of any width, where the task is not known that says what is black and white.
_WIDEST = (0.0, 65535.0)
_TOGETHER = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundRows:
    """SECRET: the rows that a real client takes part with, and what is wrong with those that it leaves out.

    Attributes:
        path: The data.
        rows: Class of each; those of the train part, or of no part.
        values: Numbers of each; of an image (file, SHA-256).
        unsound: Of each row that is left out, where it is and why.
        doubtful: Likewise of those that only a plan takes that calls what stands there missing; under a plan, none.

    Guarantee:
        Whether a row is sound follows from it alone, from the form of the file (its columns, its arrays) and from
        public constants of the task. So all others are read alike with it and without it.
    """

    path: Path
    rows: tuple[Row, ...]
    values: Sequence[Any]
    unsound: tuple[str, ...]
    doubtful: tuple[str, ...] = ()

    def digests(self) -> list[tuple[str, str]]:
        """(class, SHA-256) of each row, class by class."""
        return [(self.rows[number].label, self._digest(number)) for number in self._ordered()]

    def contents(self, task: Task) -> Contents:
        """The records as a task has them; images that do not decode are no part of them."""
        if task.form.kind != "images":
            return labelled(str(self.path), _contents(self.rows, self.values, task), task.labels, task.targets)
        channels, size, _ = task.form.shape
        sound = self._decoding(channels, size, task.pixel_range)
        files = [file for file, _ in (sound.values[number] for number in sound._ordered())]

        def decode() -> Iterator[ImageArray]:
            yield from decoded_all(str(self.path), files, channels, size, task.pixel_range)

        return Contents(classes=tuple(cell.entry for cell in own_cells(sound.rows)), decode=decode)

    def looked_at(self) -> SoundRows:
        """Those with a class that needs no list of a plan's; of images those that decode in any form."""
        numbers = [number for number, row in enumerate(self.rows) if row.target is None]
        if not numbers:
            return self
        names = [] if isinstance(self.values[0], tuple) else self.names()

        def judge(units: Sequence[int]) -> tuple[Sequence[Row], Sequence[Any]]:
            rows = [self.rows[number] for number in units]
            _check_alone(self.path, rows)
            values = [self.values[number] for number in units]
            if names:
                check_numbers(self.path, rows, all_numbers(self.path, rows, names, values))
            return rows, values

        named = _sifted(self.path, [numbers], judge, self.unsound)
        return named._decoding(3, None, _WIDEST) if isinstance(named.values[0], tuple) else named

    def names(self) -> list[str]:
        """Names of a vector's columns; of tokens and images none."""
        reader = reader_name(self.path)
        return names_of(columns_in(reader, self.path), len(self.values[0])) if reader == "vectors" else []

    def _decoding(self, channels: int, size: int | None, pixel_range: PixelRange | None) -> SoundRows:
        def judge(units: Sequence[int]) -> tuple[Sequence[Row], Sequence[Any]]:
            for number in units:
                read_image(self.values[number][0], channels, size, pixel_range)
            return [self.rows[number] for number in units], [self.values[number] for number in units]

        return _sifted(self.path, [[number] for number in range(len(self.rows))], judge, self.unsound)

    def _ordered(self) -> list[int]:
        return [number for cell in own_cells(self.rows) for number in cell.rows]

    def _digest(self, number: int) -> str:
        value = self.values[number]
        return str(value[1]) if isinstance(value, tuple) else _digest(self.rows[number].label, value)


def sound_rows(path: Path, reader: str, task: Task | None = None, columns: Sequence[str] = ()) -> SoundRows:
    """SECRET: the rows that a real client takes part with. No image is decoded.

    Args:
        path: A folder CLASS/IMAGE, or train/CLASS/IMAGE beside val and test, of which train alone is used; a list of
            images; or a table.
        reader: Of the path.
        task: Public constants that each row must keep to; None: any plan's.
        columns: Names of a vector's numbers in their order, from the plan; empty: their order is trusted.

    Raises:
        InputError: There is no such file or folder, it has other columns or arrays, or no row is sound.
    """
    if not path.exists():
        raise InputError(f"{path}: not there; --data names a folder of images, or a .csv, .parquet or .npz file")
    if reader in IMAGE_READERS:
        units, odd = _images(path, reader)

        def judge(units: Any) -> tuple[Sequence[Row], Sequence[Any]]:
            rows = [row for row, _ in units]
            _check_classes(path, rows, task)
            return rows, [(file, content_digest(file)) for _, file in units]

        return _sifted(path, [[unit] for unit in units], judge, odd)
    if path.suffix.lower() == ".npz":
        what = "numbers" if task is None else reader
        held = arrays_of(path, what)

        def judge_places(places: range) -> tuple[Sequence[Row], Sequence[Any]]:
            some = {name: array[places.start : places.stop] for name, array in held.items()}
            rows, records = rows_of(path, what, some, places.start)
            if task is None:
                return rows, _with_a_number(path, rows, records.tolist(), columns)
            if task.form.kind == "vectors":
                records = without_missing(path, task.form, rows, records, columns)
            return _of_task(path, rows, records, task)

        found = _sifted(path, [range(len(held["records"]))], judge_places, ())
        return found if task else _with_doubts(found)
    names, lines, wrong = single_lines(path)
    column = tokens.COLUMN if reader == "tokens" else None
    in_order(path, table_of(path, names, (), column), columns if column is None else ())

    def judge_lines(lines: Any) -> tuple[Sequence[Row], Sequence[Any]]:
        table = table_of(path, names, lines, column)
        if task is None:
            written = [_numbers_of(row) if column is None else tokens.words_of(row) for row in table.rows]
            return table.rows, written if column else _with_a_number(path, table.rows, written, table.columns)
        if column is None:
            return _of_task(path, *in_order(path, table, columns, task.form.missing), task)
        _check_classes(path, table.rows, task)
        return tokens.of_table(path, table, task.form)

    found = _sifted(path, [lines], judge_lines, wrong)
    return found if task or column else _with_doubts(found)


def own_digests(path: Path) -> list[tuple[str, str]]:
    """SECRET: (class, SHA-256) of each record that a real client may take part with, under whatever plan.

    It needs no PyTorch, so what is wrong with all of them is said at once.

    Raises:
        InputError: There are none, or they cannot be read.
    """
    return any_rows(path).digests()


def spelled_digests(path: Path) -> list[str]:
    """SECRET: SHA-256 of each record of a table however class and numbers are written, and its columns ordered.

    Of images there are none.

    Raises:
        InputError: They cannot be read.
    """
    reader = reader_name(path)
    if reader in IMAGE_READERS:
        return []
    found, names = any_rows(path), columns_in(reader, path)
    said = _spelled(found.rows, found.values)
    if not names:
        return said
    order = sorted(range(len(names)), key=names.__getitem__)
    # What stands behind the features is no column of theirs.
    turned = [[*(values[place] for place in order), *values[len(names) :]] for values in found.values]
    return [*said, *_spelled(found.rows, turned, sorted(names))]


def pixel_digests(path: Path) -> list[str]:
    """SHA-256 of the pixels of each image, however its file was written; of tables there are none.

    Whoever saves images again, as another format or with another date in the header, has the same records. Images of
    one colour are left out: they are equal without being the same.

    Raises:
        InputError: They cannot be read.
    """
    if reader_name(path) not in IMAGE_READERS:
        return []
    found = list[str]()
    for file, _ in any_rows(path).values:
        try:
            pixels = read_image(file, 3, None, _WIDEST)
        except InputError:
            continue
        if pixels.min() < pixels.max():
            found.append(hashlib.sha256(f"{pixels.shape}\n".encode() + pixels.tobytes()).hexdigest())
    return found


def own_cells(rows: Sequence[Row]) -> tuple[Cell, ...]:
    """The records that one client takes part with, by class; all are its own, whatever name stands beside them.

    Args:
        rows: Where each record belongs.

    Guarantee:
        No record decides over another one: names of clients are not looked at, and each spelling is a class.
    """
    by_class: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_class.setdefault(row.label, []).append(number)
    return tuple(
        Cell(entry=ClassEntry(name=label, split="train", images=len(numbers)), rows=tuple(numbers))
        for label, numbers in sorted(by_class.items())
    )


def unsound_words(found: SoundRows, lost: int = 0) -> str | None:
    """SECRET: which rows are left out, for their owner alone; None: all are sound.

    Args:
        found: The rows.
        lost: How many of them are none after all.
    """
    if found.doubtful:
        own = unsound_words(replace(found, doubtful=()), lost)
        doubts = (
            f"{len(found.doubtful)} row(s) hold what is no number, and are left out unless a plan says that it is "
            f"missing: {reasons(found.doubtful)}"
        )
        return f"{own}; {doubts}" if own else f"{found.path}: {doubts}"
    if not found.unsound and not lost:
        return None
    why = [*found.unsound, *([f"{lost} images do not decode (check-task --client says which)"] if lost else [])]
    count = len(found.unsound) + lost
    return f"{found.path}: {count} row(s) are wrong and left out; the others take part: {reasons(why)}"


def any_rows(path: Path) -> SoundRows:
    """SECRET: the rows that a real client may take part with, under whatever plan.

    Raises:
        InputError: As of `sound_rows`.
    """
    if not path.exists():
        raise InputError(f"{path}: not there; --data names a folder of images, or a .csv, .parquet or .npz file")
    return sound_rows(path, reader_name(path))


def _sifted(path: Path, blocks: Sequence[Any], judge: Judge, wrong: Sequence[str]) -> SoundRows:
    """The sound rows of blocks. Some are read together, for speed; where one of them is wrong, each by itself."""
    rows, values, unsound = list[Row](), list[Any](), list(wrong)

    def sift(units: Any) -> None:
        try:
            of_units, found = judge(units)
        except (InputError, ValueError, ArithmeticError) as error:
            if len(units) == 1:
                unsound.append(str(error).removeprefix(f"{path}: "))
                return
            for place in range(len(units)):
                sift(units[place : place + 1])
        else:
            rows.extend(of_units)
            values.extend(found)

    for block in blocks:
        for start in range(0, len(block), _TOGETHER):
            sift(block[start : start + _TOGETHER])
    kept = [number for number, row in enumerate(rows) if row.split in _TRAINS]
    if not kept:
        if path.is_dir():
            folder.own_folders(path)
        why = f": {reasons(unsound)}" if unsound else ""
        raise InputError(f"{path}: has no sound record in its train part{why}")
    return SoundRows(
        path=path,
        rows=tuple(rows[number] for number in kept),
        values=[values[number] for number in kept],
        unsound=tuple(unsound),
    )


def _of_task(path: Path, rows: tuple[Row, ...], records: Any, task: Task) -> tuple[Sequence[Row], Sequence[Any]]:
    """The same, if each row is of the task."""
    check_numbers(path, rows, records)
    if not rows:
        return rows, records
    _check_classes(path, rows, task)
    if task.form.kind == "tokens":
        return tokens.of_arrays(path, rows, records, task.form)
    check_form(path, task.form, rows, records)
    found = _contents(rows, records, task)
    check_scale(str(path), found, *task.constants, targets=task.form.targets, smallest=0.0)
    labelled(str(path), found, task.labels, task.targets)
    return rows, records


def _check_classes(path: Path, rows: Sequence[Row], task: Task | None) -> None:
    """Refuse classes that a task does not list, or, where it lists none, that cannot be one; each by itself."""
    if task is None or task.targets is not None:
        return
    if not task.labels:
        _check_alone(path, rows)
    odd = [f"{row.place}: class {row.label!r}" for row in rows if task.labels and row.label not in task.labels]
    if odd:
        raise InputError(f"{path}: {listed(odd)}: outside the task's public list ({', '.join(task.labels)})")


def _check_alone(path: Path, rows: Sequence[Row]) -> None:
    for row in {row.label: row for row in rows}.values():
        check_labels(str(path), [Row(place=row.place, label=row.label, client="", split="")])


def _contents(rows: Sequence[Row], values: Sequence[Any], task: Task) -> Contents:
    records = np.asarray(values)
    made = own_cells(rows)

    def decode() -> Iterator[FloatRecords]:
        for cell in made:
            # Numbers to predict are rounded once they are scaled, and not before (user_sources.labels).
            yield records[list(cell.rows)].astype(np.float64 if task.form.targets else np.float32)

    return Contents(classes=tuple(cell.entry for cell in made), decode=decode)


def _images(path: Path, reader: str) -> tuple[list[tuple[Row, Path]], list[str]]:
    """(row, file) of images, and what is wrong with those that are none."""
    if reader == "folder":
        found = folder.own_files(path)
        others = other_images(path, [file for _, file in found])
        named = [(file.relative_to(path), why) for file, why in others]
        return found, [f"{name}: {why}" for name, why in named if part_of(name.parts[0]) in (None, "train")]
    names, lines, wrong = single_lines(path)
    table_of(path, names, (), manifest.COLUMN)
    units, problems = list[tuple[Row, Path]](), list(wrong)
    for line in lines:
        try:
            (row,) = table_of(path, names, [line], manifest.COLUMN).rows
            file, problem = manifest.file_of(path, row)
        except InputError as error:
            problem = str(error).removeprefix(f"{path}: ")
        if problem:
            problems.append(problem)
        else:
            units.append((row, file))
    return units, problems


def _spelled(rows: Sequence[Row], records: Sequence[Any], columns: Sequence[str] = ()) -> list[str]:
    """SHA-256 of each record of a table by one spelling of its class and of 0, which may be written -0.

    Args:
        rows: Where each record belongs.
        records: The numbers of each.
        columns: Their names, in the order of the numbers; empty: these are not looked at.
    """
    return [
        _digest(
            "\n".join([same_class(row.label), *columns]),
            [value if isinstance(value, str) else value + 0.0 for value in values],
        )
        for row, values in zip(rows, records, strict=True)
    ]


def _numbers_of(row: Row) -> list[float | str]:
    """Numbers of a row of a table, with its target behind them; a word that some plan may call missing stays one."""
    held = [text.strip() if (number := number_of(text)) is None else number for text in row.values]
    return held if row.target is None else [*held, row.target]


def _with_a_number(
    path: Path, rows: Sequence[Row], values: Sequence[Any], columns: Sequence[str] = ()
) -> Sequence[Any]:
    """The same; rows without any number say nothing of their own, whatever a plan calls missing, and are refused."""
    for row, own in zip(rows, values, strict=True):
        held = own if row.target is None else own[:-1]
        if not any(not isinstance(value, str) and isfinite(value) for value in held):
            names = names_of(columns, len(held))
            check_numbers(path, [row], all_numbers(path, [row], names, [held]))
    return values


def _with_doubts(found: SoundRows) -> SoundRows:
    """The same, with the rows in which something is no number.

    Raises:
        InputError: All rows are such, by words that nobody writes for what is missing.
    """
    doubts, hopeless, names = list[str](), 0, found.names()
    for row, values in zip(found.rows, found.values, strict=True):
        try:
            check_numbers(found.path, [row], all_numbers(found.path, [row], names, [values[: len(names)]]))
        except InputError as error:
            doubts.append(str(error).removeprefix(f"{found.path}: "))
            hopeless += any(isinstance(value, str) and value and not is_missing(value) for value in values)
    if hopeless == len(found.rows):
        _, _, (words, *_) = look_for_missing([values[: len(names)] for values in found.values], names, None)
        first = doubts[0].partition("; ")[0]
        raise InputError(f"{found.path}: has no sound record in its train part: {first}; {words}")
    return replace(found, doubtful=tuple(doubts))


def _digest(label: str, values: Iterable[float | str]) -> str:
    numbers = [value if isinstance(value, str) else float(value) for value in values]
    while numbers and numbers[-1] == 0.0:  # padding of a sequence
        numbers.pop()
    return hashlib.sha256(json.dumps([label, numbers]).encode()).hexdigest()
