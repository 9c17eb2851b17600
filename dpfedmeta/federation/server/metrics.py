"""Metrics of a running federation in the text form that Prometheus reads: released and public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_STATUSES = ("waiting", "running", "completed", "interrupted", "budget", "diverged")
# What a row of rounds.jsonl holds, and what it is called here.
_OF_A_ROUND = {
    "clip": ("clip_bound", "Bound of a client's message in the last round"),
    "aggregate_norm": ("aggregate_norm", "Length of the last noisy aggregate"),
    "noise_norm_expected": ("noise_norm", "Expected length of the noise in it"),
}


def exposition(state: Mapping[str, Any]) -> bytes:
    """The metrics of a server's state, as others than the operator may see it (`status_page.Progress.snapshot`).

    Guarantee:
        Everything here is in that state. Whoever scrapes also sees *when* a number changes, so what the state holds
        back is left out.
    """
    registry = CollectorRegistry()
    registry.register(_State(state))
    return generate_latest(registry)


class _State(Collector):
    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        plan, status = self._state["plan"], self._state["status"]
        said = GaugeMetricFamily("dpfedmeta_status", "1 for what the run is doing", labels=["status"])
        for known in dict.fromkeys((*_STATUSES, status)):
            said.add_metric([known], float(known == status))
        yield said
        if not plan:
            return
        yield _gauge("rounds_planned", "Rounds of the plan", plan["rounds"])
        yield _gauge("clients", "Clients of the roster", plan["clients"])
        yield _cells("epsilon_promised", "Epsilon of the whole plan", plan["cells"])
        if self._state["there"] is not None:
            yield _gauge("clients_connected", "Clients that are connected", self._state["there"])
        rounds = self._state["rounds"]
        if rounds is None:
            return
        yield _gauge("rounds_released", "Rounds that were released", rounds[-1]["round"] + 1 if rounds else 0)
        if rounds:
            yield from _of_round(rounds[-1])
        if self._state["heard"] is not None:
            yield _answers(self._state["heard"])


def _of_round(row: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    for key, (name, words) in _OF_A_ROUND.items():
        if row.get(key) is not None:
            yield _gauge(name, words, row[key])
    accuracy = row.get("validation_accuracy")
    if accuracy is not None:
        yield _gauge("validation_accuracy", "Accuracy on public validation classes", accuracy["mean"])
    spent = [
        {"unit": cell.partition("_")[0], "observer": cell.partition("_")[2], "epsilon": epsilon}
        for cell, epsilon in row["epsilons"].items()
    ]
    yield _cells("epsilon_spent", "Epsilon of the rounds so far", spent)


def _answers(heard: Mapping[str, Any]) -> GaugeMetricFamily:
    found = GaugeMetricFamily("dpfedmeta_answers", "Clients by what became of the last question", labels=["outcome"])
    for outcome in ("answered", "declined", "invalid", "absent"):
        found.add_metric([outcome], float(heard[outcome]))
    return found


def _cells(name: str, words: str, cells: list[dict[str, Any]]) -> GaugeMetricFamily:
    found = GaugeMetricFamily(f"dpfedmeta_{name}", words, labels=["unit", "observer"])
    for cell in cells:
        # JSON has no infinity.
        epsilon = math.inf if cell["epsilon"] is None else float(cell["epsilon"])
        found.add_metric([cell["unit"], cell["observer"]], epsilon)
    return found


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"dpfedmeta_{name}", words, value=float(value))
