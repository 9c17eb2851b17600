"""Checks that refuse a plan: values out of range, and combinations for which nothing is proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.record_layer import check, holding
from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import check_correlated, check_kept
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.errors import InputError, RefusedPlan

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

# Noise multipliers outside this range promise nothing, or cost nothing that a float could say.
_LEAST, _MOST = 1e-3, 1e7


def check_plan(plan: PrivacyPlan) -> None:
    """Refuse it, at the first value that does not fit.

    Raises:
        RefusedPlan: Says which value, and what it may be.
    """
    _check_sampler(plan)
    _check_values(plan)
    _check_who_adds_noise(plan)
    _check_what_is_released(plan)
    _check_rounds(plan)
    check_kept(plan)
    plan.sampling.check(plan)


def _check_sampler(plan: PrivacyPlan) -> None:
    try:
        _ = plan.sampling
    except InputError as error:
        raise RefusedPlan(f"{error}; no guarantee can be computed otherwise") from error


def _check_values(plan: PrivacyPlan) -> None:
    check("clients", plan.clients, plan.clients >= 1, "at least 1")
    check("rounds", plan.rounds, plan.rounds >= 1, "at least 1")
    check("noise_mode", plan.noise_mode, plan.noise_mode in ("shared", "stacked"), "shared or stacked")
    check("colluding", plan.colluding, plan.colluding >= 1, "at least 1")
    check("hostile", plan.hostile, 0 <= plan.hostile < 1, "a share from 0 to below 1")
    for name in ("client_delta", "record_delta"):
        check(name, getattr(plan, name), 0 < getattr(plan, name) < 1, "above 0 and below 1")
    if plan.noise_multiplier is not None:
        z = plan.noise_multiplier
        check("noise_multiplier", z, z == 0 or _LEAST <= z <= _MOST, f"0, or a number from {_LEAST:g} to {_MOST:g}")
    if plan.max_participations is not None:
        check("max_participations", plan.max_participations, plan.max_participations >= 1, "at least 1")


def _check_relation(plan: PrivacyPlan) -> None:
    check("relation", plan.relation, plan.relation in RELATIONS, f"one of {', '.join(RELATIONS)}")
    holds = holding(plan.record)
    if plan.relation in holds:
        return
    of_rows = plan.record is not None and not plan.record.rows and RELATIONS[plan.relation].of_rows
    why = (
        "which records of a client share a group or a role here does not follow from each row alone"
        if of_rows
        else "clients draw their mini-batches themselves, and for that no bound is known"
    )
    raise RefusedPlan(
        f"privacy.record.relation = {plan.relation}: {why}; use --privacy.record.relation "
        f"{'row-deleted' if 'row-deleted' in holds else 'zero-out'}"
    )


def _check_who_adds_noise(plan: PrivacyPlan) -> None:
    if plan.correlation is not None:
        check_correlated(plan, plan.correlation)
    else:
        check("noise", plan.noise, plan.noise not in KINDS, "a separation too with this noise")
    if plan.noise_site == "clients":
        # A cohort of unknown size, or another noise, would make another share than was planned.
        plain = plan.sampling.fixed_size and plan.record is None and not plan.schedule
        check(
            "noise_site",
            plan.noise_site,
            plain,
            "server; clients needs the fixed sampler, no server.schedule and no record-level noise",
        )
    if plan.record is not None:
        # Parts without noise of their own need a sum whose noise the clients make.
        check("record.of_sum", plan.record.of_sum, plan.secure is not None or not plan.record.of_sum, "a secure sum")
    _check_relation(plan)
    if plan.secure is not None:
        _check_secure(plan, plan.secure)
    elif plan.record is not None and plan.record.query_noise is None and plan.noise_multiplier is not None:
        # Later support gradients cancel earlier noise, and the message is unbounded before its last noise.
        check("noise_mode", plan.noise_mode, plan.noise_mode == "stacked", "stacked where updates are sent")


def _check_what_is_released(plan: PrivacyPlan) -> None:
    check("server_sees", plan.server_sees, plan.server_sees in ("messages", "sum"), "messages or sum")
    if plan.noise != "independent":
        # Only independent Gaussian noise adds up with that of messages.
        alone = plan.noise_site == "server" and (plan.record is None or plan.noise_mode == "stacked")
        check("noise", plan.noise, alone, "independent noise, since clients' noise counts for the server's")
    runs = [other.run for other in plan.earlier]
    check("earlier", runs, len(set(runs)) == len(runs), "every ledger once")
    plain = plan.secure is None and plan.record is None and plan.noise_site == "server"
    check("missed", plan.missed, plan.missed is None or (0 <= plan.missed < 1 and plain), "a probability, or null")


def _check_rounds(plan: PrivacyPlan) -> None:
    ends = [*plan.ends, plan.rounds]
    check("ends", plan.ends, ends[0] >= 1 and ends == sorted(set(ends)), "increasing numbers from 1 to below rounds")
    starts = [change.from_round for change in plan.schedule]
    check("schedule", starts, starts == sorted(set(starts)), "each from_round once, in increasing order")
    for _, change in plan.changes():
        _check_cohort(plan, plan.cohort * change.cohort_scale)


def _check_secure(plan: PrivacyPlan, secure: SecureRounds) -> None:
    check("server_sees", plan.server_sees, plan.server_sees == "sum", "sum with secure aggregation")
    if plan.clients == 1:
        raise RefusedPlan(
            "population.clients = 1 with secure aggregation: the sum of one client alone is its message; use "
            "--aggregation messages, with noise in the message itself (--algo moments-agrlr or dp-agrlr-micro)"
        )
    check("noise_multiplier", plan.noise_multiplier, plan.noise_multiplier is not None, "a clip bound and a noise")
    check("noise_site", plan.noise_site, plan.noise_site == "server", "server: the clients add the noise anyway")
    check("schedule", plan.schedule, not plan.schedule, "no changes between rounds")
    check("noise", plan.noise, plan.noise == "independent", "independent with secure aggregation")
    if plan.record is not None:
        parts = plan.record.query_records if plan.record.of_sum else 1
        check("secure.parts", secure.parts, secure.parts == parts, f"{parts}, the parts of a message")
        check("noise_mode", plan.noise_mode, plan.record.of_sum or plan.noise_mode == "stacked", "stacked")
    # A share of the noise depends on how many are invited, and noise that is missing would tell of that.
    check("hostile", plan.hostile, not plan.hostile or plan.sampling.fixed_size, "0, or the fixed-size sampler")
    known = plan.sampling.fixed_size or plan.sampling.independent
    check("sampler", plan.sampler, known, "cohorts of a known size where messages are added up securely")


def _check_cohort(plan: PrivacyPlan, cohort: float) -> None:
    check("cohort", cohort, 0 < cohort <= plan.clients, f"above 0 and at most {plan.clients} clients")
