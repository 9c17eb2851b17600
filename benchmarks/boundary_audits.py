"""Audits of functions that keep exactly what they promise: how often an audit is wrong about them.

    python -m benchmarks.boundary_audits --audits 100 --json boundary.json

The stated epsilon is the true one. So a first bound, at 95%, may be above it in one audit of twenty, and a confirmed
one in one of a thousand. Deltas are large on purpose: there a few thousand runs come near the boundary.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dpfedmeta as dp
from benchmarks import results
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import asked, rounded_down, rounded_up
from dpfedmeta.core.random.random_sources import FloatArray

Release = tuple[Any, dict[str, FloatArray]]
Updates = Mapping[int, Mapping[str, FloatArray]]
CLIENTS, RATE, DELTA, TINY = 10, 0.2, 0.05, 1e-9


@dataclass(frozen=True, kw_only=True)
class RightFunction:
    """Rounds, and the promise that they keep with nothing to spare.

    Attributes:
        name: What it is.
        function: As `dpfedmeta.audit_rounds` takes it.
        epsilon: True, of all rounds together, where a client is added or removed.
        delta: Likewise.
        size: Coordinates of an update.
        rounds: How many.
    """

    name: str
    function: Callable[[Any, Updates, np.random.Generator], Release]
    epsilon: float
    delta: float
    size: int = 8
    rounds: int = 4

    def audit(self, runs: int, seed: int) -> dp.RoundsVerdict:
        """One audit of releases alone; `judged_in_seconds` and its test have what comes before it."""
        promise = dp.Promise(epsilon=self.epsilon, delta=self.delta)
        like = {"w": np.zeros(self.size)}
        return dp.audit_rounds(
            self.function, promise=promise, like=like, clients=CLIENTS, rounds=self.rounds, runs=runs, seed=seed,
            same_randomness=False,
        )  # fmt: skip


def right_functions() -> Iterator[RightFunction]:
    """All that are audited."""
    yield RightFunction(
        name="a coin, true with e^epsilon to 1", function=_coin, epsilon=1, delta=TINY, size=1, rounds=1
    )
    yield RightFunction(name="Laplace noise on a sum", function=_laplace, epsilon=1, delta=TINY, size=1, rounds=1)
    z = 1.0
    for delta in (DELTA, 1e-5):
        name = f"Gaussian noise on a sum, delta {asked(delta)}"
        yield RightFunction(
            name=name, function=_gaussian(z), epsilon=gaussian_epsilon(1 / z, delta), delta=delta, rounds=1
        )
    yield RightFunction(
        name="Gaussian noise, 4 rounds, the bound from noisy releases",
        function=_window(2.0), epsilon=gaussian_epsilon(math.sqrt(4) / 2.0, DELTA), delta=DELTA,
    )  # fmt: skip
    plan = PrivacyPlan(
        clients=CLIENTS, cohort=round(RATE * CLIENTS), rounds=4, noise_multiplier=0.7, client_delta=DELTA
    )
    sampled = sampled_epsilon(plan.phases, "add-remove", DELTA)
    yield RightFunction(
        name="Poisson sampling, 4 rounds, q = 0.2", function=_sampled(0.7), epsilon=sampled, delta=DELTA
    )
    yield RightFunction(
        name="DP-SGD, 4 steps by Opacus' formula, q = 0.2", function=_dp_sgd(0.7), epsilon=sampled, delta=DELTA
    )


def _clipped_sum(updates: Updates, bound: float) -> FloatArray:
    rows = np.array([update["w"] for update in updates.values()])
    norms = np.maximum(np.sqrt((rows * rows).sum(axis=1, keepdims=True)), 1e-300)
    total: FloatArray = (rows * np.minimum(1.0, bound / norms)).sum(axis=0)
    return total


def _coin(state: None, updates: Updates, generator: np.random.Generator) -> Release:
    there = sum(update["w"][0] for update in updates.values()) > 0
    right = generator.random() < math.e / (1 + math.e)
    return None, {"w": np.array([1.0 if there == right else -1.0])}


def _laplace(state: None, updates: Updates, generator: np.random.Generator) -> Release:
    return None, {"w": _clipped_sum(updates, 1.0) + generator.laplace(size=1)}


def _gaussian(z: float) -> Callable[..., Release]:
    def rounds(state: None, updates: Updates, generator: np.random.Generator) -> Release:
        total = _clipped_sum(updates, 1.0)
        return None, {"w": total + z * generator.normal(size=total.size)}

    return rounds


def _window(z: float) -> Callable[..., Release]:
    """The next bound is the norm of the last release, within limits."""

    def rounds(state: float | None, updates: Updates, generator: np.random.Generator) -> Release:
        bound = 1.0 if state is None else state
        total = _clipped_sum(updates, bound)
        released = total + z * bound * generator.normal(size=total.size)
        return float(np.clip(np.sqrt(np.mean(released**2)), 0.1, 10.0)), {"w": released}

    return rounds


def _sampled(z: float) -> Callable[..., Release]:
    def rounds(state: None, updates: Updates, generator: np.random.Generator) -> Release:
        cohort = {client: update for client, update in updates.items() if generator.random() < RATE}
        total = _clipped_sum(cohort, 1.0) if cohort else np.zeros(8)
        return None, {"w": total + z * generator.normal(size=total.size)}

    return rounds


def _dp_sgd(z: float) -> Callable[..., Release]:
    """Opacus' step: clipped gradients of a batch, sigma C noise, over the expected batch; then one step of SGD.

    The expected batch is fixed, since the size of the data is public.
    """
    bound, rate = 0.5, 0.1

    def rounds(weights: FloatArray | None, updates: Updates, generator: np.random.Generator) -> Release:
        before = np.zeros(8) if weights is None else weights
        batch = {client: update for client, update in updates.items() if generator.random() < RATE}
        total = _clipped_sum(batch, bound) if batch else np.zeros(8)
        gradient = (total + z * bound * generator.normal(size=8)) / (RATE * CLIENTS)
        return before - rate * gradient, {"w": gradient}

    return rounds


def measured(subject: RightFunction, audits: int, runs: int) -> dict[str, Any]:
    """The row of a function: alarms, bounds and seconds of audits with the seeds 0, 1, ..."""
    start, cpu = time.perf_counter(), time.process_time()
    verdicts = [subject.audit(runs, seed) for seed in range(audits)]
    first = np.array([verdict.audited for verdict in verdicts])
    return {
        "function": subject.name,
        "epsilon": subject.epsilon,
        "delta": subject.delta,
        "audits": audits,
        "runs": runs,
        "first_alarms": int(np.sum(first > subject.epsilon)),
        "confirmed_alarms": sum(verdict.refuted for verdict in verdicts),
        "median": float(np.median(first)),
        "largest": float(first.max()),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }


def main() -> None:
    """One row after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--audits", type=int, default=100, help="of each function")
    parser.add_argument("--runs", type=int, default=4000, help="of the first sample of an audit")
    parser.add_argument("--json", type=Path, help="also keep the rows")
    words = parser.parse_args()
    rows = []
    for subject in right_functions():
        rows.append(row := measured(subject, words.audits, words.runs))
        print(
            f"| {row['function']} | {rounded_up(row['epsilon'])} | "
            f"{rounded_down(row['median'])} ({rounded_down(row['largest'])}) | "
            f"{row['first_alarms']} | {row['confirmed_alarms']} | {row['cpu_seconds'] / words.audits:.2g} |",
            flush=True,
        )
        if words.json is not None:
            results.write(words.json, {"machine": os.uname().machine, "rows": rows})


if __name__ == "__main__":
    main()
