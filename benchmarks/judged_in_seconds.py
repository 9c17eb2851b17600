"""Verdicts on other people's rounds, and how long each takes: one run each, on two quiet cores.

    python -m benchmarks.judged_in_seconds --json judged.json

Opacus' optimizer, Flower's wrapper where it is installed, ten planted mistakes, noise for a sensitivity that nothing
keeps; and seven right functions, which must raise no alarm. Nothing here gives a guarantee.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

import dpfedmeta as dp
from benchmarks.boundary_audits import CLIENTS, right_functions
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.rounded import asked, rounded_down
from dpfedmeta.core.random.random_sources import FloatArray

SIZE, Z, DELTA = 20, 4.0, 1e-5
LIKE = {"w": np.zeros(SIZE)}
Updates = Mapping[int, Mapping[str, Any]]
Rounds = Callable[[Any, Updates, Any], tuple[Any, Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Rounds and what is promised of them.

    Attributes:
        name: What they are.
        rounds: One round.
        epsilon: Promised, of all rounds together.
        right: Whether they keep it.
        like: Names and shapes of an update.
        count: Rounds.
        delta: Promised.
        clients: All.
    """

    name: str
    rounds: Rounds
    epsilon: float
    right: bool
    like: Mapping[str, Any]
    count: int = 8
    delta: float = DELTA
    clients: int = 10


def _norm(update: Mapping[str, FloatArray]) -> float:
    return math.sqrt(sum(float(np.sum(value**2)) for value in update.values()))


def _clipped(updates: Updates, bound: float = 1.0) -> FloatArray:
    rows = [each["w"] * min(1.0, bound / max(_norm(each), 1e-12)) for each in updates.values()]
    total: FloatArray = np.sum(rows, axis=0)
    return total


def _mean(total: FloatArray, generator: np.random.Generator, deviation: float = Z) -> dict[str, FloatArray]:
    return {"w": (total + generator.normal(0, deviation, SIZE)) / 10}


def _mistakes() -> Iterator[tuple[str, Rounds]]:
    """Each is one line of a right round."""

    def norms(updates: Updates) -> list[float]:
        return [_norm(each) for each in updates.values()]

    def rows(updates: Updates) -> FloatArray:
        return np.array([each["w"] for each in updates.values()])

    def bound(state: Any, updates: Updates, g: np.random.Generator) -> Any:
        median = float(np.median(norms(updates)))
        return state, _mean(_clipped(updates, median), g, Z * median)

    def later(state: Any, updates: Updates, g: np.random.Generator) -> Any:
        state = (state or 0) + 1
        return state, _mean(_clipped(updates), g) if state <= 4 else {"w": rows(updates).mean(0)}

    def one_seed(state: Any, updates: Updates, g: np.random.Generator) -> Any:
        state = int(g.integers(2**32)) if state is None else state
        return state, _mean(_clipped(updates), np.random.default_rng(state))

    def momentum(state: Any, updates: Updates, g: np.random.Generator) -> Any:
        state = rows(updates).sum(0) + (0 if state is None else 0.9 * state)
        return state, _mean(_clipped(updates) + 0.1 * state, g)

    yield "bound: median of raw norms", bound
    yield "coordinate-wise median, no noise", lambda s, u, g: (s, {"w": np.median(rows(u), axis=0)})
    yield "trimmed mean, no noise", lambda s, u, g: (s, {"w": np.sort(rows(u), axis=0)[1:-1].mean(0)})
    yield "long updates dropped, no noise", lambda s, u, g: (s, {"w": rows(u)[np.array(norms(u)) < 10].sum(0) / 10})
    yield "mean over who is there", lambda s, u, g: (s, {"w": 10 * _mean(_clipped(u), g)["w"] / len(u)})
    yield "noise over the number of clients, twice", lambda s, u, g: (s, _mean(_clipped(u), g, Z / 10))
    yield (
        "the mean is clipped, not each update",
        lambda s, u, g: (s, _mean(10 * _clipped({0: {"w": rows(u).mean(0)}}), g)),
    )
    yield "raw from the fifth round on", later
    yield "one noise for all rounds", one_seed
    yield "momentum of raw sums", momentum


def _off(state: Any, updates: Updates, generator: np.random.Generator) -> Any:
    return state, {"w": _clipped(updates) + generator.normal(0, 4.8e-5, SIZE)}


