import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage.image_codecs import (
    UNREADABLE,
    UnknownRange,
    decode_image,
    form_of,
    in_order_of_content,
    resized,
)
from dpfedmeta.data.user_sources.image_folder import read_image


def packed(pixels, mode=None, kind="PNG", **options):
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, format=kind, **options)
    return file.getvalue()


@pytest.fixture
def colours():
    return np.random.default_rng(0).integers(0, 256, size=(9, 9, 3), dtype=np.uint8)


def test_colours_come_back_exactly_with_channels_first(colours):
    assert np.array_equal(decode_image(packed(colours), 3, None), colours.transpose(2, 0, 1))
    assert np.array_equal(decode_image(packed(colours), 3, 9), colours.transpose(2, 0, 1))


def test_luminance_of_colours_and_colours_of_luminance(colours):
    assert decode_image(packed(colours), 1, None).shape == (1, 9, 9)
    grey = decode_image(packed(colours[:, :, 0]), 3, None)
    assert (grey == colours[None, :, :, 0]).all()


def test_the_centre_square_is_resized():
    wide = np.zeros((20, 60), dtype=np.uint8)
    wide[:, 20:40] = 200
    assert (decode_image(packed(wide), 1, 8)[0] >= 180).all()
    assert decode_image(packed(wide), 3, 8).shape == (3, 8, 8)


def test_what_is_transparent_becomes_white():
    clear = np.zeros((8, 8, 4), dtype=np.uint8)
    clear[:4, :, 3] = 255
    image = decode_image(packed(clear), 1, None)[0]
    assert (image[:4] == 0).all()
    assert (image[4:] == 255).all()


@pytest.mark.parametrize(("mode", "clear"), [("L", 10), ("RGB", (10, 10, 10))])
def test_a_shade_that_is_declared_transparent_becomes_white(mode, clear):
    """PNG names one shade or colour of an image without an alpha channel."""
    pixels = np.full((8, 8), 10, dtype=np.uint8)
    pixels[:4] = 77
    image = decode_image(packed(pixels, mode, transparency=clear), 1, None)[0]
    assert (image[:4] == 77).all()
    assert (image[4:] == 255).all()


def test_palettes_and_16_bits_keep_their_values():
    ramp = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024).astype(np.uint16)
    assert np.array_equal(decode_image(packed(ramp), 1, None)[0], (ramp >> 8).astype(np.uint8))
    flat = np.full((8, 8, 3), (255, 0, 0), dtype=np.uint8)
    assert (decode_image(packed(flat, "P", "GIF"), 3, None)[0] == 255).all()


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_what_does_not_decode_is_one_of_the_known_errors(content):
    with pytest.raises(UNREADABLE):
        decode_image(content, 3, None)


