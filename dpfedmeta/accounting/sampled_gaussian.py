"""Composition of the sampled Gaussian over rounds, through the privacy loss distributions of dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Literal

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant

from dpfedmeta.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.phase import SamplerName, Stretch
from dpfedmeta.accounting.plan import AccountantName
from dpfedmeta.randomness import FloatArray

Neighbours = Literal["add-remove", "replace-one"]
# Hockey-stick divergences at some epsilons, from q and mu.
_Profile = Callable[[FloatArray, float, float], FloatArray]
# (sampler, q, z, how many rounds), for each stretch.
_Rounds = tuple[tuple[SamplerName, float, float, int], ...]

# Widths of the privacy-loss grid. Estimates are pessimistic, so a coarse grid is looser, never wrong: it is refined
# until epsilon changes by less than _CONVERGED, or one round takes more than _POINTS points.
GRIDS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
COARSE = GRIDS[1:2]
_CONVERGED = 2e-3
_POINTS = 400_000
# e to this loss is still a float.
_LARGEST_LOSS = 600.0
# Privacy losses beyond this many standard deviations count as certain failures (probability 1e-22).
_TAIL = 10.0
# Whole orders: their divergence is a closed sum. They reach from epsilon 1e-3 to 10^4 at any delta in use.
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)


def neighbours_of_a_client(sampler: SamplerName) -> Neighbours:
    """A cohort of fixed size shows that nobody was added, so there a client's data is replaced."""
    return "add-remove" if sampler == "poisson" else "replace-one"


