"""Messages that an attacker expects: the canary's message in either world, without noise."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.auditing.neighbouring_runs import CANARY, ClientWorlds, Worlds
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.core.params import dimension
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.simulation.client_runner import ClientRunner

_MOST_KEPT = 64
_NO_NOISE = 1e-12


@dataclass(kw_only=True, eq=False)
class Known:
    """Messages of the canary in either world, without noise, as the loop would clip them.

    Attributes:
        worlds: The two worlds.
    """

    worlds: Worlds
    _found: dict[tuple[float, int, bool], Tensor] = field(default_factory=dict)

    def message(self, release: ObservedRound, one: bool) -> Tensor:
        """[d] float64. Of a canary that sends what it likes it depends on the bound alone."""
        round_ = -1 if isinstance(self.worlds, ClientWorlds) else release.round
        key = (release.bound, round_, one)
        if round_ >= 0:
            return exact_message(self._sides[one], release)
        if key not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = exact_message(self._sides[one], release)
        return self._found[key]

    @cached_property
    def _sides(self) -> dict[bool, ClientRunner]:
        return {one: quiet(self.worlds.clients(one, KeyedSource(0))) for one in (True, False)}


def quiet(side: ClientRunner) -> ClientRunner:
    """The same clients without any noise of their own."""
    if not side.algorithm.releases:
        return replace(side, message_noise=0.0)
    algorithm = side.algorithm.quiet(support=False, noise=_NO_NOISE)
    return replace(side, algorithm=algorithm, message_noise=0.0, record_noises=())


def exact_message(side: ClientRunner, release: ObservedRound) -> Tensor:
    """The canary's message: [d] float64; of several parts their mean."""
    if side.whole is None:
        return message_of(side, release, [CANARY])
    (parts,) = side.bounded_parts(release.model, release.bound, release.round, [CANARY])
    return torch.from_numpy(np.mean(parts or [np.zeros(dimension(side.form(release.model)))], axis=0))


def message_of(side: ClientRunner, release: ObservedRound, clients: list[int]) -> Tensor:
    """Return the sum of some clients' messages in a round, as the loop computes it."""
    numbers = side.whole_numbers(release.bound, dimension(side.form(release.model)))
    return numbers.values(side.clipped_sum(release.model, release.bound, release.round, clients)[0])


def over_nothing(values: Tensor, message: Tensor, variance: float) -> float:
    """Log-likelihood ratio of a message in normal noise, against nothing in it."""
    return float(values @ message - message @ message / 2) / variance
