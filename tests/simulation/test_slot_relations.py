"""One record of a simulated client's slots replaced by any other one, also by one that cannot be used (in-place)."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.data.episodes.episode import null_episode
from dpfedmeta.data.populations import from_pairs as reading
from dpfedmeta.data.populations.from_pairs import SequencePopulation, from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.build_data import client_side
from tests.exact_sums import NoNoise, exact_sums, moved
from tests.simulation.test_record_releases import KINDS, SMALL

SUMS = {
    "meta.divisions": "1", "aggregation.dropout": "0.2", "population.sampler": "fixed", "record.micro_shots": "1",
    "population.max_participations": "null", "privacy.client.hostile": "0.0", "record.micro_queries": "1",
}  # fmt: skip
RELEASES = {**{name: kind[:2] for name, kind in KINDS.items()}, "sums": ("dp-agrlr-secure", SUMS)}
# In clip bounds of a release: what stands under every table for a slot (docs/guarantees.md).
IN_PLACE, ZERO_OUT = 2.0, 1.0
OTHERS = {
    "another one": lambda image: image.flip(-1),
    "bytes as floats": lambda image: image * 255.0 + 1.0,
    "negative": lambda image: image - 2.0,
    "NaN": lambda image: image * math.nan,
    "one infinite number": lambda image: image.index_fill(-1, torch.tensor([0]), math.inf),
    "1e30": lambda image: image + 1e30,
}


@pytest.fixture(scope="module")
def made(tiny_strokes):
    sides = {}

    def made(name):
        if name not in sides:
            algo, given = RELEASES[name]
            plan = make_plan(resolve(algo, "strokes", None, {**SMALL, **given}), tiny_strokes.task)
            drawn = VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=60, seed=0)
            side = client_side(plan, drawn, KeyedSource(1), torch.device("cpu"))
            model = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
            own = drawn.episode(0)
            sides[name] = side, model, [[own.support_images, own.support_labels], [own.query_images, own.query_labels]]
        return sides[name]

    return made


def holding(side, pair):
    return replace(side, population=from_pairs([tuple(map(tuple, pair))], side.population.shape))


def with_record(pair, part, place, change):
    images = pair[part][0].clone()
    images[place] = change(images[place])
    found = list(pair)
    found[part] = [images, pair[part][1]]
    return found


def distances(made, name, change, monkeypatch):
    side, model, pair = made(name)
    before = exact_sums(holding(side, pair), model, 0, monkeypatch)
    for part, place in product((0, 1), (0, 3, 5)):
        yield moved(before, exact_sums(holding(side, with_record(pair, part, place, change)), model, 0, monkeypatch))


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", RELEASES)
def test_a_record_in_a_slot_moves_no_sum_by_more_than_is_charged(made, monkeypatch, name, other):
    limit = IN_PLACE if other == "another one" else ZERO_OUT
    found = [max(each.values()) for each in distances(made, name, OTHERS[other], monkeypatch)]
    assert 0.01 < max(found) <= limit * (1 + 1e-6)


# (Of noisy steps all records together are no longer than one clip bound here.)
@pytest.mark.parametrize("name", ["micro-episodes", "local DP-SGD", "sums"])
def test_a_record_that_takes_its_client_with_it_is_seen(made, monkeypatch, name):
    """Planted: the mistake that was here, a whole client without data for one record that cannot be used."""
    monkeypatch.setattr(reading, "_beyond", lambda found: torch.full((len(found),), bool((found > 1.5).any())))
    found = [max(each.values()) for each in distances(made, name, OTHERS["1e30"], monkeypatch)]
    assert max(found) > ZERO_OUT * 1.01


@pytest.mark.parametrize("name", RELEASES)
def test_a_client_of_unusable_data_sends_what_one_of_null_records_does(made, name):
    """One record between the two, so the server may not see more than it."""
    side, model, pair = made(name)
    shape = side.population.shape

    def labels(count):
        return torch.arange(shape.ways).repeat_interleave(count // shape.ways)

    null = null_episode(tuple(pair[0][0].shape[1:]), shape.support_records, shape.query_records, labels)
    nulls = [[null.support_images, null.support_labels], [null.query_images, null.query_labels]]
    unreadable = replace(side, population=SequencePopulation(pairs=[None], shape=shape))
    if side.algorithm.parts > 1:
        (expected,), (found,) = (
            list(each.bounded_parts(model, 0.3, 0, [0])) for each in (holding(side, nulls), unreadable)
        )
        assert len(expected) == len(found) == side.algorithm.parts
        assert not any(part.any() for part in (*expected, *found))
        return
    (expected,), (found,) = (list(each.sent(model, 0.3, 0, [0])) for each in (holding(side, nulls), unreadable))
    # Where a client draws mini-batches, so many other coins were thrown before the noise.
    assert torch.equal(expected, found) or name == "local DP-SGD"
    assert all(part.any() for part in (expected, found))
    (exact,) = replace(unreadable, source=NoNoise()).sent(model, 0.3, 0, [0])
    assert not exact.any()
