"""All audits of a plan, cell by cell."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.auditing.attacks.likelihood_ratio import Attack, NoAttack, attack_on
from dpfedmeta.auditing.audit_request import OF_MANY_RUNS, AuditRequest, nothing_promised
from dpfedmeta.auditing.estimators.many_runs import (
    SECOND_SAMPLE,
    Bench,
    Crowd,
    confirmation_of,
    expected_epsilon,
    findings_of,
)
from dpfedmeta.auditing.estimators.one_run import best_one_run_epsilon
from dpfedmeta.auditing.findings import AuditName, Finding
from dpfedmeta.auditing.neighbouring_runs import sends_moments
from dpfedmeta.auditing.reduced_plan import OF_RECORDS, of_canaries
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.run_plan import Plan

Watch = Callable[[str, float], None]


def findings(request: AuditRequest, watch: Watch = lambda what, done: None) -> Iterator[Finding]:
    """Yield the findings of each cell and audit; where a bound is above the promise, also those of a second sample.

    Raises:
        InputError: Nothing is promised that could be audited, or something that was given does not fit.
    """
    plan = request.plan()
    check_promises(plan)
    if set(request.audits) & set(OF_MANY_RUNS):
        for cell in _asked(plan, request):
            yield from _many_runs(request, plan, cell, watch)
    if {"one-run", "one-shot"} & set(request.audits):
        yield from _one_run(request, watch)


def check_promises(plan: Plan) -> None:
    """Refuse what promises nothing.

    Raises:
        InputError: Every cell is infinite.
    """
    if not any(math.isfinite(cell.epsilon) for cell in plan.planned):
        raise InputError(nothing_promised(plan.settings.algo))


def _asked(plan: Plan, request: AuditRequest) -> Iterator[Guarantee]:
    for cell in cells_under_zero_out(plan):
        if cell.unit in request.units and cell.observer in request.observers:
            yield cell


def cells_under_zero_out(plan: Plan) -> tuple[Guarantee, ...]:
    """The cells of the plan, those of a record for one that counts as nothing in its place: what attacks tell apart."""
    if plan.privacy.relation == "zero-out":
        return plan.planned
    return guarantees(replace(plan.privacy, relation="zero-out"))


def prepared_attack(request: AuditRequest, plan: Plan, cell: Guarantee) -> tuple[Plan, Guarantee, Attack]:
    """The plan, the cell and the attack: a record inside a client needs a network that shows it.

    Raises:
        NoAttack: See there.
        InputError: Canaries would share a batch statistic.
    """
    if cell.unit == "record" and plan.privacy.record is not None and math.isfinite(cell.epsilon):
        if request.as_planned and plan.network.norm == "batch":
            raise InputError(
                "model.norm = batch: canary records would share a batch statistic with the others of their client; use "
                "--model.norm none or group, or audit at the small size (without --as-planned)"
            )
        if not request.as_planned:
            plan = request.plan(OF_RECORDS)
        (cell,) = (each for each in cells_under_zero_out(plan) if each.name == cell.name)
    return plan, cell, attack_on(plan, cell)


def _many_runs(request: AuditRequest, plan: Plan, cell: Guarantee, watch: Watch) -> Iterator[Finding]:
    try:
        plan, cell, attack = prepared_attack(request, plan, cell)
    except NoAttack as why:
        yield nothing(cell, "distinguish", str(why))
        return
    bench = Bench(plan=plan, runs=request.runs, seed=request.seed, whole=request.whole)
    ratios = bench.ratios(attack, lambda done: watch(f"{cell.name}: {request.runs:,} runs", done))
    found = [each for each in findings_of(ratios, cell, attack.curve, request.miss) if each.audit in request.audits]
    yield from found
    if alarms := [each for each in found if each.above]:
        more = SECOND_SAMPLE * request.runs
        bench = replace(bench, runs=more, seed=request.second_seed(0))
        again = bench.ratios(attack, lambda done: watch(f"{cell.name}: a second sample of {more:,} runs", done))
        yield from (confirmation_of(each, ratios, again, cell, attack.curve) for each in alarms)


def _one_run(request: AuditRequest, watch: Watch) -> Iterator[Finding]:
    plan = request.plan(of_canaries(request.canaries))
    crowd = Crowd(plan=plan, canaries=request.canaries, seed=request.seed)
    for cell in _asked(plan, request):
        if cell.name != "(client, public)":
            continue
        why = _no_crowd(plan, cell)
        if why is not None:
            yield nothing(cell, "one-run", why)
            continue
        watch(f"{cell.name}: one run with {request.canaries:,} canaries", 0.0)
        if "one-run" in request.audits:
            found = list(crowd.one_run(cell, request.miss))
            yield from found
            if alarms := [each for each in found if each.above]:
                watch(f"{cell.name}: a second sample of {SECOND_SAMPLE} runs", 0.5)
                others = [replace(crowd, seed=request.second_seed(number)) for number in range(SECOND_SAMPLE)]
                yield from (crowd.confirmation(each, cell, others) for each in alarms)
        if "one-shot" in request.audits:
            yield from crowd.one_shot(cell)


def _no_crowd(plan: Plan, cell: Guarantee) -> str | None:
    """Why a cell is not looked at by canaries of one run, in words; None: it is."""
    if not math.isfinite(cell.epsilon):
        return "nothing is promised"
    record = plan.privacy.record
    if record is not None and record.of_sum and sends_moments(plan):
        return "clients send whole numbers of their records, and no vector of a canary's own; use --audits distinguish"
    return None


def nothing(cell: Guarantee, audit: AuditName, why: str) -> Finding:
    """A cell that is not audited, and why."""
    return Finding.of(cell, audit, None, why, runs=0, canaries=0)


def forecast(request: AuditRequest) -> Iterator[Finding]:
    """The expected bound of each audit that is asked for, of a program that keeps its promise exactly. Nothing is run.

    No bound can be expected of many-runs and one-shot, which use no trade-off curve.
    """
    plan = request.plan()
    check_promises(plan)
    for cell in _asked(plan, request) if "distinguish" in request.audits else ():
        try:
            _, cell, attack = prepared_attack(request, plan, cell)
        except NoAttack as why:
            yield nothing(cell, "distinguish", str(why))
            continue
        seen = None if attack.curve is None else expected_epsilon(attack.curve, request.runs, request.miss)
        yield _expected(cell, "distinguish", seen, request, "best attack")
    if "one-run" not in request.audits:
        return
    plan = request.plan(of_canaries(request.canaries))
    for cell in _asked(plan, request):
        if cell.name != "(client, public)" or not math.isfinite(cell.epsilon):
            continue
        if (no := _no_crowd(plan, cell)) is not None:
            yield nothing(cell, "one-run", no)
            continue
        most = best_one_run_epsilon(request.canaries, cell.delta, request.miss)
        yield _expected(cell, "one-run", most, request, "at most, with every guess right")


def _expected(cell: Guarantee, audit: AuditName, seen: float | None, request: AuditRequest, how: str) -> Finding:
    many = audit == "distinguish"
    return Finding.of(
        cell,
        audit,
        seen,
        f"expected: {how}",
        confidence=request.confidence,
        runs=request.runs if many else 1,
        canaries=1 if many else request.canaries,
    )
