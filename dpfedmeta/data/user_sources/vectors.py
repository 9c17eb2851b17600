"""Vectors: a CSV file of numbers with a column class, or NumPy's .npz with the arrays records and classes."""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, nearest
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.parts import part_of
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources.columns import OWNERS, TARGET, feature_words, owning_columns, telling_columns
from dpfedmeta.data.user_sources.csv_table import (
    Cell,
    CsvTable,
    Row,
    cells,
    check_labels,
    part_words,
    people_cells,
    public_rows,
    read_header,
    read_table,
)

ARRAYS = ("records", "classes", "clients", "splits")
_TARGETS = "targets"
# As 8 x 8.
_FEWEST_PIXELS = 64
LARGEST, _SMALLEST = 1e4, 1e-3
"""Of the largest number, once mean and deviation are applied; more would drown all others, less would be as nothing."""
# Of the deviation: what float32 may round off a number before mean and deviation are applied.
_COARSEST = 0.01
# A number as it is written where a comma stands before its decimals.
_COMMA = re.compile(r"[-+]?\d+,\d+")
# Names of arrays elsewhere.
_OF_OTHERS = ("images", "x", "X", "data", "features", "labels", "y", "Y")


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


def remarks(path: Path, *, public: bool) -> tuple[str, ...]:
    """Which columns are features, and what looks as if one became so by accident.

    Guarantee:
        `public`: nothing but names of columns, and values of validation and test records.

    Raises:
        InputError: The file is wrong; says where.
    """
    if path.suffix.lower() == ".npz":
        rows, records = read_array(path, "vectors")
        width = records.shape[1] - (rows[0].target is not None)
        columns, said = [f"{number + 1}" for number in range(width)], list[str]()
    else:
        table = read_table(path)
        rows, records = _from_table(path, table)
        columns, said = list(table.columns), [feature_words(table.columns, read_header(path))]
    chosen = list(public_rows(rows) if public else range(len(rows)))
    seen, labels = records[chosen], [rows[number].label for number in chosen]
    # What is no number is refused where the records are opened.
    told = telling_columns(columns, seen, labels) if np.isfinite(seen).all() else ()
    pixels = (_PIXELS,) if _look_like_pixels(seen) else ()
    owning = () if pixels or any(row.client for row in rows) else owning_columns(columns, seen)
    return (*part_words(rows, public=public), *said, *((listed(told),) if told else ()), *owning, *pixels)


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
        path: A .csv or .npz file.
        form: How many numbers a record has.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.

    Raises:
        InputError: The file is wrong, or not all of its values are numbers that can be trained on; says where.
    """
    rows, records = _records(path)
    return _contents(path, form, rows, records, lambda: cells(str(path), rows, splits, ways))


def people(path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None) -> Contents:
    """The vectors of people that a model is judged on (data.user_sources.readers.Reader.people).

    Raises:
        InputError: The file is wrong, holds other columns, or not all of its values are numbers; says where.
    """
    rows, records = _records(path, columns)
    return _contents(path, form, rows, records, lambda: people_cells(str(path), rows))


def _records(path: Path, columns: Sequence[str] = ()) -> tuple[tuple[Row, ...], Any]:
    """Whose each vector is, and the vectors [n, d]; of a table in the order of `columns`, where these are known."""
    if path.suffix.lower() == ".npz":
        return read_array(path, "vectors")
    return in_order(path, read_table(path), columns)


def in_order(path: Path, table: CsvTable, columns: Sequence[str]) -> tuple[tuple[Row, ...], Any]:
    """Rows of a table, and their vectors [n, d].

    Args:
        path: The file, for errors.
        table: What it holds, or some lines of it.
        columns: Names of the numbers in their order; empty: that of the table.

    Raises:
        InputError: The table has other columns, or not all of its values are numbers; says where.
    """
    if not columns or table.columns == tuple(columns):
        return _from_table(path, table)
    width = len(columns)
    said = [f"column {name}: missing" for name in columns if name not in table.columns]
    said += [f"column {name}: unknown{nearest(name, columns)}" for name in table.columns if name not in columns]
    if said:
        raise InputError(f"{path}: {listed(said)}; the plan's {len(columns)} columns are {', '.join(columns)}")
    rows, records = _from_table(path, table)
    # What stands behind the features is no column of theirs.
    order = [table.columns.index(name) for name in columns]
    return rows, records[:, [*order, *range(width, records.shape[1])]]


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


def _from_table(path: Path, table: CsvTable) -> tuple[tuple[Row, ...], Any]:
    try:
        records = np.array([row.values for row in table.rows], dtype=np.float64)
    except ValueError:
        problems = [
            f"{row.place}, column {name}: {value.strip()!r} is not a number"
            for row in table.rows
            for name, value in zip(table.columns, row.values, strict=True)
            if not _is_number(value)
        ]
        raise InputError(
            f"{path}: {len(problems)} value(s) are not numbers: {listed(problems)}; {_remedy(table)}"
        ) from None
    return table.rows, _with_targets(table.rows, records.reshape(len(table.rows), len(table.columns)))


def _remedy(table: CsvTable) -> str:
    """What to do about values that are not numbers."""
    if any(_COMMA.fullmatch(value.strip()) for row in table.rows for value in row.values if not _is_number(value)):
        return "write decimals with a point, 1.5 in place of 1,5"
    return "leave these records or this column out, or write numbers"


def _name(value: object) -> str:
    """A name as text. One missing number makes floats of whole numbers: 1.0 is the name 1 all the same."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _with_targets(rows: Sequence[Row], records: Any) -> Any:
    """Vectors, with the number to predict behind each where there is one."""
    if not rows or rows[0].target is None:
        return records
    return np.column_stack([records, [row.target for row in rows]])


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def check_numbers(path: Path, rows: Sequence[Row], records: Any) -> None:
    """Refuse what is missing, infinite or beyond float32, with its places."""
    wrong = np.argwhere(~np.isfinite(records) | (np.abs(records) > np.finfo(np.float32).max))
    if len(wrong):
        named = [f"{rows[row].place}, number {column + 1}: {records[row, column]:g}" for row, column in wrong.tolist()]
        raise InputError(
            f"{path}: {len(wrong)} value(s) are missing, infinite or too large: {listed(named)}; leave these records "
            "out, or fill in numbers"
        )


