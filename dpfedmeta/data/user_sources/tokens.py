"""Sequences of tokens: a CSV file with the columns class and tokens, or NumPy's .npz with the array records."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources.client_cells import own_cells, people_cells, record_digests, spelled_digests
from dpfedmeta.data.user_sources.csv_table import Cell, CsvTable, Row, cells, part_words, read_table
from dpfedmeta.data.user_sources.vectors import read_array

COLUMN = "tokens"
_MOST_DIGITS = 12


def guess(path: Path) -> dict[str, int]:
    """No vocabulary can be guessed: it is a public constant, and the largest id is not.

    Raises:
        InputError: Always; says what to write.
    """
    raise InputError(
        f"{path}: sequences of tokens need a task file that says length: and vocabulary: (how many ids there are, "
        f"with 0 for padding), with source: {{reader: tokens, path: {path.name}}}"
    )


def key(path: Path) -> list[object]:
    """Nothing beside the file itself."""
    return []


def remarks(path: Path, *, public: bool) -> tuple[str, ...]:
    """Describe which names in the data were read as which split.

    Raises:
        InputError: The file is wrong; the message says where.
    """
    rows = read_array(path, "tokens")[0] if path.suffix.lower() == ".npz" else read_table(path, COLUMN).rows
    return part_words(rows, public=public)


def members(path: Path, splits: Mapping[str, Split], ways: int | None) -> tuple[Cell, ...]:
    """Classes and clients, without a look at a token.

    Raises:
        InputError: The file is wrong; says where.
    """
    rows = read_array(path, "tokens")[0] if path.suffix.lower() == ".npz" else read_table(path, COLUMN).rows
    return cells(str(path), rows, splits, ways)


def contents(path: Path, form: RecordForm, splits: Mapping[str, Split], ways: int | None) -> Contents:
    """The sequences of a file; shorter ones are padded with 0.

    Args:
        path: A .csv or .npz file.
        form: Length and vocabulary.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.

    Raises:
        InputError: The file is wrong, a sequence is empty or too long, or a token is none of the vocabulary.
    """
    rows, records = _records(path, form)
    return _contents(records, cells(str(path), rows, splits, ways))


def own(
    path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None, several: bool
) -> Contents:
    """The sequences that one client takes part with (data.user_sources.readers.Reader.own).

    Raises:
        InputError: The file is wrong, a sequence is empty or too long, or a token is none of the vocabulary.
    """
    rows, records = _records(path, form)
    return _contents(records, (people_cells if several else own_cells)(str(path), rows))


def own_digests(path: Path) -> list[tuple[str, str]]:
    """(class, SHA-256) of each sequence of a table that one client takes part with; of arrays see `vectors`.

    Raises:
        InputError: The file is wrong; says where.
    """
    return record_digests(str(path), *_written(path))


def spelled(path: Path) -> list[str]:
    """SHA-256 of each by one spelling of its class.

    Raises:
        InputError: The file is wrong; says where.
    """
    return spelled_digests(str(path), *_written(path))


def _written(path: Path) -> tuple[tuple[Row, ...], list[list[float]]]:
    rows = read_table(path, COLUMN).rows
    return rows, [[float(word) for word in row.values[0].split() if _is_number(word)] for row in rows]


def _records(path: Path, form: RecordForm) -> tuple[tuple[Row, ...], Any]:
    """Whose each sequence is, and the sequences [n, length]."""
    assert form.vocabulary is not None
    length = form.shape[0]
    if path.suffix.lower() == ".npz":
        rows, records = read_array(path, "tokens")
        if records.shape[1] != length:
            raise InputError(f"{path}: sequences of {records.shape[1]} tokens, but the task says length: {length}")
        problems = _wrong(rows, records, form.vocabulary)
    else:
        rows, records, problems = _from_table(read_table(path, COLUMN), length, form.vocabulary)
    if problems:
        raise InputError(f"{path}: {len(problems)} sequence(s) cannot be used: {listed(problems)}")
    return rows, records


def _contents(records: Any, made: Sequence[Cell]) -> Contents:
    def decode() -> Iterator[FloatRecords]:
        for cell in made:
            yield records[list(cell.rows)].astype(np.float32)

    return Contents(classes=tuple(cell.entry for cell in made), decode=decode)


def _from_table(table: CsvTable, length: int, vocabulary: int) -> tuple[tuple[Row, ...], Any, list[str]]:
    records, problems = np.zeros((len(table.rows), length)), []
    for number, row in enumerate(table.rows):
        words = row.values[0].split()
        odd = [word for word in words if not (_is_number(word) and 0 < int(word) < vocabulary)]
        if odd:
            problems.append(f"{row.place}: {odd[0][:20]!r} is not a token from 1 to {vocabulary - 1}")
        elif not words:
            problems.append(f"{row.place}: no tokens")
        elif len(words) > length:
            problems.append(f"{row.place}: {len(words)} tokens, and the task says length: {length}")
        else:
            records[number, : len(words)] = [int(word) for word in words]
    return table.rows, records, problems


def _is_number(word: str) -> bool:
    """Return whether a word is a whole number as tokens are written; no vocabulary has more digits."""
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS


def _wrong(rows: tuple[Row, ...], records: Any, vocabulary: int) -> list[str]:
    whole = (records >= 0) & (records < vocabulary) & (records == np.floor(records))
    problems = []
    for row, values, sound in zip(rows, records, whole, strict=True):
        if not sound.all():
            problems.append(f"{row.place}: {values[~sound][0]:g} is neither a token from 1 to {vocabulary - 1} nor 0")
        elif not values.any():
            problems.append(f"{row.place}: no tokens")
    return problems
