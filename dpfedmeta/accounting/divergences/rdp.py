"""Renyi divergences of rounds, which add up: looser than loss distributions, and known at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpfedmeta.accounting.divergences.light_import import import_lightly
from dpfedmeta.accounting.events.events import Event, Phase, neighbours_of
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

# These three take a second to import, and nothing that a plan calls in dp-accounting uses them.
import_lightly("dp_accounting", without=("scipy.optimize", "scipy.signal", "scipy.stats"))

# Whole orders: their divergence is a closed sum, of as many terms as the order. They reach from epsilon 1e-3 to 10^4 at
# any delta in use; the later parts are for small epsilons.
PARTS = ((*range(2, 65),), (80, 96, 128, 192, 256), (384, 512, 768, 1024), (2048, 4096))
ORDERS = tuple(order for part in PARTS for order in part)


def round_event(event: Event) -> DpEvent | None:
    """Return the dp-accounting event of one round, for any accountant that reads such events; None: there is none."""
    return sampling_of(event.sampler).dp_event(event)


def rdp_epsilon(phases: Sequence[Phase], delta: float, *, patient: bool = True) -> float:
    """The looser RDP bound of (client, public): milliseconds, and above the tight one; inf for noise unknown to it.

    The least over ORDERS. Higher orders, which are long sums, are left out once the least stands before the last order
    that was looked at. With c the logarithm of 1/delta, and K(a) = (a - 1) D_a of the divergence D_a of order a, the
    bound of one order is (K(a) + (a - 1) log(a - 1) - a log(a) + c) / (a - 1) (Canonne, Kamath, Steinke 2020,
    https://arxiv.org/abs/2004.00010, proposition 12). K is the cumulant function of the privacy loss, so it is convex,
    and so is the rest of the numerator; over a linear denominator that has one valley.

    Args:
        phases: The rounds.
        delta: Of the guarantee.
        patient: Under fixed-size sampling D_a is itself a bound, whose K need not be convex: look at all orders.
            Otherwise end there too, with what may be a larger bound.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    ends_early = not patient or neighbours_of(phases) == "add-remove"
    orders: tuple[int, ...] = ()
    moments, epsilon = np.zeros(0), math.inf
    for part in PARTS:
        more = moments_of(phases, part)
        if more is None:
            return math.inf
        orders, moments = orders + part, np.concatenate([moments, more])
        epsilon, best = compute_epsilon(orders, moments, delta)
        if ends_early and best < part[-1]:
            break
    return float(epsilon)


def moments_of(phases: Sequence[Phase], orders: tuple[int, ...]) -> FloatArray | None:
    """Renyi divergences of all rounds together, by order; None for noise unknown to RDP."""
    from dp_accounting import NeighboringRelation

    of_coins = neighbours_of(phases) == "add-remove"
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if of_coins else NeighboringRelation.REPLACE_ONE
    total = np.zeros(len(orders))
    # Divergences beyond the range of a float count as infinite.
    with np.errstate(over="ignore"):
        for phase in phases:
            one = divergences(phase.event, relation, orders)
            if one is None:
                return None
            total += phase.rounds * one
    return total


@lru_cache(maxsize=2048)
def divergences(event: Event, relation: NeighboringRelation, orders: tuple[int, ...]) -> FloatArray | None:
    """Renyi divergences of one round, by order; None where dp-accounting does not support the event.

    Cached, since a search over rounds and an audit of a plan ask for the same ones again.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    accountant, described = RdpAccountant(orders, relation), round_event(event)
    if described is None or not accountant.supports(described):
        return None
    return np.asarray(accountant.compose(described).rdp)
