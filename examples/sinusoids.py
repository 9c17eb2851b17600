"""MAML on the sinusoids of Finn et al. 2017: squared error on new curves after no, one and ten steps on ten points.

Beside it: the same steps from untrained weights, what ten points say alone, and one curve for everybody.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import dpfedmeta as dp
from dpfedmeta.core.params import arrays_of
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
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

STEPS = (0, 1, 10)
"""Gradient steps on the ten points."""


def squared_errors(run: dp.Run, curves: int = 500) -> dict[str, np.ndarray]:
    """Squared error of every model on the other points of new curves, [curves], after ten points of each are known."""
    opened, data = open_run(run.path), open_dataset("sinusoids")
    pooled, found = mean_curve(data.train), dict[str, list[float]]()
    for number in range(curves):
        episode = draw_episode(
            data.test, public_generator(1, Purpose.EVALUATION, number), EpisodeShape(ways=1, shots=10, queries=30)
        )
        predicted = {"all data in one place: mean of all curves": pooled(episode.query_images)}
        for name, weights in (("this run", opened.weights), ("untrained weights", opened.untrained)):
            own = Adapted(network=opened.network, weights=arrays_of(weights), adaptation=opened.adaptation, at=STEPS)
            after = zip(STEPS, own.predictions(episode, transductive=False), strict=True)
            predicted |= {f"{name}, {steps} step(s)": each for steps, each in after}
        for name, scorer in opened.adaptation.targets.alone(None, (10,)).items():
            predicted[name] = scorer.outputs(episode, 1).squeeze(1)
        for name, each in predicted.items():
            found.setdefault(name, []).append(float((each - episode.query_labels).square().mean()))
    return {name: np.array(errors) for name, errors in found.items()}


def mean_curve(pool: ClassPool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The mean over all training curves, in fifty parts of the range: what one curve for everybody predicts."""
    points = pool.numbers(np.arange(pool.first[0], pool.first[-1] + pool.counts[-1]))
    edges = np.linspace(-5.0, 5.0, 51)[1:-1]
    part = np.digitize(points[:, 0], edges)
    means = np.bincount(part, points[:, 1], 50) / np.bincount(part, minlength=50)
    return lambda records: torch.from_numpy(means[np.digitize(records[:, 0].numpy(), edges)])


def main(changes: Mapping[str, Any] | None = None) -> dp.Run:
    """Train and print."""
    run = dp.train(dp.Settings.preset("maml", "sinusoids", {**AS_PUBLISHED, **(changes or {})}))
    print(run)
    for name, errors in squared_errors(run).items():
        half = 1.96 * errors.std(ddof=1) / len(errors) ** 0.5
        worst = np.sort(errors)[-(len(errors) // 10) :].mean()
        print(f"{name}: squared error {errors.mean():.3f} ± {half:.3f}, worst tenth {worst:.2f}")
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
