"""Arrays of a .npz file as rows of vectors or tokens: records, classes or targets, clients, splits."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, nearest
from dpfedmeta.data.columns import TARGET
from dpfedmeta.data.parts import part_of
from dpfedmeta.data.user_sources.csv_table import Row, check_labels

ARRAYS = ("records", "classes", "clients", "splits")
_TARGETS = "targets"
# Names of arrays elsewhere.
_OF_OTHERS = ("images", "x", "X", "data", "features", "labels", "y", "Y")


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
    return rows, with_targets(rows, records.astype(np.float64))


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


def with_targets(rows: Sequence[Row], records: Any) -> Any:
    """Vectors, with the number to predict behind each where there is one."""
    if not rows or rows[0].target is None:
        return records
    return np.column_stack([records, [row.target for row in rows]])


def _name(value: object) -> str:
    """A name as text. One missing number makes floats of whole numbers: 1.0 is the name 1 all the same."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
