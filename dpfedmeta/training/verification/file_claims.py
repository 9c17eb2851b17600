"""Claims about privacy in the files beside a ledger, each compared with the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent, phases_of, spent
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.ledger.published import not_verified
from dpfedmeta.accounting.observers.four_guarantees import guarantees, stated
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.private_selection import SelectionCost
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, complete, json_of
from dpfedmeta.core.files.run_directory import CONFIG, DIVERGED, PLAN, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.client_spec import sizes_of_clients
from dpfedmeta.training.results.evaluation_store import measured_on
from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.results.summary import SIMULATION, aggregation
from dpfedmeta.training.verification.chosen_run import CHOSEN, cells_of_choice, choice_words, verified_selection
from dpfedmeta.training.verification.due_words import due_beginning, due_cautions, is_about_clients
from dpfedmeta.training.verification.replan import settings_of_ledger
from dpfedmeta.training.verification.unproven_words import check_words, check_written

_NEVER = (
    "accuracies, what is drawn of them, names, and how many records clients have (measure again: dpfedmeta evaluate "
    "RUN --out DIR)"
)
# Constants of the plan that stand beside the guarantees.
POPULATION = ("clients", "cohort", "sampler", "max_participations")


@dataclass(frozen=True, kw_only=True)
class Proven:
    """Facts that a ledger proves; every other file is compared with them.

    Attributes:
        content: The ledger.
        settings: What the run was asked for, from its first line.
        spent: The four cells of its rounds, of the run alone.
        planned: The four cells of its plan, of the run alone.
        choice: The price of the private sweep that chose the run; None: none did.
    """

    content: LedgerContent
    settings: Settings
    spent: tuple[Guarantee, ...]
    planned: tuple[Guarantee, ...]
    choice: SelectionCost | None = None

    @classmethod
    def of(cls, run: RunDirectory, content: LedgerContent) -> Proven:
        """Compute the facts from a run's ledger, and the price of a choice from its list.

        Raises:
            InputError: As `verified_selection` says.
        """
        settings, cells = settings_of_ledger(run.ledger, content), spent(content.plan, content.charges, content.lines)
        choice = verified_selection(run, content, cells)
        return cls(content=content, settings=settings, spent=cells, planned=guarantees(content.plan), choice=choice)

    @property
    def cells(self) -> tuple[Guarantee, ...]:
        """The four cells to state of the run: those of its rounds, or of the choice where a private sweep chose it."""
        return cells_of_choice(self.spent, self.choice)

    @property
    def promised(self) -> tuple[Guarantee, ...]:
        """The four cells to state of its plan, likewise."""
        return cells_of_choice(self.planned, self.choice)

    @property
    def chosen(self) -> str | None:
        """Words on the number to report of a run that a private sweep chose; None: none did."""
        return None if self.choice is None else choice_words(self.choice)

    @property
    def simulation(self) -> str | None:
        """Warning that nothing is promised, where the noise seed was chosen; else None."""
        return SIMULATION if self.settings.run.noise_seed is not None else None

    @property
    def unverified(self) -> str:
        """Words on what no comparison with the ledger shows."""
        return not_verified(self.content, "the last release and the weights", _NEVER)

    @property
    def rounds(self) -> int:
        """Rounds that were charged, each once however often it was done again."""
        return sum(not event.attempt for event in self.content.charges)

    def as_of(self, head: object) -> Proven:
        """Return what the ledger proved when its last line had this hash; itself if it never had."""
        content = self.content.until(head)
        if content is self.content:
            return self
        return replace(self, content=content, spent=stated(phases_of(content.charges), Terms.of(content.plan)))


def check_config(run: RunDirectory, proven: Proven) -> None:
    """config.yaml is the one that the ledger holds.

    Raises:
        InputError: It is another one; says the first line.
    """
    path = run.path / CONFIG
    if not path.exists():
        return
    stated = path.read_bytes().decode(errors="replace").splitlines()
    due = proven.content.identity.config.splitlines()
    for number in range(max(len(stated), len(due))):
        left, right = stated[number : number + 1], due[number : number + 1]
        if left != right:
            said = [line[0].strip() if line else "nothing" for line in (left, right)]
            raise InputError(f"{path}, line {number + 1}: states {said[0]!r}, but the ledger holds {said[1]!r}")


def check_plan_file(run: RunDirectory, proven: Proven) -> list[str]:
    """plan.json states the ledger's plan and what it promises.

    Raises:
        InputError: It states something else; names it, with both values.
    """
    path = run.path / PLAN
    if not path.exists():
        return []
    stated, content = run.read_json(PLAN), proven.content
    with complete(path):
        check_cells(path, "planned", stated["planned"], proven.promised)
        plan = json_of(constants(content.plan))
        check(path, "privacy", json_of(constants(plan_of(stated["privacy"]))), plan)
        phases = [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in content.plan.phases]
        check(path, "phases", stated["phases"], json_of(phases))
        _check_statement(path, "population", stated["population"], proven)
        check(path, "begins_with", stated["begins_with"], due_beginning(stated["begins_with"], proven.settings))
        due = due_cautions(proven.settings)
        if due is not None:
            check(path, "cautions", stated["cautions"], due)
        check_words(path, PLAN, stated)
        check_written(path, stated)
    return ["plan.json agrees"]


def check_summary(snapshot: Snapshot, proven: Proven) -> list[str]:
    """summary.json states what the ledger adds up to, promised and spent, and the run that it is of.

    That of an earlier interruption states what the ledger added up to by then.

    Raises:
        InputError: It states something else; names it, with both values.
    """
    run, stated, settings = snapshot.run, snapshot.summary, proven.settings
    path = run.path / SUMMARY
    if stated is None:
        closed = "though the ledger is closed: it is lost or was removed"
        going = "the run has not finished, so it cannot be noticed if lines at the end are lost"
        return [f"no summary.json, {closed}" if proven.content.closing else f"no summary.json: {going}"]
    with complete(path):
        if not snapshot.ended:
            proven = proven.as_of(stated["ledger"]["head"])
        if stated["ledger"]["head"] != proven.content.heads[-1]:
            raise InputError(
                f"{run.ledger}: does not end as summary.json states: lines at the end are lost or were added"
            )
        check_claims(path, stated, proven)
        check_statements(path, stated, proven)
        for name, size in sizes_of_clients(settings).items():
            check(path, f"task.{name}", stated["task"][name], size)
        accuracy = stated.get("accuracy") or {}
        for name, number in measured_on(settings, accuracy.get("steps", 0)).items():
            if name in accuracy:
                check(path, f"accuracy.{name}", accuracy[name], number)
        check(path, "encoder", stated.get("encoder"), settings.model.encoder)
        _check_length(snapshot, stated, proven)
        check(path, "extended_from", stated.get("extended_from", []), list(proven.content.plan.ends))
        due = aggregation(settings.aggregation.mode, proven.content.plan)
        check(path, "aggregation", stated["aggregation"], json_of(due))
        check_words(path, SUMMARY, stated)
        check_written(path, stated)
    return ["summary.json agrees" if snapshot.ended else "summary.json, of an earlier interruption, agrees"]


def check_claims(path: Path, stated: Mapping[str, Any], proven: Proven) -> None:
    """The promise, what was spent, and the constants that stand beside them: in summary.json, and in report.html.

    Raises:
        InputError: One of them is another one; names it, with both values.
    """
    check(path, CHOSEN, stated.get(CHOSEN), proven.chosen)
    check_cells(path, "guarantees", stated["guarantees"], proven.cells)
    check_cells(path, "planned", stated["planned"], proven.promised)
    for name in POPULATION:
        check(path, f"population.{name}", stated["population"][name], getattr(proven.content.plan, name))
    check(path, "simulation", stated["simulation"], proven.simulation)
    check(path, "ledger", stated["ledger"], {"rounds": len(proven.content.charges), "head": proven.content.heads[-1]})


def check_statements(path: Path, stated: Mapping[str, Any], proven: Proven) -> None:
    """Sentences and names of summary.json that rest on the ledger: also in report.html.

    Raises:
        InputError: One of them is another one; names it, with both values.
    """
    of_clients = stated["population"]["statement"]
    _check_statement(path, "population.statement", of_clients, proven)
    check(path, "population.kind", stated["population"]["kind"], of_clients["kind"])
    check(path, "algo", stated["algo"], proven.settings.algo)
    check(path, "dataset", stated["dataset"], proven.settings.dataset)
    check(path, "begins_with", stated["begins_with"], due_beginning(stated["begins_with"], proven.settings))


def _check_length(snapshot: Snapshot, stated: Mapping[str, Any], proven: Proven) -> None:
    """Check the number of released rounds against the ledger.

    All charged rounds were released, except for those that an interruption or a spent budget left undone.
    """
    run, status, rounds = snapshot.run, stated["status"], stated["rounds"]
    path = run.path / SUMMARY
    again = len(proven.content.charges) > proven.rounds
    left = status in ("interrupted", DIVERGED) or (status == "budget" and again)
    if not left or type(rounds) is not int or not 0 <= rounds <= proven.rounds:
        check(path, "rounds", rounds, proven.rounds)
    if status == "completed":
        check(path, "rounds of a completed run", rounds, proven.content.plan.rounds)
    if not snapshot.ended:
        # Rounds that are done again otherwise drop their lines, and write them once more.
        return
    lines = rounds if snapshot.rows is None else len(snapshot.rows)
    if lines < rounds or (lines > rounds and status not in ("interrupted", DIVERGED)):
        raise InputError(
            f"{run.rounds_file}: ends with line {lines}, but {counted_words(rounds, 'round')} released; "
            "restore it from a backup"
        )


def _check_statement(path: Path, key: str, stated: Mapping[str, Any], proven: Proven) -> None:
    """N, as a number and as the sentence about the population begins with it, and the whole sentence."""
    clients = proven.content.plan.clients
    check(path, f"{key}.clients", stated["clients"], clients)
    check(path, f"{key}.text", stated["text"].split(" ")[0], f"{clients:,}")
    if not is_about_clients(stated, proven.settings):
        raise InputError(f"{path}: {key}.text: states {stated['text']!r}, as no run of {stated['kind']} clients does")


def check_cells(path: Path, key: str, stated: Sequence[Mapping[str, Any]], found: Sequence[Guarantee]) -> None:
    """Each of the four cells, by its name, once and in its order: who reads them by position shall read the same.

    Raises:
        InputError: One is missing, repeated or out of order, or states something else; names it, with both values.
    """
    names = [f"({cell['unit']}, {cell['observer']})" for cell in stated]
    check(path, f"{key}: the cells", names, [cell.name for cell in found])
    for cell, own in zip(stated, found, strict=True):
        due, where = json_of(own.as_json()), f"{key} {own.name}"
        check(path, where, cell, due)
