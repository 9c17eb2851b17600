"""What one sampled round tells: its privacy loss distribution, rounded up to a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpfedmeta.accounting.events import Neighbours, SamplerName
from dpfedmeta.accounting.noise import Noise
from dpfedmeta.randomness import FloatArray

# Hockey-stick divergences of one sampled round at some epsilons.
_Profile = Callable[[FloatArray, float, Noise], FloatArray]


def largest_loss(sampler: SamplerName, rate: float, noise: Noise) -> float:
    """Privacy loss of one sampled round that is exceeded with negligible probability."""
    far = noise.largest_loss(2.0 if sampler == "fixed" else 1.0)
    # expm1 would overflow far out, where log1p(q expm1(x)) is x + log q.
    return far + math.log(rate) if far > 500 else math.log1p(rate * math.expm1(far))


@lru_cache(maxsize=32)
def one_round(
    sampler: SamplerName, rate: float, noise: Noise, neighbours: Neighbours, grid: float
) -> PrivacyLossDistribution:
    """Of a client that is added or removed, or replaced.

    Raises:
        ValueError: Adding or removing under fixed-size sampling, which has no meaning there.
    """
    if sampler == "fixed":
        if neighbours == "add-remove":
            raise ValueError("fixed-size sampling has no add-remove guarantee: account for it under replace-one")
        return _replaced(rate, noise, grid)
    if neighbours == "replace-one":
        return noise.replaced(rate, grid) or _replaced(rate, noise, grid)
    largest = largest_loss(sampler, rate, noise)
    least = math.log1p(-rate) if rate < 1 else -largest
    return PrivacyLossDistribution(
        _on_grid(grid, least, largest, removed_profile, rate, noise),
        _on_grid(grid, -largest, -least, added_profile, rate, noise),
    )


def _replaced(rate: float, noise: Noise, grid: float) -> PrivacyLossDistribution:
    largest = largest_loss("fixed", rate, noise)
    return PrivacyLossDistribution(_on_grid(grid, -largest, largest, fixed_size_profile, rate, noise))


def _on_grid(grid: float, least: float, largest: float, profile: _Profile, rate: float, noise: Noise) -> PLDPmf:
    """The privacy loss distribution of a divergence profile, rounded up (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380)."""
    low, high = math.floor(least / grid), math.ceil(largest / grid)
    deltas = np.clip(profile(np.arange(low, high + 1, dtype=np.float64) * grid, rate, noise), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)


def removed_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of (1-q)N(0)+qN(C) against N(0), a = e^epsilon: q H(log((a-1+q)/q)); 1 - a where that has no log."""
    surplus = np.expm1(epsilons) + rate
    covered = surplus > 0
    inner = np.log(np.where(covered, surplus, 1.0) / rate)
    return np.where(covered, rate * noise.profile(inner, 1.0), -np.expm1(epsilons))


def added_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of N(0) against (1-q)N(0)+qN(C): (1 - a(1-q)) H(log(a q / (1 - a(1-q)))); 0 beyond a = 1/(1-q)."""
    a = np.exp(epsilons)
    share = 1.0 - a * (1.0 - rate)
    covered = share > 0
    inner = np.log(a * rate / np.where(covered, share, 1.0))
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
    inner = np.where(size > 500, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 500)) / rate))
    upper = rate * noise.profile(inner, 2.0)
    lower = np.exp(-size) * upper - np.expm1(-size)
    return np.where(epsilons >= 0, upper, lower)