def read_array(path: Path, what: str) -> tuple[tuple[Row, ...], Any]:
    """The records of a .npz file [n, d], and where each belongs. No pickle is read.

    Args:
        path: The file.
        what: vectors or tokens, for errors.

    Raises:
        InputError: It cannot be read, an array is missing, of another size or type.
    """
    rows, records = rows_of(path, what, arrays_of(path, what))
    check_labels(str(path), rows)
    return rows, records


def arrays_of(path: Path, what: str) -> dict[str, Any]:
    """The arrays of a .npz file, all of one length.

    Args:
        path: The file.
        what: As in `read_array`.

    Raises:
        InputError: It cannot be read, or an array is missing, of another size or type.
    """
    held = _arrays(path)
    _check_records(path, what, held["records"])
    for name in ARRAYS[1:3]:
        if name in held and held[name].dtype.kind == "S":
            raise InputError(f"{path}: {name}: bytes; store them as text: {name}.astype(str)")
    lengths = {name: len(array) if array.ndim == 1 else list(array.shape) for name, array in held.items()}
    lengths["records"] = size = len(held["records"])
    if any(length != size for length in lengths.values()):
        raise InputError(f"{path}: arrays of different lengths, or of more than one axis: {lengths}; expected [n] each")
    return held


def rows_of(path: Path, what: str, held: Mapping[str, Any], first: int = 0) -> tuple[tuple[Row, ...], Any]:
    """The records of some places of the arrays [n, d], and where each belongs; each is wrong or not by itself.

    Args:
        path: The file, for errors.
        what: As in `read_array`.
        held: The arrays at these places.
        first: The first of these places.

    Raises:
        InputError: Says which record is wrong.
    """
    records, size = held["records"], len(held["records"])
    targets = _own_targets(path, what, held[_TARGETS], first) if _TARGETS in held else [None] * size
    for name in ARRAYS[1:3]:
        _check_told_apart(path, name, held.get(name))
    classes, clients, splits = (
        [_name(value) for value in held[name].tolist()] if name in held else [""] * size for name in ARRAYS[1:]
    )
    if _TARGETS in held:
        classes = [TARGET] * size
    odd = [
        f"record {number} ({split!r})" for number, split in enumerate(splits, first) if split and part_of(split) is None
    ]
    if odd or not all(classes):
        unnamed = [f"record {number}" for number, name in enumerate(classes, first) if not name]
        problem = f"a split that is not train, val or test: {listed(odd)}" if odd else f"no class: {listed(unnamed)}"
        raise InputError(f"{path}: {what} with {problem}")
    rows = tuple(
        Row(
            place=f"record {number}",
            label=label,
            client=client,
            split=part_of(split) or "",
            written=split,
            target=target,
        )
        for number, (label, client, split, target) in enumerate(
            zip(classes, clients, splits, targets, strict=True), first
        )
    )
    return rows, _with_targets(rows, records.astype(np.float64))


