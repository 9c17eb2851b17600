"""Folders of images: a folder per class, with splits as folders, by a list, or by a hash of the class's name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dpfedmeta.data.contents import SPLITS, ClassEntry, Contents, Split, check_classes
from dpfedmeta.data.pixels import UNREADABLE, decode_image, form_of
from dpfedmeta.data.pool import ImageArray
from dpfedmeta.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
# Of a folder without a task file: larger images are made this large.
_LARGEST_GUESS = 84
_SMALLEST = 8
# Headers that are read for such a guess, and the share of much smaller images up to which there is one.
_MOST_HEADERS, _MOST_SMALL = 5000, 0.1
_OTHER = {1: "are coloured and become grey", 3: "are grey and become coloured"}


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


@dataclass(frozen=True, kw_only=True)
class FolderForm:
    """To which form the images of a folder without a task file are brought.

    Attributes:
        channels: 1 where most are grey, else 3.
        size: Height and width: the median of their shorter sides, from 8 to 84.
        words: That, and from how many files it was taken.
    """

    channels: int
    size: int
    words: str


def folder_form(path: Path) -> FolderForm:
    """What the headers of the images decide; of a folder with more than 5,000 of them, 5,000 spread over all.

    Raises:
        InputError: No classes, no image decodes, or too many are much smaller than the others.
    """
    found = class_folders(path)
    files = [file for folders in found.values() for folder in folders for file in image_files(folder)]
    step = -(-len(files) // _MOST_HEADERS)
    looked_at = tuple(files[::step])
    return _form_of_files(looked_at, tuple(file.stat().st_mtime_ns for file in looked_at))


@lru_cache(maxsize=8)
def _form_of_files(files: tuple[Path, ...], _changed: tuple[int, ...]) -> FolderForm:
    """Of these files, as they were changed last."""
    forms = {file: header for file in files if isinstance(header := _header(file), tuple)}
    if not forms:
        raise InputError(f"{files[0]}: does not decode ({_header(files[0])}); repair or remove it")
    grey = sum(channels == 1 for channels, _, _ in forms.values())
    channels = 1 if 2 * grey > len(forms) else 3
    sides = {file: min(width, height) for file, (_, width, height) in forms.items()}
    size = max(_SMALLEST, min(sorted(sides.values())[len(sides) // 2], _LARGEST_GUESS))
    words = f"{channels} x {size} x {size}, the median side and the commoner colours of {len(forms):,} files"
    small = [file for file, side in sides.items() if 2 * side < size]
    if small:
        _, width, height = forms[small[0]]
        example = f"{small[0]}, {width} x {height}"
        if len(small) > _MOST_SMALL * len(forms):
            raise InputError(
                f"{small[0].parent.parent}: {len(small)} of {len(forms)} images have less than half the median side of "
                f"{size} pixels (first: {example}): no one size fits them; remove them, or write a task file with the "
                "image_size that you want"
            )
        words += f"; {len(small)} have less than half of it and are enlarged (first: {example})"
    other = len(forms) - grey if channels == 1 else grey
    return FolderForm(channels=channels, size=size, words=words + (f"; {other} {_OTHER[channels]}" if other else ""))


def _header(file: Path) -> tuple[int, int, int] | Exception:
    """What it says; what does not decode is named where all is decoded."""
    try:
        return form_of(file)
    except UNREADABLE as error:
        return error


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _listed(path: Path, folders: list[Path], splits: Mapping[str, Split]) -> list[tuple[Path, Split | None]]:
    by_name = {folder.name: folder for folder in folders}
    absent = [name for name in splits if name not in by_name]
    if absent:
        raise InputError(f"{path}: {len(absent)} of the listed classes have no folder with images (first: {absent[0]})")
    return [(by_name[name], split) for name, split in splits.items()]
