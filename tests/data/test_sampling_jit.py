"""Records as numpy would make them, step by step."""

import numpy as np
import pytest

from dpfedmeta.data.episodes import sampling_jit as drawing_kernels

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 2, 5, 5), dtype=np.uint8)
UNMOVED = np.zeros((4, 2), np.int64)
VALUES = np.random.default_rng(1).normal(size=(2, 256)).astype(np.float32)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_turned_then_mirrored_then_standardised(turns: int, mirrored: bool) -> None:
    places = np.array([6, 0, 3, 3])
    records = np.full((4, 2, 5, 5), np.nan, dtype=np.float32)
    flips = np.array([mirrored, False, mirrored, not mirrored])
    drawing_kernels.draw_records(IMAGES, places, np.full(4, turns), flips, UNMOVED, VALUES, records)
    for record, place, flip in zip(records, places, flips, strict=True):
        image = np.rot90(IMAGES[place], turns, axes=(1, 2))
        image = image[..., ::-1] if flip else image
        np.testing.assert_array_equal(record, np.stack([VALUES[c][image[c]] for c in range(2)]))


def test_images_need_not_be_square_where_none_is_turned() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4)
    identity = np.stack([np.arange(256), np.arange(256)]).astype(np.float32)
    records = np.empty((2, 2, 3, 4), dtype=np.float32)
    drawing_kernels.draw_records(
        images, np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([False, True]), UNMOVED[:2], identity, records
    )
    np.testing.assert_array_equal(records[0], images[0])
    np.testing.assert_array_equal(records[1], images[0][..., ::-1])


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_moved_images_are_windows_of_their_reflection(turns: int, mirrored: bool) -> None:
    shifts = np.array([[0, 0], [4, -4], [-1, 2], [3, 3]])
    records = np.full((4, 2, 5, 5), np.nan, dtype=np.float32)
    places = np.array([6, 0, 3, 3])
    drawing_kernels.draw_records(IMAGES, places, np.full(4, turns), np.full(4, mirrored), shifts, VALUES, records)
    for record, place, (down, right) in zip(records, places, shifts, strict=True):
        image = np.rot90(IMAGES[place], turns, axes=(1, 2))
        image = image[..., ::-1] if mirrored else image
        wide = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")[:, 4 + down : 9 + down, 4 + right : 9 + right]
        np.testing.assert_array_equal(record, np.stack([VALUES[c][wide[c]] for c in range(2)]))
