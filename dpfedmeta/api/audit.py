"""Lower bounds on epsilon from attacks on the program as it runs, kept beside a run where one was named."""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from rich.table import Table

from dpfedmeta.accounting.rounded import rounded_down, rounded_up
from dpfedmeta.api.run import Run
from dpfedmeta.auditing.audit_request import AuditRequest, fresh_seed
from dpfedmeta.auditing.findings import AuditName, Finding
from dpfedmeta.auditing.run_audit import findings, forecast
from dpfedmeta.config.load import to_yaml
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run
from dpfedmeta.core.files.run_directory import CONFIG, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.reporting.plots.evaluation_plots import audit_plot
from dpfedmeta.training.results.evaluation_store import keep_audit
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.state.resume import edited_since
from dpfedmeta.training.terminal.tables import as_text
from dpfedmeta.training.verification.file_claims import check_config
from dpfedmeta.training.verification.proven import Proven

Watch = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit:
    """Result of audits.

    Attributes:
        findings: A line for each cell and audit.
        size: What was audited, in one sentence.
        expected: Whether nothing was run, and `findings` are what a sound program would show.
        seed: What makes the same audit again.
    """

    findings: tuple[Finding, ...]
    size: str
    expected: bool = False
    seed: int | None = None

    @property
    def refuted(self) -> tuple[Finding, ...]:
        """Findings in which a second sample confirmed that the promise is broken: the program is wrong there."""
        return () if self.expected else tuple(each for each in self.findings if each.refutes)

    @property
    def not_confirmed(self) -> tuple[Finding, ...]:
        """Second samples, of four times the size, that do not confirm what a first one suggested."""
        return tuple(each for each in self.findings if each.second and not each.above)

    def as_json(self) -> dict[str, Any]:
        """Return the content that --json prints and audit.json holds."""
        cells = [each.as_json() for each in self.findings]
        return {"cells": cells, "size": self.size, "expected": self.expected, "seed": self.seed}

    def table(self) -> Table:
        """For people; why a cell is not in it, `unseen` says."""
        table = Table(title=self.size, title_justify="left", box=None, padding=(0, 1, 0, 0))
        seen = "expected" if self.expected else "audited"
        for name in ("cell", "audit", "promised", seen, "ratio", "at", "runs", "by"):
            right = name in ("promised", seen, "ratio", "at", "runs")
            table.add_column(name, justify="right" if right else "left", no_wrap=name != "by")
        for each in self.findings:
            if each.audited is not None:
                at = "estimate" if each.confidence is None else f"{100 * each.confidence:.8g}%"
                ratio = "-" if each.ratio is None else f"{each.ratio:.0%}"
                shown = rounded_up(each.promised), rounded_down(each.audited), ratio, at, f"{each.runs:,}"
                by = each.method.removeprefix("expected: ") + ("; second sample" if each.second else "")
                table.add_row(each.cell, each.audit, *shown, by)
        return table

    def unseen(self) -> list[str]:
        """Return a line for each cell that these audits cannot look at, with the reason."""
        return [f"{each.cell}: not audited: {each.method}" for each in self.findings if each.audited is None]

    def draw(self, path: Path) -> None:
        """A picture of it."""
        audit_plot(path, [each.as_json() for each in self.findings])

    def __repr__(self) -> str:
        return as_text(self.table(), *self.unseen())


