"""Folders of images: a folder per class, with splits as folders, by a list, or by a hash of the class's name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpfedmeta.data.contents import SPLITS, ClassEntry, Contents, Split, check_classes
from dpfedmeta.data.pixels import UNREADABLE, decode_image, form_of
from dpfedmeta.data.pool import ImageArray
from dpfedmeta.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
# Of a folder without a task file: larger images are made this large.
_LARGEST_GUESS = 84
_SMALLEST = 8


def class_folders(path: Path) -> dict[Split | None, list[Path]]:
    """The class folders, by split if the folder has train, val and test, else all under None; sorted by name.

    Raises:
        InputError: It cannot be listed, or there is no class in it.
    """
    try:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder")
        inside = _folders(path)
        if all(any(folder.name == split for folder in inside) for split in SPLITS):
            found: dict[Split | None, list[Path]] = {split: _folders(path / split) for split in SPLITS}
        else:
            found = {None: inside}
        found = {split: [folder for folder in folders if image_files(folder)] for split, folders in found.items()}
    except OSError as error:
        raise InputError(f"{path}: cannot be listed ({error.strerror})") from error
    if not any(found.values()):
        raise InputError(
            f"{path}: a folder without classes; expected {path.name}/CLASS/IMAGE or "
            f"{path.name}/train|val|test/CLASS/IMAGE with images ({' '.join(SUFFIXES)})"
        )
    return found


def image_files(folder: Path) -> list[Path]:
    """Image files of a class, sorted by name."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def listed_key(path: Path) -> list[object]:
    """(path, size, modification time) of every image: what a decoded folder is known by."""
    found = class_folders(path)
    files = [file for folders in found.values() for folder in folders for file in image_files(folder)]
    return [str(path.resolve()), *((str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f in files)]


def split_of(name: str) -> Split:
    """The split of a class by the SHA-256 of its name, 64 : 16 : 20; the same in every copy of the folder."""
    share = int.from_bytes(hashlib.sha256(name.encode("utf-8", errors="surrogateescape")).digest()[:8], "big") / 2.0**64
    return "train" if share < 0.64 else "val" if share < 0.80 else "test"


def contents(path: Path, splits: Mapping[str, Split], size: int, channels: int) -> Contents:
    """The classes of a folder.

    Args:
        path: The folder.
        splits: From class to split, where a list says so; else empty.
        size: Height and width to resize to.
        channels: 1 or 3.

    Raises:
        InputError: No classes, a listed class that is not there, or overlapping splits.
    """
    found = class_folders(path)
    folders = [(folder, split) for split, inside in found.items() for folder in inside]
    if splits:
        folders = _listed(path, [folder for folder, _ in folders], splits)
    chosen = [(folder, split or split_of(folder.name), image_files(folder)) for folder, split in folders]
    classes = tuple(ClassEntry(name=folder.name, split=split, images=len(files)) for folder, split, files in chosen)
    check_classes(str(path), classes)

    def decode() -> Iterator[ImageArray]:
        for _, _, files in chosen:
            for file in files:
                yield read_image(file, channels, size)[None]

    return Contents(classes=classes, decode=decode)


def read_image(file: Path, channels: int, size: int | None) -> ImageArray:
    """One image file, uint8 [channels, height, width].

    Raises:
        InputError: It does not decode; names it.
    """
    try:
        return decode_image(file.read_bytes(), channels, size)
    except UNREADABLE as error:
        raise InputError(f"{file}: does not decode ({error}); repair or remove it") from error


def guess_form(path: Path) -> tuple[int, int]:
    """(channels, size) of a folder without a task file: as its first image, at most 84 x 84.

    Raises:
        InputError: No classes, or the first image does not decode.
    """
    first = next(folder for folders in class_folders(path).values() for folder in folders)
    file = image_files(first)[0]
    try:
        channels, width, height = form_of(file.read_bytes())
    except UNREADABLE as error:
        raise InputError(f"{file}: does not decode ({error}); repair or remove it") from error
    return channels, max(_SMALLEST, min(width, height, _LARGEST_GUESS))


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _listed(path: Path, folders: list[Path], splits: Mapping[str, Split]) -> list[tuple[Path, Split | None]]:
    by_name = {folder.name: folder for folder in folders}
    absent = [name for name in splits if name not in by_name]
    if absent:
        raise InputError(f"{path}: {len(absent)} of the listed classes have no folder with images (first: {absent[0]})")
    return [(by_name[name], split) for name, split in splits.items()]
