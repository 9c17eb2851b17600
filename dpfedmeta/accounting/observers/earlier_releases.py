"""Knowledge that a server has of a client before a plan begins, from releases that other ledgers charge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.events import Phase, have_whole_numbers, surplus
from dpfedmeta.accounting.release_costs import participations_of

if TYPE_CHECKING:
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates


@dataclass(frozen=True, kw_only=True)
class SeenBefore:
    """Earlier releases as seen by a server that sees sums alone and knows who took part in which round.

    Attributes:
        squared: Sum of mu^2 of Gaussian differential privacy; inf where a sum had no noise of the clients'.
        coordinates: All numbers that it saw with discrete noise.
        rare: Probability that any of it does not hold; off delta.
    """

    squared: float = 0.0
    coordinates: tuple[Coordinates, ...] = ()
    rare: float = 0.0


def seen_before(before: Sequence[Phase], change: float, delta: float) -> SeenBefore:
    """By a server, of a unit that moves every sum by `change` times what a client moves it by.

    Guarantee:
        Each release is mu-GDP given all before it, and they compose in squares; nothing is amplified, and of each
        phase the worst number of participations counts, which a rare event of probability delta/100 may exceed.
    """
    squared, rare = 0.0, surplus(before)
    for phase in before:
        noise = phase.event.sum_noise
        worst, left = participations_of([phase], None, delta)
        # A sum that carries none hides nothing, however seldom a client is in it.
        squared += worst * noise.mu(change) ** 2 if noise else math.inf
        rare += delta - left
    return SeenBefore(squared=squared, coordinates=seen_coordinates(before), rare=rare)


def seen_coordinates(phases: Sequence[Phase]) -> tuple[Coordinates, ...]:
    """Coordinates with discrete noise that a server sees; of rounds that are no sums of whole numbers none."""
    if not have_whole_numbers(phases):
        return ()
    # Inside: what belongs to sums of whole numbers is loaded where there are such.
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import summed_coordinates

    return tuple(summed_coordinates(phases))