def _opacus(z: float, bound: float, said: float) -> Rounds:
    """One step of Opacus' optimizer on a linear model; the gradient of a client is its update."""

    def rounds(state: Any, updates: Updates, generator: torch.Generator) -> Any:
        weight = torch.nn.Parameter(torch.zeros(SIZE))
        optimizer = DPOptimizer(
            torch.optim.SGD([weight], lr=1.0), noise_multiplier=z, max_grad_norm=bound, expected_batch_size=10,
            generator=generator,
        )  # fmt: skip
        weight.grad_sample = torch.stack([each["w"] for each in updates.values()]).float()  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        return state, {"w": weight.detach() / said}

    return rounds


def _flower(examples: int) -> Rounds | None:
    """One round of Flower's wrapper with clipping and noise at the server; the long client says `examples`."""
    from benchmarks.flower_cases import flower

    try:
        flower()
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
        from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    except ImportError:
        return None

    class Grid:
        def get_node_ids(self) -> list[int]:
            return list(range(101, 111))

    grid: Any = Grid()

    def rounds(state: Any, updates: Updates, generator: np.random.Generator) -> Any:
        wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), Z, 1.0, 10)
        model = ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))})
        list(wrapper.configure_train(1, model, ConfigRecord(), grid))
        replies = []
        for client in range(10):
            # Its wrapper divides by the norm: zeros would end the run.
            update = updates.get(client, {"w": np.zeros(SIZE)})["w"] + 1e-9
            metrics = MetricRecord({"num-examples": examples if np.abs(update).max() > 1e-6 else 1})
            content = RecordDict({"arrays": ArrayRecord({"w": Array(update.astype(np.float32))}), "metrics": metrics})
            message = Message(content, 0, "train")
            message.metadata.__dict__["_src_node_id"] = 101 + client
            replies.append(message)
        averaged: Any = wrapper.aggregate_train(1, replies)[0]
        return state, {"w": averaged["w"].numpy()}

    return rounds


def cases() -> Iterator[Judged]:
    """All that are judged."""
    honest = gaussian_epsilon(math.sqrt(8) / Z, DELTA)
    yield Judged(name="noise for a sensitivity of 1e-4, clip bound 1", rounds=_off, epsilon=10, right=False, like=LIKE)
    for name, rounds in _mistakes():
        yield Judged(name=name, rounds=rounds, epsilon=honest, right=False, like=LIKE)
    tensors, one = {"w": torch.zeros(SIZE)}, gaussian_epsilon(1 / Z, DELTA)
    yield Judged(name="Opacus' optimizer", rounds=_opacus(Z, 1.0, 1.0), epsilon=one, right=True, like=tensors, count=1)
    yield Judged(
        name="Opacus' optimizer, a fifth of the noise", rounds=_opacus(Z / 5, 1.0, 1.0), epsilon=one, right=False,
        like=tensors, count=1,
    )  # fmt: skip
    for examples in (1, 10**6):
        if (flower := _flower(examples)) is None:
            print("Flower is not installed: not judged")
            break
        yield Judged(
            name=f"Flower's server-side wrapper, a client of {examples:,} examples", rounds=flower, epsilon=one,
            right=examples == 1, like=LIKE, count=1,
        )  # fmt: skip
    for right in right_functions():
        yield Judged(
            name=right.name, rounds=right.function, epsilon=right.epsilon, right=True, like={"w": np.zeros(right.size)},
            count=right.rounds, delta=right.delta, clients=CLIENTS,
        )  # fmt: skip


def main() -> None:
    """One row after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also keep the rows")
    words = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| rounds | promised | verdict | epsilon >= (95%) | seconds |")
    for case in cases():
        began = time.perf_counter()
        found = dp.audit_rounds(
            case.rounds, promise=dp.Promise(epsilon=case.epsilon, delta=case.delta), like=case.like, rounds=case.count,
            clients=case.clients, runs=1000, seed=words.seed,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        bound = found.compared.epsilon if found.compared else None
        rows.append({"name": case.name, "right": case.right, "seconds": seconds, **found.as_json()})
        verdict = "refuted" if found.refuted else "no violation found"
        wrong = "" if found.refuted != case.right else " (WRONG)"
        shown = "-" if bound is None else rounded_down(bound)
        print(f"| {case.name} | {asked(case.epsilon)} | {verdict}{wrong} | {shown} | {seconds:.1f} |", flush=True)
    if words.json is not None:
        words.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
