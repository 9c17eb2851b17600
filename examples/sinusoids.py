"""MAML on the sinusoids of Finn et al. 2017: squared error on new curves after no, one and ten steps on ten points."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import dpfedmeta as dp
from dpfedmeta.core.params import arrays_of
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation.baselines import Adapted
from dpfedmeta.training.results.trained_run import open_run

# As in the paper: two hidden layers of 40, ten points, one step of 0.01 on the squared error (0.02 on half of it, as
# here), batches of 25 curves, Adam at 0.001.
AS_PUBLISHED = {
    "meta.steps": 1, "meta.lr": 0.02, "meta.adapt": "all", "meta.order": 2, "task.shots": 10, "task.queries": 10,
    "model.width": 40, "model.norm": "none", "model.features": "raw", "population.cohort": 25, "server.lr": 0.001,
    "server.final_lr": None, "evaluation.queries": 15, "evaluation.episodes": 500, "evaluation.every": 1000,
    "run.chunk": 25, "run.workers": 1,
}  # fmt: skip


def squared_errors(run: dp.Run, curves: int = 500) -> dict[int, float]:
    """Mean squared error on the other points of new curves, by number of steps on ten of them."""
    opened, pool = open_run(run.path), open_dataset("sinusoids").test
    errors = []
    for number in range(curves):
        episode = draw_episode(
            pool, public_generator(1, Purpose.EVALUATION, number), EpisodeShape(ways=1, shots=10, queries=30)
        )
        own = Adapted(
            network=opened.network, weights=arrays_of(opened.weights), adaptation=opened.adaptation, at=(0, 1, 10)
        )
        found = own.predictions(episode, transductive=False)
        errors.append([float((each - episode.query_labels).square().mean()) for each in found])
    return dict(zip((0, 1, 10), np.mean(errors, axis=0).tolist(), strict=True))


def main(changes: Mapping[str, Any] | None = None) -> dp.Run:
    """Train and print."""
    run = dp.train(dp.Settings.preset("maml", "sinusoids", {**AS_PUBLISHED, **(changes or {})}))
    print(run)
    for steps, error in squared_errors(run).items():
        print(f"after {steps} steps on ten points: squared error {error:.3f}")
    return run


def options_of(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Settings from the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rounds", type=int, default=5000, help="rounds of 25 curves (5,000; published: 70,000)")
    made.add_argument("--lr", type=float, default=0.001, help="server step size (0.001, as published)")
    made.add_argument("--out", default="runs", help="parent folder of the run")
    options = made.parse_args(words)
    return {"server.rounds": options.rounds, "server.lr": options.lr, "run.dir": options.out}


if __name__ == "__main__":
    main(options_of())
