"""Which files of a folder are images, and what is left out of it: other files, and what systems leave behind."""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage.image_codecs import REPAIR, UNREADABLE, form_of

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
_BROKEN = "links to what is not there"
# Larger images are made this large, smaller ones this small.
_LARGEST, _SMALLEST = 84, 8
# Headers that are read, and the share of much smaller images up to which one size is found for all.
_MOST_HEADERS, _MOST_SMALL = 5000, 0.1
_OTHER = {1: "are coloured and become grey", 3: "are grey and become coloured"}


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


def other_images(path: Path, taken: Collection[Path]) -> list[tuple[Path, str]]:
    """Images of any kind below a folder that are none of those that are taken, and why."""
    known, place = set(taken), "in no folder of a class (CLASS/IMAGE)"
    return sorted(
        (file, "of a kind that is not read" if _is_unread(file) else _why_broken(file) or place)
        for file in _walked(path)
        if file not in known and (file.suffix.lower() in SUFFIXES or _is_unread(file)) and not _why_hidden(path, file)
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
    kinds = {file: _why_hidden(path, file) or _why_broken(file) or file.suffix.lower() or _BARE for file in others}
    counts = Counter(kinds.values())
    odd = sorted(file for file, kind in kinds.items() if kind in SUFFIXES)
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


def _why_broken(file: Path) -> str:
    return "" if file.exists() else _BROKEN


def _walked(path: Path) -> Iterator[Path]:
    """Files below a folder, also through links to folders elsewhere, as classes are read; each such folder once."""
    root, seen, left = Path(os.path.realpath(path)), set[Path](), [path]
    while left:
        for folder, inside, names in os.walk(left.pop()):
            yield from (Path(folder) / name for name in names)
            for linked in (Path(folder) / name for name in inside):
                place = Path(os.path.realpath(linked))
                # What lies in the folder itself is walked anyway, and what lies above it is not its own.
                own = place.is_relative_to(root) or root.is_relative_to(place)
                if linked.is_symlink() and not own and place not in seen:
                    seen.add(place)
                    left.append(linked)


@dataclass(frozen=True, kw_only=True)
class ImageForm:
    """The form of all images.

    Attributes:
        channels: 1 where most are grey, else 3.
        size: Height and width: the median of their shorter sides, from 8 to 84.
        words: That, and from how many files it was taken.
    """

    channels: int
    size: int
    words: str

    def as_keys(self) -> dict[str, int]:
        """Return the form as the keys of a task file."""
        return {"channels": self.channels, "image_size": self.size}


def form_of_images(files: Sequence[Path]) -> ImageForm:
    """Choose channels and image size from the headers of image files; at most 5,000, spread evenly over all.

    Guarantee:
        None: a form is published, so callers pass validation and test images alone (`public_files`).

    Raises:
        InputError: No image decodes.
    """
    looked_at = _spread(files)
    return _form_of(looked_at, tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in looked_at))


@lru_cache(maxsize=8)
def _form_of(files: tuple[Path, ...], _changed: tuple[int, ...]) -> ImageForm:
    """Compute the form of these files; cached by their times of modification."""
    forms = {file: header for file in files if isinstance(header := _header(file), tuple)}
    if not forms:
        raise InputError(f"{files[0]}: does not decode ({_header(files[0])}); {REPAIR}")
    grey = sum(channels == 1 for channels, _, _ in forms.values())
    channels = 1 if 2 * grey > len(forms) else 3
    sides = {file: min(width, height) for file, (_, width, height) in forms.items()}
    size = max(_SMALLEST, min(sorted(sides.values())[len(sides) // 2], _LARGEST))
    words = f"{channels} x {size} x {size}, the median side and the commoner colours of {len(forms):,} public files"
    small = [file for file, side in sides.items() if 2 * side < size]
    if small:
        _, width, height = forms[small[0]]
        words += f"; {len(small)} have less than half of it and are enlarged (first: {small[0]}, {width} x {height})"
    other = len(forms) - grey if channels == 1 else grey
    return ImageForm(channels=channels, size=size, words=words + (f"; {other} {_OTHER[channels]}" if other else ""))


def check_fit(files: Sequence[Path], size: int) -> None:
    """Refuse data of which many images are much smaller than they would be made; `form_of_images` says how many look.

    Told to who holds the data, and to nobody else.

    Raises:
        InputError: Too many are.
    """
    forms = {file: header for file in _spread(files) if isinstance(header := _header(file), tuple)}
    small = [file for file, (_, width, height) in forms.items() if 2 * min(width, height) < size]
    if len(small) > _MOST_SMALL * len(forms):
        _, width, height = forms[small[0]]
        raise InputError(
            f"{small[0].parent.parent}: {len(small)} of {len(forms)} images have less than half the median side of "
            f"{size} pixels (first: {small[0]}, {width} x {height}): no one size fits them; remove them, or write a "
            "task file with the image_size that you want"
        )


def _spread(files: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(files[:: -(-len(files) // _MOST_HEADERS) or 1])


def _header(file: Path) -> tuple[int, int, int] | Exception:
    """Read channels, width and height from a file's header; return the error if it does not decode."""
    try:
        return form_of(file)
    except UNREADABLE as error:
        return error
