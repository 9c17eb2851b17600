"""Parquet tables as lines of CSV, so that the code that judges CSV files judges them too: their rows, names and blanks.

A number is written with all its bits, a null as a blank, and categories by their names.
"""

import csv
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import open_text

# Of what a file says of itself before anything is decoded. As CSV the largest would have about a gigabyte.
_MOST_VALUES, _MOST_BYTES = 50_000_000, 1 << 30
# Of pyarrow.types.
_PLAIN = ("string", "large_string", "string_view", "integer", "float32", "float64", "decimal", "boolean", "null")
# Rows that are decoded together; categories may repeat a long text, so what was written counts as well.
_ROWS = 512


def open_lines(path: Path, errors: str = "strict") -> AbstractContextManager[Iterator[str]]:
    """The lines of a table, which is Parquet if its name ends so; `errors` as in `open_text`.

    Raises:
        InputError: It is Parquet, and cannot be read.
        OSError, WrongEncoding: As `open_text`.
    """
    return _open_parquet(path) if path.suffix.lower() == ".parquet" else open_text(path, errors)


@contextmanager
def _open_parquet(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a Parquet table: the names of its columns, and its rows.

    Raises:
        InputError: pyarrow is not installed, the file is no Parquet or damaged, says that it is larger than the limits,
            or has columns that are neither text, numbers nor true and false. Lines raise it too.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        what = f"{path}: a Parquet table, and {error.name} is not installed"
        raise InputError(f"{what}; type: pip install 'dpfedmeta[parquet]', or save it as CSV") from error
    try:
        with parquet.ParquetFile(str(path), page_checksum_verification=True) as file:
            _check_sizes(path, file.metadata)
            _check_types(path, pyarrow.types, file.schema_arrow)
            yield _lines(path, file)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from error


def _check_sizes(path: Path, found: Any) -> None:
    """Compare what a file says of itself with the limits."""
    size = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
    for count, most, what in (
        (found.num_rows * found.num_columns, _MOST_VALUES, "values"),
        (size, _MOST_BYTES, "bytes, unpacked"),
    ):
        if not 0 <= count <= most:
            raise InputError(f"{path}: says that it holds {count:,} {what}; at most {most:,} are read; split the table")


def _check_types(path: Path, types: Any, schema: Any) -> None:
    """Refuse columns without one spelling in CSV: lists, structures, times, bytes, halves."""
    for column in schema:
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if not any(getattr(types, f"is_{name}")(kind) for name in _PLAIN):
            raise InputError(
                f"{path}: column {column.name}: {column.type}; a table holds text, numbers, true and false; take the "
                "column out, or write it as one of them"
            )


def _lines(path: Path, file: Any) -> Iterator[str]:
    writer, written = csv.writer(SimpleNamespace(write=str)), 0
    yield str(writer.writerow(file.schema_arrow.names))
    for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
        # Floats of 32 bits become Python's, which are written with all their bits.
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            line = str(writer.writerow(row))
            if (written := written + len(line)) > _MOST_BYTES:
                raise InputError(f"{path}: more than {_MOST_BYTES:,} bytes of text; split the table")
            yield line
