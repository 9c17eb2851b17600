"""Labels of data as a task says them: one public list that all clients share, or numbers in a public range."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents
from dpfedmeta.data.user_sources.vectors import LARGEST


def labelled(where: str, found: Contents, labels: Sequence[str], targets: TargetRange | None) -> Contents:
    """Check the labels of data against a task, and scale numbers to predict, which stand behind each vector.

    Args:
        where: The data, for errors.
        found: Their classes and records.
        labels: Public list of labels; empty: any are allowed.
        targets: Public constants of numbers to predict; None: the data have classes.

    Raises:
        InputError: A label is not in the list, or a number is missing or outside the range; says which, and whose.
    """
    if targets is not None:
        return _scaled(where, found, targets)
    odd = [
        f"{_named(entry)} ({entry.images} records)" for entry in found.classes if labels and entry.name not in labels
    ]
    if odd:
        raise InputError(
            f"{where}: {len(odd)} label(s) outside the task's public list ({', '.join(labels)}): {listed(odd)}; leave "
            "these records out, or correct the label"
        )
    return found


def check_several_labels(where: str, found: Contents, labels: Sequence[str]) -> None:
    """Refuse data of all clients in which every record has the same label of the list, so there is nothing to learn.

    Raises:
        InputError: Says which.
    """
    names = {entry.name for entry in found.classes}
    if labels and len(names) == 1:
        raise InputError(
            f"{where}: all records of all clients have label {names.pop()} of the list ({', '.join(labels)}), so there "
            "is nothing to learn; is the right column named class?"
        )


def _named(entry: ClassEntry) -> str:
    return f"{entry.name} of {entry.client}" if entry.client else entry.name


def _scaled(where: str, found: Contents, targets: TargetRange) -> Contents:
    problems, largest = [], 0.0
    blocks = (cast(FloatRecords, block) for block in found.decode())
    for entry, numbers in _by_class(found.classes, np.concatenate([block[:, -1] for block in blocks])):
        odd = [f"{numbers[place]:g}" for place in targets.outside(numbers.tolist())]
        problems += [f"{number} of {entry.client}" if entry.client else number for number in odd]
        largest = max(largest, float(np.abs(numbers - targets.centre).max(initial=0.0)) / targets.scale)
    if problems:
        raise InputError(
            f"{where}: {len(problems)} number(s) to predict outside the task's public range ({targets.words}): "
            f"{listed(problems)}; leave these records out, or correct them"
        )
    if largest > LARGEST:
        raise InputError(
            f"{where}: numbers to predict up to {largest:.3g} reach the network, more than {LARGEST:,.0f}; give "
            "another targets.scale in the task file (a public constant: the network sees (number - centre) / scale)"
        )

    def decode() -> Iterator[FloatRecords]:
        for block in found.decode():
            # Scaled before it is rounded: of 1,700,000,001 float32 keeps 1,700,000,000.
            records = np.array(block, dtype=np.float64)
            records[:, -1] = (records[:, -1] - targets.centre) / targets.scale
            yield records.astype(np.float32)

    return replace(found, decode=decode)


def _by_class(classes: Sequence[ClassEntry], numbers: FloatRecords) -> Iterator[tuple[ClassEntry, FloatRecords]]:
    ends = np.cumsum([entry.images for entry in classes])
    yield from zip(classes, np.split(numbers, ends[:-1]), strict=True)
