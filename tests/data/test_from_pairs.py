import pickle
import random
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from own_data import Named

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.data.populations.from_pairs import checked_labels, from_learn2learn, from_pairs, from_torchmeta
from dpfedmeta.data.populations.from_records import RecordsPopulation
from dpfedmeta.planning.client_population import plan_population

SHAPE = EpisodeShape(ways=3, shots=2, queries=1)


def same(one, two):
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in vars(one))


def pair(number, shots=2, labels=(4, 7, 9)):
    """Images whose shade is their label's, as bytes."""
    parts = []
    for count in (shots, 1):
        values = np.repeat(labels, count)
        images = np.broadcast_to(values[:, None, None, None], (len(values), 1, 8, 8)).astype(np.uint8)
        if parts:  # queries are other images: a corner has the shade of the last label
            images[:, :, -1, -1] = max(labels)
        parts.append((images, values))
    return tuple(parts)


def test_a_sequence_of_pairs():
    population = from_pairs([pair(0), pair(1, labels=(1, 0, 5))], SHAPE)
    assert population.clients == 2
    episode = population.episode(1)
    assert episode.support_images.shape == (6, 1, 8, 8)
    assert episode.support_images.dtype == torch.float32
    # Class by class, and each image still beside its label.
    assert episode.support_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert episode.query_labels.tolist() == [0, 1, 2]
    assert torch.allclose(episode.query_images[:, 0, 0, 0] * 255, torch.tensor([0.0, 1.0, 5.0]))
    assert torch.allclose(episode.support_images[:, 0, 0, 0] * 255, torch.tensor([0.0, 0.0, 1.0, 1.0, 5.0, 5.0]))
    assert same(episode, pickle.loads(pickle.dumps(population)).episode(1))
    with pytest.raises(IndexError, match="population of 2"):
        population.episode(2)


@pytest.mark.parametrize(
    "bad",
    [
        pair(0, shots=3),
        pair(0, labels=(1, 1, 2)),
        (pair(0)[0], pair(0, labels=(4, 7, 8))[1]),
        (pair(0)[0], pair(0, labels=(4, 7))[1]),
        ((pair(0)[0][0], np.array([4, 4, 4, 7, 7, 9])), pair(0)[1]),
        (pair(0)[0], (pair(0)[1][0], np.array([4, 4, 9]))),
    ],
)
def test_an_episode_of_another_size_is_refused(bad):
    with pytest.raises(InputError, match=r"client 0: .* records of"):
        from_pairs([bad], SHAPE).episode(0)


class Taskset:
    """As learn2learn's: another task each time."""

    def __init__(self, per_class=3):
        self.drawn, self.per_class = 0, per_class

    def sample(self):
        self.drawn += 1
        labels = torch.arange(3).repeat(self.per_class)
        images = torch.full((len(labels), 1, 8, 8), self.drawn / 100.0) + labels[:, None, None, None] / 10.0
        return images, labels


def test_tasks_of_a_taskset_are_kept():
    taskset = Taskset()
    population = from_learn2learn(taskset, SHAPE, 4)
    assert (population.clients, taskset.drawn) == (4, 4)
    assert same(population.episode(2), population.episode(2))
    assert not same(population.episode(2), population.episode(3))
    assert population.episode(0).support_labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InputError, match="has 2 images of a class; 2 shots and 1 queries need 3"):
        from_learn2learn(Taskset(per_class=2), SHAPE, 1)


class Drawn:
    """A taskset that draws by all three global generators, as learn2learn's transforms do."""

    def sample(self):
        labels = torch.arange(3).repeat(3)
        shade = torch.tensor([random.random(), float(np.random.random()), float(torch.rand(()))])  # noqa: NPY002
        return shade[labels][:, None, None, None].expand(9, 1, 8, 8), labels


def test_tasks_of_a_taskset_are_the_same_in_every_process():
    def others():
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    one = from_learn2learn(Drawn(), SHAPE, 4)
    others()
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    expected = others()
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    two = from_learn2learn(Drawn(), SHAPE, 4)
    # Nothing else that draws from them is changed by it.
    assert others() == expected
    assert one.digest() == two.digest()
    assert all(same(one.episode(client), two.episode(client)) for client in range(4))
    assert one.digest() != from_learn2learn(Drawn(), SHAPE, 4, seed=1).digest()
    shades = torch.stack([one.episode(client).query_images[:, 0, 0, 0] for client in range(4)])
    assert len(shades.unique()) == 12


