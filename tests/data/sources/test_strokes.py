import numpy as np
import pytest

from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.sources.strokes import draw_character
from dpfedmeta.data.sources.textures import draw_texture
from dpfedmeta.learning.evaluation import Benchmark, pixel_neighbour_accuracy, pixel_prototype_accuracy

DRAWN = pytest.mark.parametrize(("draw", "channels"), [(draw_character, 1), (draw_texture, 3)])


@DRAWN
def test_images_are_a_function_of_the_seed(draw, channels):
    one, two = (draw(5, 3, 4, 28, 1.0) for _ in range(2))
    assert np.array_equal(one, two)
    assert one.shape == (4, channels, 28, 28)
    assert one.dtype == np.uint8


@DRAWN
def test_seeds_classes_and_images_differ(draw, channels):
    base = draw(5, 3, 4, 28, 1.0)
    assert not np.array_equal(base, draw(6, 3, 4, 28, 1.0))
    assert not np.array_equal(base, draw(5, 4, 4, 28, 1.0))
    assert len({image.tobytes() for image in base}) == 4


@DRAWN
def test_further_images_do_not_change_the_first(draw, channels):
    assert np.array_equal(draw(5, 3, 9, 28, 1.0)[:4], draw(5, 3, 4, 28, 1.0))


def test_without_variation_all_drawers_draw_alike():
    images = draw_character(5, 3, 4, 28, 0.0)
    assert all(np.array_equal(image, images[0]) for image in images)


@pytest.mark.parametrize("size", [8, 28, 64])
def test_strokes_are_white_on_black_and_never_empty(size):
    images = np.concatenate([draw_character(0, character, 5, size, 1.0) for character in range(20)])
    ink = images.reshape(len(images), -1).astype(float).mean(1) / 255
    assert images.min() == 0
    assert images.max() > 200
    assert ink.min() > 0.005
    assert np.median(ink) < 0.4


def test_two_openings_give_the_same_file_and_another_seed_another(tiny_task_file, tiny_strokes, tmp_path):
    assert open_dataset(str(tiny_task_file)).train.path == tiny_strokes.train.path
    other = tmp_path / "other.yaml"
    other.write_text(tiny_task_file.read_text().replace("seed: 1", "seed: 2"))
    reseeded = open_dataset(str(other))
    assert reseeded.train.path != tiny_strokes.train.path
    assert not np.array_equal(reseeded.train.images, tiny_strokes.train.images)


def test_splits_hold_disjoint_characters(tiny_strokes):
    pools = (tiny_strokes.train, tiny_strokes.val, tiny_strokes.test)
    assert [pool.classes for pool in pools] == [12, 8, 8]
    assert len({name for pool in pools for name in pool.names}) == 28
    assert sorted(first for pool in pools for first in pool.first) == list(range(0, 28 * 20, 20))
    assert [pool.rotations for pool in pools] == [4, 1, 1]


@pytest.fixture(scope="module")
def hard_benchmark(tmp_path_factory, tiny_task_file):
    path = tmp_path_factory.mktemp("strokes") / "many.yaml"
    text = tiny_task_file.read_text().replace("test: 8", "test: 60")
    path.write_text(text.replace("seed: 1", "seed: 2026"))
    return Benchmark(
        pool=open_dataset(str(path)).test, shape=EpisodeShape(ways=5, shots=5, queries=10), seed=0, split="test"
    )


@pytest.mark.parametrize("baseline", [pixel_prototype_accuracy, pixel_neighbour_accuracy])
def test_pixels_tell_something_but_not_the_class(hard_benchmark, baseline):
    accuracy = baseline(hard_benchmark, 60)
    assert accuracy.mean - 3 * accuracy.ci95 > 0.4
    assert accuracy.mean + 3 * accuracy.ci95 < 0.9
