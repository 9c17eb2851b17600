"""Vectors: a table of numbers with a column class, or NumPy's .npz with the arrays records and classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, nearest
from dpfedmeta.data.columns import (
    OWNERS,
    TARGET,
    constant_columns,
    feature_words,
    owning_columns,
    target_columns,
    telling_columns,
    two_units,
    unlike_columns,
)
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.missing import FloatRows, MissingValues, look_for_missing, names_of, number_of, remedies
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources.csv_table import (
    Cell,
    CsvTable,
    Row,
    cells,
    part_words,
    people_cells,
    public_rows,
    read_header,
    read_table,
)
from dpfedmeta.data.user_sources.npz_arrays import read_array, with_targets

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

# As 8 x 8.
_FEWEST_PIXELS = 64
LARGEST, _SMALLEST = 1e4, 1e-3
"""Of the largest number, once mean and deviation are applied; more would drown all others, less would be as nothing."""
# Of the deviation: what float32 may round off a number before mean and deviation are applied.
_COARSEST = 0.01


def guess(path: Path) -> dict[str, int]:
    """Form of the records without a task file: as many numbers as there are.

    Raises:
        InputError: The file cannot be read, or holds no numbers.
    """
    if path.suffix.lower() == ".npz":
        rows, records = read_array(path, "vectors")
        count, numbers = records.shape[1], rows[0].target is not None
    else:
        count, numbers = len(columns_in(path)), "class" not in read_header(path)
    if numbers:
        raise InputError(
            f"{path}: {TARGET}: numbers to predict need a task file, which says their public range: kind: regression "
            "and targets: {centre: C, scale: S, lowest: A, highest: B}; if these are classes, name the column class"
        )
    if not count:
        raise InputError(f"{path}: there is no column of numbers besides class, client and split")
    return {"features": count}


def columns_in(path: Path) -> tuple[str, ...]:
    """The names of a vector's numbers, in their order; of arrays none are known.

    Raises:
        InputError: The file cannot be read.
    """
    return () if path.suffix.lower() == ".npz" else tuple(name for name in read_header(path) if name not in OWNERS)


def key(path: Path) -> list[object]:
    """Nothing beside the file itself."""
    return []


def remarks(path: Path, task: Task, *, public: bool) -> tuple[str, ...]:
    """Which columns are features, what looks as if one became so by accident, and which values may be missing.

    Guarantee:
        `public`: nothing but names of columns, and values of validation and test records.

    Raises:
        InputError: The file is wrong; says where.
    """
    if path.suffix.lower() == ".npz":
        rows, written = read_array(path, "vectors")
        written = written[:, : written.shape[1] - (rows[0].target is not None)]
        columns, said = names_of((), written.shape[1]), list[str]()
    else:
        table = read_table(path)
        rows, written = table.rows, [row.values for row in table.rows]
        columns, said = list(table.columns), [feature_words(table.columns, read_header(path))]
    chosen = list(public_rows(rows) if public else range(len(rows)))
    labels = [rows[number].label for number in chosen]
    what = "records" if len(chosen) == len(rows) else "validation and test records"
    owned = any(row.client for row in rows)
    seen, absent, lost = look_for_missing(
        [written[number] for number in chosen], columns, task.missing, what, owned=owned
    )
    # What is no number is refused where the records are opened.
    sound = bool(np.isfinite(seen).all())
    held = np.where(absent, np.nan, seen)
    same = () if public else constant_columns(columns, held)
    lost = (*lost, *same, *two_units(columns, held, labels), *unlike_columns(columns, held, task.mean, task.deviation))
    told = telling_columns(columns, seen, labels) if sound else ()
    pixels = (_PIXELS,) if sound and _look_like_pixels(seen) else ()
    owning = () if pixels or owned else owning_columns(columns, held)
    targets = [rows[number].target for number in chosen]
    if None not in targets:
        told = (*told, *target_columns(columns, held, np.array(targets, dtype=np.float64)))
    return (*part_words(rows, public=public), *said, *((listed(told),) if told else ()), *owning, *pixels, *lost)


_PIXELS = (
    "all numbers are whole, from 0 to 255, as those of pixels: if they are, give the images as files (a folder, or a "
    "list), where they are scaled, or divide them by 255"
)


def _look_like_pixels(records: Any) -> bool:
    """Return whether vectors as long as the smallest images hold nothing but whole numbers of 8 bits."""
    if records.shape[1] < _FEWEST_PIXELS or not records.size:
        return False
    return bool(records.min() >= 0 and 15 < records.max() <= 255 and (records == np.rint(records)).all())


def members(path: Path, splits: Mapping[str, Split], ways: int | None) -> tuple[Cell, ...]:
    """Classes and clients, without a look at a number.

    Raises:
        InputError: The file is wrong; says where.
    """
    rows = read_array(path, "vectors")[0] if path.suffix.lower() == ".npz" else read_table(path).rows
    return cells(str(path), rows, splits, ways)


def contents(path: Path, form: RecordForm, splits: Mapping[str, Split], ways: int | None) -> Contents:
    """The vectors of a file.

    Args:
        path: A .csv, .parquet or .npz file.
        form: How many numbers a record has.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.

    Raises:
        InputError: The file is wrong, or not all of its values are numbers that can be trained on; says where.
    """
    rows, records = _records(path, form)
    return _contents(path, form, rows, records, lambda: cells(str(path), rows, splits, ways))


def people(path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None) -> Contents:
    """The vectors of people that a model is judged on (data.user_sources.readers.Reader.people).

    Raises:
        InputError: The file is wrong, holds other columns, or not all of its values are numbers; says where.
    """
    rows, records = _records(path, form, columns)
    return _contents(path, form, rows, records, lambda: people_cells(str(path), rows))


def _records(path: Path, form: RecordForm, columns: Sequence[str] = ()) -> tuple[tuple[Row, ...], Any]:
    """Whose each vector is, and the vectors [n, d]; of a table in the order of `columns`, where these are known."""
    if path.suffix.lower() == ".npz":
        rows, records = read_array(path, "vectors")
        return rows, without_missing(path, form, rows, records, columns)
    return in_order(path, read_table(path), columns, form.missing)


def without_missing(
    path: Path, form: RecordForm, rows: Sequence[Row], records: FloatRows, columns: Sequence[str] = ()
) -> Any:
    """Vectors of arrays, with constants in the place of what is missing, in front of numbers to predict."""
    if form.missing is None:
        return records
    width = records.shape[1] - (bool(rows) and rows[0].target is not None)
    own, names = records[:, :width], names_of(columns, width)
    form.missing.check_names(str(path), names)
    _check_width(path, form.missing, width)
    return np.column_stack([form.missing.filled(own, form.missing.absent(own, names), names), records[:, width:]])


def _check_width(path: Path, missing: MissingValues, width: int) -> None:
    if (due := len(missing.replaced_by)) != width:
        raise InputError(f"{path}: records of {width} numbers, but the task says features: {due}")


def in_order(
    path: Path, table: CsvTable, columns: Sequence[str], missing: MissingValues | None = None
) -> tuple[tuple[Row, ...], Any]:
    """Rows of a table, and their vectors [n, d].

    Args:
        path: The file, for errors.
        table: What it holds, or some lines of it.
        columns: Names of the numbers in their order; empty: that of the table.
        missing: Of the form of the records.

    Raises:
        InputError: The table has other columns, or not all of its values are numbers; says where.
    """
    said = [f"column {name}: missing" for name in columns if name not in table.columns]
    said += [
        f"column {name}: unknown{nearest(name, columns)}" for name in table.columns if columns and name not in columns
    ]
    if said:
        raise InputError(f"{path}: {listed(said)}; the plan's {len(columns)} columns are {', '.join(columns)}")
    names = columns or table.columns
    if missing is not None:
        missing.check_names(str(path), names)
        _check_width(path, missing, len(names))
    order = [table.columns.index(name) for name in names]
    written = [[row.values[place] for place in order] for row in table.rows]
    if missing is None:
        return table.rows, with_targets(table.rows, all_numbers(path, table.rows, names, written))
    absent = missing.absent(written, names)
    held = [
        ["0" if lost else text for text, lost in zip(texts, marks, strict=True)]
        for texts, marks in zip(written, absent, strict=True)
    ]
    records = missing.filled(all_numbers(path, table.rows, names, held), absent, names)
    return table.rows, with_targets(table.rows, records)


def _contents(
    path: Path, form: RecordForm, rows: tuple[Row, ...], records: Any, cells_of: Callable[[], Sequence[Cell]]
) -> Contents:
    check_form(path, form, rows, records)
    check_numbers(path, rows, records)
    made = cells_of()

    def decode() -> Iterator[FloatRecords]:
        for cell in made:
            # Numbers to predict are rounded once they are scaled, and not before (user_sources.labels).
            yield records[list(cell.rows)].astype(np.float64 if form.targets else np.float32)

    return Contents(classes=tuple(cell.entry for cell in made), decode=decode)


def check_form(path: Path, form: RecordForm, rows: Sequence[Row], records: Any) -> None:
    """Refuse vectors of another length than the task's, or classes where it has numbers to predict."""
    numbers = bool(rows) and rows[0].target is not None
    if numbers != form.targets:
        held, wanted = ("numbers to predict", "classes") if numbers else ("classes", "numbers to predict")
        raise InputError(
            f"{path}: holds {held}, but the task has {wanted}; give a column {'class' if numbers else TARGET}"
        )
    if records.shape[1:] != form.stored:
        raise InputError(
            f"{path}: records of {records.shape[1] - numbers} numbers, but the task says features: {form.shape[0]}"
        )