def test_generators_are_put_back_after_a_taskset_that_fails():
    before = random.getstate()
    with pytest.raises(InputError, match="2 images of a class"):
        from_learn2learn(Taskset(per_class=2), SHAPE, 1)
    assert random.getstate() == before


def test_the_owner_is_told_what_is_wrong_with_each_client():
    support, query = pair(0)
    bent = (query[0].astype(np.float32) / 9, query[1])
    bent[0][1, 0, 2, 2] = np.nan
    held = [
        pair(0),
        pair(1, shots=3),
        (support, (query[0][:, :, 1:], query[1])),
        None,
        ((support[0], ["a"] * 6), query),
        (support, bent),
        ((support[0][:4], support[1]), query),
        pair(7, labels=(1, 2, 3)),
    ]
    found = dict(from_pairs(held, SHAPE).problems())
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    assert "9 support and 3 query records of 3 classes, expected 6, 3 and 3" in found[1]
    assert found[2] == "records of 1 x 7 x 8 and 1 x 8 x 8, expected 1 x 8 x 8"
    assert all(found[number].startswith("cannot be read (") for number in (3, 4))
    assert found[5] == "records hold NaN or infinity"
    assert found[6] == "4 support and 3 query records, but 6 and 3 labels"
    assert not any("\n" in words or "client" in words for words in found.values())
    other = dict(from_pairs(held, SHAPE).problems((1, 28, 28)))
    assert sorted(other) == list(range(8))
    assert other[0] == other[7] == "records of 1 x 8 x 8, expected 1 x 28 x 28"


class MetaDataset:
    """As torchmeta's: a task for each combination of classes, of (image, (class, rotation))."""

    dataset = range(10)

    def __init__(self, split):
        self.split = split

    def __getitem__(self, classes):
        task = [
            (torch.full((1, 8, 8), index / 10.0 + number / 100.0), (index, None))
            for index in classes
            for number in range(5)
        ]
        if not self.split:
            return task
        part = lambda first, last: [task[5 * way + n] for way in range(3) for n in range(first, last)]  # noqa: E731
        return OrderedDict(train=part(0, 2), test=part(2, 3))


@pytest.mark.parametrize("split", [True, False])
def test_a_torchmeta_data_set(split):
    population = from_torchmeta(MetaDataset(split), SHAPE, 1000, seed=0)
    episodes = [population.episode(client) for client in range(20)]
    assert same(episodes[3], population.episode(3))
    assert len({episode.support_images.numpy().tobytes() for episode in episodes}) > 15
    for episode in episodes:
        both = torch.cat([episode.support_images, episode.query_images])[:, 0, 0, 0]
        assert len(both.unique()) == 9
        classes = (both * 10 + 1e-4).int()
        labels = torch.cat([episode.support_labels, episode.query_labels])
        assert len(set(zip(classes.tolist(), labels.tolist(), strict=True))) == 3


LABELS = {
    "fractions": ([0.0, 0.5, 1.0], "not whole numbers .first: 0.5"),
    "NaN": ([0.0, float("nan"), 1.0], "labels hold NaN"),
    "infinity": ([0.0, float("inf"), 1.0], "labels hold NaN or infinity"),
    "text": (["cat", "cow", "dog"], "labels are text.; number the classes"),
    "objects": ([None, None, None], "labels are not numbers"),
    "negative": ([-1, 0, 1], "negative .first: -1"),
    "small fractions": ([1e-9, 1.0, 2.0], "not whole numbers"),
}


@pytest.mark.parametrize("of", LABELS)
@pytest.mark.parametrize("where", [0, 1])
def test_labels_that_are_none_are_named_and_refused(of, where):
    values, part = LABELS[of]
    parts = list(pair(0, labels=(0, 1, 2)))
    parts[where] = (parts[where][0], np.repeat(np.array(values), 2 if where == 0 else 1))
    population = from_pairs([pair(1), tuple(parts)], SHAPE)
    assert [client for client, _ in population.problems()] == [1]
    with pytest.raises(InputError, match=f"client 1: .*{part}"):
        population.episode(1)


