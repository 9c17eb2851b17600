"""Clients that send messages without their noise: the noise of the release is measured, not what the books say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import flatten, zeros_like
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend

SMALL = {"model.width": "4", "task.ways": "3", "task.shots": "1", "task.queries": "1", "clip.window": "2",
         "server.rounds": "3", "population.clients": "400000", "population.cohort": "30"}  # fmt: skip
BOUND, COHORT = 0.3, 40


class Zeros(ClientRunner):
    """The first clients of a cohort send zeros, and the others noise alone."""

    hostile = 0
    size: int

    def _messages(self, model, bound, round_, clients):
        for client in clients:
            if client < self.hostile:
                yield zeros_like(self.form(model))
                continue
            deviation = math.sqrt(self.message_noise_variance(bound))
            noise = self.source.generator(Purpose.MESSAGE_NOISE, round_, client).normal(self.size)
            yield {"w": torch.from_numpy(deviation * noise)}


def measured(plan, hostile, rounds=6, size=20_000, cohort=COHORT):
    """(deviation of the sum's noise over C_q, what the release states), with so many clients that send zeros."""
    kind = type("Side", (Zeros,), {"hostile": hostile, "size": size})
    side = kind(
        network=plan.network, weights_seed=0, population=None, algorithm=plan.algorithm,
        message_clip_ratio=None, engine="auto", source=KeyedSource(5), device=torch.device("cpu"),
        message_noise=plan.message_noise,
    )  # fmt: skip
    model, everybody, values, stated = {"w": torch.zeros(size)}, np.arange(cohort), [], set()
    for round_ in range(rounds):
        secret = LocalBackend(clients=side, workers=InProcess()).cohort_sum(
            model, BOUND, Cohort(round=round_, clients=everybody)
        )
        released = plan.mechanism.at(0).release(secret, KeyedSource(6).generator(Purpose.SERVER_NOISE, round_))
        scale = plan.privacy.cohort / (BOUND * (plan.message_clip_ratio or 1.0))
        values.append(flatten(released.value).double() * scale)
        stated.add(released.noise_deviation * scale)
    (one,) = stated
    return float(torch.cat(values).std()), one


def plan_of(algo, **given):
    from dpfedmeta.data.task_file import load_task

    return make_plan(resolve(algo, "strokes", None, {**SMALL, **given}), load_task("strokes")[0])


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("dp-agrlr-micro", {}),
        ("dp-agrlr", {}),
        pytest.param("dp-agr", {"population.sampler": "fixed", "population.cohort": "40",
                                "server.noise_site": "clients", "privacy.client.hostile": "0.1"},
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_assured_noise_is_there_whatever_hostile_clients_send(algo, given):
    plan = plan_of(algo, **given)
    constants = plan.privacy.at(0)
    assert constants.hostile > 5
    # 120,000 values: four standard errors are 0.8%.
    real, stated = measured(plan, hostile=constants.hostile)
    assert real == pytest.approx(constants.assured_noise, rel=0.008)
    honest, again = measured(plan, hostile=0)
    assert honest == pytest.approx(constants.total_noise, rel=0.008)
    assert stated == again == pytest.approx(constants.total_noise)
    assert constants.noise.multiplier < constants.assured_noise < constants.total_noise


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_counting_on_every_message_credits_noise_that_is_not_there(algo):
    """What was wrong before: with nobody assumed hostile, zeros are credited."""
    trusting = plan_of(algo, **{"privacy.client.hostile": "0"})
    real, stated = measured(trusting, hostile=COHORT)
    assert real < 0.9 * stated
    assert stated == pytest.approx(trusting.privacy.at(0).assured_noise)


@pytest.mark.parametrize("entered", [0, 3, 30, 40])
def test_the_noise_does_not_tell_how_many_answered(entered):
    """Fewer than may be hostile, too: else its size would count the clients."""
    plan = plan_of("dp-agrlr-micro", **{"population.cohort": "40"})
    constants = plan.privacy.at(0)
    assert 3 < constants.hostile < 30
    real, _ = measured(plan, hostile=0, cohort=entered)
    assert real == pytest.approx(constants.total_noise, rel=0.008)


def test_more_than_the_declared_share_is_not_covered():
    """The limits of the promise, as SECURITY.md states them."""
    plan = plan_of("dp-agrlr-micro")
    real, _ = measured(plan, hostile=COHORT)
    assert real < 0.99 * plan.privacy.at(0).assured_noise


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_the_presets_assume_hostile_clients(algo):
    assert plan_of(algo).privacy.hostile == 0.1
    assert plan_of(algo, **{"server.noise_mode": "stacked"}).privacy.at(0).hostile == 0


def test_honest_messages_through_the_real_client_carry_what_the_plan_says(tiny_strokes):
    plan = make_plan(resolve("dp-agrlr-micro", "strokes", None, SMALL), tiny_strokes.task)
    side = ClientRunner(
        network=plan.network, weights_seed=0,
        population=VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=1000, seed=0),
        algorithm=plan.algorithm, message_clip_ratio=None, engine="auto", source=KeyedSource(0),
        device=torch.device("cpu"),
    )  # fmt: skip
    model = learned_part(plan.network, initial_weights(plan.network, 0))
    sums = []
    for seed in range(24):
        noisy = LocalBackend(clients=replace(side, source=KeyedSource(seed)), workers=InProcess())
        secret = noisy.cohort_sum(model, BOUND, Cohort(round=0, clients=np.arange(12)))
        sums.append(flatten(secret.value).double())
    found = torch.stack(sums)
    # The same data and model each time: all that differs is noise.
    variance = float((found - found.mean(0)).square().sum() / (found.shape[1] * 23))
    assert variance == pytest.approx(secret.noise_variance, rel=0.06)
    assert secret.noise_variance == pytest.approx(12 * (BOUND * plan.algorithm.message_deviation) ** 2)
