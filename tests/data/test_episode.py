from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import choose_episode, chosen_of, draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import check_shape

SHAPE = EpisodeShape(ways=5, shots=3, queries=4)
CLASSES, PER_CLASS = 9, 8


def numbered_pool(folder, rotations=1, classes=CLASSES):
    """Every image tells its class (upper left) and its number (upper right); all else is 0."""
    images = np.zeros((classes * PER_CLASS, 1, 8, 8), dtype=np.uint8)
    images[:, 0, 0, 0] = 1 + np.arange(classes).repeat(PER_CLASS)
    images[:, 0, 0, 7] = 101 + np.tile(np.arange(PER_CLASS), classes)
    path = folder / "numbered.npy"
    np.save(path, images)
    return ClassPool(
        path=path,
        names=tuple(map(str, range(classes))),
        first=tuple(range(0, classes * PER_CLASS, PER_CLASS)),
        counts=(PER_CLASS,) * classes,
        rotations=rotations,
    )


def identities(images):
    """(class, number, turn) of each image of a numbered pool."""
    found = []
    for image in images:
        values = (image[0] * 255).round().int()
        corners = [int(values[i, j]) for i, j in ((0, 0), (7, 0), (7, 7), (0, 7))]
        turn = next(t for t in range(4) if corners[t] in range(1, 100))
        assert int(torch.count_nonzero(values)) == 2
        found.append((corners[turn] - 1, corners[turn - 1] - 101, turn))
    return found


def draw(pool, seed, shape=SHAPE):
    return draw_episode(pool, np.random.default_rng(seed), shape)


def test_sizes_types_and_labels(tiny_strokes):
    episode = draw(tiny_strokes.train, 0)
    assert episode.support_images.shape == (15, 1, 28, 28)
    assert episode.query_images.shape == (20, 1, 28, 28)
    assert (SHAPE.support_records, SHAPE.query_records) == (15, 20)
    assert episode.support_labels.tolist() == [way for way in range(5) for _ in range(3)]
    assert episode.query_labels.tolist() == [way for way in range(5) for _ in range(4)]
    for images in (episode.support_images, episode.query_images):
        assert images.dtype == torch.float32
        assert images.min() >= 0
        assert images.max() <= 1
        assert images.max() > 0.9
    assert episode.support_labels.dtype == torch.int64


@pytest.mark.parametrize("rotations", [1, 4])
def test_no_image_occurs_twice_and_labels_mean_classes(tmp_path, rotations):
    pool = numbered_pool(tmp_path, rotations)
    turns = set()
    for seed in range(60):
        episode = draw(pool, seed)
        support, query = identities(episode.support_images), identities(episode.query_images)
        both = [entry[:2] for entry in support + query]
        assert len(set(both)) == len(both)
        of_label = {}
        for (index, _, turn), label in zip(
            support + query, episode.support_labels.tolist() + episode.query_labels.tolist(), strict=True
        ):
            assert of_label.setdefault(label, (index, turn)) == (index, turn)
        assert len({index for index, _ in of_label.values()}) == SHAPE.ways
        turns |= {turn for _, turn in of_label.values()}
    assert turns == set(range(rotations))


def test_a_whole_class_can_be_used(tmp_path):
    episode = draw(numbered_pool(tmp_path), 1, EpisodeShape(ways=CLASSES, shots=5, queries=3))
    drawn = identities(episode.support_images) + identities(episode.query_images)
    assert len(set(drawn)) == CLASSES * PER_CLASS


def test_every_class_image_and_turn_is_drawn_equally_often(tmp_path):
    pool = numbered_pool(tmp_path, rotations=4)
    classes, numbers = np.zeros(CLASSES), np.zeros(PER_CLASS)
    one = EpisodeShape(ways=2, shots=1, queries=1)
    episodes = 900
    for seed in range(episodes):
        for index, number, _ in identities(draw(pool, seed, one).support_images):
            classes[index] += 1
            numbers[number] += 1
    for counts in (classes, numbers):
        expected = 2 * episodes / len(counts)
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_the_same_generator_gives_the_same_episode(tiny_strokes):
    one, two, other = (draw(tiny_strokes.train, seed) for seed in (3, 3, 4))
    assert torch.equal(one.support_images, two.support_images)
    assert torch.equal(one.query_images, two.query_images)
    assert not torch.equal(one.support_images, other.support_images)


