"""Records of real clients and of people that a model is judged on, by class; and what a record is known by."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.names import same_class
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Split
from dpfedmeta.data.user_sources.csv_table import Cell, Row, check_all_or_none


def own_cells(where: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    """The records that one client takes part with, by class: those of its train part, or all where no part is named.

    Args:
        where: The data, for errors.
        rows: Where each record belongs.

    Raises:
        InputError: A split is given for some records only, several clients are named, or nothing is left.
    """
    check_all_or_none(where, "split", [row.split for row in rows], rows)
    owners = sorted({row.client for row in rows})
    if len(owners) > 1:
        raise InputError(
            f"{where}: column client: names {len(owners)} clients ({listed(owners)}); a client takes part with the "
            "records of its own: give each a file of its own"
        )
    by_class: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if row.split in ("", "train"):
            by_class.setdefault(row.label, []).append(number)
    if not by_class:
        raise InputError(f"{where}: has no record in its train part")
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


def record_digests(where: str, rows: Sequence[Row], records: Sequence[Any]) -> list[tuple[str, str]]:
    """(class, SHA-256) of each record of a table that one client takes part with, however its numbers are written.

    Args:
        where: The data, for errors.
        rows: Where each record belongs.
        records: The numbers of each.

    Raises:
        InputError: See `own_cells`.
    """
    made = own_cells(where, rows)
    return [(cell.entry.name, _digest(cell.entry.name, records[number])) for cell in made for number in cell.rows]


def spelled_digests(where: str, rows: Sequence[Row], records: Sequence[Any], columns: Sequence[str] = ()) -> list[str]:
    """SHA-256 of each of them by one spelling of its class and of 0, which may be written -0.

    Args:
        where: The data, for errors.
        rows: Where each record belongs.
        records: The numbers of each.
        columns: Their names, in the order of the numbers; empty: these are not looked at.
    """
    return [
        _digest("\n".join([same_class(cell.entry.name), *columns]), [value + 0.0 for value in records[number]])
        for cell in own_cells(where, rows)
        for number in cell.rows
    ]


def _digest(label: str, values: Iterable[float]) -> str:
    numbers = [float(value) for value in values]
    while numbers and numbers[-1] == 0.0:  # padding of a sequence
        numbers.pop()
    return hashlib.sha256(json.dumps([label, numbers]).encode()).hexdigest()
