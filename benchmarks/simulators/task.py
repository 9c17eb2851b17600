"""The task that every simulator does, from one file of arrays; needs numpy alone.

A client takes five steps of gradient descent on all of its 50 records. Nothing is shuffled, so the updates of all
simulators have to be the same.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, CLASSES, PIXELS = 200, 10, 784
STEPS, LR = 5, 0.1
CLIP, NOISE = 1.0, 1.0
CLIENTS, COHORT = 1000, 100
# Of the comparison of updates: everybody takes part, and no noise hides a difference.
FEW, FEW_ROUNDS = 8, 2

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def initial_weights() -> Weights:
    """Weights of a network of 784, 200 and 10 units; from a formula, so that nobody's generator matters."""

    def wave(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        numbers = np.arange(1, int(np.prod(shape)) + 1, dtype=np.float64)
        return np.asarray((np.sin(numbers * numbers) / np.sqrt(shape[-1])).reshape(shape), np.float32)

    return {
        "hidden.weight": wave(HIDDEN, PIXELS),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "head.weight": wave(CLASSES, HIDDEN),
        "head.bias": np.zeros(CLASSES, np.float32),
    }


@dataclass(kw_only=True)
class Asked:
    """What a simulator is asked to do, and what it found.

    Attributes:
        records: [clients, 50, 784], float32.
        labels: [clients, 50], int64.
        rounds: T.
        clients: N.
        cohort: L.
        private: Clip and add noise at the server.
        out: Where the answer goes.
        ends: Seconds since the epoch at which rounds ended.
    """

    records: np.ndarray[Any, np.dtype[np.float32]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    rounds: int
    clients: int
    cohort: int
    private: bool
    out: Path
    ends: list[float] = field(default_factory=list)

    def round_ended(self) -> None:
        """Note the time."""
        self.ends.append(time.time())

    def answer(self, weights: Weights | None) -> None:
        """Write the times; the weights only where updates are compared."""
        self.out.write_text(json.dumps({"ends": self.ends}), encoding="utf-8")
        if weights is not None and not self.private:
            np.savez(self.out.with_suffix(".npz"), **weights)  # type: ignore[arg-type]


def asked(description: str | None) -> Asked:
    """Read the command line that benchmarks.simulators.run writes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--rounds", type=int, required=True)
    made.add_argument("--check", action="store_true", help="few clients, all in each round, without clipping or noise")
    options = made.parse_args()
    held = np.load(options.data)
    clients = FEW if options.check else CLIENTS
    return Asked(
        records=held["records"][:clients],
        labels=held["labels"][:clients],
        rounds=options.rounds,
        clients=clients,
        cohort=FEW if options.check else COHORT,
        private=not options.check,
        out=options.out,
    )


def reference(records: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], rounds: int) -> Weights:
    """The weights after rounds of all clients, by numpy in float64."""
    weights = {name: value.astype(np.float64) for name, value in initial_weights().items()}
    for _ in range(rounds):
        updates = [_local(weights, own.astype(np.float64), said) for own, said in zip(records, labels, strict=True)]
        weights = {name: value - np.mean([each[name] for each in updates], axis=0) for name, value in weights.items()}
    return {name: value.astype(np.float32) for name, value in weights.items()}


def _local(start: dict[str, Any], records: Any, labels: Any) -> dict[str, Any]:
    weights = dict(start)
    for _ in range(STEPS):
        hidden = records @ weights["hidden.weight"].T + weights["hidden.bias"]
        active = np.maximum(hidden, 0.0)
        logits = active @ weights["head.weight"].T + weights["head.bias"]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1.0
        shares /= len(labels)
        back = (shares @ weights["head.weight"]) * (hidden > 0.0)
        step = {
            "hidden.weight": back.T @ records,
            "hidden.bias": back.sum(axis=0),
            "head.weight": shares.T @ active,
            "head.bias": shares.sum(axis=0),
        }
        weights = {name: value - LR * step[name] for name, value in weights.items()}
    return {name: start[name] - value for name, value in weights.items()}


def described() -> dict[str, Any]:
    """The task's numbers, for the file of results."""
    return {"clients": CLIENTS, "cohort": COHORT, "records": 50, "steps": STEPS, "weights": PIXELS * HIDDEN + HIDDEN
            + HIDDEN * CLASSES + CLASSES, "clip": CLIP, "noise_multiplier": NOISE}  # fmt: skip
