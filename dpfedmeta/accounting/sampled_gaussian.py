"""Composition of sampled rounds, through the privacy loss distributions of dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Literal

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant, compute_delta, compute_epsilon

from dpfedmeta.accounting.allocation import FINE, QUICK, Allocation
from dpfedmeta.accounting.events import Event, Phase, SamplerName, any_fixed, are_allocated, are_correlated, as_released
from dpfedmeta.accounting.gaussian import gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.noise import GaussianNoise, Noise
from dpfedmeta.accounting.record_layer import AccountantName
from dpfedmeta.accounting.whole_noise import epsilon_of_discrete, released_coordinates
from dpfedmeta.randomness import FloatArray

Neighbours = Literal["add-remove", "replace-one"]
ComposedBy = Literal["pld", "rdp", "gdp"]
# Hockey-stick divergences of one sampled round at some epsilons.
_Profile = Callable[[FloatArray, float, Noise], FloatArray]
# (sampler, q, noise, how many rounds), for each phase.
_Rounds = tuple[tuple[SamplerName, float, Noise, int], ...]

# Widths of the privacy-loss grid. Estimates are pessimistic, so a coarse grid is looser, never wrong: it is refined
# until epsilon changes by less than _CONVERGED, or one round takes more than _POINTS points.
GRIDS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
COARSE = GRIDS[1:2]
_CONVERGED = 2e-3
_POINTS = 400_000
# e to this loss is still a float.
_LARGEST_LOSS = 600.0
# Whole orders: their divergence is a closed sum. They reach from epsilon 1e-3 to 10^4 at any delta in use.
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
# Enough of them to see whether epsilon is within reason.
_FEW_ORDERS = (2, 3, 4, 6, 8, 16, 32)
# Beyond, a composition by Fourier transforms takes long, and a closed bound is within a tenth of it.
MOST_ROUNDS = 100_000
# What the rounding of the transform may add to delta in each round, and which share of delta may be lost to it.
_ROUNDING, _LOST_SHARE = 1e-15, 0.01
# What rounding may take from the moments of one round; it would count in a thousand million rounds.
_MOMENT_ROUNDING = 1e-13


def neighbours_of_a_client(sampler: SamplerName) -> Neighbours:
    """A cohort of fixed size shows that nobody was added, so there a client's data is replaced."""
    return "replace-one" if sampler == "fixed" else "add-remove"


def neighbours_of(phases: Sequence[Phase]) -> Neighbours:
    """Where one round shows that nobody was added, a client's data is replaced, in all of them."""
    return neighbours_of_a_client("fixed" if any_fixed(phases) else "poisson")