def test_what_is_drawn_does_not_depend_on_content(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pool, inverted = numbered_pool(tmp_path / "a"), numbered_pool(tmp_path / "b")
    np.save(inverted.path, 255 - np.load(pool.path))
    one, two = draw(pool, 5), draw(inverted, 5)
    assert torch.allclose(one.support_images, 1 - two.support_images)
    assert torch.allclose(one.query_images, 1 - two.query_images)


def test_the_episode_is_a_copy(tmp_path):
    pool = numbered_pool(tmp_path)
    before = np.array(pool.images)
    draw(pool, 0).support_images.zero_()
    assert np.array_equal(pool.images, before)


def test_an_episode_moves_to_another_device(tiny_strokes):
    moved = draw(tiny_strokes.train, 0).to(torch.device("meta"))
    assert {t.device.type for t in vars(moved).values()} == {"meta"}


@pytest.mark.parametrize(
    ("shape", "key"),
    [
        (EpisodeShape(ways=CLASSES + 1, shots=1, queries=1), "task.ways"),
        (EpisodeShape(ways=2, shots=PER_CLASS, queries=1), "task.shots"),
        (EpisodeShape(ways=2, shots=1, queries=PER_CLASS), "evaluation.queries"),
    ],
)
def test_what_the_pool_cannot_fill_is_refused_with_the_key(tmp_path, shape, key):
    with pytest.raises(InputError, match=key) as caught:
        check_shape(numbered_pool(tmp_path), shape, "val")
    assert "val split" in str(caught.value)


def test_rotations_do_not_count_as_classes_of_one_episode(tmp_path):
    pool = numbered_pool(tmp_path, rotations=4, classes=4)
    check_shape(pool, EpisodeShape(ways=4, shots=1, queries=1), "train")
    with pytest.raises(InputError, match="holds 4 classes"):
        check_shape(pool, SHAPE, "train")


def test_flips_mirror_single_images_and_nothing_else(tmp_path):
    pool = numbered_pool(tmp_path)
    assert torch.equal(draw(pool, 2).support_images, draw(replace(pool, rotations=1), 2).support_images)
    plain, flipped = draw(pool, 2), draw(replace(pool, flip=True), 2)
    mirrored = 0
    for one, two in zip(plain.support_images, flipped.support_images, strict=True):
        mirrored += int(torch.equal(one.flip(-1), two))
        assert torch.equal(one, two) or torch.equal(one.flip(-1), two)
    assert 0 < mirrored < len(plain.support_images)


def test_shifts_move_single_images_and_change_nothing_else_that_is_drawn(tmp_path):
    pool = replace(numbered_pool(tmp_path), flip=True)
    plain, moved = draw(pool, 2), draw(replace(pool, shift=2), 2)
    same = 0
    for one, two in zip(plain.support_images, moved.support_images, strict=True):
        wide = torch.nn.functional.pad(one[None], (2, 2, 2, 2), mode="reflect")[0]
        windows = [wide[:, down : down + 8, right : right + 8] for down in range(5) for right in range(5)]
        assert any(torch.equal(two, window) for window in windows)
        same += int(torch.equal(one, two))
    assert same < len(plain.support_images)
    assert torch.equal(plain.support_labels, moved.support_labels)


def test_every_shift_is_as_likely_as_another(tmp_path):
    pool = replace(numbered_pool(tmp_path), shift=2)
    drawn = np.concatenate(
        [choose_episode(pool, np.random.default_rng(seed), SHAPE).shifts.reshape(-1, 2) for seed in range(200)]
    )
    assert chisquare(np.unique(drawn @ [5, 1], return_counts=True)[1]).pvalue > 1e-4
    assert len(np.unique(drawn, axis=0)) == 25


def test_a_shift_beyond_the_image_is_refused(tmp_path):
    with pytest.raises(ValueError, match="8 x 8 pixels cannot be moved by"):
        for seed in range(20):
            draw(replace(numbered_pool(tmp_path), shift=9), seed)


def test_standardisation_uses_the_constants_of_the_task(tmp_path):
    pool = numbered_pool(tmp_path)
    standard = draw(replace(pool, mean=(0.3,), deviation=(0.25,)), 4)
    assert torch.allclose(standard.query_images, (draw(pool, 4).query_images - 0.3) / 0.25, atol=1e-6)


def test_no_image_outside_the_pool_and_no_turn_of_one_that_is_not_square(tmp_path):
    pool = replace(numbered_pool(tmp_path, rotations=4), first=(10_000,) * CLASSES)
    with pytest.raises(IndexError, match="of a pool of 72"):
        draw(pool, 0)
    oblong = np.zeros((CLASSES * PER_CLASS, 1, 8, 6), dtype=np.uint8)
    np.save(tmp_path / "oblong.npy", oblong)
    pool = replace(numbered_pool(tmp_path, rotations=4), path=tmp_path / "oblong.npy")
    with pytest.raises(ValueError, match="8 x 6 pixels cannot be turned"):
        draw(pool, 0)
    assert draw(replace(pool, rotations=1), 0).query_images.shape == (20, 1, 8, 6)


def test_what_the_compiled_loop_would_read_out_of_bounds_is_refused(tmp_path):
    pool, slots = numbered_pool(tmp_path), [np.arange(7)] * 5
    with pytest.raises(ValueError, match="12 turns"):
        chosen_of(pool, SHAPE, range(5), slots, [0] * 4).episode()
    with pytest.raises(ValueError, match="12 flips"):
        chosen_of(pool, SHAPE, range(5), slots, [0] * 5, np.zeros((4, 7), dtype=bool)).episode()
    with pytest.raises(ValueError, match="12 shifts"):
        chosen_of(pool, SHAPE, range(5), slots, [0] * 5, None, np.zeros((4, 7, 2), dtype=np.int64)).episode()
    with pytest.raises(ValueError, match="images for"):
        chosen_of(pool, SHAPE, range(5), [np.arange(6)] * 5, [0] * 5).episode()
    np.save(tmp_path / "words.npy", np.full((72, 1, 8, 8), 999, dtype=np.uint16))
    with pytest.raises(ValueError, match="uint8 images"):
        chosen_of(replace(pool, path=tmp_path / "words.npy"), SHAPE, range(5), slots, [0] * 5).episode()


def test_classes_of_unequal_size(tmp_path):
    pool = replace(numbered_pool(tmp_path), counts=(3, *[PER_CLASS] * (CLASSES - 1)))
    shape = EpisodeShape(ways=CLASSES, shots=2, queries=1)
    check_shape(pool, shape, "train")
    drawn = [entry for seed in range(30) for entry in identities(draw(pool, seed, shape).support_images)]
    assert {number for index, number, _ in drawn if index == 0} == {0, 1, 2}
    assert {number for index, number, _ in drawn if index == 1} == set(range(PER_CLASS))
    with pytest.raises(InputError, match=r"holds 3 of class 0 \(1 of 9 classes have too few\)"):
        check_shape(pool, SHAPE, "train")


def test_where_data_name_clients_an_episode_is_of_one_of_them(tmp_path):
    owners = ("anna", "ben", "cleo")
    pool = replace(numbered_pool(tmp_path), clients=tuple(name for name in owners for _ in range(3)))
    shape, generator = replace(SHAPE, ways=2), np.random.default_rng(0)
    places = [choose_episode(pool, generator, shape).places.flatten() for _ in range(40)]
    of = [{pool.clients[place // PER_CLASS] for place in each.tolist()} for each in places]
    assert all(len(names) == 1 for names in of)
    assert set().union(*of) == {*owners}
