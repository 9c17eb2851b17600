"""A release is compared with the charge, for every mechanism of this package and each thing that one may state."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import dimension
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.secure_sum_settings import noise_of_unit_bound
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.charged import check_charged
from dpfedmeta.privacy.clip_policy import with_attachment
from dpfedmeta.privacy.discretised.stochastic_rounding import RoundedMessages
from dpfedmeta.privacy.mechanisms import _SEAL, GaussianMechanism, NoMechanism, Released
from dpfedmeta.privacy.noises.independent import Independent
from dpfedmeta.privacy.units import Bounded
from tests.golden.golden_runs import SECURE, SMALL

PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=4, noise_multiplier=1.5)
LAYER = RecordLayer(support_noise=3.0, query_noise=2.0, support_steps=1, support_records=25, query_records=25)
BOUND = 0.7

# Settings that make different noise: attached counts, per layer, stacked, of sums, taken back, by clients, scheduled.
KINDS = {
    "window": ("dp-agr", {}),
    "quantile": ("dp-agr", {"clip.policy": "quantile"}),
    "shared": ("dp-agrlr-micro", {}),
    "stacked": ("dp-agrlr-micro", {"server.noise_mode": "stacked"}),
    "sums": ("dp-agr-secure", SECURE),
    "taken back": ("dp-agr-correlated", {"population.cohort": "5", "population.max_participations": "2"}),
    "by clients": ("dp-fedavg-fixed", {"server.noise_site": "clients", "population.max_participations": "null"}),
    "scheduled": ("dp-agr", {"server.schedule": "[{from_round: 1, noise_scale: 2.0}]"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_mechanism_of_ours_states_what_is_planned(kind, tiny_task_file):
    algo, given = KINDS[kind]
    task, _ = load_task(str(tiny_task_file))
    plan = make_plan(resolve(algo, str(tiny_task_file), None, {**SMALL, **given}), task)
    network = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    form = with_attachment(network, plan.policy.attachment)
    unit, state = noise_of_unit_bound(plan.settings, task, plan.privacy), plan.mechanism.init(form)
    for round_ in range(2):
        event, bound = plan.privacy.at(round_), plan.message_bound(BOUND)
        query = Bounded(value={name: torch.zeros_like(value) for name, value in form.items()}, sensitivity=bound)
        if event.whole is not None:
            grid = RoundedMessages(whole=event.whole, bound=bound, form=form, seed=0, round=round_)
            empty = {"rotated": torch.zeros(event.whole.dimension, dtype=torch.float64)}
            query = Bounded(value=empty, sensitivity=event.whole.of_a_client, grid=grid)
        source = KeyedSource(3).generator(Purpose.SERVER_NOISE, round_)
        released, state = plan.mechanism.release(round_, query, state, source)
        check_charged(released, event, round_, bound)
        due = planned_deviation(event, round_) * BOUND * unit / event.cohort
        assert released.noise_deviation * dimension(network) ** 0.5 == pytest.approx(due, rel=1e-9)
        # The noise that is there is as large as it is stated.
        values = np.concatenate([value.numpy().ravel() for value in released.value.values()])
        assert np.std(values) == pytest.approx(released.noise_deviation, rel=0.1)
        for other in (0.99 * bound, 1.01 * bound):
            with pytest.raises(RefusedPlan, match="states noise of deviation"):
                check_charged(released, event, round_, other)


def release(mechanism):
    query = Bounded(value={"w": torch.zeros(5)}, sensitivity=BOUND)
    return mechanism.release(query, KeyedSource(3).generator(Purpose.SERVER_NOISE, 0))


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (NoMechanism(denominator=100.0), "released with no noise"),
        (GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.4, denominator=100.0), "z = 1.4"),
        (GaussianMechanism(total_multiplier=1.6, charged_multiplier=1.5, denominator=100.0), "states noise of dev"),
        (GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=50.0), "states noise of dev"),
        (GaussianMechanism(total_multiplier=1.5, charged_multiplier=1e-6, denominator=100.0), "z = 1e-06"),
    ],
)
def test_another_noise_than_was_charged_leaves_nothing(mechanism, words):
    event = PLAN.at(0)
    check_charged(release(Independent(plan=PLAN).at(0)), event, 0, BOUND)
    with pytest.raises(RefusedPlan, match=words):
        check_charged(release(mechanism), event, 0, BOUND)


def test_where_nothing_is_charged_nothing_may_be_stated():
    event = replace(PLAN, noise_multiplier=None).at(0)
    check_charged(release(NoMechanism(denominator=100.0)), event, 0, float("inf"))
    noisy = GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=100.0)
    with pytest.raises(RefusedPlan, match="was charged for one release with no noise"):
        check_charged(release(noisy), event, 0, BOUND)


def test_noise_of_no_fixed_deviation_states_one_all_the_same():
    class Loose(GaussianNoise):
        steady = False

    event = replace(PLAN.at(0), noise=Loose(multiplier=1.5))
    assert planned_deviation(event, 0) is None
    found = release(GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=100.0))
    with pytest.raises(RefusedPlan, match="released with"):
        check_charged(found, event, 0, BOUND)


@pytest.mark.parametrize(
    ("deviation", "leaves"), [(5e-324, True), (1.0, True), (0.0, False), (math.inf, False), (math.nan, False)]
)
def test_where_no_deviation_is_fixed_some_noise_is_stated_all_the_same(deviation, leaves):
    class Loose(GaussianNoise):
        steady = False

    noise = Loose(multiplier=1.5)
    stated = Released({"w": torch.zeros(2)}, (noise,), deviation, seal=_SEAL)
    with nullcontext() if leaves else pytest.raises(RefusedPlan, match="states noise of deviation"):
        check_charged(stated, replace(PLAN.at(0), noise=noise), 0, BOUND)