def test_a_cut_off_image_does_not_decode(colours):
    content = packed(np.tile(colours, (20, 20, 1)))
    with pytest.raises(UNREADABLE):
        decode_image(content[: len(content) // 2], 3, None)


def test_form(colours):
    assert form_of(io.BytesIO(packed(colours[:5]))) == (3, 9, 5)
    assert form_of(io.BytesIO(packed(colours[:, :, 0]))) == (1, 9, 9)


def test_the_order_of_content_does_not_depend_on_the_order_given(colours):
    images = np.random.default_rng(1).integers(0, 256, size=(7, 3, 4, 4), dtype=np.uint8)
    ordered = in_order_of_content(images)
    assert np.array_equal(in_order_of_content(images[::-1]), ordered)
    assert sorted(image.tobytes() for image in ordered) == sorted(image.tobytes() for image in images)


def test_many_images_are_resized():
    images = np.full((2, 3, 6, 6), 77, dtype=np.uint8)
    assert resized(images, 6) is images
    assert np.array_equal(resized(images, 3), np.full((2, 3, 3, 3), 77))


def written(values, kind="TIFF"):
    file = io.BytesIO()
    Image.fromarray(np.asarray(values)).save(file, format=kind)
    return file.getvalue()


RAMP = np.linspace(0.0, 1.0, 64).reshape(8, 8)
WIDE = {
    "12 bits in uint16": (np.rint(RAMP * 4095).astype(np.uint16), "PNG", (0, 4095)),
    "14 bits in uint16": (np.rint(RAMP * 16383).astype(np.uint16), "TIFF", (0, 16383)),
    "int32": (np.rint(RAMP * 255).astype(np.int32), "TIFF", (0, 255)),
    "large int32": (np.rint(RAMP * 2**30).astype(np.int32), "TIFF", (0, 2**30)),
    "CT as int16": (np.rint(RAMP * 2000 - 1000).astype(np.int16), "TIFF", (-1000, 1000)),
    "CT as int32": (np.rint(RAMP * 2000 - 1000).astype(np.int32), "TIFF", (-1000, 1000)),
    "CT as float": ((RAMP * 2000 - 1000).astype(np.float32), "TIFF", (-1000, 1000)),
    "float of bytes": ((RAMP * 255).astype(np.float32), "TIFF", (0, 255)),
    "standardised": ((RAMP * 4 - 2).astype(np.float32), "TIFF", (-2, 2)),
}


@pytest.mark.parametrize("of", WIDE)
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_another_range_than_their_type_are_refused_or_scaled_by_a_public_constant(of, channels):
    values, kind, given = WIDE[of]
    with pytest.raises(UnknownRange, match=r"pixels from .* what is black and white is not known"):
        decode_image(written(values, kind), channels, None)
    scaled = decode_image(written(values, kind), channels, None, given)
    assert np.abs(scaled.astype(float) - 255 * RAMP).max() <= 1.0
    window = decode_image(written(values, kind), channels, None, (given[0], (given[0] + given[1]) / 2))
    assert (window[:, 4:, :] == 255).all()


def test_ranges_of_the_types_themselves_need_no_constant():
    for values, kind in (
        (np.rint(RAMP * 65535).astype(np.uint16), "PNG"),
        (np.rint(RAMP * 65535).astype(np.uint16), "TIFF"),
        (RAMP.astype(np.float32), "TIFF"),
        (np.rint(RAMP * 255).astype(np.uint8), "PNG"),
    ):
        for given in (None, (0, 255)) if values.dtype == np.uint8 else (None,):
            assert (
                np.abs(decode_image(written(values, kind), 1, None, given)[0].astype(float) - 255 * RAMP).max() <= 1.0
            )
    # The header of a PGM says what is white: 12 bits are no guess.
    header = b"P5\n8 8\n4095\n" + np.rint(RAMP * 4095).astype(">u2").tobytes()
    assert np.abs(decode_image(header, 1, None)[0].astype(float) - 255 * RAMP).max() <= 1.0
    assert form_of(io.BytesIO(written(RAMP.astype(np.float32)))) == (1, 8, 8)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("given", [None, (0, 1)])
def test_pixels_that_are_no_numbers_are_refused(odd, given):
    values = RAMP.astype(np.float32)
    values[3, 3] = odd
    with pytest.raises(ValueError, match="NaN or infinite"):
        decode_image(written(values), 1, None, given)


@pytest.mark.parametrize("most", [4095, 65535])
def test_colours_of_16_bits(most):
    pixels = np.rint(np.repeat(RAMP[..., None], 3, axis=2) * most).astype(">u2")
    raw = b"".join(b"\x00" + row.tobytes() for row in pixels)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    if most == 65535:
        assert np.abs(decode_image(png, 3, None)[0].astype(float) - 255 * RAMP).max() <= 1.0
    else:
        with pytest.raises(UnknownRange, match="colours of 16 bits"):
            decode_image(png, 3, None)


# What the camera did, and so what undoes it, by the number in the header.
TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip


@pytest.mark.parametrize("number", [None, 1, *TURNED])
@pytest.mark.parametrize("kind", ["L", "RGB", "uint16"])
@pytest.mark.parametrize("size", [None, 4])
def test_a_photograph_stands_upright_however_the_camera_was_held(colours, number, kind, size):
    """Whoever looks at it sees it so; as it lies in the file its records would be others than their owner thinks."""
    pixels = colours[:4, :7] if kind == "RGB" else colours[:4, :7, 0]
    upright = Image.fromarray(pixels.astype(np.uint16) * 257 if kind == "uint16" else pixels)
    lying = upright.transpose(TURNED[number]) if number in TURNED else upright
    header, files = Image.Exif(), []
    if number is not None:
        header[0x0112] = number
    for image, more in ((upright, {}), (lying, {"exif": header})):
        file = io.BytesIO()
        image.save(file, format="PNG", **more)
        files.append(file.getvalue())
    plain, found = (decode_image(content, 3, size) for content in files)
    assert plain.shape == (3, *((4, 7) if size is None else (4, 4)))
    assert np.array_equal(found, plain)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_damaged_tags_of_a_camera_are_an_image_that_does_not_decode(tmp_path, kind):
    """Pillow raises what it finds; a client whose photo did so sent noise in place of all its photos."""
    tags, content = Image.Exif(), io.BytesIO()
    tags[0x0112] = 6  # to be turned
    drawn = np.random.default_rng(0).integers(0, 256, (16, 12, 3)).astype(np.uint8)
    Image.fromarray(drawn).save(content, kind, exif=tags.tobytes())
    refused, path = 0, tmp_path / "photo"
    for place in range(2, min(140, len(content.getvalue()))):
        for value in (0, 1, 14, 255):
            damaged = bytearray(content.getvalue())
            damaged[place] = value
            path.write_bytes(bytes(damaged))
            try:
                read_image(path, 3, 8)
            except InputError:
                refused += 1
    assert refused > 3
