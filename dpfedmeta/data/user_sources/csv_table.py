"""Tables that say of every record whose it is: CSV or Parquet files with the columns client, class and split."""

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import cast

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding, open_text
from dpfedmeta.core.pydantic_errors import listed, nearest
from dpfedmeta.data.columns import OWNERS, TARGET, check_columns, meant
from dpfedmeta.data.missing import is_missing, number_of
from dpfedmeta.data.names import check_spellings, is_shortened, missing_classes, splits_of, surely_public
from dpfedmeta.data.parts import check_classes_are_no_parts, check_clients_are_no_parts, part_of, parts_taken
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Split, check_classes
from dpfedmeta.data.storage.parquet_lines import open_lines


@dataclass(frozen=True, kw_only=True)
class Row:
    """Class, client and split of one record.

    Attributes:
        place: Position in the data, for messages.
        label: Class of the record.
        client: Client that owns the record; empty if the data do not say.
        split: train, val or test; empty if the names decide.
        written: The split as written in the data.
        values: Values of the other columns.
        target: Number to predict, of a table that has such a column in the place of classes; None: it has classes.
    """

    place: str
    label: str
    client: str
    split: str
    written: str = ""
    values: tuple[str, ...] = ()
    target: float | None = None


_NO_RECORD = "no record in it: nothing stands below the line that names the columns"
Line = tuple[int, tuple[str, ...]]
"""Number and fields of a line."""


@dataclass(frozen=True, kw_only=True)
class CsvTable:
    """A CSV file: the names of the other columns, and all rows."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The records of one class, of one client where the data name clients; `rows` are numbers of rows."""

    entry: ClassEntry
    rows: tuple[int, ...]


def read_header(path: Path) -> tuple[str, ...]:
    """The names of the columns.

    Raises:
        InputError: It cannot be read, or its first line names no class.
    """
    return single_lines(path, most=0)[0]


