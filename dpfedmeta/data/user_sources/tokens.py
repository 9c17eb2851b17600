"""Sequences of tokens: a table with the columns class and tokens, or NumPy's .npz with the array records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources.csv_table import Cell, CsvTable, Row, cells, part_words, people_cells, read_table
from dpfedmeta.data.user_sources.npz_arrays import read_array

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

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


def remarks(path: Path, task: Task, *, public: bool) -> tuple[str, ...]:
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
        path: A .csv, .parquet or .npz file.
        form: Length and vocabulary.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.

    Raises:
        InputError: The file is wrong, a sequence is empty or too long, or a token is none of the vocabulary.
    """
    rows, records = _records(path, form)
    return _contents(records, cells(str(path), rows, splits, ways))


def people(path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None) -> Contents:
    """The sequences of people that a model is judged on (data.user_sources.readers.Reader.people).

    Raises:
        InputError: The file is wrong, a sequence is empty or too long, or a token is none of the vocabulary.
    """
    rows, records = _records(path, form)
    return _contents(records, people_cells(str(path), rows))


def words_of(row: Row) -> list[float]:
    """The tokens of a row of a table, whatever the vocabulary; what is no number is left out."""
    return [float(word) for word in row.values[0].split() if _is_number(word)]


def _records(path: Path, form: RecordForm) -> tuple[tuple[Row, ...], Any]:
    """Whose each sequence is, and the sequences [n, length]."""
    if path.suffix.lower() == ".npz":
        return of_arrays(path, *read_array(path, "tokens"), form)
    return of_table(path, read_table(path, COLUMN), form)


def of_arrays(path: Path, rows: tuple[Row, ...], records: Any, form: RecordForm) -> tuple[tuple[Row, ...], Any]:
    """The same rows and sequences, if each is of the task; a sequence is wrong or not by itself.

    Raises:
        InputError: They have another length, one is empty, or a token is none of the vocabulary.
    """
    assert form.vocabulary is not None
    if records.shape[1:] != form.shape[:1]:
        raise InputError(f"{path}: sequences of {records.shape[1]} tokens, but the task says length: {form.shape[0]}")
    _check_none(path, _wrong(rows, records, form.vocabulary))
    return rows, records


def of_table(path: Path, table: CsvTable, form: RecordForm) -> tuple[tuple[Row, ...], Any]:
    """Rows of a table, or of some lines of it, and their sequences [n, length], as of `of_arrays`.

    Raises:
        InputError: A sequence is empty or too long, or a token is none of the vocabulary.
    """
    assert form.vocabulary is not None
    rows, records, problems = _from_table(table, form.shape[0], form.vocabulary)
    _check_none(path, problems)
    return rows, records


def _check_none(path: Path, problems: Sequence[str]) -> None:
    if problems:
        raise InputError(f"{path}: {len(problems)} sequence(s) cannot be used: {listed(problems)}")


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
