"""Names of the parts of a data set: train, val and test as people, programs and publishers write them."""

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

_FOLD = re.compile(r"(?:k|cv|outer|inner|test|val)?(?:folds?|splits?|cv|partitions?)\d+(?:of\d+)?")
_FOLDS = (
    "would be read as {0}; put the {1} into train, val and test, each into one of them (a list or a table: into a "
    "column split, for one fold at a time); if they are {0}, rename them"
)


def part_of(name: str) -> Split | None:
    """The part that a name stands for, in any case and with words such as meta, images or set around it.

    Args:
        name: Of a folder, or in a column: `Test`, `meta_train`, `images-val`, `TrainSet`, `val2017`.

    Returns:
        None: it is no name of a part.
    """
    found = _PART.fullmatch(_plain(name))
    return _NAMES[found[1]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.strip().lower())


def numbered_parts(names: Iterable[str]) -> dict[str, Split]:
    """Names of at least two parts with a number to them, as train_1 and test_1: no part, but hardly clients or classes.

    One part alone may be what was meant: a client of a class `test1`.
    """
    found = {name: part for name in sorted(set(names)) if (part := part_of(re.sub(r"\d+", "", name)))}
    return found if len(set(found.values())) > 1 else {}


def numbered_folds(names: Iterable[str]) -> list[str]:
    """Names of two folds of a cross-validation or more, as fold_0 and fold_1: parts too, of which none is a person."""
    found = [name for name in sorted(set(names)) if _FOLD.fullmatch(_plain(name))]
    return found if len(found) > 1 else []


def parts_taken(written: Iterable[str]) -> tuple[str, ...]:
    """Describe which split each name was read as; empty if all names are train, val or test."""
    other = [(name, part) for name in sorted(set(written)) if (part := part_of(name)) and name != part]
    return (f"parts by name: {', '.join(f'{name} is {part}' for name, part in other)}",) if other else ()


def check_clients_are_no_parts(where: str, clients: Iterable[str]) -> None:
    """Refuse a client whose name stands for a part: then a part was read as a client, and judged or trained on.

    Raises:
        InputError: Names them.
    """
    clients = set(clients)
    named = {name: part for name in sorted(clients) if (part := part_of(name))} or numbered_parts(clients)
    if named:
        raise InputError(
            f"{where}: {listed([f'{name} looks like the part {part}' for name, part in named.items()])}, but would be "
            "read as a client; the parts are train, val and test, all three, with clients or classes in each (a column "
            "split in a table); if it is a client, rename it"
        )
    _check_no_folds(where, clients, "clients", "people and their records")


def check_classes_are_no_parts(where: str, classes: Iterable[str]) -> None:
    """Refuse classes that are named as two parts or more; one alone may be a class, as the vehicle `train` is.

    Raises:
        InputError: Names them.
    """
    named = numbered_parts(classes)
    if named:
        raise InputError(
            f"{where}: {listed(list(named))} look like parts, but would be read as classes; a part holds classes "
            "of its own: train|val|test/CLASS/IMAGE, or a column split in a table; if they are classes, rename them"
        )
    _check_no_folds(where, classes, "classes", "classes")


def _check_no_folds(where: str, names: Iterable[str], read_as: str, inside: str) -> None:
    folds = numbered_folds(names)
    if folds:
        raise InputError(
            f"{where}: {listed(folds)} look like folds of a cross-validation, but {_FOLDS.format(read_as, inside)}"
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
        moved = "move classes (or clients) of another part into it (each may be in one part only)"
        problem = f"but no part {' and no part '.join(absent)}; make a folder {absent[0]} and {moved}"
        if beside:
            # A misspelt part, or people of whom one has such a name.
            one = f"{beside[0]} to {absent[0]}" if len(beside) == 1 else f"one of {listed(beside)} to {absent[0]}"
            problem += f"; or rename {one} if that is the part, or {next(iter(deep))} if that is a client or a class"
    elif len(deep) > len(SPLITS):
        problem = "but a part is there twice; join the folders"
    elif beside:
        problem = f"and beside them {listed(beside)}, which would be left out; move or remove it"
    else:
        return
    raise InputError(f"{where}: folders that look like parts ({found}), {problem}")


def wrapped(path: Path, inner: Path) -> InputError:
    """Build the error for a folder whose images are all in one subfolder."""
    return InputError(f"{path}: all images are one folder deeper; name {inner} instead")
