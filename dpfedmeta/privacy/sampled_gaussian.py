"""T-fold composition of the Poisson-sampled Gaussian, through the privacy loss distributions of dp-accounting."""

from __future__ import annotations

import math
from functools import lru_cache

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant

# Width of the privacy-loss grid. Estimates are pessimistic, so a coarser grid is a looser upper bound.
FINE = 1e-4
COARSE = 1e-3


@lru_cache(maxsize=512)
def add_remove_epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float, grid: float = FINE) -> float:
    """Epsilon when one client is added or removed.

    Args:
        rate: q.
        noise_multiplier: z, standard deviation over sensitivity.
        rounds: T.
        delta: What is left for this cell.
        grid: Width of the privacy-loss grid.
    """
    return _epsilon(rate, noise_multiplier, rounds, delta, grid, NeighboringRelation.ADD_OR_REMOVE_ONE)


@lru_cache(maxsize=512)
def replace_epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float, grid: float = FINE) -> float:
    """Epsilon when one client's contribution is replaced by another one of norm at most C.

    dp-accounting's privacy loss distribution doubles the sensitivity itself under REPLACE_ONE, so
    `noise_multiplier` is std/C here as everywhere (privacy.md section 6).
    """
    return _epsilon(rate, noise_multiplier, rounds, delta, grid, NeighboringRelation.REPLACE_ONE)


@lru_cache(maxsize=16)
def _one_round(
    rate: float, noise_multiplier: float, grid: float, relation: NeighboringRelation
) -> PrivacyLossDistribution:
    return from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=grid,
        neighboring_relation=relation,
    )


def _epsilon(
    rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    grid: float,
    relation: NeighboringRelation,
) -> float:
    if rounds == 0:
        return 0.0
    if delta <= 0 or noise_multiplier <= 0:
        return math.inf
    composed = _one_round(rate, noise_multiplier, grid, relation).self_compose(rounds)
    return float(composed.get_epsilon_for_delta(delta))


def rdp_epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    """The looser RDP bound for one client added or removed: milliseconds, and never below the PLD one."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), rounds)
    return float(accountant.get_epsilon(delta))