def check_scale(
    path: str,
    found: Contents,
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
    *,
    targets: bool = False,
    smallest: float = _SMALLEST,
) -> None:
    """Refuse numbers so large, as a network would see them, that nothing else would count, or all so small as nothing.

    Numbers so far from zero that float32 rounds their digits off are refused too.

    Args:
        path: The file, for errors.
        found: What it holds.
        mean: As in the task file.
        deviation: Likewise.
        targets: Whether the last number of each record is no feature.
        smallest: What the largest number must reach; 0 for a single client, which may hold zeros alone.

    Raises:
        InputError: Says how large the largest is.
    """
    centre, spread = np.array(mean or (0.0,)), np.array(deviation or (1.0,))
    largest = coarsest = 0.0
    for block in found.decode():
        features = block[:, :-1] if targets else block
        steps = np.spacing(np.abs(features).max(0, initial=0.0).astype(np.float32)) / spread
        coarsest = max(coarsest, float(steps.max(initial=0.0)))
        largest = max(largest, float(np.abs((features - centre) / spread).max(initial=0.0)))
    if mean and coarsest > _COARSEST:
        raise InputError(
            f"{path}: numbers lie so far from zero that float32 keeps steps of {coarsest:.2g} deviations of them; "
            "subtract a public constant in the table, and from mean in the task file"
        )
    if smallest <= largest <= LARGEST:
        return
    if largest > LARGEST:
        problem, given = f"numbers up to {largest:.3g} reach the network, more than {LARGEST:,.0f}", "give"
    else:
        problem, given = f"no number above {largest:.3g} reaches the network, less than {smallest:g}", "correct"
    raise InputError(
        f"{path}: {problem}; {given} mean and deviation in a task file (public constants: the network sees (number - "
        "mean) / deviation), or scale them before"
    )