def audit(
    what: Settings | Run | str | PathLike[str],
    values: Mapping[str, object] | None = None,
    *,
    audits: Sequence[AuditName] = ("distinguish", "many-runs"),
    runs: int = 1000,
    canaries: int = 1000,
    confidence: float = 0.95,
    units: Sequence[str] = ("client", "record"),
    observers: Sequence[str] = ("server", "public"),
    as_planned: bool = False,
    whole: bool = False,
    seed: int | None = None,
    expected: bool = False,
) -> Audit:
    """Attack the program with these settings, and bound its epsilon from below. Nothing is printed.

    The audited runs are the product's own, with canaries, in folders that are removed. What is found of a run is kept
    beside it (audit.json, its report), never in its ledger or its secrets.

    Args:
        what: Settings as Settings.preset(...) makes them, or a run, whose settings are audited.
        values: Settings that hold for the audit, by their dotted names: {"server.rounds": 20}.
        audits: distinguish, many-runs, one-run, one-shot.
        runs: Of the first two.
        canaries: Of the last two.
        confidence: Of lower bounds, each on its own.
        units: client, record.
        observers: server, public.
        as_planned: Keep the sizes of the settings; else few clients, all of them in every round of a small network.
        whole: Every run keeps its books, as a user's does; else its rounds are done without them.
        seed: Of worlds, coins, directions and noise; a new one without it. The result names it.
        expected: Run nothing: what a program that keeps its promise would show at this size.

    Raises:
        InputError: Nothing is promised, or something that was given does not fit.
    """
    given = {name: _text(value) for name, value in (values or {}).items()}
    request = AuditRequest(
        given=given, audits=tuple(audits), runs=runs, canaries=canaries, confidence=confidence, units=tuple(units),
        observers=tuple(observers), as_planned=as_planned, whole=whole, seed=fresh_seed() if seed is None else seed,
    )  # fmt: skip
    if not isinstance(what, Settings):
        path = what.path if isinstance(what, Run) else Path(fspath(what))
        return audit_of_run(request, path, expected=expected)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / CONFIG
        config.write_text(to_yaml(what), encoding="utf-8")
        return made(replace(request, config=config), expected=expected)


def audit_of_run(
    request: AuditRequest, path: Path, watch: Watch = lambda what, done: None, *, expected: bool = False
) -> Audit:
    """Audit the program with the settings of a run; kept beside the run, unless nothing was run.

    Raises:
        InputError: It is no run, or none that releases.
    """
    check_releases(path)
    snapshot = read_run(RunDirectory(path))
    # The audit takes its settings from the file, and shall not write numbers of other settings beside the run.
    check_config(snapshot.run, Proven.of(snapshot.run, snapshot.content))
    request = replace(request, config=path / CONFIG)
    if edited := edited_since(snapshot.run, request.settings()):
        warnings.warn(f"{path}: {edited}; the code of today is audited", stacklevel=2)
    found = made(request, watch, expected=expected)
    if not expected:
        run = RunDirectory(path)
        keep_audit(run, found.as_json())
        write_report(run)
    return found


def check_releases(path: Path) -> None:
    """Refuse a run whose rounds released nothing that could be looked at.

    Raises:
        InputError: It is no run, or every round of it was aborted.
    """
    check_is_run(path)
    rows = read_run(RunDirectory(path)).rows or ()
    if rows and all(row.get("aborted") for row in rows):
        raise InputError(
            f"{path}: none of its {counted_words(len(rows), 'round')} released anything (all were aborted), so there "
            "is nothing to audit; lower population.dropout, or leave server.abort_on_failure out"
        )


def made(request: AuditRequest, watch: Watch = lambda what, done: None, *, expected: bool = False) -> Audit:
    """The audit itself, or what it would show."""
    plan = request.plan()
    found = tuple(forecast(request) if expected else findings(request, watch))
    return Audit(findings=found, size=_size(request, plan), expected=expected, seed=request.seed)


def _size(request: AuditRequest, plan: Plan) -> str:
    privacy, settings = plan.privacy, plan.settings
    books = "whole runs with their books" if request.whole else "rounds of the loop, without books"
    return (
        f"{settings.algo} on {Path(settings.dataset).name}, with canaries: {privacy.clients:,} clients, cohorts of "
        f"{privacy.cohort:g}, {counted_words(privacy.rounds, 'round')}, model {settings.model.name}; {books}"
    )


def _text(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
