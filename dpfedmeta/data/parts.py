"""Names of the parts of a data set: train, val and test as people, programs and publishers write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.storage.decoded_cache import SPLITS, Split

_NAMES: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "development": "val",
    "test": "test",
    "testing": "test",
    "tst": "test",
}
_AROUND = r"(?:meta|images?|imgs?|data|dataset|samples?|classes|clients|split|part|set|the|my)*"
_PART = re.compile(rf"{_AROUND}({'|'.join(sorted(_NAMES, key=len, reverse=True))}){_AROUND}(?:(?:19|20)\d\d)?")


def part_of(name: str) -> Split | None:
    """The part that a name stands for, in any case and with words such as meta, images or set around it.

    Args:
        name: Of a folder, or in a column: `Test`, `meta_train`, `images-val`, `TrainSet`, `val2017`.

    Returns:
        None: it is no name of a part.
    """
    found = _PART.fullmatch(re.sub(r"[\W_]+", "", name.strip().lower()))
    return _NAMES[found[1]] if found else None


def parts_taken(written: Iterable[str]) -> tuple[str, ...]:
    """Describe which split each name was read as; empty if all names are train, val or test."""
    other = [(name, part) for name in sorted(set(written)) if (part := part_of(name)) and name != part]
    return (f"parts by name: {', '.join(f'{name} is {part}' for name, part in other)}",) if other else ()


def check_clients_are_no_parts(where: str, clients: Iterable[str]) -> None:
    """Refuse a client whose name stands for a part: then a part was read as a client, and judged or trained on.

    Raises:
        InputError: Names them.
    """
    named = [name for name in sorted(set(clients)) if part_of(name)]
    if named:
        raise InputError(
            f"{where}: {listed([f'{name} looks like the part {part_of(name)}' for name in named])}, but would be read "
            "as a client; the parts are train, val and test, all three, with clients or classes in each (a column "
            "split in a table); if it is a client, rename it"
        )


def check_classes_are_no_parts(where: str, classes: Iterable[str]) -> None:
    """Refuse classes that are named as two parts or more; one alone may be a class, as the vehicle `train` is.

    Raises:
        InputError: Names them.
    """
    named = [name for name in sorted(set(classes)) if part_of(name)]
    if len({part_of(name) for name in named}) > 1:
        raise InputError(
            f"{where}: {listed(named)} look like parts, but would be read as classes; a part holds classes of its own: "
            "train|val|test/CLASS/IMAGE, or a column split in a table; if they are classes, rename them"
        )


def check_parts(where: str, deep: Mapping[str, Split], others: Iterable[str]) -> None:
    """Refuse folders of parts that do not fit together.

    Args:
        where: The folder, for errors.
        deep: Folders that are named as parts and hold folders, with the part that each stands for.
        others: Folders beside them that hold images.

    Raises:
        InputError: A part is missing or there twice, or something else stands beside them.
    """
    found = ", ".join(f"{name} as {part}" for name, part in deep.items())
    absent = [part for part in SPLITS if part not in deep.values()]
    beside = sorted(others)
    if absent:
        moved = "move classes (or clients) of another part into it: none may be in two"
        problem = f"no part {' and no part '.join(absent)}; make a folder {absent[0]} and {moved}"
    elif len(deep) > len(SPLITS):
        problem = "a part is there twice; join the folders"
    elif beside:
        problem = f"and beside them {listed(beside)}, which would be left out; move or remove it"
    else:
        return
    raise InputError(f"{where}: folders that look like parts ({found}), but {problem}")


def wrapped(path: Path, inner: Path) -> InputError:
    """Build the error for a folder whose images are all in one subfolder."""
    return InputError(f"{path}: all images are one folder deeper; name {inner} instead")
