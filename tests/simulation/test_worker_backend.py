import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import dimension, norm, scaled
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess, open_workers
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.simulation.gpu_batches import RowSum

SMALL = {"model.width": "4", "server.rounds": "3", "task.ways": "3", "task.shots": "2", "task.queries": "2",
         "clip.window": "2"}  # fmt: skip


def setting(tiny_strokes, algo, **given):
    plan = make_plan(resolve(algo, "strokes", None, {**SMALL, **given}), tiny_strokes.task)
    population = VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=1000, seed=0)
    clients = ClientRunner(
        network=plan.network,
        weights_seed=0,
        population=population,
        algorithm=plan.algorithm,
        message_clip_ratio=plan.message_clip_ratio,
        engine="auto",
        source=KeyedSource(1),
        device=torch.device("cpu"),
        attachment=plan.policy.attachment,
        scope=plan.settings.clip.scope,
    )
    model = learned_part(plan.network, initial_weights(plan.network, 0))
    return plan, clients, model


def cohort_of(*clients):
    return Cohort(round=0, clients=np.array(clients, dtype=np.int64))


class Loud:
    """States a tenth of what it attaches."""

    size, sensitivity, scale = 2, 0.1, 1.0

    def __init__(self, *values):
        self._values = values

    def values(self, norm, bound):
        return self._values


@pytest.mark.parametrize("values", [(1.0, 0.0), (-14.0, 14.0), (float("nan"), 0.0), (float("inf"), 0.0), (1.0,)])
@pytest.mark.parametrize("as_rows", [False, True])
def test_the_message_bound_covers_what_is_attached_too(tiny_strokes, values, as_rows):
    """Whatever the attachment's code gives, and before a client's own noise hides it from the server's check."""
    _, clients, model = setting(tiny_strokes, "dp-agr")
    clients = replace(clients, attachment=Loud(*values), message_noise=1.0)
    assert clients.message_bound(0.05) == pytest.approx(0.05 * math.sqrt(1.01))
    message = {name: torch.ones_like(value) for name, value in model.items()}
    if as_rows:
        rows = RowSum(clients=clients, model=model, bound=0.05, round_=0)
        attached = rows._clipped(torch.ones(3, dimension(model)))[0, dimension(model) :]
    else:
        attached = clients._clipped(message, 0.05)[ATTACHED]
    assert attached.shape == (2,)
    assert float(attached.norm()) <= 0.1 * 0.05 * (1 + 1e-9)
    if len(values) == 2 and math.isfinite(math.hypot(*values)):
        assert float(attached.norm()) == pytest.approx(0.1 * 0.05)


MORE = [pytest.param(algo, marks=pytest.mark.slow) for algo in ("maml", "dp-aqc", "dp-agrlr")]


@pytest.fixture(scope="module")
def two_workers():
    """Processes take seconds to start."""
    with open_workers(2) as workers:
        yield workers


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro", *MORE])
def test_the_sum_is_bit_identical_for_any_number_of_workers(tiny_strokes, two_workers, algo):
    _, clients, model = setting(tiny_strokes, algo)
    one, other = (
        LocalBackend(clients=clients, workers=workers).cohort_sum(model, 0.1, cohort_of(*range(0, 100, 5)))
        for workers in (InProcess(), two_workers)
    )
    assert other.noise_variance == one.noise_variance
    assert all(torch.equal(other.value[n], one.value[n]) for n in model)


@pytest.mark.parametrize("bound", [1e-6, 0.05])
def test_one_client_moves_the_sum_by_at_most_the_sensitivity(tiny_strokes, bound):
    _, clients, model = setting(tiny_strokes, "dp-agr")
    with open_workers(1) as workers:
        backend = LocalBackend(clients=clients, workers=workers)
        whole = backend.cohort_sum(model, bound, cohort_of(1, 2, 3))
        without = backend.cohort_sum(model, bound, cohort_of(1, 3))
    change = norm({n: whole.value[n].double() - without.value[n].double() for n in model})
    assert whole.sensitivity == bound
    assert 0 < change <= bound * (1 + 1e-5)


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_shared_mode_states_the_noise_that_entered_the_sum(tiny_strokes, algo):
    plan, clients, model = setting(tiny_strokes, algo)
    bound = 0.3
    with open_workers(1) as workers:
        backend = LocalBackend(clients=clients, workers=workers)
        got = backend.cohort_sum(model, bound, cohort_of(*range(40)))
    one = (plan.privacy.record.query_noise * bound / plan.privacy.record.query_records) ** 2
    assert got.noise_variance == pytest.approx(40 * one)
    spread = torch.cat([v.flatten() for v in got.value.values()]).std()
    assert float(spread) == pytest.approx((40 * one) ** 0.5, rel=0.2)


