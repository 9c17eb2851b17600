"""Epsilon that the original documentation of each algorithm would print for the same noise, beside the true one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Event, Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.observers.server_observer import poisson_steps_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import released

# What the published code of DP-AGRLR tells its accountant, whatever the data set.
_TOLD_RECORDS = 60_000


@dataclass(frozen=True, kw_only=True)
class PresetClaim:
    """Epsilon of one preset's cell by the original accounting, beside the one that holds.

    Attributes:
        cell: The cell that the original documentation speaks of.
        source: The documentation that makes the claim.
        claimed: Epsilon by the original accounting.
        holds: Epsilon of the same cell for the same noise here.
        reason: Why they differ.
    """

    cell: str
    source: str
    claimed: float
    holds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class PresetOrigin:
    """Statement of a preset about the original documentation, under `claimed`.

    Attributes:
        cell: The cell that the original documentation speaks of, as '(client, public)'.
        by: The documentation that makes the claim.
        counting: Its accounting: moments, without-the-factor-of-two, records-of-one-pool or local-steps.
        reason: Why the epsilon that holds is another number.
        dataset: The data set for which the two are compared.
    """

    cell: str
    by: str
    counting: str
    reason: str
    dataset: str = "omniglot"


def claim(published: PresetOrigin, plan: PrivacyPlan) -> PresetClaim:
    """The two numbers beside each other."""
    held = {found.name: found.epsilon for found in guarantees(plan)}
    return PresetClaim(
        cell=published.cell,
        source=published.by,
        claimed=_COUNTINGS[published.counting](plan),
        holds=held[published.cell],
        reason=published.reason,
    )


def _moments(plan: PrivacyPlan) -> float:
    return rdp_epsilon(released(plan.phases), plan.client_delta)


def claim_without_the_factor_of_two(plan: PrivacyPlan) -> float:
    """Flower's documentation hands z = std/C to an accountant that wants std over the change of a replaced client."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    for phase in plan.phases:
        own = phase.event
        noise = GaussianDpEvent(own.assured_noise or 0.0)
        accountant.compose(SampledWithoutReplacementDpEvent(own.clients, int(own.cohort), noise), phase.rounds)
    return float(accountant.get_epsilon(plan.client_delta))


def _records_of_one_pool(plan: PrivacyPlan) -> float:
    record = plan.record
    assert record is not None
    support, query = record.support_records, record.query_records * plan.cohort
    told = (
        (record.support_noise, support, int(plan.expected_participations)),
        (record.query_noise, query, plan.rounds),
    )
    phases = [
        Phase(
            event=Event(
                sampler="poisson",
                clients=plan.clients,
                cohort=plan.cohort,
                rate=records / _TOLD_RECORDS,
                noise=GaussianNoise(multiplier=noise),
            ),
            rounds=count,
        )
        for noise, records, count in told
        if noise is not None
    ]
    return rdp_epsilon(phases, plan.record_delta)


def _local_steps(plan: PrivacyPlan) -> float:
    record = plan.record
    assert record is not None
    assert record.support_noise is not None
    steps = plan.rounds * record.support_steps
    return poisson_steps_epsilon(record.batch_rate, record.support_noise, steps, plan.record_delta, "rdp")


_COUNTINGS: Mapping[str, Callable[[PrivacyPlan], float]] = {
    "moments": _moments,
    "without-the-factor-of-two": claim_without_the_factor_of_two,
    "records-of-one-pool": _records_of_one_pool,
    "local-steps": _local_steps,
}
