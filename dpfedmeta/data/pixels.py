"""From bytes of an image file to an array, and from one size to another."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dpfedmeta.data.pool import ImageArray
from dpfedmeta.errors import InputError

# RuntimeError: flipped bits can claim that a member is encrypted or packed in an unknown way.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    RuntimeError,
)
# Wider than 8 bits per pixel; Pillow's own conversion would cut them off at 255.
_WIDE = ("I", "I;16", "I;16L", "I;16B")


def decode_image(content: bytes, channels: int, size: int | None) -> ImageArray:
    """One image, uint8 [channels, height, width].

    Args:
        content: A PNG, JPEG or whatever Pillow reads.
        channels: 1 (luminance) or 3 (RGB). What is transparent becomes white.
        size: Height and width: the centre square, resized; None: as it is.

    Raises:
        One of UNREADABLE: It does not decode.
    """
    try:
        opening = Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError("no image of a known kind" if content else "an empty file") from error
    with opening as opened:
        image = _plain(ImageOps.exif_transpose(opened)).convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _plain(image: Image.Image) -> Image.Image:
    """8 bits per channel and opaque."""
    if image.mode in _WIDE:
        return Image.fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65535) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "P"):
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image


def form_of(file: Path | BinaryIO) -> tuple[int, int, int]:
    """(channels, width, height) by the header of an image file; 1 channel where it holds luminance only.

    Raises:
        One of UNREADABLE: It is no image.
    """
    with Image.open(file) as image:
        return (1 if image.mode in ("1", "L", "LA", *_WIDE) else 3), image.width, image.height


def resized(images: ImageArray, size: int) -> ImageArray:
    """RGB images [images, 3, height, width] at another size; the same array where they have it."""
    if images.shape[2:] == (size, size):
        return images
    planes = [
        np.asarray(Image.fromarray(image.transpose(1, 2, 0)).resize((size, size), Image.Resampling.LANCZOS))
        for image in images
    ]
    stacked: ImageArray = np.stack(planes).transpose(0, 3, 1, 2)
    return stacked


def in_order_of_content(images: ImageArray) -> ImageArray:
    """Images of one class, ascending by the SHA-256 of their interleaved bytes: an order that no file name decides."""
    digests = [hashlib.sha256(image.transpose(1, 2, 0).tobytes()).digest() for image in images]
    return images[np.asarray(sorted(range(len(images)), key=digests.__getitem__), dtype=np.int64)]


def open_zip(path: Path) -> zipfile.ZipFile:
    """An archive whose list of members is readable.

    Raises:
        InputError: It is damaged or cut off.
    """
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise InputError(f"{path}: not a readable zip archive ({error}); fetch it again") from error


def member_image(archive: zipfile.ZipFile, path: Path, member: str, channels: int, size: int | None) -> ImageArray:
    """One image of an archive, uint8 [channels, height, width].

    Raises:
        InputError: It does not decode; names the archive and the member.
    """
    try:
        return decode_image(archive.read(member), channels, size)
    except UNREADABLE as error:
        raise InputError(f"{path}: {member} does not decode ({error}); fetch the archive again") from error
