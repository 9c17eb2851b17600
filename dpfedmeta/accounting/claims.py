"""What the original documentation of each algorithm would print for the same noise, beside what holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from dpfedmeta.accounting.cells import guarantees
from dpfedmeta.accounting.events import Event, Phase
from dpfedmeta.accounting.noise import GaussianNoise
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.accounting.sampled_gaussian import poisson_steps_epsilon, rdp_epsilon

# What the published code of DP-AGRLR tells its accountant, whatever the data set.
_TOLD_RECORDS = 60_000


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One preset's cell, as its origin counts it.

    Attributes:
        cell: The cell that the origin speaks of.
        source: Who says so.
        claimed: Epsilon by the origin's accountant.
        holds: Epsilon of the same cell for the same noise here.
        reason: Why they differ.
    """

    cell: str
    source: str
    claimed: float
    holds: float
    reason: str


def claim(algo: str, plan: PrivacyPlan) -> Claim | None:
    """None for an algorithm without privacy."""
    if algo not in _ORIGINS:
        return None
    cell, source, count, reason = _ORIGINS[algo]
    held = {found.name: found.epsilon for found in guarantees(plan)}
    return Claim(cell=cell, source=source, claimed=count(plan), holds=held[cell], reason=reason)


def _moments(plan: PrivacyPlan) -> float:
    return rdp_epsilon(plan.phases, plan.client_delta)


def _without_the_factor_of_two(plan: PrivacyPlan) -> float:
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


_CLIENT, _RECORD = "(client, public)", "(record, server)"
_AGRLR = (
    _RECORD,
    "released code, RDP",
    _records_of_one_pool,
    "it composes the steps of all clients over one pool of 60,000 records; a record sees its own client's only",
)
_ORIGINS: Mapping[str, tuple[str, str, Callable[[PrivacyPlan], float], str]] = {
    "dp-const": (_CLIENT, "McMahan et al. 2018, moments accountant", _moments, "RDP is loose; the plan is the same"),
    "dp-aqc": (_CLIENT, "Andrew et al. 2021, RDP", _moments, "RDP is loose; the joint formula is the same"),
    "dp-agr": (
        _CLIENT,
        "released code, RDP",
        _moments,
        "RDP is loose; the released code takes its bound from raw norms and reads tasks in order: nothing holds there",
    ),
    "dp-agrlr-micro": _AGRLR,
    "dp-agrlr": _AGRLR,
    "dp-fedavg": (
        _CLIENT,
        "Geyer et al. 2017, moments accountant",
        _moments,
        "RDP is loose; the released code takes raw medians and charges the noise of all layers as one: nothing holds "
        "there",
    ),
    "dp-fedavg-fixed": (
        _CLIENT,
        "Flower's documentation, RDP",
        _without_the_factor_of_two,
        "a replaced client moves the sum by 2C, the claim assumes C",
    ),
    "dp-fedavg-adaptive": (
        _CLIENT,
        "Flower's documentation, RDP",
        _without_the_factor_of_two,
        "a replaced client moves the sum by 2C, the claim assumes C",
    ),
    "local-dp": (_RECORD, "declearn, RDP", _local_steps, "RDP is loose; the steps are the same"),
}
