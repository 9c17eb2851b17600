"""Data of the user's own, by the reader that a task file names: one file for each in this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.storage.decoded_cache import Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources import folder, manifest, tokens, vectors
from dpfedmeta.data.user_sources.csv_table import Cell, read_header

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


class Reader(Protocol):
    """A module of this folder. Whatever is wrong with the data is an InputError, with all places in one line."""

    def guess(self, path: Path, /) -> dict[str, int]:
        """The form of the records where no task file says it, as keys of a task file."""
        ...

    def key(self, path: Path, /) -> list[object]:
        """Return everything that the records depend on besides the content of the file itself."""
        ...

    def remarks(self, path: Path, task: Task, /, *, public: bool) -> tuple[str, ...]:
        """Describe how the data of a task were read; `public`: from names and public records only."""
        ...

    def members(self, path: Path, splits: Mapping[str, Split], ways: int | None, /) -> tuple[Cell, ...]:
        """Classes, and clients where the data name them, without a look at a record."""
        ...

    def contents(self, path: Path, form: RecordForm, splits: Mapping[str, Split], ways: int | None, /) -> Contents:
        """The records."""
        ...

    def people(
        self, path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None, /
    ) -> Contents:
        """The records of people that a model is judged on: the test part, or all.

        Args:
            path: Their data.
            form: Of the records.
            columns: Names of a vector's numbers in their order; empty: their order is trusted.
            pixel_range: As in `decode_image`.
        """
        ...


class ImageReader(Reader, Protocol):
    """A module of this folder whose records are image files."""

    def contents(
        self,
        path: Path,
        form: RecordForm,
        splits: Mapping[str, Split],
        ways: int | None,
        pixel_range: PixelRange | None = None,
        /,
    ) -> Contents:
        """The images; `pixel_range` as in `decode_image`."""
        ...


IMAGE_READERS: Mapping[str, ImageReader] = {"folder": folder, "manifest": manifest}
READERS: Mapping[str, Reader] = {"folder": folder, "manifest": manifest, "vectors": vectors, "tokens": tokens}
# A table without a task file is told by its columns; of vectors any other name is one.
_TABLES = {manifest.COLUMN: "manifest", tokens.COLUMN: "tokens"}


def reader_name(path: Path) -> str:
    """The reader of a path that no task file describes.

    Raises:
        InputError: The file cannot be read.
    """
    if path.is_dir():
        return "folder"
    if path.suffix.lower() == ".npz":
        return "vectors"
    return next((name for column, name in _TABLES.items() if column in read_header(path)), "vectors")


def columns_in(reader: str, path: Path) -> tuple[str, ...]:
    """The names of a vector's numbers in a table; of other data none are known.

    Raises:
        InputError: The file cannot be read.
    """
    naming = {"vectors": vectors.columns_in}.get(reader)
    return naming(path) if naming else ()


def reader_of(path: Path, form: RecordForm) -> str:
    """The reader of data that are to have a form.

    Raises:
        InputError: They are a folder, and the form is of no images.
    """
    if path.is_dir() and form.kind != "images":
        raise InputError(f"{path}: a folder, but the plan counts with {form.kind}; give a .csv, .parquet or .npz file")
    return {"images": "folder" if path.is_dir() else "manifest"}.get(form.kind, form.kind)


def people_contents(
    path: Path, form: RecordForm, columns: Sequence[str] = (), pixel_range: PixelRange | None = None
) -> Contents:
    """The records of people that a model is judged on, in its form.

    Args:
        path: A folder of images, a list of them, or a table.
        form: Of the records.
        columns: Names of a vector's numbers in their order; empty: their order is trusted.
        pixel_range: As in `decode_image`.

    Raises:
        InputError: The data are of another kind, or wrong; says where.
    """
    return READERS[reader_of(path, form)].people(path, form, columns, pixel_range)


def image_files_of(reader: str, path: Path) -> Sequence[Path]:
    """The image files behind data of the user's own; of vectors and tokens none.

    Raises:
        InputError: The list of them is wrong.
    """
    listing = {"folder": folder.files_of, "manifest": manifest.files_of}.get(reader)
    return listing(path) if listing else ()


def public_image_files_of(reader: str, path: Path) -> Sequence[Path]:
    """Those of validation and test classes or clients: what is told of their form follows from them alone."""
    listing = {"folder": folder.public_files, "manifest": manifest.public_files}.get(reader)
    return listing(path) if listing else ()


def clients_in(path: Path, reader: str, splits: Mapping[str, Split]) -> int:
    """Count the training clients that the data name; 0 if they name none.

    Raises:
        InputError: The data are wrong.
    """
    if not path.exists():
        raise not_there(str(path))
    # Of classes each part needs more; that is looked at where they are opened.
    entries = [cell.entry for cell in READERS[reader].members(path, splits, 1)]
    return len({entry.client for entry in entries if entry.client and entry.split == "train"})


def not_there(name: str) -> InputError:
    """Build the error for data that are missing from the named path."""
    return InputError(
        f"{name}: not there; check the path. If the data of an earlier run moved, put {Path(name).name} into a folder "
        "and name that folder with "
        "--data-dir (or DPFEDMETA_DATA)"
    )
