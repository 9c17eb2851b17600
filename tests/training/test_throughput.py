from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.peak_memory import own_peak_mb, peak_memory_mb
from dpfedmeta.core.worker_pool import InProcess, available_cores, open_workers
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.training import throughput
from dpfedmeta.training.setup import worker_count
from dpfedmeta.training.throughput import Cost, _scaled, clients_per_second
from tests.simulation.test_worker_backend import setting


def test_a_forecast_adds_its_parts_up() -> None:
    cost = Cost(clients_per_second=100.0, start=30.0, rounds=600.0, validations=120.0, test=60.0, memory_mb=1234.5)
    assert cost.seconds == 810.0
    assert str(cost).startswith("about 14 min: 30 s to start, 10 min of rounds at 100 clients/s, 2 min of validation")


def test_episodes_are_scaled_from_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [0.0], []

    def measure(episodes: int) -> None:
        asked.append(episodes)
        clock[0] += 0.5 + 0.1 * episodes  # a start-up that a few episodes would overrate

    monkeypatch.setattr("dpfedmeta.training.throughput.time.perf_counter", lambda: clock[0])
    for seconds in (0.1, 30.0):
        assert _scaled(measure, 600, seconds) == pytest.approx(0.5 + 0.1 * 600)
    assert asked[:3] == [16, 16, 32]
    assert max(asked) <= 600


@pytest.mark.parametrize("chunk", [None, 2])
def test_a_population_smaller_than_a_chunk_is_measured_too(tiny_strokes: Dataset, chunk: int | None) -> None:
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    few = replace(clients, chunk=chunk, population=replace(clients.population, clients=3))
    assert clients_per_second(few, InProcess(), 6.0, 0.0) > 0.0


def test_a_run_begins_with_no_more_clients_than_a_round_has(tiny_strokes: Dataset) -> None:
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    handed: list[int] = []

    class Counting(InProcess):
        def total(self, function: Any, common: Any, shares: Any, shape: Any) -> Any:
            handed.extend(len(chunk) for chunk, _ in shares)
            return super().total(function, common, shares, shape)

    # One chunk for each worker to warm up, and one that is measured; of a larger cohort no larger ones.
    for workers, cohort, size in ((1, 1.0, 1), (1, 2.5, 3), (1, 6.0, 6), (1, 300.0, 8), (2, 6.0, 3)):
        handed.clear()
        counting = Counting()
        counting.count = workers
        assert clients_per_second(clients, counting, cohort, 0.0) > 0.0
        assert handed == [size] * 2 * workers


def test_memory_of_workers_is_counted_for_each() -> None:
    own = own_peak_mb()
    assert own > 50.0
    assert peak_memory_mb(InProcess()) == pytest.approx(own, rel=0.2)
    with open_workers(2) as workers:
        assert peak_memory_mb(workers) > own_peak_mb() + 2 * 50.0


def test_more_workers_than_cores_are_left_out_and_it_is_said() -> None:
    settings = resolve("dp-agr", "strokes", None, {"run.workers": "9999"})
    said: list[str] = []
    count = worker_count(settings, torch.device("cpu"), said.append)
    assert count == available_cores()
    assert said == [f"run.workers = 9999: this machine has only {count} cores, so {count} workers are used"]
    assert worker_count(settings, torch.device("cuda"), said.append) == 1


@pytest.mark.parametrize("first", [0.0, 1e-9])
def test_episodes_that_take_no_time_are_no_error(monkeypatch: pytest.MonkeyPatch, first: float) -> None:
    monkeypatch.setattr(throughput, "_seconds", lambda measure, episodes: first)
    assert _scaled(lambda episodes: None, 600, 1.0) == first


@pytest.mark.parametrize("took", [0.5, 2.0])
def test_a_speed_is_clients_over_the_time_that_they_took(
    monkeypatch: pytest.MonkeyPatch, tiny_strokes: Dataset, took: float
) -> None:
    """The first round, which starts the workers, counts for nothing."""
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    times, rounds = iter([100.0, 100.0 + took, 100.0 + took]), list[int]()

    def total(function: object, common: object, shares: list[tuple[list[int], object]], shape: object) -> None:
        rounds.append(sum(len(chunk) for chunk, _ in shares))

    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(times))
    found = throughput.clients_per_second(clients, SimpleNamespace(count=3, total=total), 30.0, 0.1)  # type: ignore[arg-type]
    assert len(rounds) == 2
    assert found == pytest.approx(rounds[1] / took)
    assert 3 <= rounds[1] <= 30


@pytest.mark.parametrize("seconds", [0.5, 1.0, 40.0])
def test_a_forecast_spends_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tiny_strokes: Dataset, seconds: float
) -> None:
    """Its parts together: one that takes the inverse would go on for minutes."""
    plan, clients, _ = setting(tiny_strokes, "dp-agr")
    given: list[float] = []

    def scaled(measure: object, episodes: int, part: float) -> float:
        given.append(part)
        return 2.0

    def rate(public: object, workers: object, cohort: float, part: float) -> float:
        given.append(part)
        return 10.0

    monkeypatch.setattr(throughput, "_scaled", scaled)
    monkeypatch.setattr(throughput, "clients_per_second", rate)
    held_out = [SimpleNamespace(), SimpleNamespace()]
    cost = throughput.cost_of(plan, clients, held_out, InProcess(), seconds, 3.0)  # type: ignore[arg-type]
    assert sum(given) == pytest.approx(seconds)
    assert all(part >= 0 for part in given)
    rounds, every = plan.privacy.rounds, plan.settings.evaluation.every
    assert cost.validations == 2.0 * (1 + -(-rounds // every))
    assert (cost.test, cost.rounds) == (2.0, plan.privacy.expected_participations / 10.0)
