"""A meta-learner of one's own in one file, trained with privacy for whole clients, then for single records too.

Every client begins with a head that points at the mean of each of its classes, whatever their lengths, and takes its
steps from there; the initialisation learns features for which this is a good beginning. Nothing in this file is about
privacy: messages are clipped, added and released like all others, and what is promised follows from that.

    python examples/own_meta_learner.py
    cd examples; dpfedmeta train --algo dp-agr --dataset strokes --meta.lr 0.1 --meta.method own_meta_learner:Directions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import dpfedmeta as dp
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.params import Params
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adapts, InnerRule

SCALE = 4.0  # of the logits of a record that lies in the direction of a class


@dataclass(frozen=True)
class TowardsMeans:
    """How a client adapts: what differs from gradient steps at one rate is where they begin."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All weights are the network's own; a method may learn others besides."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """One for all."""
        return lr

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """The head's theta_0, from the support set; differentiable, so that the body learns what it is good for."""
        found = features()
        of_class = (labels[:, None] == torch.arange(ways, device=labels.device)).to(found.dtype)
        means = of_class.T @ found  # their lengths do not matter, so sums will do
        scale = SCALE / found.detach().norm(dim=1).mean().clamp_min(1e-6)
        return {
            "head.weight": scale * torch.nn.functional.normalize(means, dim=1),
            "head.bias": torch.zeros_like(head["head.bias"]),
        }


@dataclass(frozen=True, kw_only=True)
class Directions(Maml):
    """MAML by that rule. `plain_steps` says that noise inside the steps would not cover all that reads a record."""

    plain_steps: ClassVar[bool] = False
    default_adapt: ClassVar[Adapts] = "head"
    rule: ClassVar[InnerRule] = TowardsMeans()


class Told(dp.Callback):
    """Tells of every validation."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """What rounds.jsonl says of it."""
        if "validation_accuracy" in row:
            print(f"round {row['round']}: {row['validation_accuracy']['mean']:.1%} on validation classes")


def main(changes: Mapping[str, Any] | None = None) -> dp.Run:
    """A minute on two cores; `changes` are settings by their dotted names."""
    method = {"meta.method": "own_meta_learner:Directions", "meta.lr": 0.1}
    smaller = {"evaluation.every": 10, "evaluation.episodes": 200, "population.cohort": 60, "server.rounds": 20}
    settings = dp.Settings.preset("dp-agr", "strokes", {**smaller, **method, **(changes or {})})
    run = dp.train(settings, callbacks=[Told()], quiet=True)
    print(f"adapted {run.accuracy}, untrained {run.summary['accuracy_untrained']['mean']:.1%}")
    print("spent, by its ledger:", run.guarantees, sep="\n")

    # The same method where the server looks at each message: every client divides its records into micro-episodes,
    # and noise of its own hides each record.
    layered = dp.Settings.preset("dp-agrlr-micro", "strokes", method)
    promise = dp.plan(layered).guarantees.of("record", "server")
    print(f"under dp-agrlr-micro it would promise (record, server) epsilon {rounded_up(promise.epsilon)}")
    return run


if __name__ == "__main__":
    main()