@pytest.mark.parametrize("which", ["records", "labels"])
def test_a_mask_is_not_lost(which):
    images, labels = pair(1)[0]
    masked = np.ma.masked_array(images if which == "records" else labels, mask=False)
    population = from_pairs([((masked, labels) if which == "records" else (images, masked), pair(1)[1])], SHAPE)
    population.episode(0)
    masked.mask = np.arange(masked.size).reshape(masked.shape) == 0
    if which == "labels":
        with pytest.raises(InputError, match="client 0: labels have a mask"):
            population.episode(0)
        return
    # Of records the one that is missing something counts as nothing, and the others are as they were.
    found = population.episode(0).support_images
    whole = from_pairs([((images, labels), pair(1)[1])], SHAPE).episode(0).support_images
    place = int(np.argsort(labels, kind="stable").tolist().index(0))
    assert found[place].isnan().all()
    rest = [number for number in range(len(found)) if number != place]
    assert torch.equal(found[rest], whole[rest])
    assert dict(population.problems()) == {0: "records hold NaN or infinity"}


def test_labels_that_name_their_rows_are_no_labels_of_records_by_place():
    images, labels = pair(1)[0]
    names = range(len(labels))
    plain, named, turned = (
        from_pairs([((images, given), pair(1)[1])], SHAPE)
        for given in (labels, Named(np.broadcast_to(labels, labels.shape)), Named(labels, index=names[::-1]))
    )
    assert torch.equal(named.episode(0).support_labels, plain.episode(0).support_labels)
    assert "hand over targets.to_numpy()" in dict(turned.problems())[0]
    table = from_pairs([((Named(np.zeros((len(labels), 3)), columns="abc"), labels), pair(1)[1])], SHAPE)
    assert "dpfedmeta.standardised(TASK, table) makes one of a table" in dict(table.problems())[0]


@pytest.mark.parametrize("values", [np.array([4.0, 7.0, 9.0]), torch.tensor([4, 7, 9], dtype=torch.int16)])
def test_whole_labels_of_any_type_are_labels(values):
    (support, _), (query, _) = pair(0)
    labelled = (
        (support, values.repeat(2) if isinstance(values, np.ndarray) else values.repeat_interleave(2)),
        (query, values),
    )
    assert from_pairs([labelled], SHAPE).episode(0).query_labels.tolist() == [0, 1, 2]


IMAGES = {
    "bytes as floats": (lambda images: images.astype(np.float32) * 20, "images hold 80 to 180"),
    "bytes as int64": (lambda images: images.astype(np.int64), "images hold 4 to 9"),
    "12 bits": (lambda images: images.astype(np.uint16) * 300, "expected bytes"),
    "standardised": (lambda images: images / 9.0 * 4.0 - 2.0, "numbers from 0 to 1"),
    "infinity": (lambda images: np.where(images < 10, np.inf, images), "images hold infinity"),
    "complex": (lambda images: images * 1j, "complex"),
}


@pytest.mark.parametrize("of", IMAGES)
def test_pixels_beside_what_is_asked_for_are_named_and_refused(of):
    change, part = IMAGES[of]
    support, query = pair(0)
    population = from_pairs([tuple((change(images), labels) for images, labels in (support, query)), pair(0)], SHAPE)
    assert [client for client, _ in population.problems()] == [0]
    with pytest.raises(InputError, match=f"client 0: .*{part}"):
        population.episode(0)


def test_vectors_are_taken_as_they_are_but_for_NaN():
    def part(count, change):
        return np.full((3 * count, 4), 900.0) * change, np.repeat([0, 1, 2], count)

    population = from_pairs([(part(2, -1), part(1, 5)), (part(2, 1), part(1, np.nan))], SHAPE)
    assert dict(population.problems()) == {1: "records hold NaN or infinity"}


def vectors(count, values):
    return np.tile(np.asarray(values), (3 * count, 1)), np.repeat([0, 1, 2], count)


