"""Mistakes found in trusted systems (privacy.md section 6). Each check passes on our code and fails on the mistake."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon
from dpfedmeta.accounting.divergences.pld_composition import COARSE, sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import round_event
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.random.random_sources import Purpose
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.samplers import sampler_of
from dpfedmeta.privacy.samplers.poisson_sampler import PoissonSampler
from dpfedmeta.privacy.units import Bounded
from tests.privacy.one_release import SOURCE, stream

DELTA = 1e-5
TASK = load_task("strokes")[0]
NOISE = {"privacy.client.epsilon": "null", "server.noise_multiplier": "0.8"}


def rounds_of(clients, cohort, rounds, z, **more):
    return PrivacyPlan(clients=clients, cohort=cohort, rounds=rounds, noise_multiplier=z, **more).phases


@pytest.fixture(scope="module")
def plan():
    return make_plan(resolve("dp-const", "strokes", None, {**NOISE, "server.rounds": "3"}), load_task("strokes")[0])


def test_fixed_order_or_shuffling_accounted_as_poisson(only_ours):
    clients, size, pairs = 20, 4, 1000

    def check(draw):
        """Whether a client is in one round says nothing about the next one."""
        member = np.zeros((2 * pairs, clients))
        for round_ in range(2 * pairs):
            member[round_, draw(round_)] = 1
        trials, rate = pairs * clients, (size / clients) ** 2
        both = float((member[0::2] * member[1::2]).sum())
        assert abs(both - trials * rate) < 5 * math.sqrt(trials * rate * (1 - rate))

    sampler = PoissonSampler(clients=clients, cohort=size)
    epoch = clients // size
    orders = [np.random.default_rng(e).permutation(clients) for e in range(2 * pairs)]

    def shuffled(round_):
        return orders[round_ // epoch][size * (round_ % epoch) :][:size]

    def independent(round_):
        return sampler.draw(round_, {}, SOURCE.generator(Purpose.COHORT, round_)).clients

    only_ours(check, independent, shuffled, lambda round_: (size * round_ + np.arange(size)) % clients)


def test_fixed_size_sampling_accounted_under_add_remove(only_ours):
    plan = PrivacyPlan(clients=10, cohort=10, rounds=1, noise_multiplier=2.0, sampler="fixed")

    def check(cell_of):
        """Everybody takes part: one message is replaced, so the sum moves by 2C."""
        cell = cell_of(plan)
        assert cell.adjacency == "replace-one"
        assert cell.epsilon >= gaussian_epsilon(2 / 2.0, cell.delta)

    only_ours(
        check,
        lambda plan: guarantees(plan, grids=COARSE)[0],
        lambda plan: guarantees(replace(plan, sampler="poisson"), grids=COARSE)[0],
    )
    with pytest.raises(ValueError, match="no add-remove guarantee"):
        sampled_epsilon(plan.phases, "add-remove", DELTA)


def test_only_one_of_the_inner_steps_counted(only_ours):
    z = 2.0

    def record_server(steps):
        layer = RecordLayer(support_noise=z, query_noise=1e3, support_steps=steps, support_records=5,
                            query_records=5000)  # fmt: skip
        more = {"record": layer, "noise_mode": "stacked", "max_participations": 1, "record_delta": DELTA}
        plan = PrivacyPlan(clients=100, cohort=10, rounds=1, noise_multiplier=1.0, **more)
        return next(g.epsilon for g in guarantees(plan, grids=COARSE) if (g.unit, g.observer) == ("record", "server"))

    def check(epsilon_of):
        for steps in (1, 4, 9):
            composed = PLDAccountant()
            composed.compose(GaussianDpEvent(z), steps)
            assert epsilon_of(steps) >= 0.999 * composed.get_epsilon(DELTA)
            assert epsilon_of(steps) == pytest.approx(gaussian_epsilon(math.sqrt(steps) / z, DELTA))

    only_ours(check, record_server, lambda steps: record_server(1))


def test_a_population_size_that_is_not_the_populations(only_ours):
    def check(accounted_rate):
        clients, cohort, rounds = 1000, 50, 400
        sampler = sampler_of(rounds_of(clients, cohort, 1, 1.0)[0].event, None)
        taken = sum(len(sampler.draw(r, {}, SOURCE.generator(Purpose.COHORT, r)).clients) for r in range(rounds))
        rate = accounted_rate(clients, cohort)
        assert rate >= taken / (clients * rounds) - 5 * math.sqrt(rate / (clients * rounds))

    def ours(clients, cohort):
        given = {**NOISE, "population.clients": str(clients), "population.cohort": str(cohort)}
        return make_privacy(resolve("dp-const", "strokes", None, given), TASK).at(0).rate

    only_ours(check, ours, lambda clients, cohort: cohort / 60_000)


@pytest.mark.parametrize(("clients", "cohort", "rounds", "z"), [(400_000, 1500, 266, 1.0), (1000, 20, 30, 2.0)])
def test_replace_one_is_not_doubled_by_the_rdp_accountant(only_ours, clients, cohort, rounds, z):
    (phase,) = rounds_of(clients, cohort, rounds, z, sampler="fixed")
    exact = sampled_epsilon((phase,), "replace-one", DELTA)

    def check(event_of):
        accountant = RdpAccountant(list(range(2, 65)), NeighboringRelation.REPLACE_ONE)
        accountant.compose(event_of(phase.event), rounds)
        assert accountant.get_epsilon(DELTA) >= exact

    only_ours(check, round_event, lambda event: SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(z)))


def test_the_accountant_reads_a_multiplier_that_adaptive_clipping_changed(only_ours, plan):
    def ours(sensitivity):
        query = Bounded(value={"w": torch.zeros(5)}, sensitivity=sensitivity)
        return plan.mechanism.at(0).release(query, stream(4)).noises

    def check(event_of):
        charged = planned_charge(plan.privacy, 0).event.noise
        assert charged == GaussianNoise(multiplier=0.8)
        assert all(event_of(sensitivity) == (charged,) for sensitivity in (0.01, 1.0, 30.0))

    only_ours(check, ours, lambda sensitivity: (GaussianNoise(multiplier=0.8 * sensitivity),))


def test_local_steps_composed_as_if_each_had_its_own_client_sampling():
    steps, z = 5, 2.0

    def check(epsilon_of):
        """The steps of a round happen together or not at all: a sampled Gaussian of multiplier z / sqrt(K)."""
        together = sampled_epsilon(rounds_of(1000, 100, 10, z / math.sqrt(steps)), "add-remove", DELTA)
        assert epsilon_of(rounds_of(1000, 100, 10, z)) >= together

    check(lambda rounds: mixture_epsilon(rounds, [math.sqrt(steps) / z], None, DELTA))
    with pytest.raises(AssertionError):
        check(
            lambda rounds: sampled_epsilon([replace(s, rounds=s.rounds * steps) for s in rounds], "add-remove", DELTA)
        )