def _check_records(path: Path, what: str, records: Any) -> None:
    """Refuse records that are no numbers [n, d]: images, bytes, texts."""
    if records.ndim > 2 and records.dtype.kind in "fiub":
        form = " x ".join(map(str, records.shape[1:]))
        raise InputError(
            f"{path}: records: {len(records):,} arrays of {form}, where {what} [n, d] are expected; images belong into "
            "files (a folder, or a list of them), where their pixels are scaled; if these are vectors, lay them flat: "
            "records.reshape(len(records), -1)"
        )
    if what == "vectors" and records.dtype == np.uint8 and records.ndim == 2:
        raise InputError(
            f"{path}: records: bytes (uint8), which look like pixels and would reach the network as numbers up to "
            f"{records.max(initial=0)}; scale them (records.astype('float32') / 255), or say that they are numbers "
            "(records.astype('int16'))"
        )
    if records.ndim < 2 or records.dtype.kind not in "fiub" or not records.size:
        raise InputError(f"{path}: records: expected numbers [n, d], found {records.dtype} {list(records.shape)}")


def _check_told_apart(path: Path, name: str, values: Any) -> None:
    """Refuse names as floats so large that neighbours are one: several of them would be the same."""
    if values is None or values.dtype.kind != "f" or not np.isfinite(values).all():
        return
    largest, exact = float(np.abs(values).max(initial=0.0)), 2.0 ** (np.finfo(values.dtype).nmant + 1)
    if largest >= exact:
        raise InputError(
            f"{path}: {name}: numbers up to {largest:.17g} as {values.dtype}, which tells whole numbers apart only "
            f"below {exact:.0f}: some {name} became one; store them as int64 or as text, from before they were floats"
        )


def _own_targets(path: Path, what: str, numbers: Any, first: int) -> list[float]:
    """Read numbers to predict; refuse what is missing or no number."""
    if what == "tokens":
        raise InputError(f"{path}: {_TARGETS}: only vectors have numbers to predict; give classes")
    if numbers.dtype.kind not in "fiu":
        raise InputError(f"{path}: {_TARGETS}: expected numbers [n], found {numbers.dtype}")
    missing = [f"record {first + number}" for number in np.flatnonzero(~np.isfinite(numbers)).tolist()]
    if missing:
        raise InputError(f"{path}: {_TARGETS}: {len(missing)} number(s) are missing or infinite: {listed(missing)}")
    return [float(value) for value in numbers.tolist()]


def _arrays(path: Path) -> dict[str, Any]:
    try:
        # Of a damaged file numpy would leave its own handle open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            found = {name: held[name] for name in held.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        if "ndarray" in reason:  # numpy gives one array for .npy, whatever the file is called
            raise InputError(
                f"{path}: one array (.npy) under the name .npz; store records and classes together: np.savez("
                f"{path.name!r}, records=..., classes=...)"
            ) from error
        hint = "; store names as text (dtype <U), not as objects" if "allow_pickle" in reason else ""
        raise InputError(f"{path}: cannot be read as .npz without pickles ({reason}){hint}") from error
    known = ("records", _TARGETS, *ARRAYS[2:]) if _TARGETS in found and "classes" not in found else ARRAYS
    absent = [name for name in known[:2] if name not in found]
    odd = [name for name in found if name not in known]
    if absent or odd:
        meant = "; rename images or x to records, and labels or y to classes" if {*odd} & {*_OF_OTHERS} else ""
        what = f"no array {absent[0]}{meant}" if absent else f"unknown array {odd[0]}{nearest(odd[0].lower(), known)}"
        raise InputError(
            f"{path}: {what}; expected records and classes (or targets), optionally clients and splits; found "
            f"{', '.join(found)}"
        )
    return found
