"""Measured sensitivity is never above the declared one, for records, clients and whole contributions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedmeta.core.params import difference, dimension, flatten, norm, scaled, unflatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.noisy_steps import private_messages
from dpfedmeta.learning.record_dp.per_example_gradients import VmapGradients
from dpfedmeta.privacy.clipping import clip, clipped_record_sum
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation import client_data
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from tests.learning.meta.clients import noise_of, steps_of

adversarial = settings(max_examples=60, deadline=None, derandomize=True)
ROUNDED = 1 + 1e-5  # sums are rounded to float32

SPEC = NetworkSpec(name="mlp", channels=1, image_size=28, ways=3, width=4, norm="none")
ADAPTATION = Adaptation(adapt="all", steps=2, lr=0.1)
EXACT = Maml(order=2, adaptation=ADAPTATION)
PRIVATE = replace(steps_of(Maml(order=1, adaptation=ADAPTATION), noise=1.0, records=6, ratio=0.5), query_records=9)
SHAPE = EpisodeShape(ways=3, shots=2, queries=3)

entries = st.sampled_from([0.0, -0.0, 1e-45, -1e-30, 1e-7, 0.3, -1.0, 3.0, -1e4, 1e15, -1e30])
not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
vectors = st.lists(entries, min_size=5, max_size=5)
bounds = st.sampled_from([1e-6, 1e-3, 0.7, 1e3])


# A message or gradient for which the factor bound/norm is below the normal numbers of float32 (1.2e-38).
class Silent:
    """Noise of zeros, to look at the signal alone."""

    def normal(self, size):
        return np.zeros(size)


SILENT = noise_of(Silent())


def records(rows):
    values = torch.tensor(rows, dtype=torch.float32)
    return {"w": values[:, :4].reshape(-1, 2, 2), "b": values[:, 4:]}


def apart(left, right):
    return norm(difference({n: v.double() for n, v in left.items()}, {n: v.double() for n, v in right.items()}))


@adversarial
@given(st.lists(vectors, min_size=1, max_size=6), st.integers(0, 5), bounds)
def test_a_record_zeroed_moves_the_sum_by_at_most_the_sensitivity(rows, place, bound):
    place %= len(rows)
    whole = clipped_record_sum(records(rows), bound)
    without = clipped_record_sum(records([r if i != place else [0.0] * 5 for i, r in enumerate(rows)]), bound)
    assert whole.sensitivity == without.sensitivity == bound
    assert apart(whole.value, without.value) <= bound * ROUNDED


@adversarial
@given(st.lists(vectors, min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 4), not_finite, bounds)
def test_a_record_that_is_not_finite_in_one_entry_is_a_null_record(rows, place, entry, bad, bound):
    place %= len(rows)
    poisoned, null = ([list(r) for r in rows] for _ in range(2))
    poisoned[place][entry] = bad
    null[place] = [0.0] * 5
    left, right = (clipped_record_sum(records(r), bound).value for r in (poisoned, null))
    assert all(torch.equal(left[n], right[n]) for n in left)


@adversarial
@given(st.lists(vectors, min_size=1, max_size=6), st.integers(0, 5), vectors, bounds)
def test_a_record_replaced_moves_the_sum_by_at_most_twice_the_sensitivity(rows, place, other, bound):
    place %= len(rows)
    whole = clipped_record_sum(records(rows), bound)
    changed = clipped_record_sum(records([r if i != place else other for i, r in enumerate(rows)]), bound)
    assert apart(whole.value, changed.value) <= 2 * bound * ROUNDED


@adversarial
@given(st.lists(st.lists(entries | not_finite, min_size=5, max_size=5), min_size=1, max_size=6), bounds)
def test_a_client_removed_moves_the_sum_by_at_most_the_bound(messages, bound):
    clipped = [flatten(clip({"w": torch.tensor(m)}, bound)).double() for m in messages]
    for left_out in range(len(messages)):
        without = sum((c for i, c in enumerate(clipped) if i != left_out), torch.zeros(5, dtype=torch.float64))
        assert float((sum(clipped) - without).norm()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("way", ["record", "client"])
def test_a_colossal_gradient_is_clipped_too(way):
    # All of its 1000 entries are just below the largest float32; 6.8e-6 is the worst bound for it.
    row = torch.full((1000,), 3e38)
    bound = 6.8e-6
    sent = clip({"w": row}, bound) if way == "client" else clipped_record_sum({"w": row[None]}, bound).value
    assert norm(sent) <= bound * ROUNDED


def side_of(population, algorithm=EXACT, ratio=None):
    return ClientRunner(
        network=SPEC, weights_seed=0, population=population, algorithm=algorithm,
        message_clip_ratio=ratio, engine="auto", source=KeyedSource(1), device=torch.device("cpu"),
    )  # fmt: skip


MODEL = initial_weights(SPEC, 0)


def sum_of(side, bound, cohort):
    ids = np.array(sorted(cohort), dtype=np.int64)
    return LocalBackend(clients=side, workers=InProcess()).cohort_sum(MODEL, bound, Cohort(round=0, clients=ids))


@pytest.fixture(scope="module")
def population(tiny_strokes):
    return VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=1000, seed=0)


@pytest.mark.parametrize("kind", ["exact", "stacked"])
def test_a_client_removed_moves_the_cohorts_sum_by_at_most_its_sensitivity(population, kind):
    algorithm, ratio = (EXACT, None) if kind == "exact" else (PRIVATE, 2.0)

    @adversarial
    @given(st.sets(st.integers(0, 999), min_size=1, max_size=3), st.sampled_from([1e-6, 0.05, 1e3]))
    def check(cohort, bound):
        side = side_of(population, algorithm, ratio)
        whole = sum_of(side, bound, cohort)
        without = sum_of(side, bound, cohort - {min(cohort)})
        assert whole.sensitivity == without.sensitivity == bound * (ratio or 1.0)
        assert 0 < apart(whole.value, without.value) <= whole.sensitivity * ROUNDED

    check()


class Adversary:
    """Per-record gradients of which one query record's are given: zeros, or whatever hurts most."""

    batches = True

    def __init__(self, place, fill, calls_before):
        self.place, self.fill, self.left = place, fill, calls_before

    def __call__(self, module, params, fixed, varying, inputs, labels):
        gradients = VmapGradients()(module, params, fixed, varying, inputs, labels)
        self.left -= 1
        if self.left < 0:
            for value in gradients.values():
                value[self.place] = self.fill
        return gradients


