"""All audits of a plan, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.auditing.attacks import Attack, NoAttack, attack_on
from dpfedmeta.auditing.crowd import Crowd
from dpfedmeta.auditing.distinguish import Bench, expected_epsilon, findings_of
from dpfedmeta.auditing.findings import AUDITS, AuditName, Finding
from dpfedmeta.auditing.one_run import FEWEST_GUESSES, SHARES, Guesses, epsilon_of
from dpfedmeta.auditing.size import OF_RECORDS, audited_settings, of_canaries
from dpfedmeta.data.task import load_task
from dpfedmeta.errors import InputError
from dpfedmeta.planning.plan import Plan, make_plan
from dpfedmeta.settings import Settings

Watch = Callable[[str, float], None]
_OF_MANY_RUNS: tuple[AuditName, ...] = ("distinguish", "many-runs")
MOST_RUNS = 10**8


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What is audited, and how.

    Attributes:
        algo: As for training.
        dataset: Likewise.
        config: Likewise; of a run its config.yaml.
        given: Settings that were typed.
        audits: Which.
        runs: Of the audits of many runs.
        canaries: Of the audits of one run.
        confidence: Of lower bounds.
        units: Cells of these units are looked at.
        observers: And of these observers.
        as_planned: Whether the sizes stay those of the preset.
        whole: Whether each run keeps its books.
        seed: Of the audit itself: worlds, coins, directions, noise.
    """

    algo: str | None = None
    dataset: str | None = None
    config: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    audits: tuple[AuditName, ...] = _OF_MANY_RUNS
    runs: int = 1000
    canaries: int = 1000
    confidence: float = 0.95
    units: tuple[str, ...] = ("client", "record")
    observers: tuple[str, ...] = ("server", "public")
    as_planned: bool = False
    whole: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, given, known in (
            ("audits", self.audits, AUDITS),
            ("units", self.units, ("client", "record")),
            ("observers", self.observers, ("server", "public")),
        ):
            if wrong := [each for each in given if each not in known]:
                raise InputError(f"{name} = {wrong[0]}: known are {', '.join(known)}")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence = {self.confidence:g}: a number from 0.5 to below 1")
        fewest = math.floor(math.log(self.miss) / math.log(0.5)) + 1
        if not fewest <= self.runs <= MOST_RUNS:
            raise InputError(
                f"runs = {self.runs}: fewer than {fewest} prove nothing at {self.confidence:.0%}, whatever they show; "
                f"give {fewest} to {MOST_RUNS:,}"
            )
        if self.canaries < 2 * FEWEST_GUESSES:
            raise InputError(f"canaries = {self.canaries}: too few for any bound; give {2 * FEWEST_GUESSES} or more")

    @property
    def miss(self) -> float:
        """One less the confidence."""
        return 1.0 - self.confidence

    def settings(self, more: Mapping[str, str] | None = None) -> Settings:
        """What is audited, with the sizes of the audit."""
        return audited_settings(self.algo, self.dataset, self.config, self.given, as_planned=self.as_planned, more=more)

    def plan(self, more: Mapping[str, str] | None = None) -> Plan:
        """Likewise."""
        settings = self.settings(more)
        return make_plan(settings, load_task(settings.dataset)[0])


def findings(request: AuditRequest, watch: Watch = lambda what, done: None) -> Iterator[Finding]:
    """One cell and audit after the other.

    Raises:
        InputError: Nothing is promised that could be audited, or something that was given does not fit.
    """
    plan = request.plan()
    check_promises(plan)
    if set(request.audits) & set(_OF_MANY_RUNS):
        for cell in _asked(plan, request):
            yield from (each for each in _many_runs(request, plan, cell, watch) if each.audit in request.audits)
    if {"one-run", "one-shot"} & set(request.audits):
        yield from _one_run(request, watch)


def check_promises(plan: Plan) -> None:
    """Refuse what promises nothing.

    Raises:
        InputError: Every cell is infinite.
    """
    if not any(math.isfinite(cell.epsilon) for cell in plan.planned):
        raise InputError(
            f"algo = {plan.settings.algo}: epsilon is infinite in every cell, so there is no promise to audit; choose "
            "a private algorithm, or give --noise-multiplier or --epsilon"
        )


def _asked(plan: Plan, request: AuditRequest) -> Iterator[Guarantee]:
    for cell in plan.planned:
        if cell.unit in request.units and cell.observer in request.observers:
            yield cell


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
                "--model.norm none or group, or audit at the small size"
            )
        if not request.as_planned:
            plan = request.plan(OF_RECORDS)
        (cell,) = (each for each in plan.planned if each.name == cell.name)
    return plan, cell, attack_on(plan, cell)


def _many_runs(request: AuditRequest, plan: Plan, cell: Guarantee, watch: Watch) -> Iterator[Finding]:
    try:
        plan, cell, attack = prepared_attack(request, plan, cell)
    except NoAttack as why:
        yield nothing(cell, "distinguish", str(why))
        return
    bench = Bench(plan=plan, runs=request.runs, seed=request.seed, whole=request.whole)
    ratios = bench.ratios(attack, lambda done: watch(f"{cell.name}: {request.runs:,} runs", done))
    yield from findings_of(ratios, cell, attack.curve, request.miss)


def _one_run(request: AuditRequest, watch: Watch) -> Iterator[Finding]:
    plan = request.plan(of_canaries(request.canaries))
    crowd = Crowd(plan=plan, canaries=request.canaries, seed=request.seed)
    for cell in _asked(plan, request):
        if cell.name != "(client, public)":
            continue
        if not math.isfinite(cell.epsilon):
            yield nothing(cell, "one-run", "nothing is promised")
            continue
        watch(f"{cell.name}: one run with {request.canaries:,} canaries", 0.0)
        if "one-run" in request.audits:
            yield from crowd.one_run(cell, request.miss)
        if "one-shot" in request.audits:
            yield from crowd.one_shot(cell)


def nothing(cell: Guarantee, audit: AuditName, why: str) -> Finding:
    """A cell that is not audited, and why."""
    return Finding.of(cell, audit, None, why, runs=0, canaries=0)


def forecast(request: AuditRequest) -> Iterator[Finding]:
    """What each audit would show, about, of a program that keeps its promise exactly. Nothing is run."""
    plan = request.plan()
    check_promises(plan)
    for cell in _asked(plan, request):
        try:
            _, cell, attack = prepared_attack(request, plan, cell)
        except NoAttack as why:
            yield nothing(cell, "distinguish", str(why))
            continue
        seen = None if attack.curve is None else expected_epsilon(attack.curve, request.runs, request.miss)
        yield _expected(cell, "distinguish", seen, request, "best attack")
    if {"one-run", "one-shot"} & set(request.audits) and math.isfinite(plan.planned[0].epsilon):
        (cell,) = (
            each for each in request.plan(of_canaries(request.canaries)).planned if each.name == "(client, public)"
        )
        made = 2 * int(max(SHARES) * request.canaries)
        perfect = Guesses(canaries=request.canaries, made=made, right=made)
        most = epsilon_of(perfect, cell.delta, request.miss / len(SHARES))
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