def read_table(path: Path, column: str | None = None) -> CsvTable:
    """All rows of a CSV file (UTF-8, commas, a first line with the names of the columns); blank lines are skipped.

    Args:
        path: The file.
        column: The only column beside client, class and split; None: any others.

    Raises:
        InputError: It cannot be read, columns are missing or unknown, or rows are too short or long; names all lines.
    """
    (_, names), *lines = _lines(path)
    table = table_of(path, names, lines, column)
    if not table.rows:
        raise InputError(f"{path}: {_NO_RECORD}")
    check_labels(str(path), table.rows)
    return table


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a table for a model that is there already, as texts: none of them has to be ours.

    Raises:
        InputError: It cannot be read, holds no record, or rows are too short or long; names all lines.
    """
    (_, names), *lines = _lines(path, ours=False)
    if problems := [_uneven(*line, names) for line in lines if len(line[1]) != len(names)]:
        raise _unusable(path, problems)
    if not lines:
        raise InputError(f"{path}: {_NO_RECORD}")
    return {name: [fields[place] for _, fields in lines] for place, name in enumerate(names)}


def table_of(path: Path, names: Sequence[str], lines: Sequence[Line], column: str | None = None) -> CsvTable:
    """The rows of some lines of a CSV file; a line is wrong or not whatever the others hold.

    Args:
        path: The file, for errors.
        names: Of all columns.
        lines: The lines.
        column: As in `read_table`.

    Raises:
        InputError: Columns are missing or unknown, or rows are too short or long; names all lines.
    """
    numbers = "class" not in names
    if numbers and column is not None:
        raise InputError(
            f"{path}: column class: missing; column {TARGET} holds numbers to predict, which only vectors have; if "
            "these are classes, name the column class"
        )
    others = tuple(name for name in names if name not in OWNERS)
    if column is not None and others != (column,):
        raise _wrong_columns(path, column, others)
    problems, rows = [], []
    for number, fields in lines:
        if len(fields) != len(names):
            problems.append(_uneven(number, fields, names))
            continue
        held = dict(zip(names, fields, strict=True))
        label, written = held[TARGET if numbers else "class"].strip(), held.get("split", "").strip()
        target = number_of(label) if numbers else None
        if numbers and (target is None or not math.isfinite(target)):
            problems.append(f"line {number}: {TARGET} {label!r} is no number")
        elif not label:
            problems.append(f"line {number}: no class")
        if written and part_of(written) is None:
            problems.append(f"line {number}: {not_a_part(written)}")
        rows.append(
            Row(
                place=f"line {number}",
                label=TARGET if numbers else label,
                client=held.get("client", "").strip(),
                split=part_of(written) or "",
                written=written,
                values=tuple(held[name] for name in others),
                target=target,
            )
        )
    if problems:
        raise _unusable(path, problems)
    return CsvTable(columns=others, rows=tuple(rows))


def _uneven(number: int, fields: Sequence[str], names: Sequence[str]) -> str:
    return f"line {number}: {len(fields)} values for {len(names)} columns"


def _unusable(path: Path, problems: Sequence[str]) -> InputError:
    return InputError(f"{path}: {len(problems)} line(s) cannot be used: {listed(problems)}; mend or remove them")


def not_a_part(written: str) -> str:
    """Describe the error of an unknown split name."""
    hint = nearest(written.lower(), SPLITS)
    return f"split must be one of {', '.join(SPLITS)}, found {written!r}{hint}"


def _wrong_columns(path: Path, column: str, others: Sequence[str]) -> InputError:
    if column not in others:
        perhaps = f" (or {TARGET}, for numbers to predict)" if column == "class" else ""
        named = ", ".join(others) or "no other"
        return InputError(f"{path}: column {column}{perhaps}: missing; the first line names {named}")
    odd = next(name for name in others if name != column)
    return InputError(f"{path}: column {odd}: unknown{nearest(odd, (*OWNERS, column))}; take it out, or rename it")


# How files begin that were given the ending .csv, and what each is.
_NO_TABLES = (
    ("pk\x03\x04", "this is an Excel workbook or another archive; export it as CSV in UTF-8"),
    ("<!doctype", "this is a web page; download the table itself"),
    ("<html", "this is a web page; download the table itself"),
    ("%pdf", "this is a PDF; export the table as CSV in UTF-8"),
    ("{", "this is JSON; write the table as CSV"),
    ("sep=", "line 1 is for spreadsheets only; remove it, so that the names of the columns come first"),
    ("#", "line 1 is a comment; remove it, so that the names of the columns come first"),
)


def _lines(path: Path, *, ours: bool = True) -> list[Line]:
    """The lines that are not blank; the first of them are the columns, checked: whether one of them is `ours`."""
    try:
        with open_lines(path) as file:
            reader = csv.reader(file, strict=True)
            found = [(reader.line_num, tuple(fields)) for fields in reader if any(field.strip() for field in fields)]
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    number, first = found[0] if found else (0, ())
    return [(number, _names(path, first, ours=ours)), *found[1:]]


UNREADABLE = (OSError, WrongEncoding, UnicodeError, csv.Error)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read as CSV in UTF-8 ({_odd_byte(path, error)})")


def _odd_byte(path: Path, error: Exception) -> object:
    """Place of the first byte that is not UTF-8, or another error."""
    if not isinstance(error, UnicodeError):
        return error
    with open_text(path, "surrogateescape") as file:
        found = ((number, re.search("[\udc80-\udcff]", text)) for number, text in enumerate(file, start=1))
        number, at = next((number, at) for number, at in found if at)
    byte = ord(at[0]) - 0xDC00
    return f"line {number}, character {at.start() + 1}: byte {byte:#x} is not UTF-8, cp1252 perhaps; save it as UTF-8"


def single_lines(path: Path, most: int | None = None) -> tuple[tuple[str, ...], list[Line], list[str]]:
    """The names of the columns, and the rows below them, each a line: what is wrong with one takes no other with it.

    Args:
        path: The file.
        most: How many rows to read; None: all.

    Returns:
        Names, the lines that are CSV in UTF-8 and not blank, and what is wrong with the others.

    Raises:
        InputError: It cannot be read, or its first line names no class.
    """
    lines, odd = list[Line](), list[str]()
    try:
        with open_lines(path, "surrogateescape") as file:
            reader = csv.reader(file, strict=True)
            first = next((fields for fields in reader if any(field.strip() for field in fields)), [])
            "".join(first).encode()
            for number, text in islice(enumerate(file, start=reader.line_num + 1), most):
                try:
                    text.encode()
                    fields = next(csv.reader([text], strict=True))
                except (UnicodeError, csv.Error) as error:
                    what = f"line {number}: no line of CSV in UTF-8"
                    bent = isinstance(error, UnicodeError)
                    odd.append(f"{what} (other bytes); save it as UTF-8" if bent else f"{what} ({error})")
                    continue
                if any(field.strip() for field in fields):
                    lines.append((number, tuple(fields)))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    return _names(path, first), lines, odd


def _names(path: Path, first: Sequence[str], *, ours: bool = True) -> tuple[str, ...]:
    """The names of the columns in the first line, checked."""
    if not first:
        due = ": class, perhaps client and split, ..." if ours else ""
        raise InputError(f"{path}: empty; the first line must name the columns{due}")
    names = tuple(name.strip() for name in first)
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    separated = "; separate columns by commas" if len(names) == 1 and {";", "\t", "|"} & {*names[0]} else ""
    if (ours and not {"class", TARGET}.intersection(names)) or twice or (separated and not ours):
        what = f"column {twice[0]}: named twice" if twice else "column class: missing" if ours else "one column alone"
        close = next((name for name in names if meant(name) == "class"), None)
        perhaps = "class?" if close != "targets" else f"class, or {TARGET} for numbers to predict?"
        hint = f"; column {close}: did you mean {perhaps}" if close and not twice else ""
        if not separated and not close and any(number_of(name) is not None for name in names):
            separated = "; it looks like a record: write a line with the names of the columns above it"
        separated = next((f"; {words}" for mark, words in _NO_TABLES if names[0].lower().startswith(mark)), separated)
        if not twice and not close and not separated:
            hint = f"; rename the column of what is learned to class, or to {TARGET} if it holds numbers to predict"
        shown = ",".join(names[:8])
        raise InputError(f"{path}: {what}{hint}; the first line names the columns, found {shown!r}{separated}")
    check_columns(path, names)
    return names


def cells(where: str, rows: Sequence[Row], splits: Mapping[str, Split], ways: int | None) -> tuple[Cell, ...]:
    """Records by class, and by client where the data name clients, sorted by name, with their splits.

    Args:
        where: The data, for errors.
        rows: Where each record belongs.
        splits: Of classes, where a list beside the task file says so; else empty.
        ways: How many classes each part needs, where names decide; None: however many they give.

    Raises:
        InputError: Clients or splits are given for some records only, a class or client stands in two splits, or a
            split is empty, or classes or clients are named as parts.
    """
    check_all_or_none(where, "client", [row.client for row in rows], rows)
    check_all_or_none(where, "split", [row.split for row in rows], rows)
    if not (rows and rows[0].split):
        # A column split says what the parts are, so a person may be called train0.
        check_clients_are_no_parts(where, {row.client for row in rows})
        check_classes_are_no_parts(where, {row.label for row in rows})
    by_name: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        by_name.setdefault((row.client, row.label), []).append(number)
    named = bool(rows and rows[0].client)
    units = [row.client or row.label for row in rows]
    if rows and rows[0].split:
        decided = _given(where, "client" if named else "class", units, rows)
    elif splits and named:
        raise InputError(
            f"{where}: split: the data name clients, so a list of classes cannot say which clients are for validation "
            "and test; use a column split"
        )
    else:
        decided = dict(splits) or dict(splits_of(units, 1 if named else ways or 0))
    _check_listed(where, units, decided)
    made = tuple(
        Cell(
            entry=ClassEntry(name=label, split=decided[client or label], images=len(numbers), client=client),
            rows=tuple(numbers),
        )
        for (client, label), numbers in sorted(by_name.items())
        if (client or label) in decided
    )
    check_classes(where, tuple(cell.entry for cell in made))
    return made


def people_cells(where: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    """The records of people that a model is judged on, by client and class: of those of test, where a part is named.

    A client with records of test and of train adapts on the latter, whose entries say so; one without any of test is
    left out.

    Args:
        where: The data, for errors.
        rows: Where each record belongs; without names of clients all are one client's.

    Raises:
        InputError: Clients or splits are given for some records only, or no record is left.
    """
    check_all_or_none(where, "client", [row.client for row in rows], rows)
    check_all_or_none(where, "split", [row.split for row in rows], rows)
    by_name: dict[tuple[str, str, Split], list[int]] = {}
    judged = {row.client for row in rows if row.split in ("", "test")}
    for number, row in enumerate(rows):
        if row.client in judged and row.split in ("", "test", "train"):
            part: Split = "train" if row.split == "train" else "test"
            by_name.setdefault((row.client, row.label, part), []).append(number)
    if not by_name:
        raise InputError(f"{where}: its column split names no record of test; leave the column out to judge on all")
    return tuple(
        Cell(entry=ClassEntry(name=label, split=part, images=len(numbers), client=client), rows=tuple(numbers))
        for (client, label, part), numbers in sorted(by_name.items())
    )


def public_rows(rows: Sequence[Row]) -> list[int]:
    """Records of classes or clients that are never trained on: validation and test; all where there is no such unit.

    With fewer than three units there are no three parts, and nothing is trained.
    """
    if rows and rows[0].split:
        chosen = [number for number, row in enumerate(rows) if row.split != "train"]
    else:
        public = surely_public(row.client or row.label for row in rows)
        chosen = [number for number, row in enumerate(rows) if (row.client or row.label) in public]
    return chosen or list(range(len(rows)))


def check_labels(where: str, rows: Sequence[Row]) -> None:
    """Refuse marks of missing values and numbers that cannot be classes, and two spellings of one class or client.

    Raises:
        InputError: A class or a client is missing, or spelled in two ways; or all classes are numbers, and some are
            fractions or negative.
    """
    labels = {row.label for row in rows}
    odd = missing_classes(labels) | {name for name in labels if is_shortened(name)}
    values = {name: number_of(name) for name in labels - odd}
    if all(value is not None for value in values.values()):
        odd |= {name for name, value in values.items() if value is not None and not _counts(value)}
    lost = {name for name in {row.client for row in rows} if name and (is_missing(name) or is_shortened(name))}
    found = [f"{row.place}: client {row.client!r}" for row in rows if row.client in lost]
    found += [f"{row.place}: class {row.label!r}" for row in rows if row.label in odd]
    if found:
        shortened = any(map(is_shortened, odd | lost))
        raise InputError(
            f"{where}: {len(found)} record(s) with a class that is missing, a fraction or negative, or a client that "
            f"is missing: {listed(found)}; leave out records without a class; a name has to begin with a letter, and "
            "one that is written as missing values are (NA) needs another spelling"
            + ("; a number that a spreadsheet shortened has lost its digits: export it as text" if shortened else "")
        )
    check_spelled_alike(where, rows)


def check_spelled_alike(where: str, rows: Sequence[Row]) -> None:
    """Refuse two spellings of one client or class.

    Raises:
        InputError: Names both, and where they are.
    """
    clients = (("client", row.client, row.place) for row in rows)
    check_spellings(where, chain(clients, (("class", row.label, row.place) for row in rows)))


def _counts(value: float) -> bool:
    return value >= 0 and value.is_integer()


def part_words(rows: Sequence[Row], *, public: bool) -> tuple[str, ...]:
    """Describe which names in the data were read as which split.

    Args:
        rows: All records.
        public: Leave out names of the training split, which belong to its clients.
    """
    return parts_taken(row.written for row in rows if row.written and not (public and row.split == "train"))


def check_all_or_none(where: str, column: str, values: Sequence[str], rows: Sequence[Row]) -> None:
    """Refuse a client or a split that is given for some records only.

    Raises:
        InputError: It is; names the records without one.
    """
    empty = [row.place for row, value in zip(rows, values, strict=True) if not value]
    if empty and len(empty) < len(rows):
        raise InputError(f"{where}: {len(empty)} record(s) without a {column}, while others have one: {listed(empty)}")


def _given(where: str, what: str, units: Sequence[str], rows: Sequence[Row]) -> dict[str, Split]:
    decided: dict[str, Row] = {}
    problems: dict[str, str] = {}
    for unit, row in zip(units, rows, strict=True):
        first = decided.setdefault(unit, row)
        if first.split != row.split:
            problems.setdefault(unit, f"{unit} (in {first.split} at {first.place}, in {row.split} at {row.place})")
    if problems:
        why = f"a {what} for validation or test must not take part in training; put all its records into one split"
        raise InputError(
            f"{where}: the splits overlap: {len(problems)} {what}(s) are in two of them: "
            f"{listed(list(problems.values()))}; {why}"
        )
    return {unit: cast(Split, row.split) for unit, row in decided.items()}


def _check_listed(where: str, units: Sequence[str], decided: Mapping[str, Split]) -> None:
    absent = sorted(set(decided) - set(units))
    if absent:
        raise InputError(f"{where}: {len(absent)} of the listed classes are not in the data: {listed(absent)}")
