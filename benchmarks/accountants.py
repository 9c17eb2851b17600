"""Table of how far other people's accountants agree with ours on the same events."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.other_accountants import dp_accounting_pld
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import released


def _history(phases: Sequence[Phase]) -> list[tuple[float, float, int]]:
    """(z, q, rounds), for Gaussian noise alone."""
    return [(1.0 / p.event.noise.mu(1.0), p.event.rate, p.rounds) for p in released(phases) if p.event.noise]


def opacus_rdp(phases: Sequence[Phase], delta: float) -> float:
    """Opacus' RDP accountant: an upper bound. Poisson only."""
    # Opacus takes a second to import, and few need it.
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = _history(phases)
    with _its_orders_end():
        return float(accountant.get_epsilon(delta))


def opacus_prv(phases: Sequence[Phase], delta: float, error: float = 0.002) -> float:
    """Opacus' PRV accountant, whose upper estimate lies at most `error` above the truth. Poisson only."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = _history(phases)
    with _its_orders_end():
        return float(accountant.get_epsilon(delta, eps_error=error, delta_error=delta / 1000))


@contextmanager
def _its_orders_end() -> Iterator[None]:
    """Opacus' Renyi orders end at 64: looser where epsilon is small, an upper bound still (PRV: of its domain)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        yield


@dataclass(frozen=True, kw_only=True)
class AccountantAgreement:
    """Agreement of two computations of one number over many settings.

    Attributes:
        ours: Our computation.
        other: The computation of the other library.
        settings: Number of settings that were compared.
        highest: Largest ours/other - 1.
        lowest: Smallest ours/other - 1.
        bound: Whether `other` is only an upper bound, so that agreement means `highest` <= 0.
    """

    ours: str
    other: str
    settings: int
    highest: float
    lowest: float
    bound: bool = False


Setting = tuple[float, float, int, float]  # q, z, T, delta

# All combinations, less those whose epsilon nobody would use.
RATES = (0.001, 0.00375, 0.02, 0.05, 0.1, 0.5)
NOISES = (0.7, 1.0, 2.0, 5.0)
ROUNDS = (1, 30, 300, 3000)
DELTAS = (1e-8, 1e-6, 1e-4)
USEFUL = (0.05, 50.0)


def all_settings() -> list[Setting]:
    """The grid of `account.py --cross-check`."""
    return list(itertools.product(RATES, NOISES, ROUNDS, DELTAS))


def agreements(settings: Sequence[Setting]) -> Iterator[AccountantAgreement]:
    """Yield one row for each pair of computations, over the settings with a useful epsilon."""
    useful = [s for s in settings if _affordable(s, "poisson") and USEFUL[0] <= _add_remove(s) <= USEFUL[1]]
    fixed = [s for s in settings if _affordable(s, "fixed") and USEFUL[0] <= _fixed(s) <= USEFUL[1]]
    yield _compare("sampled Gaussian (PLD)", "dp-accounting PLD", useful, _add_remove, _with(dp_accounting_pld))
    # PRV takes memory without bound where its error has to be small in absolute terms.
    large = [s for s in useful if _add_remove(s) >= 0.5]
    yield _compare("sampled Gaussian (PLD)", "Opacus PRV", large, _add_remove, _prv)
    yield _compare("sampled Gaussian (PLD)", "dp-accounting RDP", useful, _add_remove, _with(rdp_epsilon), True)
    yield _compare("sampled Gaussian (PLD)", "Opacus RDP", useful, _add_remove, _with(opacus_rdp), True)
    yield _compare("replaced message (PLD)", "dp-accounting PLD, REPLACE_ONE", useful, _replaced, _dp_replaced)
    yield _compare("fixed size (PLD)", "dp-accounting RDP", fixed, _fixed, _dp_fixed, True)
    whole = [
        (1.0, 4.0 * z, t, d) for _, z, t, d in dict.fromkeys((0.0, z, t, d) for _, z, t, d in settings if t < 3000)
    ]
    yield _compare("no sampling (PLD, q = 1)", "closed form, sqrt(T)/z-GDP", whole, _add_remove, _closed_form)
    yield _compare("fixed size, everybody (PLD)", "closed form, 2 sqrt(T)/z-GDP", whole, _fixed, _closed_form_replaced)
    yield _compare(
        "Gaussian cells (closed form)", "dp-accounting PLD of the Gaussian", whole, _closed_form, _dp_gaussian
    )
    few = [s for s in settings if s[0] * s[2] < 40 and _mixture(s) >= USEFUL[0]]
    yield _compare("mixture over participations", "numeric integration", few, _mixture, _integrated_mixture)


