"""One record of a simulated client's slots replaced by any other one, also by one that cannot be used (in-place)."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
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
# So that the two roles of noisy steps are told apart, they have other sizes.
UNEVEN = {"steps": {"task.queries": "1"}}
RELEASES = {
    **{name: (algo, given | UNEVEN.get(name, {})) for name, (algo, given, _) in KINDS.items()},
    "sums": ("dp-agrlr-secure", SUMS),
}
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


def alone(pair, part, place):
    """The same, where no other record of its part can be used."""
    found = with_record(pair, part, slice(None), lambda images: images * 0.0 + 300.0)
    return with_record(found, part, place, lambda _: pair[part][0][place])


def masked(pair, part, place):
    """As numpy's masked array, in which one number of the record is missing."""
    images = np.ma.masked_array(pair[part][0].numpy().copy(), mask=False)
    images[place, 0, 2, 2] = np.ma.masked
    return [[images, own[1]] if number == part else own for number, own in enumerate(pair)]


def of_another_type(pair, part, place):
    """As a list of records, one of which has bytes."""
    images = list(pair[part][0])
    images[place] = (images[place] * 255.0).to(torch.uint8)
    return [[images, own[1]] if number == part else own for number, own in enumerate(pair)]


def distances(made, name, other, monkeypatch, rest=lambda pair, part, place: pair):
    side, model, pair = made(name)
    for part, place in product((0, 1), (0, 1, 2)):
        held = rest(pair, part, place)
        changed = other(held, part, place)
        before, after = (exact_sums(holding(side, each), model, 0, monkeypatch) for each in (held, changed))
        yield moved(before, after)


def becomes(change):
    return lambda pair, part, place: with_record(pair, part, place, change)


CHANGED = {**{name: becomes(change) for name, change in OTHERS.items()}, "masked": masked, "bytes": of_another_type}


@pytest.mark.parametrize("rest", [lambda pair, part, place: pair, alone], ids=["usable", "alone"])
@pytest.mark.parametrize("other", CHANGED)
@pytest.mark.parametrize("name", RELEASES)
def test_a_record_in_a_slot_moves_no_sum_by_more_than_is_charged(made, monkeypatch, name, other, rest):
    limit = IN_PLACE if other in ("another one", "bytes") else ZERO_OUT
    found = [*distances(made, name, CHANGED[other], monkeypatch, rest)]
    largest = max(max(each.values()) for each in found)
    assert largest <= limit * (1 + 1e-6)
    # (The same record as bytes is rounded and no more; alone in its part it is in no whole micro-episode.)
    assert largest > 0.01 or other == "bytes" or (rest is alone and name in ("micro-episodes", "sums"))
    # It is in one role, and what the other one adds does not hang on it.
    assert all(sum(each > 1e-9 for each in roles.values()) <= 1 for roles in found)


def refusing(which):
    """Reads a part, and refuses the whole client where so many of its records cannot be used."""
    honest = reading.checked_images

    def read(images):
        found = honest(images)
        if bool(which(found.flatten(1).isnan().all(1))):
            raise InputError("cannot be used")
        return found

    return read


PLANTED = {
    "one takes its client with it": (torch.any, RELEASES, lambda pair, part, place: pair),
    "the last of a part takes the other part with it": (torch.all, ("steps", "local DP-SGD"), alone),
}


@pytest.mark.parametrize(("mistake", "name"), [(one, name) for one in PLANTED for name in PLANTED[one][1]])
def test_a_record_that_takes_others_with_it_is_seen(made, monkeypatch, mistake, name):
    """Planted: the mistakes that were here."""
    which, _, rest = PLANTED[mistake]
    monkeypatch.setattr(reading, "checked_images", refusing(which))
    with pytest.raises(AssertionError):
        test_a_record_in_a_slot_moves_no_sum_by_more_than_is_charged(made, monkeypatch, name, "NaN", rest)


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
