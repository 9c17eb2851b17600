"""Checks of a plan with correlated noise, and the noise that follows from the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.events.toeplitz_coefficients import most_participations
from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, CorrelatedNoise, Correlation
from dpfedmeta.core.errors import RefusedPlan

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


def default_separation(clients: int, cohort: float, rounds: int) -> int:
    """Rounds that clients keep apart where nothing is said: as many as the population allows."""
    return min(rounds, max(1, int(clients / cohort)))


def spacing_of(plan: PrivacyPlan) -> Spacing | None:
    """R and b of a plan of correlated noise, b within its rounds; None for another one."""
    if plan.correlation is None:
        return None
    separation = min(plan.correlation.separation, plan.rounds)
    most = most_participations(plan.rounds, separation, plan.max_participations)
    return Spacing(participations=most, separation=separation)


def check_correlated(plan: PrivacyPlan, correlation: Correlation) -> None:
    """Refuse what the proof in `correlated_noise` does not cover.

    Raises:
        RefusedPlan: Says which setting, why, and what to do.
    """
    name = plan.noise
    if name not in KINDS:
        raise RefusedPlan(
            f"population.separation = {correlation.separation} with server.noise = {name}: only correlated noise "
            f"({', '.join(KINDS)}) takes a separation; leave population.separation out"
        )
    reasons = (
        (plan.secure is not None, "aggregation.mode = secure", "clients would make the noise, each round separately"),
        (plan.record is not None, "record.enabled", "clients would add noise to each message separately"),
        (plan.noise_site != "server", "server.noise_site = clients", "clients add the noise of each round separately"),
        (bool(plan.schedule), "server.schedule", "no guarantee is known if noise or cohort change between rounds"),
        (
            not plan.sampling.keeps_apart,
            f"population.sampler = {plan.sampler}",
            "that sampler keeps no minimum distance between a client's rounds",
        ),
    )
    for found, setting, why in reasons:
        if found:
            raise RefusedPlan(
                f"server.noise = {name} with {setting}: {why}; change one of the two, for example to "
                "--server.noise independent"
            )


def check_kept(plan: PrivacyPlan) -> None:
    """Refuse a separation that the population cannot keep.

    Raises:
        RefusedPlan: Fewer clients than a cohort are free in some round.
    """
    spacing = spacing_of(plan)
    if spacing is not None:
        plan.sampling.check_separation(plan, spacing)


def correlated_noise(plan: PrivacyPlan, multiplier: float) -> CorrelatedNoise:
    """The noise of a plan; fitted to its rounds where its numbers are not stated."""
    spacing, correlation = spacing_of(plan), plan.correlation
    assert spacing is not None
    assert correlation is not None
    kind = KINDS[plan.noise]
    return kind(
        multiplier=multiplier,
        rounds=plan.rounds,
        participations=spacing.participations,
        separation=spacing.separation,
        numbers=correlation.numbers or kind.fitted(plan.rounds, spacing, correlation.buffers),
    )


def with_fitted_numbers(plan: PrivacyPlan) -> PrivacyPlan:
    """The same, with the numbers of its noise stated: what a ledger keeps does not depend on who fits."""
    if plan.correlation is None:
        return plan
    numbers = correlated_noise(plan, 1.0).numbers
    return replace(plan, correlation=replace(plan.correlation, numbers=numbers))
