"""Decoding of image files to arrays, and resizing."""

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ImageArray

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
    # Damaged tags of a camera: Pillow takes what they hold for what they should.
    struct.error,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
)
# Wider than 8 bits per pixel; Pillow's own conversion would cut them off at 255.
WIDE = frozenset(("I", "I;16", "I;16L", "I;16B", "I;16N", "F"))
_GREY = ("1", "L", "LA", *WIDE)
_OTHER_COLOURS = ("CMYK", "LAB", "HSV", "YCbCr")
_SIXTEEN = 65535
PixelRange = tuple[float, float]
HOW_TO_SCALE = (
    "write a task file with pixel_range: [LOW, HIGH], the values that are black and white (for 12 bits [0, 4095]), or "
    "convert the images to 8 bits"
)
REPAIR = "repair or remove it"


class UnknownRange(ValueError):
    """Pixels wider than 8 bits, of which only the owner of the data knows what is black and what is white."""


def decode_image(content: bytes, channels: int, size: int | None, pixel_range: PixelRange | None = None) -> ImageArray:
    """Decode one image to uint8 [channels, height, width].

    Args:
        content: Bytes of a PNG, a JPEG or another format that Pillow reads.
        channels: 1 (luminance) or 3 (RGB). Transparent pixels become white.
        size: Height and width to which the centre square is resized; None: the image keeps its size.
        pixel_range: Values of black and white for pixels wider than 8 bits; values beyond are clamped. A public
            constant. None: the range of the type, 0 to 65,535 or, for floats, 0 to 1.

    Raises:
        UnknownRange: Pixels wider than 8 bits do not use the range of their type, so black and white are unknown.
        One of UNREADABLE: The image does not decode.
    """
    with open_image(content) as opened:
        whole, colours = _type_range(opened), _sixteen_bit_colours(opened)
        turned = ImageOps.exif_transpose(opened)
        plain = (
            _scaled(turned, whole, pixel_range, declared=opened.format == "PPM")
            if turned.mode in WIDE
            else _opaque(turned)
        )
        image = plain.convert("L" if channels == 1 else "RGB")
        if colours and np.asarray(turned).max() < 128:
            raise UnknownRange("colours of 16 bits in less than half of their range; convert them to 8 bits yourself")
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def changes(image: Image.Image, channels: int, size: int | None, pixel_range: PixelRange | None) -> tuple[str, ...]:
    """Everything that `decode_image` drops or changes of an image, in words for its owner.

    Args:
        image: As it was opened.
        channels: As in `decode_image`.
        size: Likewise.
        pixel_range: Likewise.
    """
    side, grey = min(image.size), image.mode in _GREY
    wide = image.mode in WIDE
    beyond = np.asarray(image) if wide and pixel_range is not None else np.zeros(1)
    low, high = pixel_range or (0.0, 0.0)
    said = {
        "are turned as their camera says": image.getexif().get(ExifTags.Base.Orientation, 1) not in (0, 1),
        "are not square: the middle square is used, and what lies beside it is cut off": image.width != image.height,
        f"are made smaller, to {size} x {size}": size is not None and side > size,
        f"are enlarged, to {size} x {size}": size is not None and side < size,
        "are transparent in parts: white stands behind": _is_transparent(image),
        "have more than 8 bits per colour: they are rounded to 256 shades": wide or _sixteen_bit_colours(image),
        "hold values beyond pixel_range, which are clamped": bool(((beyond < low) | (beyond > high)).any()),
        "are coloured and become grey": channels == 1 and not grey,
        "are grey and become coloured": channels == 3 and grey,
        f"are {image.mode} and become RGB": image.mode in _OTHER_COLOURS,
        "hold several pages or frames: the first is read": getattr(image, "n_frames", 1) > 1,
    }
    return tuple(words for words, holds in said.items() if holds)


def open_image(content: bytes) -> Image.Image:
    """Read the header of an image.

    Raises:
        UnidentifiedImageError: It has none; says whether anything is in the file.
    """
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError("no image of a known kind" if content else "an empty file") from error


def _type_range(opened: Image.Image) -> PixelRange | None:
    """Black and white by the type of the file; None: the type says neither."""
    if opened.mode == "F":
        return 0.0, 1.0
    # Of 16 bits without a sign Pillow made I of PNG, and does of PGM, whose header says what is white.
    return (0.0, float(_SIXTEEN)) if opened.mode != "I" or opened.format in ("PNG", "PPM") else None


def _sixteen_bit_colours(opened: Image.Image) -> bool:
    """Return whether Pillow reduces 16-bit colours to 8 bits when it reads this image."""
    return opened.mode not in WIDE and any(";16" in str(tile[-1]) for tile in getattr(opened, "tile", ()))


def _scaled(image: Image.Image, whole: PixelRange | None, given: PixelRange | None, *, declared: bool) -> Image.Image:
    """8 bits of pixels that are wider.

    Raises:
        UnknownRange: No range was given, and they are not in that of their type.
        ValueError: They hold NaN or infinity.
    """
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("pixels that are NaN or infinite")
    low, high = given or whole or (0.0, 0.0)
    seen = float(values.min()), float(values.max())
    # Of 12 or 14 bits in 16 the upper half is empty: they would be nearly black.
    short = whole == (0.0, _SIXTEEN) and not declared and seen[1] <= _SIXTEEN // 2
    if given is None and (low == high or seen[0] < low or seen[1] > high or short):
        kind = {"F": "floats", "I": "whole numbers of 32 bits"}.get(image.mode, "whole numbers of 16 bits")
        raise UnknownRange(f"pixels from {seen[0]:g} to {seen[1]:g}, in {kind}: what is black and white is not known")
    if given is None and high == _SIXTEEN:
        return Image.fromarray((values.astype(np.int64) >> 8).astype(np.uint8))
    shares = np.clip((values - low) / (high - low), 0.0, 1.0)
    return Image.fromarray(np.rint(255.0 * shares).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """8 bits per channel, without transparency."""
    # Besides, one shade or colour of an image may be declared transparent.
    if _is_transparent(image) or image.mode == "P":
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def form_of(file: Path | BinaryIO) -> tuple[int, int, int]:
    """(channels, width, height) by the header of an image file; 1 channel where it holds luminance only.

    Raises:
        One of UNREADABLE: It is no image.
    """
    with Image.open(file) as image:
        return (1 if image.mode in _GREY else 3), image.width, image.height


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
    """Decode one image of an archive to uint8 [channels, height, width].

    Raises:
        InputError: The image does not decode; the message names the archive and the member.
    """
    try:
        return decode_image(archive.read(member), channels, size)
    except UNREADABLE as error:
        raise InputError(f"{path}: {member} does not decode ({error}); fetch the archive again") from error
