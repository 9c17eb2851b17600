"""Records of real clients and of people that a model is judged on, by class; and what a record is known by."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.names import same_class
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Split
from dpfedmeta.data.user_sources.csv_table import Cell, Row, check_all_or_none


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


def record_digest(row: Row, values: Iterable[float]) -> str:
    """SHA-256 of a record of a table, however its numbers are written."""
    return _digest(row.label, values)


def spelled_digests_of(rows: Sequence[Row], records: Sequence[Any], columns: Sequence[str] = ()) -> list[str]:
    """SHA-256 of each record of a table by one spelling of its class and of 0, which may be written -0.

    Args:
        rows: Where each record belongs.
        records: The numbers of each.
        columns: Their names, in the order of the numbers; empty: these are not looked at.
    """
    return [
        _digest("\n".join([same_class(row.label), *columns]), [value + 0.0 for value in values])
        for row, values in zip(rows, records, strict=True)
    ]


def _digest(label: str, values: Iterable[float]) -> str:
    numbers = [float(value) for value in values]
    while numbers and numbers[-1] == 0.0:  # padding of a sequence
        numbers.pop()
    return hashlib.sha256(json.dumps([label, numbers]).encode()).hexdigest()
