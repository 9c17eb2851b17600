import numpy as np
import pytest

from dpfedmeta.data.sources.textures import draw_texture


@pytest.mark.parametrize("size", [8, 32, 84])
def test_no_image_is_of_one_colour(size):
    images = np.concatenate([draw_texture(0, number, 2, size, 1.0) for number in range(30)]).astype(float)
    assert images.std((1, 2, 3)).min() > 1
    assert 60 < images.mean() < 200


def test_images_of_a_class_are_closer_than_those_of_two():
    # Correlation of pixels with the mean image of the own class and of another one.
    images = np.stack([draw_texture(1, number, 20, 32, 1.0) for number in range(30)]).reshape(30, 20, -1).astype(float)
    held, means = images[:, 10:], images[:, :10].mean(1)
    distances = ((held[:, :, None] - means) ** 2).mean(-1)
    own = distances[np.arange(30), :, np.arange(30)].mean()
    assert own < 0.9 * distances.mean()


def test_more_variation_makes_classes_harder_to_tell_apart():
    def spread(variation):
        images = [draw_texture(2, number, 12, 32, variation).astype(float) for number in range(12)]
        return np.mean([image.std(0).mean() for image in images])

    assert spread(0.2) < spread(1.0) < spread(2.5)