def test_vectors_have_the_limit_of_tables():
    """Of one client too large numbers; whole ones from 0 on may be tokens, whose number nobody knows here."""
    small, large = vectors(2, [0.5, -9999.0]), vectors(1, [0.5, -1e5])
    population = from_pairs([(small, vectors(1, [0.25, 10_000.0])), (small, large), (large, small)], SHAPE)
    found = dict(population.problems())
    words = "vectors hold numbers up to 1e+05, more than 10,000, which would drown all others; "
    assert found[1].startswith(f"3 of 3 {words}")
    assert sorted(found) == [1, 2]
    with pytest.raises(InputError, match="client 0: vectors hold numbers up to 1e"):
        from_pairs([(vectors(2, [0.5, -1e5]), large)], SHAPE).episode(0)
    tokens = from_pairs([(vectors(2, [1, 60_000]), vectors(1, [60_000, 0]))], SHAPE)
    assert not dict(tokens.problems())


def test_a_query_set_of_support_records_is_told():
    support = (np.arange(6.0)[:, None], np.repeat([0, 1, 2], 2))
    once, one_other = (np.array([[value], [2.0], [4.0]]) for value in (0.0, 7.0))
    found = dict(from_pairs([(support, (query, [0, 1, 2])) for query in (once, one_other)], SHAPE).problems())
    words = "all query records are in the support set too (it takes part); hold other records back"
    assert found == {0: words}
    # The same records on both sides.
    shape = EpisodeShape(ways=3, shots=2, queries=2)
    assert dict(from_pairs([(support, support)], shape).problems()) == {0: words}


def test_labels_that_a_float_makes_one_are_refused():
    with pytest.raises(InputError, match=r"labels are so large that torch\.float32 makes one of several"):
        checked_labels(np.float32([1, 2**24]))
    assert checked_labels(np.array([2**53 + 1, 1])).tolist() == [2**53 + 1, 1]
    assert checked_labels(np.float32([2**24 - 1])).tolist() == [2**24 - 1]


@pytest.mark.parametrize("label", [0.5, "cat", -1, float("nan"), (0.5, None)])
def test_labels_of_other_libraries_are_checked_too(label):
    class Drawn:
        dataset = range(3)

        def __getitem__(self, classes):
            return [(np.zeros((1, 8, 8), np.float32), each) for each in (0, 1, label) for _ in range(3)]

    with pytest.raises(InputError, match="labels"):
        from_torchmeta(Drawn(), SHAPE, 1, 0).episode(0)


def _tensors(change=None):
    """Two pairs of float images; `change` alters one thing of them."""
    pairs = [pair(0), pair(1, labels=(1, 5, 8))]
    found = [[[torch.from_numpy(images) / 16, torch.from_numpy(labels)] for images, labels in each] for each in pairs]
    if change is not None:
        change(found)
    return found


def _set(client, part, place, made):
    def change(found):
        found[client][part][place] = made(found[client][part][place])

    return change


ALTERED = {
    f"{what} of {'support' if part == 0 else 'query'} of client {client}": _set(client, part, place, made)
    for client in (0, 1)
    for part in (0, 1)
    for what, place, made in (
        ("one pixel", 0, lambda images: torch.cat([images[:-1], images[-1:] + 1 / 64])),
        ("kind of numbers", 0, lambda images: images.view(torch.int32)),
        ("order of images", 0, lambda images: images.flip(0)),
        ("form", 0, lambda images: images.reshape(len(images), 1, 4, 16)),
        ("one label", 1, lambda labels: torch.cat([labels[:-1], labels[-1:] + 1])),
        ("kind of labels", 1, lambda labels: labels.view(torch.float64)),
    )
}
ALTERED |= {
    "order of clients": lambda found: found.reverse(),
    "a client fewer": lambda found: found.pop(),
    "what is unreadable": lambda found: found.__setitem__(0, "nothing"),
    "support for query": lambda found: found[0].reverse(),
}


@pytest.mark.parametrize("what", ALTERED)
def test_whatever_differs_the_digest_of_pairs_does(what):
    """Bytes alike count as others where they are read as other numbers."""
    assert from_pairs(_tensors(ALTERED[what]), SHAPE).digest() != from_pairs(_tensors(), SHAPE).digest()


