from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import DisjointPopulation, ShardPopulation
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation, clients_digest
from dpfedmeta.planning.client_population import clients_of, plan_population

SHAPE = EpisodeShape(ways=3, shots=2, queries=2)


def population(tiny_strokes, algo="dp-agr", own=None, **given):
    settings = resolve(algo, "strokes", None, {f"population.{name}": str(value) for name, value in given.items()})
    return plan_population(settings, tiny_strokes.train, SHAPE, own)


def test_the_settings_say_which_clients(tiny_strokes):
    virtual = population(tiny_strokes, clients=1000, most_shots=3)
    assert virtual == VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=1000, seed=0, most_shots=3)
    assert isinstance(population(tiny_strokes, kind="disjoint", clients=20, cohort=5), DisjointPopulation)
    with pytest.raises(InputError, match="at most 20 clients"):
        population(tiny_strokes, kind="disjoint", clients=21, cohort=5)
    with pytest.raises(InputError, match=r"population\.kind"):
        population(tiny_strokes, kind="disjunct")


def moved(shift, dataset, own=None):
    return plan_population(resolve("dp-agr", "strokes", None, {"task.shift": str(shift)}), dataset.train, SHAPE, own)


def test_images_are_moved_as_far_as_the_settings_say(tiny_strokes):
    assert moved(3, tiny_strokes).pool == replace(tiny_strokes.train, shift=3)
    assert moved(14, tiny_strokes).pool.shift == 14
    with pytest.raises(InputError, match=r"task\.shift = 15: images have 28 x 28 pixels; give at most 14"):
        moved(15, tiny_strokes)
    with pytest.raises(InputError, match=r"task\.shift = 1 with clients of your own"):
        moved(1, tiny_strokes, from_pairs([None] * 400_000, SHAPE))


def test_numbers_are_not_moved(tiny_strokes, tmp_path):
    np.save(tmp_path / "numbers.npy", np.zeros((4, 9), dtype=np.float32))
    vectors = replace(tiny_strokes, train=replace(tiny_strokes.train, path=tmp_path / "numbers.npy"))
    with pytest.raises(InputError, match=r"task\.shift = 1: only images can be shifted, but records here are 9"):
        moved(1, vectors)


def test_a_run_does_not_go_on_with_images_moved_otherwise(tiny_strokes):
    digests = {clients_digest(moved(shift, tiny_strokes)) for shift in (0, 1, 2)}
    assert len(digests) == 3
    assert clients_digest(population(tiny_strokes)) in digests


def test_unequal_sizes_do_not_go_with_record_level_privacy(tiny_strokes):
    with pytest.raises(RefusedPlan, match=r"assumes ways . shots support records in every client"):
        population(tiny_strokes, "dp-agrlr-micro", most_shots=3)


def test_clients_of_ones_own(tiny_strokes):
    own = from_pairs([None] * 7, SHAPE)
    assert population(tiny_strokes, own=own, clients=7, cohort=2).pairs is own.pairs
    assert population(tiny_strokes, "dp-agrlr-micro", own=own, clients=7, cohort=2).pairs is own.pairs
    with pytest.raises(InputError, match="clients = 8, but 7 clients were handed over"):
        population(tiny_strokes, own=own, clients=8, cohort=2)
    for wrong in (replace(own, shape=replace(SHAPE, shots=1)), population(tiny_strokes, clients=7, cohort=2)):
        with pytest.raises(RefusedPlan, match="the sizes of your clients must be checked"):
            population(tiny_strokes, "dp-agrlr-micro", own=wrong, clients=7, cohort=2)


def test_records_that_a_population_states_are_compared_without_a_look_at_anybody(tiny_strokes):
    fitting = from_pairs([None] * 7, SHAPE, image=(1, 28, 28))
    assert population(tiny_strokes, own=fitting, clients=7, cohort=2).pairs is fitting.pairs
    with pytest.raises(InputError, match=r"population\.image: your clients' records are 1 x 32 x 32, .* 1 x 28 x 28"):
        population(tiny_strokes, own=replace(fitting, image=(1, 32, 32)), clients=7, cohort=2)


@pytest.mark.parametrize("own", [[1, 2, 3], {"clients": 3}])
def test_what_is_no_population_is_one_line(tiny_strokes, own):
    with pytest.raises(InputError, match=r"has no clients; it needs .*from_pairs"):
        population(tiny_strokes, own=own, clients=3, cohort=2)


def test_a_population_of_nobody_is_refused_as_such(tiny_strokes):
    with pytest.raises(InputError, match=r"^population: holds no clients; hand over"):
        population(tiny_strokes, own=from_pairs([], SHAPE), clients=5, cohort=2)


@pytest.mark.parametrize(
    "given", [{"task.shift": "2"}, {"population.most_shots": "3"}, {"population.kind": "disjoint"}, "own"]
)
def test_shards_are_clients_as_they_are(tiny_strokes, given):
    """What nothing applies to them is refused."""
    dataset = replace(tiny_strokes, task=replace(tiny_strokes.task, shared_classes=2))
    plain = resolve("dp-fedavg", "mnist-shards", None, {"population.records": "10"})
    assert isinstance(clients_of(plain, dataset, 3), ShardPopulation)
    own = object() if given == "own" else None
    settings = plain if own else resolve("dp-fedavg", "mnist-shards", None, {"population.records": "10", **given})
    with pytest.raises(InputError, match="its images are split into shards"):
        clients_of(settings, dataset, 3, own)
