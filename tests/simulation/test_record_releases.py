"""What a client's algorithm releases about its records, compared with what a participation is charged with."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.record_dp import local_training, micro_episode_gradients, noisy_steps
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.charged import check_record_release
from dpfedmeta.privacy.mechanisms import GaussianMechanism, post_process
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import client_side

SMALL = {
    "model.width": "2", "server.rounds": "2", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "population.clients": "60", "population.cohort": "6", "clip.window": "2",
}  # fmt: skip
LOCAL = {
    "clip.policy": "none", "meta.steps": "3", "meta.batch": "4", "server.noise_multiplier": "null",
    "record.support_clip": "0.4", "population.sampler": "fixed", "population.max_participations": "null",
}  # fmt: skip
# Where a client releases: in support steps and a query, in both at once, in the steps of its own training.
KINDS = {
    "steps": ("dp-agrlr", {}, noisy_steps),
    "micro-episodes": ("dp-agrlr-micro", {}, micro_episode_gradients),
    "local DP-SGD": ("local-dp", LOCAL, local_training),
}


@pytest.fixture(params=KINDS)
def made(request, tiny_strokes):
    algo, given, module = KINDS[request.param]
    plan = make_plan(resolve(algo, "strokes", None, {**SMALL, **given}), tiny_strokes.task)
    population = VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=60, seed=0)
    side = client_side(plan, population, KeyedSource(1), torch.device("cpu"))
    model = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    return plan, side, model, module


def sum_of(side, model):
    cohort = Cohort(round=0, clients=np.arange(2))
    return LocalBackend(clients=side, workers=InProcess()).cohort_sum(model, 0.3, cohort)


def test_honest_messages_state_what_is_charged(made):
    plan, side, model, _ = made
    event = plan.privacy.at(0)
    assert len(side.record_noises) == (event.support_steps or 0) + (event.query_noise is not None) > 0
    assert sum_of(side, model).left_out == 0


def test_a_client_that_releases_with_less_noise_sends_nothing(made, monkeypatch):
    _, side, model, module = made

    def weaker(*, total_multiplier, charged_multiplier, denominator):
        return GaussianMechanism(
            total_multiplier=total_multiplier / 2, charged_multiplier=charged_multiplier / 2, denominator=denominator
        )

    monkeypatch.setattr(module, "GaussianMechanism", weaker)
    with pytest.raises(RefusedPlan, match="but a participation is charged for Gaussian noise of z = "):
        sum_of(side, model)


def test_a_client_that_releases_once_more_sends_nothing(made, monkeypatch):
    plan, side, model, _ = made
    true = type(plan.algorithm).messages

    def twice(self, *given):
        for message in true(self, *given):
            yield post_process(lambda one, other: one, [message, message], message.noise_deviation)

    monkeypatch.setattr(type(plan.algorithm), "messages", twice)
    with pytest.raises(RefusedPlan, match="but a participation is charged for"):
        sum_of(side, model)


def test_a_client_that_sends_what_no_mechanism_released_sends_nothing(made, monkeypatch):
    plan, side, model, _ = made
    true = type(plan.algorithm).messages
    bare = lambda self, *given: (message.value for message in true(self, *given))  # noqa: E731
    monkeypatch.setattr(type(plan.algorithm), "messages", bare)
    with pytest.raises(RefusedPlan, match="a client's message is dict, expected Released"):
        sum_of(side, model)


def test_the_charge_decides_and_not_what_the_algorithm_says_of_itself(made):
    plan, side, model, _ = made
    other = plan.privacy.record.with_mu(2.0)
    with pytest.raises(RefusedPlan, match="but a participation is charged for"):
        sum_of(replace(side, algorithm=plan.algorithm.with_noise(other)), model)


def test_each_release_counts():
    query = Bounded(value={"w": torch.zeros(3)}, sensitivity=1.0)
    noise = KeyedSource(1).generator(0, 0)
    once = GaussianMechanism(total_multiplier=2.0, charged_multiplier=2.0, denominator=1.0).release(query, noise)
    charged = GaussianNoise(multiplier=2.0)
    check_record_release(once, [charged])
    for other in ([], [charged, charged], [GaussianNoise(multiplier=2.1)]):
        with pytest.raises(RefusedPlan, match="nothing was sent"):
            check_record_release(once, other)
