"""Logistic regression in numpy on made-up records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
CLIENTS, RECORDS, STEPS = 10, 200, 20
TRUTH = np.array([1.5, -2.0, 1.0, 0.5, -1.0])


def records_of(client: int) -> tuple[Vector, Vector]:
    """One client's own records: in real life a file on its disk."""
    generator = np.random.default_rng([1, client])
    features = generator.normal(size=(RECORDS, len(TRUTH)))
    return features, (features @ TRUTH + 0.5 * generator.normal(size=RECORDS) > 0).astype(float)


def trained(weights: Vector, client: int) -> Vector:
    """Weights after some steps on a client's records."""
    features, labels = records_of(client)
    for _ in range(STEPS):
        weights = weights + 0.5 * features.T @ (labels - 1.0 / (1.0 + np.exp(-features @ weights))) / RECORDS
    return weights


def accuracy(weights: Vector) -> float:
    """On records that no client holds, so evaluation costs no privacy."""
    held_out = [records_of(client) for client in range(CLIENTS, 2 * CLIENTS)]
    return float(np.mean([((features @ weights > 0) == (labels > 0.5)).mean() for features, labels in held_out]))