def _compare(
    ours: str,
    other: str,
    settings: Sequence[Setting],
    left: Callable[[Setting], float],
    right: Callable[[Setting], float],
    bound: bool = False,
) -> AccountantAgreement:
    ratios = [left(s) / right(s) - 1.0 for s in settings]
    return AccountantAgreement(
        ours=ours, other=other, settings=len(ratios), highest=max(ratios), lowest=min(ratios), bound=bound
    )


def _phases(setting: Setting, sampler: str = "poisson") -> tuple[Phase, ...]:
    rate, noise, rounds, _ = setting
    clients = 400_000
    plan = PrivacyPlan(clients=clients, cohort=rate * clients, rounds=rounds, noise_multiplier=noise, sampler=sampler)
    return plan.phases


def _affordable(setting: Setting, sampler: str) -> bool:
    """Return whether even the loose RDP bound is small enough for a tight computation to be of interest."""
    return rdp_epsilon(_phases(setting, sampler), setting[3]) <= 4.0 * USEFUL[1]


def _with(accountant: Callable[[Sequence[Phase], float], float]) -> Callable[[Setting], float]:
    return lambda setting: accountant(_phases(setting), setting[3])


def _add_remove(setting: Setting) -> float:
    return sampled_epsilon(_phases(setting), "add-remove", setting[3])


def _prv(setting: Setting) -> float:
    return opacus_prv(_phases(setting), setting[3], error=0.004 * _add_remove(setting))


def _replaced(setting: Setting) -> float:
    return sampled_epsilon(_phases(setting), "replace-one", setting[3])


def _dp_replaced(setting: Setting) -> float:
    return dp_accounting_pld(_phases(setting), setting[3], replaced=True)


def _fixed(setting: Setting) -> float:
    return sampled_epsilon(_phases(setting, "fixed"), "replace-one", setting[3])


def _dp_fixed(setting: Setting) -> float:
    return rdp_epsilon(_phases(setting, "fixed"), setting[3])


def _closed_form(setting: Setting) -> float:
    _, noise, rounds, delta = setting
    return gaussian_epsilon(math.sqrt(rounds) / noise, delta)


def _closed_form_replaced(setting: Setting) -> float:
    _, noise, rounds, delta = setting
    return gaussian_epsilon(2.0 * math.sqrt(rounds) / noise, delta)


def _dp_gaussian(setting: Setting) -> float:
    _, noise, rounds, delta = setting
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


def _mixture(setting: Setting) -> float:
    _, noise, _, delta = setting
    return mixture_epsilon(_phases(setting), [1.0 / noise], None, delta)


def _integrated_mixture(setting: Setting) -> float:
    """The same mixture from the densities, on a fine grid of outcomes, without the closed form of Gaussian DP."""
    rate, noise, rounds, delta = setting
    counts = np.arange(1, min(rounds, int(binom.isf(1e-15, rounds, rate)) + 1) + 1)
    mass, shifts = binom.pmf(counts, rounds, rate), np.sqrt(counts) / noise
    outcomes = np.linspace(-13.0, 13.0, 100_001)
    density = norm.pdf(outcomes)
    width = outcomes[1] - outcomes[0]

    def delta_at(epsilon: float) -> float:
        # Outcomes measured from the first population's mean: the log ratio is shift * x + shift^2 / 2.
        excess = (
            float(np.sum(density * -np.expm1(np.minimum(epsilon - s * outcomes - s * s / 2, 0.0)))) for s in shifts
        )
        return float(np.dot(mass, list(excess)) * width)

    return smallest_epsilon(delta_at, delta)