def sampled_epsilon(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> float:
    """Epsilon of all rounds together, at delta, when one client is added or removed, or its message replaced.

    Args:
        phases: What happened; every one has noise.
        neighbours: What the two populations differ in. A message has norm at most C before and after.
        delta: What is left for this cell.
        grids: Widths of the privacy-loss grid to try, coarse to fine; one alone gives a looser bound in less time.

    Guarantee:
        The tight composition of each round's dominating pair, rounded up to a grid. Poisson, add-remove:
        (1-q)N(0)+qN(C) and N(0). Poisson, replace-one: (1-q)N(0)+qN(C) and (1-q)N(0)+qN(-C). Fixed size, replace-one:
        see `_fixed_size_profile`, which also covers Poisson, replace-one for other noise than the Gaussian: a cohort
        with the client in it is coupled to the same cohort.

    Raises:
        ValueError: Adding or removing under fixed-size sampling, which has no meaning there.
    """
    return composed(phases, neighbours, delta, grids)[0]


def composed(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> tuple[float, ComposedBy]:
    """`sampled_epsilon`, and how it was found.

    Where a privacy loss distribution would take long, or the rounding of its transform might be felt at delta, a closed
    bound takes its place, for any number of rounds (`closed_epsilon`).
    """
    if not phases:
        return 0.0, "pld"
    if delta <= 0 or not all(phase.event.noise for phase in phases):
        return math.inf, "pld"
    if are_allocated(phases):
        return _allocated(phases, neighbours, delta, grids), "pld"
    released = as_released(phases)
    if are_correlated(phases) and len(released) == 1:
        # One Gaussian release, for which the closed form is exact.
        return closed_epsilon(released, neighbours, delta)
    phases = released
    count = sum(phase.rounds for phase in phases)
    if count > MOST_ROUNDS or count * _ROUNDING > _LOST_SHARE * delta or _beyond_reason(phases, delta):
        closed = closed_epsilon(phases, neighbours, delta)
        # Of a noise that has no closed bound only the distribution is known.
        if math.isfinite(closed[0]) or count > MOST_ROUNDS:
            return _of_discrete_closed(phases, neighbours, delta, closed)
    rounds, discrete = _rounds(phases), released_coordinates(phases)
    if not discrete:
        return _epsilon(rounds, neighbours, delta, grids), "pld"
    guess = _epsilon(rounds, neighbours, delta, COARSE)
    return epsilon_of_discrete(lambda left: _epsilon(rounds, neighbours, left, grids), delta, guess, discrete), "pld"


def _allocated(phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> float:
    """Of clients that came in a round of their own choice; a single grid asks for a quick bound."""
    came, points = Allocation.of(phases), FINE if len(grids) > 1 else QUICK
    return came.epsilon(delta, points) if neighbours == "add-remove" else came.epsilon_replaced(delta, points)


def _of_discrete_closed(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, closed: tuple[float, ComposedBy]
) -> tuple[float, ComposedBy]:
    """A closed bound, with what discrete noise costs more where there is such."""
    discrete = released_coordinates(phases)
    if not discrete:
        return closed
    found = epsilon_of_discrete(lambda left: closed_epsilon(phases, neighbours, left)[0], delta, closed[0], discrete)
    return found, closed[1]


def _beyond_reason(phases: Sequence[Phase], delta: float) -> bool:
    """Whether losses spread so far that a grid of them would not fit into memory."""
    moments = _moments(phases, _FEW_ORDERS)
    return moments is not None and float(compute_epsilon(_FEW_ORDERS, moments, delta)[0]) > _LARGEST_LOSS


def closed_epsilon(phases: Sequence[Phase], neighbours: Neighbours, delta: float) -> tuple[float, ComposedBy]:
    """An upper bound on `sampled_epsilon` in milliseconds, for any number of rounds, and which bound it is.

    Guarantee:
        The smaller of two. rdp: the moments of each round add up (Mironov 2017, https://arxiv.org/abs/1702.07476); a
        replaced client under Poisson sampling is one removed and one added, so (e, d) for either gives
        (2 e, (1 + exp(e)) d) for both. gdp: the rounds without their sampling, which only helps.
    """
    phases, moved = as_released(phases), 1.0 if neighbours == "add-remove" else 2.0
    noises = [(phase.event.noise, phase.rounds) for phase in phases]
    squared = sum(count * noise.mu(moved) ** 2 for noise, count in noises if noise is not None)
    unsampled = gaussian_epsilon(math.sqrt(squared), delta)
    poisson = all(phase.event.sampler == "poisson" for phase in phases)
    moments = _moments(phases, _ORDERS)
    if moments is None:
        return unsampled, "gdp"
    moments = moments + _MOMENT_ROUNDING * sum(phase.rounds for phase in phases)
    by_moments = (
        _replaced_by_moments(moments, delta)
        if poisson and moved > 1
        else float(compute_epsilon(_ORDERS, moments, delta)[0])
    )
    return (by_moments, "rdp") if by_moments <= unsampled else (unsampled, "gdp")


def _replaced_by_moments(moments: FloatArray, delta: float) -> float:
    """By way of the population without the client."""

    def lost(epsilon: float) -> float:
        return (1.0 + math.exp(min(epsilon, _LARGEST_LOSS))) * float(compute_delta(_ORDERS, moments, epsilon)[0])

    epsilon = smallest_epsilon(lost, delta)
    return 2.0 * epsilon if epsilon < _LARGEST_LOSS else math.inf


def poisson_steps_epsilon(rate: float, noise: float, steps: int, delta: float, accountant: AccountantName) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps, by the accountant that is asked for.

    Guarantee:
        An upper bound under removing, adding or zeroing out one record, whichever accountant: pld is tight, prv
        (Gopi, Lee, Wutschitz 2021, https://arxiv.org/abs/2106.02848) states its own error and the upper end is taken,
        rdp is loose.
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


def _steps(rate: float, noise: float, steps: int) -> Phase:
    own = Event(sampler="poisson", clients=1, cohort=rate, rate=rate, noise=GaussianNoise(multiplier=noise))
    return Phase(event=own, rounds=steps)


def sampled_delta(phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
    """Delta of all rounds together at epsilon, rounded up to a coarse grid.

    Raises:
        ValueError: Two messages of one client under check-ins, of which no delta is known.
    """
    if not phases:
        return 0.0
    if not all(phase.event.noise for phase in phases):
        return 1.0
    if are_allocated(phases):
        if neighbours != "add-remove":
            raise ValueError("check-ins: the delta of a replaced client is not known")
        return Allocation.of(phases).delta(epsilon)
    rounds = _rounds(as_released(phases))
    widest = max(_largest_loss(sampler, rate, noise) for sampler, rate, noise, _ in rounds)
    if widest > _LARGEST_LOSS:
        return 1.0
    return float(_composed(max(COARSE[0], widest / _POINTS), rounds, neighbours).get_delta_for_epsilon(epsilon))


def quick_grid(phases: Sequence[Phase], neighbours: Neighbours, delta: float) -> float:
    """The coarsest width within 1% of `sampled_epsilon`: for many shorter plans of the same constants."""
    tight = sampled_epsilon(phases, neighbours, delta)
    good = (g for g in GRIDS if sampled_epsilon(phases, neighbours, delta, (g,)) <= 1.01 * tight)
    return next(good, GRIDS[-1])


def _rounds(phases: Sequence[Phase]) -> _Rounds:
    return tuple((p.event.sampler, p.event.rate, p.event.noise, p.rounds) for p in phases if p.event.noise)


@lru_cache(maxsize=2048)
def _epsilon(rounds: _Rounds, neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> float:
    widest = max(_largest_loss(sampler, rate, noise) for sampler, rate, noise, _ in rounds)
    if widest > _LARGEST_LOSS:
        # Beyond what a float holds. Sampling only helps, so the bound without it is still one.
        distance = 1.0 if neighbours == "add-remove" else 2.0
        return gaussian_epsilon(math.sqrt(sum(count * noise.mu(distance) ** 2 for *_, noise, count in rounds)), delta)
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


def _largest_loss(sampler: SamplerName, rate: float, noise: Noise) -> float:
    """Privacy loss of one sampled round that is exceeded with negligible probability."""
    far = noise.largest_loss(2.0 if sampler == "fixed" else 1.0)
    # expm1 would overflow far out, where log1p(q expm1(x)) is x + log q.
    return far + math.log(rate) if far > 500 else math.log1p(rate * math.expm1(far))


@lru_cache(maxsize=32)
def _one_round(
    sampler: SamplerName, rate: float, noise: Noise, neighbours: Neighbours, grid: float
) -> PrivacyLossDistribution:
    if sampler == "fixed":
        if neighbours == "add-remove":
            raise ValueError("fixed-size sampling has no add-remove guarantee: account for it under replace-one")
        return _replaced(rate, noise, grid)
    if neighbours == "replace-one":
        return noise.replaced(rate, grid) or _replaced(rate, noise, grid)
    largest = _largest_loss(sampler, rate, noise)
    least = math.log1p(-rate) if rate < 1 else -largest
    return PrivacyLossDistribution(
        _on_grid(grid, least, largest, _removed_profile, rate, noise),
        _on_grid(grid, -largest, -least, _added_profile, rate, noise),
    )


def _replaced(rate: float, noise: Noise, grid: float) -> PrivacyLossDistribution:
    largest = _largest_loss("fixed", rate, noise)
    return PrivacyLossDistribution(_on_grid(grid, -largest, largest, _fixed_size_profile, rate, noise))


def _on_grid(grid: float, least: float, largest: float, profile: _Profile, rate: float, noise: Noise) -> PLDPmf:
    """The privacy loss distribution of a divergence profile, rounded up (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380)."""
    low, high = math.floor(least / grid), math.ceil(largest / grid)
    deltas = np.clip(profile(np.arange(low, high + 1, dtype=np.float64) * grid, rate, noise), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)


def _removed_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of (1-q)N(0)+qN(C) against N(0), a = e^epsilon: q H(log((a-1+q)/q)); 1 - a where that has no log."""
    surplus = np.expm1(epsilons) + rate
    covered = surplus > 0
    inner = np.log(np.where(covered, surplus, 1.0) / rate)
    return np.where(covered, rate * noise.profile(inner, 1.0), -np.expm1(epsilons))


def _added_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
    """H_a of N(0) against (1-q)N(0)+qN(C): (1 - a(1-q)) H(log(a q / (1 - a(1-q)))); 0 beyond a = 1/(1-q)."""
    a = np.exp(epsilons)
    share = 1.0 - a * (1.0 - rate)
    covered = share > 0
    inner = np.log(a * rate / np.where(covered, share, 1.0))
    return np.where(covered, share * noise.profile(inner, 1.0), 0.0)


def _fixed_size_profile(epsilons: FloatArray, rate: float, noise: Noise) -> FloatArray:
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


def forget() -> None:
    """Drop what was computed so far, for measurements."""
    _epsilon.cache_clear()
    _one_round.cache_clear()
    _divergences.cache_clear()


def round_event(event: Event) -> DpEvent | None:
    """One round as dp-accounting describes it, for any accountant that reads its events; None: it cannot.

    Under fixed-size sampling the event is for replace-one accountants that do not double the sensitivity
    (dp-accounting's RDP), so its multiplier is std/(2C).
    """
    distance = 1.0 if event.sampler == "poisson" else 2.0
    noise = None if event.noise is None else event.noise.dp_event(distance)
    # No other accountant knows rounds that clients choose.
    if noise is None or event.slots is not None:
        return None
    if event.sampler == "poisson":
        return PoissonSampledDpEvent(event.rate, noise)
    return SampledWithoutReplacementDpEvent(event.clients, round(event.cohort), noise)


def rdp_epsilon(phases: Sequence[Phase], delta: float, orders: tuple[int, ...] = _ORDERS) -> float:
    """The looser RDP bound of (client, public): milliseconds, and above the tight one; inf for noise unknown to it."""
    moments = _moments(phases, orders)
    return math.inf if moments is None else float(compute_epsilon(orders, moments, delta)[0])


def _moments(phases: Sequence[Phase], orders: tuple[int, ...]) -> FloatArray | None:
    """Renyi divergences of all rounds together, by order; None for noise unknown to RDP."""
    phases = as_released(phases)
    poisson = all(phase.event.sampler == "poisson" for phase in phases)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if poisson else NeighboringRelation.REPLACE_ONE
    total = np.zeros(len(orders))
    # Divergences beyond the range of a float count as infinite.
    with np.errstate(over="ignore"):
        for phase in phases:
            one = _divergences(phase.event, relation, orders)
            if one is None:
                return None
            total += phase.rounds * one
    return total


@lru_cache(maxsize=2048)
def _divergences(event: Event, relation: NeighboringRelation, orders: tuple[int, ...]) -> FloatArray | None:
    """Of one round, by order: a search over rounds, and an audit of what was planned, ask for the same ones again."""
    accountant, described = RdpAccountant(orders, relation), round_event(event)
    if described is None or not accountant.supports(described):
        return None
    return np.asarray(accountant.compose(described).rdp)
