"""Folders of images as a whole: CLASS/IMAGE or CLIENT/CLASS/IMAGE, perhaps below train, val and test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.parts import part_of, parts_taken
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents, Split
from dpfedmeta.data.storage.image_codecs import PixelRange
from dpfedmeta.data.user_sources import image_folder
from dpfedmeta.data.user_sources.csv_table import Cell, Row, cells, check_spelled_alike, people_cells, public_rows
from dpfedmeta.data.user_sources.image_files import (
    check_all_read,
    check_fit,
    check_none_deeper,
    folders_in,
    form_of_images,
    image_files,
    left_out,
)
from dpfedmeta.data.user_sources.image_folder import (
    class_folders,
    decoded_all,
    listed_key,
    part_folders,
)

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


def guess(path: Path) -> dict[str, int]:
    """Form of the records without a task file: as most images of validation and test classes, or clients.

    Guarantee:
        No image of a training class or client decides: the form of the network is published.

    Raises:
        InputError: It holds no image, or no one size fits them; or none decodes, and then all are named.
    """
    check_all_read(path)
    files = files_of(path)
    try:
        form = form_of_images(public_files(path))
        check_fit(files, form.size)
        return form.as_keys()
    except InputError:
        for _ in decoded_all(str(path), files, 3, None):
            pass
        raise


def key(path: Path) -> list[object]:
    """Names and content of all images: what they were decoded from.

    Raises:
        InputError: Some images of the folder would be left out. Said here, since no decoded copy says it.
    """
    files = files_of(path)
    check_all_read(path)
    check_none_deeper(path, files)
    return listed_key(path, files)


def files_of(path: Path) -> list[Path]:
    """All images.

    Raises:
        InputError: There is none, or the folder cannot be listed.
    """
    clients = _client_folders(path)
    if clients is not None:
        return [file for _, file in _rows(path, clients)]
    return [file for folders in class_folders(path).values() for folder in folders for file in image_files(folder)]


def public_files(path: Path) -> list[Path]:
    """Images of validation and test classes, or clients."""
    clients = _client_folders(path)
    rows = _rows(path, clients) if clients is not None else _rows_of_classes(path)
    return [rows[number][1] for number in public_rows([row for row, _ in rows])]


def remarks(path: Path, task: Task, *, public: bool) -> tuple[str, ...]:
    """Describe which folders were read as which split, and which files were left out.

    Guarantee:
        `public`: it uses the names of the splits' folders, and files beside images of validation and test; these
        belong to no training client.

    Raises:
        InputError: The folder holds no images, or its splits do not fit together.
    """
    said = parts_taken(folder.name for part, found in part_folders(path).items() if part for folder in found)
    if not public:
        return (*said, *left_out(path, files_of(path)))
    files = public_files(path)
    beside = left_out(path, files, only={file.parent for file in files})
    return (*said, *(f"beside public images {words}" for words in beside))


def members(path: Path, splits: Mapping[str, Split], ways: int | None) -> tuple[Cell, ...]:
    """Classes and clients, without a look at an image.

    Raises:
        InputError: The folder holds none, or parts of it are empty or overlap.
    """
    check_all_read(path)
    check_none_deeper(path, files_of(path))
    clients = _client_folders(path)
    if clients is not None:
        return cells(str(path), [row for row, _ in _rows(path, clients)], splits, ways)
    listed = image_folder.contents(path, splits, 0, 0, ways).classes
    return tuple(Cell(entry=entry, rows=()) for entry in listed)


def contents(
    path: Path,
    form: RecordForm,
    splits: Mapping[str, Split],
    ways: int | None,
    pixel_range: PixelRange | None = None,
) -> Contents:
    """The images of a folder.

    Args:
        path: The folder.
        form: Of the images, once they are decoded.
        splits: Of classes, where a list beside the task file says so.
        ways: How many classes each part needs.
        pixel_range: As in `decode_image`.

    Raises:
        InputError: No images, parts that are empty or overlap, or images that do not decode.
    """
    channels, size, _ = form.shape
    clients = _client_folders(path)
    if clients is None:
        return image_folder.contents(path, splits, size, channels, ways, pixel_range)
    rows = _rows(path, clients)
    made = cells(str(path), [row for row, _ in rows], splits, ways)
    ordered = [rows[number][1] for cell in made for number in cell.rows]

    def decode() -> Iterator[ImageArray]:
        yield from decoded_all(str(path), ordered, channels, size, pixel_range)

    classes: tuple[ClassEntry, ...] = tuple(cell.entry for cell in made)
    return Contents(classes=classes, decode=decode)


def people(path: Path, form: RecordForm, columns: Sequence[str], pixel_range: PixelRange | None) -> Contents:
    """The images of people that a model is judged on (data.user_sources.readers.Reader.people).

    CLIENT/CLASS/IMAGE, perhaps below train, val and test; a folder of classes alone is one client.

    Raises:
        InputError: No folder, no classes, or images that do not decode.
    """
    clients, (channels, size, _) = _client_folders(path) if path.is_dir() else None, form.shape
    rows = _rows_of_classes(path) if clients is None else _rows(path, clients)
    if clients is None:
        check_all_read(path)
        check_none_deeper(path, [file for _, file in rows])
    made = people_cells(str(path), [row for row, _ in rows])
    files = [rows[number][1] for cell in made for number in cell.rows]

    def decode() -> Iterator[ImageArray]:
        yield from decoded_all(str(path), files, channels, size, pixel_range)

    return Contents(classes=tuple(cell.entry for cell in made), decode=decode)


def own_files(path: Path) -> list[tuple[Row, Path]]:
    """Images that one real client takes part with: CLASS/IMAGE, or train/CLASS/IMAGE; none is read.

    Guarantee:
        Whether an image is one, and its class, follow from its path below the folder alone.

    Raises:
        InputError: The folder cannot be listed.
    """
    try:
        units = [(unit, unit) for unit in folders_in(path)]
        units += [(unit, inner) for unit, _ in units if part_of(unit.name) == "train" for inner in folders_in(unit)]
        return [
            (Row(place=str(file.relative_to(path)), label=kind.name, client="", split="train"), file)
            for _, kind in units
            for file in image_files(kind)
        ]
    except OSError as error:
        raise InputError(f"{path}: {error.filename or ''} cannot be listed ({error.strerror})") from error


def own_folders(path: Path) -> list[tuple[Path, list[Path]]]:
    """The class folders of one person, and their images; none is read.

    Raises:
        InputError: No folder, no classes with images, or images that would be left out.
    """
    if path.is_dir():
        check_all_read(path)
    found = class_folders(path)
    chosen = [(inside, image_files(inside)) for inside in found.get("train", found.get(None, []))]
    if not chosen:
        raise InputError(f"{path}: has no class folder with images in its train part")
    check_none_deeper(path, [file for _, held in chosen for file in held])
    return chosen


def _rows_of_classes(path: Path) -> list[tuple[Row, Path]]:
    return [
        (Row(place=str(file), label=folder.name, client="", split=split or ""), file)
        for split, folders in class_folders(path).items()
        for folder in folders
        for file in image_files(folder)
    ]


def _rows(path: Path, clients: Mapping[Split | None, list[Path]]) -> list[tuple[Row, Path]]:
    found = [
        (Row(place=str(file.relative_to(path)), label=kind.name, client=client.name, split=split or ""), file)
        for split, folders in clients.items()
        for client in folders
        for kind in folders_in(client)
        for file in image_files(kind)
    ]
    check_spelled_alike(str(path), [row for row, _ in found])
    return found


def _client_folders(path: Path) -> dict[Split | None, list[Path]] | None:
    """The clients' folders, by split where there are such folders; None: the folders are classes.

    Raises:
        InputError: Some are classes and some are clients, or they cannot be listed.
    """
    try:
        parts = part_folders(path)
        units = {split: [unit for folder in found for unit in folders_in(folder)] for split, found in parts.items()}
        bare = [unit for found in units.values() for unit in found if not image_files(unit)]
        clients = [unit for unit in bare if any(image_files(folder) for folder in folders_in(unit))]
    except OSError as error:
        raise InputError(f"{path}: {error.filename or ''} cannot be listed ({error.strerror})") from error
    if not clients:
        return None
    classes = [unit for found in units.values() for unit in found if unit not in bare]
    _check_extra_level(path, clients, classes)
    loop = next(
        (
            unit
            for unit in clients
            if classes and unit.is_symlink() and unit.parent.resolve().is_relative_to(unit.resolve())
        ),
        None,
    )
    if loop is not None:
        raise InputError(f"{loop}: a link to {loop.resolve()}, a folder that holds the link; remove the link")
    if classes:
        raise InputError(
            f"{path}: {len(classes)} folder(s) hold images ({classes[0].relative_to(path)}) and {len(clients)} hold "
            f"folders of images ({clients[0].relative_to(path)}); expected CLASS/IMAGE, or CLIENT/CLASS/IMAGE, not both"
        )
    return {split: [unit for unit in found if unit in clients] for split, found in units.items()}


# Of folders that publishers put between a class and its images, as Tiny ImageNet has them.
_EXTRA = ("image", "images", "img", "imgs", "jpegimages", "pictures", "photos", "frames", "files", "data")


def _check_extra_level(path: Path, clients: Sequence[Path], classes: Sequence[Path]) -> None:
    """Refuse classes whose images are one folder deeper: each would be a client of one class.

    Raises:
        InputError: Names the extra folder.
    """
    inside = [[folder for folder in folders_in(unit) if image_files(folder)] for unit in clients]
    names = {folder.name for found in inside for folder in found}
    if len(names) != 1 or len(clients) < 2 or next(iter(names)).lower() not in _EXTRA:
        return
    (name,) = names
    odd = [str(unit.relative_to(path)) for unit in classes]
    also = f"; those in {listed(odd)} are of no class: make a folder for each class there" if odd else ""
    raise InputError(
        f"{path}: the images of {len(clients)} classes are in an extra folder {name} (first: "
        f"{inside[0][0].relative_to(path)}); expected CLASS/IMAGE: move them one folder up{also}"
    )