def sampled_epsilon(
    stretches: Sequence[Stretch], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> float:
    """Epsilon of all rounds together, at delta, when one client is added or removed, or its message replaced.

    Args:
        stretches: What happened; every effective_noise is a number.
        neighbours: What the two populations differ in. A message has norm at most C before and after.
        delta: What is left for this cell.
        grids: Widths of the privacy-loss grid to try, coarse to fine; one alone gives a looser bound in less time.

    Guarantee:
        The tight composition of each round's dominating pair, rounded up to a grid. Poisson, add-remove:
        (1-q)N(0)+qN(C) and N(0). Poisson, replace-one: (1-q)N(0)+qN(C) and (1-q)N(0)+qN(-C). Fixed size, replace-one:
        see `_fixed_size_profile`.

    Raises:
        ValueError: Adding or removing under fixed-size sampling, which has no meaning there.
    """
    if not stretches:
        return 0.0
    if delta <= 0 or not all(stretch.effective_noise for stretch in stretches):
        return math.inf
    return _epsilon(_rounds(stretches), neighbours, delta, grids)


def poisson_steps_epsilon(rate: float, noise: float, steps: int, delta: float, accountant: AccountantName) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps, by the accountant that is asked for.

    Guarantee:
        An upper bound under removing, adding or zeroing out one record, whichever accountant: pld is tight, prv
        (Gopi, Lee, Wutschitz 2021) states its own error and the upper end is taken, rdp is loose.
    """
    if accountant == "prv":
        # Opacus takes a second to import, and few need it.
        from opacus.accountants import PRVAccountant

        prv = PRVAccountant()
        prv.history = [(noise, rate, steps)]
        return float(prv.get_epsilon(delta))
    step = _steps(rate, noise, steps)
    return rdp_epsilon([step], delta) if accountant == "rdp" else sampled_epsilon([step], "add-remove", delta)


def replaced_steps_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps where one record is replaced by any other one, by PLD."""
    return sampled_epsilon([_steps(rate, noise, steps)], "replace-one", delta)


def _steps(rate: float, noise: float, steps: int) -> Stretch:
    return Stretch(
        rounds=steps,
        sampler="poisson",
        clients=1,
        cohort=rate,
        rate=rate,
        largest_cohort=None,
        surplus_probability=0.0,
        total_noise=noise,
        effective_noise=noise,
    )


def sampled_delta(stretches: Sequence[Stretch], neighbours: Neighbours, epsilon: float) -> float:
    """Delta of all rounds together at epsilon, rounded up to a coarse grid."""
    if not stretches:
        return 0.0
    if not all(stretch.effective_noise for stretch in stretches):
        return 1.0
    rounds = _rounds(stretches)
    widest = max(_largest_loss(sampler, rate, noise) for sampler, rate, noise, _ in rounds)
    if widest > _LARGEST_LOSS:
        return 1.0
    return float(_composed(max(COARSE[0], widest / _POINTS), rounds, neighbours).get_delta_for_epsilon(epsilon))


def quick_grid(stretches: Sequence[Stretch], neighbours: Neighbours, delta: float) -> float:
    """The coarsest width within 1% of `sampled_epsilon`: for many shorter plans of the same constants."""
    tight = sampled_epsilon(stretches, neighbours, delta)
    good = (g for g in GRIDS if sampled_epsilon(stretches, neighbours, delta, (g,)) <= 1.01 * tight)
    return next(good, GRIDS[-1])


def _rounds(stretches: Sequence[Stretch]) -> _Rounds:
    return tuple((s.sampler, s.rate, s.effective_noise or 0.0, s.rounds) for s in stretches)


@lru_cache(maxsize=2048)
def _epsilon(rounds: _Rounds, neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> float:
    widest = max(_largest_loss(sampler, rate, noise) for sampler, rate, noise, _ in rounds)
    if widest > _LARGEST_LOSS:
        # Beyond what a float holds. Sampling only helps, so the bound without it is still one.
        factor = 1.0 if neighbours == "add-remove" else 2.0
        return gaussian_epsilon(factor * math.sqrt(sum(count / noise**2 for *_, noise, count in rounds)), delta)
    # Rounding each round's loss to the grid adds a deviation of at most half its width.
    spread = 0.5 * math.sqrt(sum(count for *_, count in rounds))
    epsilon = math.inf
    for wanted in grids:
        grid = max(wanted, widest / _POINTS)
        before, epsilon = epsilon, min(epsilon, _epsilon_on(grid, rounds, neighbours, delta))
        if before - epsilon <= _CONVERGED * epsilon or 6.0 * spread * grid <= _CONVERGED * epsilon or grid > wanted:
            break
    return epsilon


def _epsilon_on(grid: float, rounds: _Rounds, neighbours: Neighbours, delta: float) -> float:
    # Inside dp-accounting a bound on a tail may overflow to infinity, where it binds nothing.
    with np.errstate(over="ignore"):
        return float(_composed(grid, rounds, neighbours).get_epsilon_for_delta(delta))


def _composed(grid: float, rounds: _Rounds, neighbours: Neighbours) -> PrivacyLossDistribution:
    with np.errstate(over="ignore"):
        return reduce(
            lambda left, right: left.compose(right),
            (_one_round(s, rate, noise, neighbours, grid).self_compose(count) for s, rate, noise, count in rounds),
        )


def _largest_loss(sampler: SamplerName, rate: float, noise: float) -> float:
    """Privacy loss of one sampled round, _TAIL deviations of the noise out."""
    mu = (2.0 if sampler == "fixed" else 1.0) / noise
    far = _TAIL * mu + mu**2 / 2
    # expm1 would overflow far out, where log1p(q expm1(x)) is x + log q.
    return far + math.log(rate) if far > 500 else math.log1p(rate * math.expm1(far))


@lru_cache(maxsize=32)
def _one_round(
    sampler: SamplerName, rate: float, noise: float, neighbours: Neighbours, grid: float
) -> PrivacyLossDistribution:
    largest = _largest_loss(sampler, rate, noise)
    if sampler == "fixed":
        if neighbours == "add-remove":
            raise ValueError("fixed-size sampling has no add-remove guarantee: account for it under replace-one")
        return PrivacyLossDistribution(_on_grid(grid, -largest, largest, _fixed_size_profile, rate, 2.0 / noise))
    if neighbours == "replace-one":
        # dp-accounting doubles the sensitivity itself under REPLACE_ONE: `noise` is std/C here as everywhere
        # (privacy.md section 6).
        return from_gaussian_mechanism(
            standard_deviation=noise,
            sampling_prob=rate,
            value_discretization_interval=grid,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    least = math.log1p(-rate) if rate < 1 else -largest
    return PrivacyLossDistribution(
        _on_grid(grid, least, largest, _removed_profile, rate, 1.0 / noise),
        _on_grid(grid, -largest, -least, _added_profile, rate, 1.0 / noise),
    )


def _on_grid(grid: float, least: float, largest: float, profile: _Profile, rate: float, mu: float) -> PLDPmf:
    """The privacy loss distribution of a divergence profile, rounded up (Doroshenko et al. 2022)."""
    low, high = math.floor(least / grid), math.ceil(largest / grid)
    deltas = np.clip(profile(np.arange(low, high + 1, dtype=np.float64) * grid, rate, mu), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)


def _removed_profile(epsilons: FloatArray, rate: float, mu: float) -> FloatArray:
    """H_a of (1-q)N(0)+qN(C) against N(0), a = e^epsilon: q delta_mu(log((a-1+q)/q)); 1 - a where that has no log."""
    surplus = np.expm1(epsilons) + rate
    covered = surplus > 0
    inner = np.log(np.where(covered, surplus, 1.0) / rate)
    return np.where(covered, rate * gaussian_delta(inner, mu), -np.expm1(epsilons))


def _added_profile(epsilons: FloatArray, rate: float, mu: float) -> FloatArray:
    """H_a of N(0) against (1-q)N(0)+qN(C): (1 - a(1-q)) delta_mu(log(a q / (1 - a(1-q)))); 0 beyond a = 1/(1-q)."""
    a = np.exp(epsilons)
    share = 1.0 - a * (1.0 - rate)
    covered = share > 0
    inner = np.log(a * rate / np.where(covered, share, 1.0))
    return np.where(covered, share * gaussian_delta(inner, mu), 0.0)


def _fixed_size_profile(epsilons: FloatArray, rate: float, mu: float) -> FloatArray:
    """Largest hockey-stick divergence of one round of fixed-size sampling when one client's message is replaced.

    Replacing client i couples the cohorts without i, and those with i against the same cohort with i's slot taken
    by another client. The sums lie at 0 (probability 1-q in both populations), s and s', with |s|, |s'| and |s - s'|
    at most 2C. For a = e^epsilon >= 1 and p = N_s(A), Neyman-Pearson gives, with Phi the normal distribution
    function and m = 2C/sigma, P(A) - a Q(A) <= q p - (a - 1 + q) Phi(Phi^-1(p) - m), attained by s = 2C, s' = 0: the
    pair (1-q)N(0)+qN(2C) and N(0), that is q delta_m(log(1 + (a-1)/q)) (Balle, Barthe, Gaboardi 2018). Both orders of
    the two populations are neighbours, which gives a < 1: H_a = a H_{1/a} + 1 - a.
    """
    size = np.abs(epsilons)
    inner = np.where(size > 500, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 500)) / rate))
    upper = rate * gaussian_delta(inner, mu)
    lower = np.exp(-size) * upper - np.expm1(-size)
    return np.where(epsilons >= 0, upper, lower)


def forget() -> None:
    """Drop what was computed so far, for measurements."""
    _epsilon.cache_clear()
    _one_round.cache_clear()


def round_event(stretch: Stretch) -> DpEvent:
    """One round as dp-accounting describes it, for any accountant that reads its events.

    Under fixed-size sampling the event is for replace-one accountants that do not double the sensitivity
    (dp-accounting's RDP), so its multiplier is std/(2C).
    """
    noise = stretch.effective_noise or 0.0
    if stretch.sampler == "poisson":
        return PoissonSampledDpEvent(stretch.rate, GaussianDpEvent(noise))
    return SampledWithoutReplacementDpEvent(stretch.clients, round(stretch.cohort), GaussianDpEvent(noise / 2.0))


def rdp_epsilon(stretches: Sequence[Stretch], delta: float) -> float:
    """The looser RDP bound of (client, public): milliseconds, and above the tight one."""
    poisson = all(stretch.sampler == "poisson" for stretch in stretches)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if poisson else NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(_ORDERS, relation)
    # Divergences beyond the range of a float count as infinite.
    with np.errstate(over="ignore"):
        for stretch in stretches:
            accountant.compose(round_event(stretch), stretch.rounds)
        return float(accountant.get_epsilon(delta))