def test_stacked_mode_clips_the_noisy_message_and_counts_no_noise(tiny_strokes):
    _, clients, model = setting(tiny_strokes, "dp-agrlr-micro", **{"server.noise_mode": "stacked"})
    with open_workers(1) as workers:
        backend = LocalBackend(clients=clients, workers=workers)
        got = backend.cohort_sum(model, 0.3, cohort_of(7))
    assert got.sensitivity == pytest.approx(0.3 * clients.message_clip_ratio)
    assert got.noise_variance == 0.0
    assert norm(got.value) <= got.sensitivity * (1 + 1e-6)


def test_an_empty_cohort_is_a_sum_of_zeros_with_the_same_sensitivity(tiny_strokes):
    _, clients, model = setting(tiny_strokes, "dp-agrlr-micro")
    with open_workers(1) as workers:
        got = LocalBackend(clients=clients, workers=workers).cohort_sum(model, 0.3, cohort_of())
    assert norm(got.value) == 0.0
    assert (got.sensitivity, got.noise_variance) == (0.3, 0.0)


def test_a_message_that_is_not_finite_counts_as_zero_and_touches_no_other(tiny_strokes, monkeypatch):
    _, clients, model = setting(tiny_strokes, "dp-agrlr-micro")
    honest = ClientRunner._clipped_again
    sent = iter(range(1, 4))

    def hostile(self, message, bound):
        return scaled(honest(self, message, bound), float("nan") if next(sent) == 2 else 1.0)

    monkeypatch.setattr(ClientRunner, "_clipped_again", hostile)
    with open_workers(1) as workers:
        backend = LocalBackend(clients=clients, workers=workers)
        with_hostile = backend.cohort_sum(model, 0.3, cohort_of(1, 2, 3))
        monkeypatch.undo()
        without = backend.cohort_sum(model, 0.3, cohort_of(1, 3))
    assert with_hostile.noise_variance == without.noise_variance
    assert all(torch.allclose(with_hostile.value[n], without.value[n], atol=1e-5) for n in model)


@pytest.mark.parametrize("policy", ["quantile", "median"])
@pytest.mark.parametrize("scope", ["flat", "per-layer"])
@pytest.mark.parametrize("bound", [1e-6, 0.05, 50.0])
def test_what_a_policy_attaches_is_within_the_sensitivity(tiny_strokes, policy, scope, bound):
    given = {"clip.policy": policy, "clip.scope": scope, "population.cohort": "300"}
    plan, clients, model = setting(tiny_strokes, "dp-agr", **given)
    with open_workers(1) as workers:
        backend = LocalBackend(clients=clients, workers=workers)
        whole = backend.cohort_sum(model, bound, cohort_of(1, 2, 3))
        without = backend.cohort_sum(model, bound, cohort_of(1, 3))
    change = norm({n: whole.value[n] - without.value[n] for n in whole.value})
    assert 0 < change <= whole.sensitivity
    assert bound < whole.sensitivity < 1.1 * bound
    attachment = plan.policy.attachment
    counts = (whole.value[ATTACHED] - without.value[ATTACHED]) / (attachment.scale * bound)
    assert float(counts.norm()) == pytest.approx(attachment.sensitivity)
    if policy == "quantile":
        # Every norm here lies between 1e-6 and 50.
        assert float(counts) == pytest.approx({1e-6: -0.5, 50.0: 0.5}.get(bound, float(counts)))


def test_layers_are_clipped_one_by_one(tiny_strokes):
    _, clients, model = setting(tiny_strokes, "dp-agr", **{"clip.scope": "per-layer"})
    with open_workers(1) as workers:
        value = LocalBackend(clients=clients, workers=workers).cohort_sum(model, 1e-6, cohort_of(1)).value
    layers = {name.rpartition(".")[0] for name in value}
    for layer in layers:
        length = norm({n: v for n, v in value.items() if n.rpartition(".")[0] == layer})
        assert length <= 1e-6 / len(layers) ** 0.5
    assert norm(value) == pytest.approx(1e-6, rel=1e-4)


@pytest.mark.parametrize("ratio", [None, 1.5])
def test_a_message_with_noise_is_clipped_again_where_that_was_planned(ratio):
    runner = SimpleNamespace(message_clip_ratio=ratio, message_bound=lambda bound: bound * (ratio or 1.0))
    message = {"a": torch.full((100,), 3.0)}
    assert float(norm(ClientRunner._clipped_again(runner, message, 0.7))) == pytest.approx(
        1.05 if ratio else 30.0, rel=1e-5
    )