def episode(seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda count: torch.rand(count, 1, 28, 28, generator=generator)  # noqa: E731
    return Episode(
        support_images=draw(6),
        support_labels=torch.arange(3).repeat_interleave(2),
        query_images=draw(9),
        query_labels=torch.arange(3).repeat_interleave(3),
    )


def sent(engine, bound, spec=PRIVATE, data=None):
    """The messages of two clients without their noise; the adversary's record belongs to the first."""
    data = data or [episode(0), episode(1)]
    found = private_messages(build_network(SPEC), MODEL, {}, data, bound, [SILENT] * len(data), spec, engine)
    return [message.value for message in found]


fills = st.sampled_from([math.nan, math.inf, -1e30, 1e15, 0.5, -1e-3, 1e-30])


@adversarial
@given(st.integers(0, 8), fills, st.sampled_from([1e-6, 0.1, 10.0]))
def test_a_query_record_zeroed_moves_its_message_by_at_most_c_over_n_and_no_other(place, fill, bound):
    before, other_before = sent(Adversary(place, fill, 2), bound)
    after, other_after = sent(Adversary(place, 0.0, 2), bound)
    assert apart(before, after) <= bound / 9 * ROUNDED
    assert all(torch.equal(other_before[n], other_after[n]) for n in MODEL)
    assert max(norm(before), norm(after)) <= bound * ROUNDED


@adversarial
@given(st.integers(0, 5), fills, st.sampled_from([1e-6, 0.1, 10.0]))
def test_a_support_record_zeroed_moves_a_step_by_at_most_c_over_n(place, fill, bound):
    # With one step Reptile's message is lr times that step.
    update = replace(PRIVATE, method=Reptile(adaptation=replace(ADAPTATION, steps=1, lr=1.0)))
    before, _ = sent(Adversary(place, fill, 0), bound, update)
    after, _ = sent(Adversary(place, 0.0, 0), bound, update)
    # theta - (theta - g) is rounded like theta.
    assert apart(before, after) <= 0.5 * bound / 6 * ROUNDED + 1e-7 * norm(MODEL)


@adversarial
@given(st.sampled_from([0.0, 1.0, 1e10, math.nan, math.inf]), st.sampled_from([1e-6, 0.1]))
def test_support_data_move_a_message_by_at_most_twice_its_bound(pixel, bound):
    data = episode()
    changed = replace(data, support_images=torch.full_like(data.support_images, pixel))
    (one,), (two,) = (sent(VmapGradients(), bound, data=[d]) for d in (data, changed))
    assert all(torch.isfinite(v).all() for v in two.values())
    assert apart(one, two) <= 2 * bound * ROUNDED


def test_the_denominator_of_a_message_counts_records_that_dropped_out():
    # All but one query gradient are not finite: the message is that one over 9, not over 1.
    message, _ = sent(Adversary(slice(1, 9), math.nan, 2), 1e-6)
    assert norm(message) == pytest.approx(1e-6 / 9, rel=1e-4)


class Numbered:
    """Clients whose data are their number."""

    def __init__(self, number):
        self.number = number

    def to(self, device):
        return self.number


class Numbers:
    episode = staticmethod(Numbered)


def side_that_sends(monkeypatch, messages):
    monkeypatch.setattr(client_data, "is_sound", lambda *form, **rest: True)
    monkeypatch.setattr(Maml, "gradient", lambda self, context, data: messages[data])
    return side_of(Numbers())


def filled(value):
    return {n: torch.full_like(v, value) for n, v in MODEL.items()}


def one_bad_entry(value):
    vector = flatten(filled(0.1))
    vector[17] = value
    return unflatten(vector, MODEL)


@pytest.mark.parametrize(
    "bad", [filled(math.nan), filled(math.inf), one_bad_entry(math.nan), one_bad_entry(-math.inf), filled(0.0)]
)
def test_a_message_that_is_not_finite_or_has_no_length_counts_as_zero(monkeypatch, bad):
    side = side_that_sends(monkeypatch, {1: filled(0.3), 2: bad, 3: filled(-2.0)})
    whole, without = sum_of(side, 0.1, {1, 2, 3}), sum_of(side, 0.1, {1, 3})
    assert all(torch.equal(whole.value[n], without.value[n]) for n in MODEL)
    assert whole.sensitivity == without.sensitivity == 0.1
    alone = sum_of(side, 0.1, {2})
    assert norm(alone.value) == 0.0


@pytest.mark.parametrize("shape", [(1,), (5,)])
def test_a_misshapen_message_counts_as_zero(monkeypatch, shape):
    side = side_that_sends(monkeypatch, {1: filled(0.3), 2: {"w": torch.ones(shape)}})
    whole, without = sum_of(side, 0.1, {1, 2}), sum_of(side, 0.1, {1})
    assert all(torch.equal(whole.value[n], without.value[n]) for n in MODEL)


def test_in_shared_mode_a_rejected_message_brings_no_noise_that_a_mechanism_would_count(monkeypatch, population):
    side = side_of(population, PRIVATE)
    one = (0.3 / 9) ** 2
    assert sum_of(side, 0.3, {1, 2, 3}).noise_variance == pytest.approx(3 * one)
    honest = ClientRunner._clipped_again
    turn = iter(range(3))
    monkeypatch.setattr(
        ClientRunner,
        "_clipped_again",
        lambda self, message, bound: scaled(honest(self, message, bound), math.inf if next(turn) == 1 else 1.0),
    )
    left = sum_of(side, 0.3, {1, 2, 3})
    assert left.noise_variance == pytest.approx(2 * one)
    assert all(torch.isfinite(v).all() for v in left.value.values())


@pytest.mark.parametrize("cohort", [set(), {2}])
@pytest.mark.parametrize("algorithm", [EXACT, PRIVATE])
def test_an_empty_cohort_or_one_of_rejects_gets_the_full_noise(monkeypatch, population, cohort, algorithm):
    monkeypatch.setattr(Maml, "gradient", lambda *given: filled(math.nan))
    monkeypatch.setattr(ClientRunner, "_clipped_again", lambda self, message, bound: filled(math.nan))
    secret = sum_of(side_of(population, algorithm), 0.3, cohort)
    assert (norm(secret.value), secret.sensitivity, secret.noise_variance) == (0.0, 0.3, 0.0)
    mechanism = GaussianMechanism(total_multiplier=2.0, charged_multiplier=1.5, denominator=10.0)
    released = mechanism.release(secret, KeyedSource(2).generator(Purpose.SERVER_NOISE, 0))
    assert released.noise_deviation == pytest.approx(0.06)
    assert float(flatten(released.value).std()) == pytest.approx(0.06, rel=5 / math.sqrt(2 * dimension(MODEL)))
