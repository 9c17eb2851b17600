"""To which form the images of one's own are brought where no task file says it: the headers of public ones decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage.image_codecs import UNREADABLE, form_of

# Larger images are made this large, smaller ones this small.
_LARGEST, _SMALLEST = 84, 8
# Headers that are read, and the share of much smaller images up to which one size is found for all.
_MOST_HEADERS, _MOST_SMALL = 5000, 0.1
_OTHER = {1: "are coloured and become grey", 3: "are grey and become coloured"}


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
        raise InputError(f"{files[0]}: does not decode ({_header(files[0])}); repair or remove it")
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
