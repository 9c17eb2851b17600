"""The published bound on sums of discrete Gaussians, beside the tighter one of whole_noise.

Kairouz, Liu, Steinke 2021 (https://arxiv.org/abs/2102.06387): concentrated differential privacy of one round; under
Poisson sampling by the moments of a general mechanism (Zhu, Wang 2019, https://proceedings.mlr.press/v97/zhu19c.html).
It is the smaller one where few clients make a noise of few steps of the grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.special import gammaln, logsumexp

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.guarantee import Bound
from dpfedmeta.accounting.release_costs import cost_of, participations_of, rounds_seen
from dpfedmeta.core.random.random_sources import FloatArray

# Under sampling: whole orders, for a sum of binomial terms.
_SAMPLED = np.arange(2.0, 257.0)
# Without: the best order is 1 + sqrt(log(1/delta) / rho), for any rho that gives an epsilon from 1e-3 to 1e5.
_PLAIN = 1.0 + np.geomspace(0.011, 1e5, 800)
# Of other terms than the first two, since nothing is assumed of the mechanism (theorem 6 of Zhu, Wang 2019).
_GENERAL = 3.0
# What rounding may take from one divergence.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Concentrated:
    """Renyi divergence of one release of a sum, by its order.

    Attributes:
        rho: Delta^2/(2 sigma^2), of one discrete Gaussian in each coordinate.
        tau: d tau, with tau = 10 sum exp(-2 pi^2 s^2 j/(j+1)): what sums of shares may differ from that.
    """

    rho: float
    tau: float

    def at(self, orders: FloatArray) -> FloatArray:
        """The divergence, from above.

        rho-zCDP is order * rho (Canonne, Kamath, Steinke 2020). Both laws differ by a factor of exp(+-tau/2): it
        enters (order - 1) times for each side, and once for the mean.
        """
        return orders * self.rho + self.tau * (1.0 + 0.5 / (orders - 1.0))


def concentrated(coordinates: Coordinates, distance: float, rounds: int) -> Concentrated:
    """Renyi divergence of one of `rounds` releases with this noise.

    Args:
        coordinates: Coordinates of all these releases.
        distance: Distance between the sums of two neighbours, in steps of the grid.
        rounds: Number of releases that the coordinates belong to.
    """
    differ = coordinates.count / rounds * coordinates.blended
    return Concentrated(rho=distance**2 / (2.0 * coordinates.variance), tau=2.0 * differ)


def sampled_bound(phases: Sequence[Phase], coordinates: Sequence[Coordinates], delta: float) -> Bound:
    """A client that is added or removed, under Poisson sampling.

    Args:
        phases: What happened; all of them sums of whole numbers.
        coordinates: Their noise, one for each phase.
        delta: What is left for this cell.
    """
    moments = np.zeros(len(_SAMPLED))
    for phase, own in zip(phases, coordinates, strict=True):
        one = concentrated(own, _of_a_client(phase), phase.rounds)
        moments += phase.rounds * _sampled(one, phase.event.rate)
    return Bound(
        method="zcdp",
        epsilon=_epsilon(_SAMPLED, moments, delta),
        event=rounds_seen(phases),
        formula=f"{_PUBLISHED}; sampled, by its moments of orders 2 to 256 (Zhu, Wang 2019)"
        + cost_of(phases).folded(phases),
        loose=True,
    )


def participations_bound(
    phases: Sequence[Phase], coordinates: Sequence[Coordinates], change: float, cap: int | None, delta: float
) -> Bound:
    """Nothing is amplified: the worst number of participations counts.

    Args:
        phases: What happened; all of them sums of whole numbers.
        coordinates: Their noise, one for each phase.
        change: How far the unit moves a sum, over how far a whole client does.
        cap: R, or None.
        delta: What is left for this cell.
    """
    worst, left = participations_of(phases, cap, delta)
    ones = [
        concentrated(own, change * _of_a_client(phase), phase.rounds).at(_PLAIN)
        for phase, own in zip(phases, coordinates, strict=True)
    ]
    moments = worst * np.max(ones, axis=0)
    return Bound(
        method="zcdp",
        epsilon=_epsilon(_PLAIN, moments, left),
        event=f"the sum in {worst} participation{'s' if worst != 1 else ''}, which moves it by {change:.4g} Delta "
        "each time",
        formula=_PUBLISHED,
        loose=True,
    )


_PUBLISHED = (
    "zCDP of a sum of discrete Gaussians: Delta^2/(2 sigma^2), and d tau for their not being one (Kairouz, Liu, "
    "Steinke 2021)"
)


def _of_a_client(phase: Phase) -> float:
    assert phase.event.whole is not None
    return phase.event.whole.of_a_client


def _epsilon(orders: FloatArray, moments: FloatArray, delta: float) -> float:
    known = np.isfinite(moments)
    if delta <= 0 or not known.any():
        return math.inf
    return float(compute_epsilon(orders[known].tolist(), moments[known].tolist(), delta)[0])


@lru_cache(maxsize=2048)
def _sampled(one: Concentrated, rate: float) -> FloatArray:
    """Divergences of one release whose sum a client is in with probability `rate`; sampling only helps."""
    plain = one.at(_SAMPLED)
    if rate >= 1 or not math.isfinite(one.tau):
        return plain
    found = np.array([_amplified(int(order), plain, rate) for order in _SAMPLED])
    return np.minimum(found + _ROUNDING, plain)


def _amplified(order: int, plain: FloatArray, rate: float) -> float:
    """Theorem 6 of Zhu, Wang 2019: log of the sum over how often the release with the client is drawn."""
    taken, out = math.log(rate), math.log1p(-rate)
    first = (order - 1) * out + math.log1p((order - 1) * rate)
    drawn = np.arange(2, order + 1)
    terms = (
        gammaln(order + 1) - gammaln(drawn + 1) - gammaln(order - drawn + 1)
        + drawn * taken + (order - drawn) * out + (drawn - 1) * plain[drawn - 2]
    )  # fmt: skip
    terms[1:] += math.log(_GENERAL)
    return float(logsumexp(np.append(terms, first)) / (order - 1))
