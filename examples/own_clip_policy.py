"""A clip policy of one's own: the next bound follows the released aggregate, so it costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dpfedmeta as dp
from dpfedmeta.core.params import Params, norm
from dpfedmeta.privacy.clip_policy import Mode
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What the policy remembers; a checkpoint keeps it."""

    bound: float
    mode: Mode = "following"


@dataclass(frozen=True, kw_only=True)
class HalfWay:
    """The next bound lies half way, in logarithms, between this one and the norm of what was released."""

    first: float = 0.15
    attachment: None = None  # clients send nothing for it

    def initial(self) -> Bound:
        """Before the first round."""
        return Bound(bound=self.first)

    def next_bound(self, state: Bound, aggregate: Released[ClientUnit, Params]) -> tuple[Bound, float]:
        """After a release, and from nothing else: what it sees is public."""
        seen = min(max(norm(aggregate.value), state.bound / 4), state.bound * 4)
        bound = math.sqrt(state.bound * seen)
        return Bound(bound=bound), bound


class Printed(dp.Callback):
    """Tells of every round."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """What rounds.jsonl says of it."""
        print(f"round {row['round']}: clipped at {row['clip']:.3f}, released {row['aggregate_norm']:.3f}")


def main(changes: Mapping[str, Any] | None = None) -> dp.Run:
    """Under a minute on two cores; `changes` are settings by their dotted names."""
    smaller = {"population.cohort": 40, "server.rounds": 10, "evaluation.episodes": 50, **(changes or {})}
    settings = dp.Settings.preset("dp-const", "strokes", smaller, clients=2000, epsilon=8.0, delta=1e-4)
    return dp.train(settings, clip_policy=HalfWay(), callbacks=[Printed()])


if __name__ == "__main__":
    main()
