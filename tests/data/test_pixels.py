import io

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.data.pixels import UNREADABLE, decode_image, form_of, in_order_of_content, resized


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