def all_numbers(path: Path, rows: Sequence[Row], names: Sequence[str], written: Sequence[Sequence[Any]]) -> FloatRows:
    """[n, columns] of what is written.

    Raises:
        InputError: Not all of it are numbers; says where.
    """
    try:
        # Python's 1_234.
        if any(isinstance(text, str) and "_" in text for texts in written for text in texts):
            raise ValueError
        return np.array(written, dtype=np.float64).reshape(len(rows), len(names))
    except ValueError:
        odd = [
            (row.place, name, text.strip())
            for row, texts in zip(rows, written, strict=True)
            for name, text in zip(names, texts, strict=True)
            if isinstance(text, str) and number_of(text) is None
        ]
        problems = [f"{place}, column {name}: {text!r} is not a number" for place, name, text in odd]
        counts = {name: Counter(text for _, column, text in odd if column == name) for name in names}
        owned = any(row.client for row in rows)
        remedy = remedies({name: own for name, own in counts.items() if own}, len(rows), owned=owned)
        count = f"{len(odd)} value(s) are not numbers: " if len(rows) > 1 else ""
        raise InputError(f"{path}: {count}{listed(problems)}; {remedy}") from None


def check_numbers(path: Path, rows: Sequence[Row], records: Any) -> None:
    """Refuse what is missing, infinite or beyond float32, with its places."""
    wrong = np.argwhere(~np.isfinite(records) | (np.abs(records) > np.finfo(np.float32).max))
    if len(wrong):
        named = [f"{rows[row].place}, number {column + 1}: {records[row, column]:g}" for row, column in wrong.tolist()]
        nan = ' (what is missing: missing: [""] in the task file)' if np.isnan(records).any() else ""
        raise InputError(
            f"{path}: {len(wrong)} value(s) are missing, infinite or too large: {listed(named)}; leave these records "
            f"out, or fill in numbers{nan}"
        )