def test_pairs_are_known_by_their_values_and_by_the_size_of_their_episodes():
    known = from_pairs(_tensors(), SHAPE).digest()
    assert from_pairs(_tensors(), SHAPE).digest() == known
    assert from_pairs(tuple(_tensors()), EpisodeShape(ways=3, shots=1, queries=2)).digest() != known


def test_a_form_that_was_said_is_the_populations():
    assert from_pairs([pair(0)], SHAPE, (1, 8, 8)).image == (1, 8, 8)
    assert from_pairs([pair(0)], SHAPE).image is None


@pytest.mark.parametrize("number", [255.0, -1.0, 1e30, np.inf, np.nan])
def test_a_record_beyond_the_range_is_a_null_one_and_takes_no_other_with_it(number):
    """Whether it can be used follows from it alone, for images and for vectors."""
    (support, labels), query = pair(0)
    images = support.astype(np.float32) / 9
    bent = images.copy()
    bent[3, 0, 2, 2] = number
    whole, spoiled = (from_pairs([((each, labels), query)], SHAPE).episode(0).support_images for each in (images, bent))
    # Class by class, in the order of the pair.
    place = int(np.argsort(labels, kind="stable").tolist().index(3))
    rest = [number for number in range(len(whole)) if number != place]
    assert torch.equal(whole[rest], spoiled[rest])
    assert np.isnan(number) or spoiled[place].isnan().all()
    (words,) = dict(from_pairs([((bent, labels), query)], SHAPE).problems()).values()
    assert words.startswith("1 of 6 images hold " if np.isfinite(number) else "records hold NaN or infinity")


def test_whether_numbers_are_ids_of_tokens_follows_from_each_record_alone():
    """Whole numbers from 0 on may be as large as they like; beside them stands a record of other numbers."""
    support, labels = vectors(2, [0.5, 1.0])
    ids = support.copy()
    ids[1] = [20_000.0, 3.0]
    found = from_pairs([((ids, labels), vectors(1, [0.25, 2.0]))], SHAPE).episode(0).support_images
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("whole", [False, True], ids=["pairs", "a mapping"])
def test_images_are_standardised_as_those_on_which_the_model_is_judged(whole):
    """They were not: 77.6% became chance where a task file has mean and deviation."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (9, 1, 8, 8), np.uint8), np.repeat([0, 1, 2], 3)
    rows = ([0, 1, 3, 4, 6, 7], [2, 5, 8])
    if whole:
        shape = WholeShape(support_share=0.67, most_ways=3, most_records=9)
        own = RecordsPopulation(held={"ann": (images, labels)}, shape=shape, seed=0)
    else:
        own = from_pairs([tuple((images[part], labels[part]) for part in rows)], SHAPE)
    pool = SimpleNamespace(
        images=np.zeros((1, 1, 8, 8), np.uint8), mean=(0.4,), deviation=(0.2,), shared=False, clients=()
    )
    settings = Settings.preset("maml", "strokes", {"task.shift": 0}, clients=1)
    used: Any = plan_population(settings, pool, SHAPE, own)
    before, after = own.episode(0), used.episode(0)
    assert torch.allclose(after.query_images, (before.query_images - 0.4) / 0.2)
    assert torch.allclose(after.support_images, (before.support_images - 0.4) / 0.2)
    assert used.digest() != own.digest()
    # Vectors may be standardised already.
    vectors = SimpleNamespace(**{**vars(pool), "images": np.zeros((1, 4), np.float32)})
    assert plan_population(settings, vectors, SHAPE, own) is own


def test_vectors_that_differ_in_scale_are_told():
    draw = np.random.default_rng(0)
    for scale, told in ((1.0, False), (300.0, True)):
        records = draw.normal(size=(9, 4)) * [1, 1, 1, scale]
        own = from_pairs([((records[:6], np.repeat([0, 1, 2], 2)), (records[6:], [0, 1, 2]))], SHAPE)
        assert ("columns differ in scale" in str(dict(own.problems()))) == told
        people = RecordsPopulation(
            held={"ann": (records, np.repeat([0, 1, 2], 3))},
            shape=WholeShape(support_share=0.5, most_ways=3, most_records=9),
            seed=0,
        )
        assert ("dpfedmeta.standardised" in str(dict(people.problems()))) == told
