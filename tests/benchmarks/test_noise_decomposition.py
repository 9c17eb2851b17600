import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.noise_decomposition import decompose
from dpfedmeta.config.load import resolve
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.discretised.fixed_point import WholeNumbers
from dpfedmeta.training.build_data import client_side, population

COHORT = 40
EXACT = Maml(order=1, adaptation=Adaptation(adapt="all", steps=1, lr=0.1))


@dataclass(frozen=True)
class Scattered:
    """Clients whose messages are a common vector and scatter of their own."""

    common: torch.Tensor
    scatter: float
    algorithm: Maml = EXACT
    message_noise: float = 0.0
    record_noises: tuple[object, ...] = ()

    def form(self, model):
        return model

    def whole_numbers(self, bound, size):
        return WholeNumbers.for_messages(100.0)

    def clipped_sum(self, model, bound, round_, clients):
        (client,) = clients
        own = torch.from_numpy(np.random.default_rng(client).normal(size=len(self.common)))
        return self.whole_numbers(bound, len(own)).of(self.common + self.scatter * own), 1


def plan_with(noise):
    constants = SimpleNamespace(cohort=COHORT, total_noise=noise)
    return SimpleNamespace(privacy=SimpleNamespace(at=lambda round_: constants, record=None))


@pytest.mark.parametrize(("scatter", "noise"), [(0.0, 0.0), (0.3, 0.0), (0.1, 2.0), (1.0, 5.0)])
def test_cosines_are_those_of_simulated_aggregates(scatter, noise):
    size, bound = 200, 0.5
    common = torch.ones(size, dtype=torch.float64) / math.sqrt(size)
    side = Scattered(common, scatter)
    found = decompose(plan_with(noise), side, {"w": torch.zeros(size)}, bound, range(1000))
    generator = np.random.default_rng(1)
    cosines = []
    for _ in range(400):
        sums = COHORT * common.numpy() + scatter * math.sqrt(COHORT) * generator.normal(size=size)
        sums = sums + noise * bound * generator.normal(size=size)
        cosines.append(sums @ common.numpy() / np.linalg.norm(sums))
    assert found.both == pytest.approx(np.mean(cosines), abs=0.03)
    assert found.both == pytest.approx(found.query_only)
    assert found.without == pytest.approx(found.support_only)
    assert found.agreement == pytest.approx(1 / math.sqrt(1 + scatter**2 * size), rel=0.05)
    assert found.parameters == size


def test_clients_that_agree_on_nothing_have_no_direction():
    side = Scattered(torch.zeros(100, dtype=torch.float64), 1.0)
    found = decompose(plan_with(1.0), side, {"w": torch.zeros(100)}, 1.0, range(500))
    assert abs(found.both) < 0.5
    assert found.agreement < 0.1


@pytest.fixture(scope="module")
def steps(tiny_task_file):
    dataset = open_dataset(str(tiny_task_file))
    given = {"model.width": "4", "task.ways": "3", "run.noise_seed": "1"}
    plan = make_plan(resolve("dp-agrlr", str(tiny_task_file), None, given), dataset.task)
    side = client_side(plan, population(plan, dataset, None), KeyedSource(seed=1), torch.device("cpu"))
    return plan, side, learned_part(plan.network, initial_weights(plan.network, 0))


def test_each_noise_costs_and_both_cost_most(steps):
    plan, side, model = steps
    found = decompose(plan, side, model, 0.003, range(40))
    assert found.without > 0.95
    assert found.both < found.query_only < found.without
    assert found.both < found.support_only < found.without
    assert found.support_noise == side.algorithm.support_noise


def test_weaker_noise_costs_less(steps):
    plan, side, model = steps
    weak = replace(side, algorithm=replace(side.algorithm, support_noise=0.05))
    strong, weaker = (decompose(plan, s, model, 0.003, range(30)) for s in (side, weak))
    assert weaker.both > strong.both + 0.1


def test_noise_that_clients_add_to_their_messages_is_counted_once(tiny_task_file):
    dataset = open_dataset(str(tiny_task_file))
    given = {"model.width": "4", "task.ways": "3", "run.noise_seed": "1", "server.noise_site": "clients",
             "privacy.client.epsilon": "null", "server.noise_multiplier": "3"}  # fmt: skip
    plan = make_plan(resolve("dp-fedavg-fixed", str(tiny_task_file), None, given), dataset.task)
    side = client_side(plan, population(plan, dataset, None), KeyedSource(seed=1), torch.device("cpu"))
    assert side.message_noise
    model = learned_part(plan.network, initial_weights(plan.network, 0))
    assert decompose(plan, side, model, 0.1, range(3)) == decompose(
        plan, replace(side, message_noise=0.0), model, 0.1, range(3)
    )
