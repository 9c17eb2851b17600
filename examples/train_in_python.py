"""Train privately from Python, look at what was promised and spent, and adapt the result to pictures of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import dpfedmeta as dp
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape


def main(changes: Mapping[str, Any] | None = None) -> dp.Run:
    """Under a minute on two cores; `changes` are settings by their dotted names."""
    smaller = {"population.cohort": 40, "server.rounds": 20, "evaluation.episodes": 100, **(changes or {})}
    settings = dp.Settings.preset("dp-agr", "strokes", smaller, clients=2000, epsilon=8.0, delta=1e-4)
    print(dp.plan(settings).statement)
    run = dp.train(settings)
    print(run.rounds)
    print(f"spent {rounded_up(run.guarantees.of('client', 'public').epsilon)}, reached {run.accuracy}")

    # Somebody with five pictures of each of five things; nothing of this leaves the machine.
    mine = draw_episode(
        open_dataset("strokes").test, np.random.default_rng(0), EpisodeShape(ways=5, shots=5, queries=3)
    )
    model = run.adapt(mine.support_images, mine.support_labels, class_names=["a", "b", "c", "d", "e"])
    print(model.predict_names(mine.query_images))
    return run


if __name__ == "__main__":
    main()
