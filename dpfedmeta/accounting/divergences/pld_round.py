"""Privacy loss distribution of one sampled round, rounded up to a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpfedmeta.accounting.events.noise_cost import Noise
from dpfedmeta.accounting.events.sampling import Neighbours, sampling_of
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# e to this loss is still a float; beyond, a - 1 is a.
_FLOAT = 500.0
# Hockey-stick divergences of one sampled round at some epsilons.
_Profile = Callable[[FloatArray, float, Noise], FloatArray]


# How far a client that comes or goes, or is replaced, moves the sum of a round, in clip bounds.
DISTANCES: Mapping[Neighbours, float] = {"add-remove": 1.0, "replace-one": 2.0}


def largest_loss(neighbours: Neighbours, rate: float, noise: Noise) -> float:
    """Privacy loss of one sampled round that is exceeded with negligible probability, under its own neighbours."""
    far = noise.largest_loss(DISTANCES[neighbours])
    # expm1 would overflow far out, where log1p(q expm1(x)) is x + log q.
    return far + math.log(rate) if far > _FLOAT else math.log1p(rate * math.expm1(far))


@lru_cache(maxsize=32)
def one_round(sampler: str, rate: float, noise: Noise, neighbours: Neighbours, grid: float) -> PrivacyLossDistribution:
    """Loss distribution of one sampled round for a client that is added or removed, or replaced.

    Raises:
        RefusedPlan: Rounds of this sampler are accounted for in another way.
        ValueError: They have no meaning under these neighbours.
    """
    return sampling_of(sampler).one_round(rate, noise, neighbours, grid)


def by_coins(rate: float, noise: Noise, grid: float) -> PrivacyLossDistribution:
    """A client that is added or removed, and takes part by a coin of its own: (1-q)N(0)+qN(C) against N(0)."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    largest = largest_loss("add-remove", rate, noise)
    least = math.log1p(-rate) if rate < 1 else -largest
    return PrivacyLossDistribution(
        _on_grid(grid, least, largest, removed_profile, rate, noise),
        _on_grid(grid, -largest, -least, added_profile, rate, noise),
    )


def composed_width(one: PrivacyLossDistribution, grid: float, rounds: int) -> float:
    """Estimate the range of privacy losses of a composition, from the Chernoff bounds that it is cut by.

    Args:
        one: Privacy loss distribution of one round.
        grid: Width of its grid.
        rounds: How often it is composed.

    Returns:
        Largest less smallest loss that is kept.
    """
    from dpfedmeta.accounting.divergences.pld_in_arrays import kept

    ends = [kept(probabilities, rounds) for probabilities in _probabilities(one)]
    return grid * max(float(last - first + 1) for first, last in ends)


def widest_composition(one: PrivacyLossDistribution, grid: float, rounds: int) -> float:
    """Bound `composed_width` from above, by the widest range that so many rounds can have."""
    return grid * float(max((len(probabilities) - 1) * rounds + 1 for probabilities in _probabilities(one)))


def rounding_error(composed: PrivacyLossDistribution) -> float:
    """Bound what floating-point rounding of the Fourier transform moved delta by, from the result itself.

    Rounding adds noise of either sign to every probability, of one size over the whole range. Where the true
    probability is below it, which holds at the ends of every range (they are wide enough for 1e-15), half of this
    noise is negative and shows. The sum of all negative probabilities is about half of the noise where it shows; four
    times it bounds the noise everywhere, even if all of it had one sign.
    """
    return 4.0 * max(-float(np.minimum(probabilities, 0.0).sum()) for probabilities in _probabilities(composed))


def _probabilities(distribution: PrivacyLossDistribution) -> list[FloatArray]:
    """Finite losses' probabilities in both orders of the two populations; dp-accounting has no public name for them."""
    orders = (distribution._pmf_remove, distribution._pmf_add)
    return [np.asarray(order.to_dense_pmf()._probs, dtype=np.float64) for order in orders]


def by_coupling(rate: float, noise: Noise, grid: float) -> PrivacyLossDistribution:
    """A client whose message is replaced, with cohorts coupled to each other (`fixed_size_profile`)."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    largest = largest_loss("replace-one", rate, noise)
    return PrivacyLossDistribution(_on_grid(grid, -largest, largest, fixed_size_profile, rate, noise))


def _on_grid(grid: float, least: float, largest: float, profile: _Profile, rate: float, noise: Noise) -> PLDPmf:
    """The privacy loss distribution of a divergence profile, rounded up."""
    from dpfedmeta.accounting.divergences.pld_in_arrays import rounded_up

    low, high = math.floor(least / grid), math.ceil(largest / grid)
    deltas = np.clip(profile(np.arange(low, high + 1, dtype=np.float64) * grid, rate, noise), 0.0, 1.0)
    return rounded_up(grid, low, high, deltas)


def removed_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of (1-q)N(0)+qN(C) against N(0), a = e^epsilon: q H(log((a-1+q)/q)); 1 - a where that has no log."""
    surplus = np.expm1(np.minimum(epsilons, _FLOAT)) + rate
    covered = surplus > 0
    inner = np.log(np.where(covered, surplus, 1.0) / rate)
    inner = np.where(epsilons > _FLOAT, epsilons - math.log(rate), inner)
    return np.where(covered, rate * noise.profile(inner, 1.0), -np.expm1(np.minimum(epsilons, 0.0)))


def added_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of N(0) against (1-q)N(0)+qN(C): (1 - a(1-q)) H(log(a q / (1 - a(1-q)))); 0 beyond a = 1/(1-q)."""
    # Everybody in every round: 1, whatever a is.
    share = 1.0 - (1.0 - rate) * np.exp(np.minimum(epsilons, _FLOAT))
    covered = share > 0
    inner = epsilons + math.log(rate) - np.log(np.where(covered, share, 1.0))
    return np.where(covered, share * noise.profile(inner, 1.0), 0.0)


def fixed_size_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """Largest hockey-stick divergence of one round of fixed-size sampling when one client's message is replaced.

    Replacing client i couples the cohorts without i, and those with i against the same cohort with i's slot taken
    by another client. The sums lie at 0 (probability 1-q in both populations), s and s', with |s|, |s'| and |s - s'|
    at most 2C. For a = e^epsilon >= 1 that gives q H(log(1 + (a-1)/q)), with H the divergence of the noise from itself
    moved by 2C (Balle, Barthe, Gaboardi 2018, https://arxiv.org/abs/1807.01647, theorem 2: no mixture of the other two
    is further away). With Gaussian noise it is attained by s = 2C, s' = 0: the pair (1-q)N(0)+qN(2C) and N(0). Both
    orders of the two populations are neighbours, which gives a < 1: H_a = a H_{1/a} + 1 - a.
    """
    size = np.abs(epsilons)
    inner = np.where(size > _FLOAT, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, _FLOAT)) / rate))
    upper = rate * noise.profile(inner, 2.0)
    lower = np.exp(-size) * upper - np.expm1(-size)
    return np.where(epsilons >= 0, upper, lower)
