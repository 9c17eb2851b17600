"""Which files of a folder are images, and what is left out of it: other files, and what systems leave behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from dpfedmeta.core.errors import InputError

SUFFIXES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp"),
    *(".pgm", ".ppm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga"),
)
# Images too, by cameras, telephones, scanners and programs, that Pillow alone does not read.
_UNREAD = (
    *(".heic", ".heif", ".hif", ".avif", ".jxl", ".dcm", ".dicom", ".nii", ".svg", ".psd", ".exr", ".dng"),
    *(".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".raw"),
)
# Of network drives, archives and recycle bins: thumbnails and what was thrown away.
_SYSTEM = (
    *("@eadir", "__macosx", "#recycle", "$recycle.bin", "@recycle", "#snapshot", "lost+found", "__pycache__"),
    *("system volume information", "@recently-snapshot"),
)
_HIDDEN, _OF_SYSTEM, _BARE = "hidden", "in folders of the system", "without extension"


def image_files(folder: Path) -> list[Path]:
    """Image files of a class, sorted by name."""
    return sorted(_images_in(folder))


def holds_images(folder: Path, depth: int = 0) -> bool:
    """Return whether a folder, or its subfolders down to `depth` levels, hold an image, readable or not."""
    if any(_images_in(folder)) or any(_is_unread(file) for file in folder.iterdir()):
        return True
    return depth > 0 and any(holds_images(inner, depth - 1) for inner in folders_in(folder))


def folders_in(path: Path) -> list[Path]:
    """Folders inside that are neither hidden nor a system's own, sorted by name."""
    return sorted(folder for folder in path.iterdir() if not _is_left_behind(folder.name) and folder.is_dir())


def check_all_read(path: Path) -> None:
    """Refuse a folder with images of kinds that are not read, as one with images that do not decode.

    Told to who holds the data: training on the others would be training on other data than were meant.

    Raises:
        InputError: Counts them by extension, and names the first.
    """
    found = [file for file in _walked(path) if _is_unread(file) and not _why_hidden(path, file)]
    if found:
        raise InputError(
            f"{path}: {_counted(Counter(file.suffix.lower() for file in found))}: images of kinds that are not read "
            f"(first: {min(found).relative_to(path)}); convert them to .png or .jpg, or remove them"
        )


def check_none_deeper(path: Path, taken: Collection[Path]) -> None:
    """Refuse images in folders below those of the classes: whoever put them there means them to be read.

    Args:
        path: The folder.
        taken: Its images that are read.

    Raises:
        InputError: Counts them, and names the first.
    """
    depth = min((len(file.parts) for file in taken), default=0)
    known = set(taken)
    deeper = [
        file
        for file in _walked(path)
        if len(file.parts) > depth > 0
        and file.suffix.lower() in SUFFIXES
        and file not in known
        and not _why_hidden(path, file)
    ]
    if deeper:
        raise InputError(
            f"{path}: {len(deeper):,} images lie in folders below those of their class (first: "
            f"{min(deeper).relative_to(path)}) and would be left out; move them into the folder of the class, or "
            "remove them"
        )


def left_out(path: Path, taken: Collection[Path], *, only: Collection[Path] | None = None) -> tuple[str, ...]:
    """Describe the files of a folder that are not used, counted by extension; empty if all are used.

    Args:
        path: The folder.
        taken: Images that are used.
        only: Folders whose files are looked at; None: all folders.
    """
    files = [file for file in _walked(path) if only is None or file.parent in only]
    known = set(taken)
    others = [file for file in files if file not in known]
    if not others:
        return ()
    counts = Counter(_why_hidden(path, file) or file.suffix.lower() or _BARE for file in others)
    odd = sorted(file for file in others if file.suffix.lower() in SUFFIXES and not _why_hidden(path, file))
    deep = f"; {len(odd)} of them images at another depth (first: {odd[0].relative_to(path)})" if odd else ""
    return (f"left out: {_counted(counts)}{deep}",)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.most_common())


def _images_in(folder: Path) -> Iterator[Path]:
    return (
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _is_unread(file: Path) -> bool:
    return file.suffix.lower() in _UNREAD and not file.name.startswith(".")


def _is_left_behind(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM


def _why_hidden(path: Path, file: Path) -> str:
    parts = file.relative_to(path).parts
    if any(part.lower() in _SYSTEM for part in parts):
        return _OF_SYSTEM
    return _HIDDEN if any(part.startswith(".") for part in parts) else ""


def _walked(path: Path) -> Iterator[Path]:
    return (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
