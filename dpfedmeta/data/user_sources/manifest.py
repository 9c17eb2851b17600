"""Lists of image files: a CSV or Parquet file with the columns path and class, perhaps client and split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources.csv_table import (
    Cell,
    CsvTable,
    Row,
    cells,
    part_words,
    people_cells,
    public_rows,
    read_table,
)
from dpfedmeta.data.user_sources.image_files import check_fit, form_of_images
from dpfedmeta.data.user_sources.image_folder import content_digest, decoded_all

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

COLUMN = "path"


def guess(path: Path) -> dict[str, int]:
    """Form of the records without a task file: as most images of validation and test classes, or clients.

    Guarantee:
        As of a folder: no image of a training class or client decides.

    Raises:
        InputError: The list cannot be read, no image can, or no one size fits them.
    """
    table = read_table(path, COLUMN)
    files = _files(path, table)
    if not files:
        raise InputError(f"{path}: no record in it")
    form = form_of_images(public_files(path))
    check_fit(files, form.size)
    return form.as_keys()


def key(path: Path) -> list[object]:
    """Paths and content of all images: what they were decoded from."""
    files = _files(path, read_table(path, COLUMN))
    return [(str(file), content_digest(file)) for file in files]


def remarks(path: Path, task: Task, *, public: bool) -> tuple[str, ...]:
    """Describe which names in the data were read as which split.

    Raises:
        InputError: The file is wrong; the message says where.
    """
    return part_words(read_table(path, COLUMN).rows, public=public)


def members(path: Path, splits: Mapping[str, Split], ways: int | None) -> tuple[Cell, ...]:
    """Classes and clients, without a look at an image.

    Raises:
        InputError: The list is wrong; says in which lines.
    """
    return cells(str(path), read_table(path, COLUMN).rows, splits, ways)


def contents(
    path: Path,
    form: RecordForm,
    splits: Mapping[str, Split],
    ways: int | None,
    pixel_range: PixelRange | None = None,
) -> Contents:
    """The images of a list.

    Args:
        path: The CSV file; relative paths in it begin where it is.
        form: Of the images, once they are decoded.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.
        pixel_range: As in `decode_image`.

    Raises:
        InputError: The list is wrong, or files are absent; says in which lines.
    """
    table = read_table(path, COLUMN)
    return _contents(path, form, _files(path, table), cells(str(path), table.rows, splits, ways), pixel_range)


def people(path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None) -> Contents:
    """The images of people that a model is judged on (data.user_sources.readers.Reader.people).

    Raises:
        InputError: The list is wrong, or files are absent; says in which lines.
    """
    table = read_table(path, COLUMN)
    return _contents(path, form, _files(path, table), people_cells(str(path), table.rows), pixel_range)


def _contents(
    path: Path, form: RecordForm, files: Sequence[Path], made: Sequence[Cell], pixel_range: PixelRange | None
) -> Contents:
    def decode() -> Iterator[ImageArray]:
        ordered = [files[row] for cell in made for row in cell.rows]
        yield from decoded_all(str(path), ordered, form.shape[0], form.shape[1], pixel_range)

    return Contents(classes=tuple(cell.entry for cell in made), decode=decode)


def files_of(path: Path) -> list[Path]:
    """All image files of a list."""
    return _files(path, read_table(path, COLUMN))


def public_files(path: Path) -> list[Path]:
    """Images of validation and test classes, or clients."""
    table = read_table(path, COLUMN)
    files = _files(path, table)
    return [files[number] for number in public_rows(table.rows)]


def file_of(path: Path, row: Row) -> tuple[Path, str]:
    """The image file of one row, and what is wrong with it; "": nothing."""
    written = row.values[0].strip()
    file = path.parent / written
    if not _is_file(file) and "\\" in written:  # written under Windows
        file = path.parent / written.replace("\\", "/")
    if written and _is_file(file):
        return file, ""
    return file, f"{row.place}: {written or 'no path'}{': no such file' if written else ''}"


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # a name that is too long, or behind a closed folder
        return False


def _files(path: Path, table: CsvTable) -> list[Path]:
    files, problems, seen = [], [], dict[Path, str]()
    for row in table.rows:
        file, problem = file_of(path, row)
        if not problem and file in seen:
            problem = f"{row.place}: {row.values[0].strip()}: already listed at {seen[file]}"
        problems += [problem] if problem else []
        seen.setdefault(file, row.place)
        files.append(file)
    if problems:
        raise InputError(
            f"{path}: {len(problems)} of {len(table.rows)} images cannot be used (relative paths begin at "
            f"{path.parent}): {listed(problems)}"
        )
    return files
