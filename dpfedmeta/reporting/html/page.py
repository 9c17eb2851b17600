"""report.html: self-contained, with its pictures inside; the PNGs lie beside it too."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, UndefinedError
from markupsafe import Markup

from dpfedmeta.accounting.relations.legend import RELATION_COLUMNS, relation_rows
from dpfedmeta.accounting.relations.relations import NOT_COVERED
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import DIVERGED, PLAN, REPORT, ROUNDS, SUMMARY, RunDirectory, write_text
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import dishonest_words
from dpfedmeta.reporting.compare.seed_groups import (
    Group,
    Measured,
    costliest_relation,
    differing_settings,
    in_brackets,
)
from dpfedmeta.reporting.html.evaluation_section import audits_section, evaluations_section
from dpfedmeta.reporting.html.privacy_statement import (
    chosen_words,
    claims,
    embedded,
    guarantee_rows,
    plan_words,
    server_words,
)
from dpfedmeta.reporting.html.rerun_command import command, settings_shown
from dpfedmeta.reporting.html.top_of_page import (
    best_words,
    clip_words,
    compared_words,
    observer_rows,
    promised_words,
    reached_words,
)
from dpfedmeta.reporting.plots import comparison_plots
from dpfedmeta.reporting.plots import run_plots as plots
from dpfedmeta.training.results.evaluation_store import ERRORS, row_label, size, size_and_count
from dpfedmeta.training.results.round_rows import TOO_LONG, too_long_words
from dpfedmeta.training.results.snapshot import Snapshot, stage_of
from dpfedmeta.training.results.summary import NOT_FINITE, summary_so_far
from dpfedmeta.training.state.how_to_resume import how_to_go_on, repeated
from dpfedmeta.training.state.private_timings import at_most
from dpfedmeta.training.terminal.progress_bar import clock
from dpfedmeta.training.terminal.tables import HOLDS, why_above
from dpfedmeta.training.verification.due_words import due_cautions
from dpfedmeta.training.verification.file_claims import Proven
from dpfedmeta.training.verification.verify import audit

# Rounds with a release that is too long, in a report.
_MOST_SHOWN = 5
# Seconds after which the page of a running run looks for a newer one.
REFRESH = 10
# The share of the time that a watch may compute, since the run needs the machine.
_SHARE = 0.2


def write_report(run: RunDirectory) -> Path:
    """Write report.html and its pictures into the run directory; of a run that goes on, what there is so far.

    Guarantee:
        Reads the ledger, rounds.jsonl and summary.json, which hold released quantities only. Every number about
        privacy is from the ledger. Where a file contradicts it there is no report: its pictures would be half true.

    Raises:
        InputError: A file is missing, damaged or incomplete, or contradicts the ledger.
        RefusedPlan: As `audit` says.
    """
    found = audit(run)
    proven, snapshot = found.proven, found.snapshot
    assert proven is not None
    assert snapshot is not None
    # Before its first round a run has none; afterwards they are missed.
    rows = run.rounds() if snapshot.rows is None and proven.rounds else snapshot.rows or []
    summary = snapshot.summary if snapshot.ended else None
    summary = summary_so_far(snapshot, proven) if summary is None else summary
    pictures = {name: run.path / f"{name}.png" for name in ("accuracy", "clip", "guarantees")}
    with _complete(run.path):
        plots.accuracy_plot(pictures["accuracy"], rows, summary)
        plots.clip_plot(pictures["clip"], rows)
        plots.guarantee_plot(pictures["guarantees"], [cell.as_json() for cell in proven.cells])
        shown = {name: _embedded(path) for name, path in pictures.items()}
        page = _render("run.html.j2", **_content(proven, snapshot, summary, rows), pictures=shown)
    if _ended_since(snapshot):
        return write_report(run)
    write_text(run.path / REPORT, page)
    if _ended_since(snapshot):
        # This page may have replaced that of its end.
        return write_report(run)
    return run.path / REPORT


def _content(
    proven: Proven, snapshot: Snapshot, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that the page shows but its pictures, by the names of its template."""
    run, measured = snapshot.run, summary["accuracy"] or summary.get("error") or {}
    again, left_open = repeated(run, command(proven.settings))
    return {
        "name": run.path.name,
        "summary": summary,
        "measured": size(measured),
        "size_and_count": size_and_count(measured),
        "errors": ERRORS,
        "promised": promised_words(proven),
        "reached": reached_words(summary, proven.content.plan.rounds),
        "observers": observer_rows(proven.cells, proven.content.plan.server_sees),
        "server": server_words(proven),
        "plan_words": plan_words(proven, summary["rounds"]),
        "refresh": refresh(snapshot),
        "ending": ending_words(snapshot, summary),
        "warning": warning(snapshot),
        "simulation": proven.simulation,
        "chosen": chosen_words(proven),
        "guarantees": guarantee_rows(proven),
        "unverified": proven.unverified,
        "dishonest": _sentence(dishonest_words(proven.content.plan)),
        "too_long": _too_long(rows),
        "whole_numbers": proven.content.plan.secure is not None,
        "claims": Markup(embedded(claims(proven))),
        "clip_words": clip_words(rows),
        "held": sum(row.get("clip_mode") == "holding" for row in rows),
        "rounds": len(rows),
        "cautions": _cautions(run, proven.settings),
        "evaluations": evaluations_section(run.path),
        "audits": audits_section(run.path),
        "holds": HOLDS,
        "why_above": why_above(proven.cells),
        "relations": relation_rows(proven.cells),
        "relation_columns": RELATION_COLUMNS,
        "not_covered": NOT_COVERED,
        "settings": settings_shown(proven.settings),
        "command": again,
        "open_words": left_open,
        "seed": proven.settings.run.seed,
    }


def _ended_since(snapshot: Snapshot) -> bool:
    return snapshot.stage == "running" and stage_of(snapshot.run) != "running"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _too_long(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the first rounds whose release is longer than honest clients give, and count the others."""
    found = [_sentence(too_long_words(row)) for row in rows if TOO_LONG in row]
    more = len(found) - _MOST_SHOWN
    return [*found[:_MOST_SHOWN], *([f"The same holds for {more} more rounds (see rounds.jsonl)"] if more > 0 else [])]


def _cautions(run: RunDirectory, settings: Settings) -> Sequence[str]:
    """Cautions that follow from the ledger's settings; where their task is not at hand, those that plan.json states."""
    due = due_cautions(settings)
    if due is not None:
        return due
    return list(run.read_json(PLAN).get("cautions", [])) if (run.path / PLAN).exists() else []


def write_comparison(groups: Sequence[Group], path: Path) -> Path:
    """Write a page that shows several settings side by side, with its pictures beside it.

    Raises:
        InputError: A file of a run is missing, damaged or incomplete, or there is nowhere to write.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it first")
    beside = {name: path.with_name(f"{path.stem}-{name}.png") for name in ("accuracy", "validation", "clip", "signal")}
    with _complete(*(run.path for group in groups for run in group.runs)):
        drawn = {
            "accuracy": comparison_plots.final_plot(beside["accuracy"], groups),
            "validation": comparison_plots.validation_plot(beside["validation"], groups),
            "clip": comparison_plots.bound_plot(beside["clip"], groups),
            "signal": comparison_plots.signal_plot(beside["signal"], groups),
        }
        pictures = {name: _embedded(beside[name]) for name, something in drawn.items() if something}
        bracketed = costliest_relation(groups)
        cells = dict.fromkeys(cell for group in groups for cell in group.epsilons)
        stated = {cell: {group.adjacencies.get(cell, "") for group in groups} for cell in cells}
        page = _render(
            "comparison.html.j2",
            beside=bracketed,
            brackets=bracketed and in_brackets(bracketed),
            adjacencies={
                cell: f", {next(iter(found))}" if cell[0] == "record" and len(found) == 1 and any(found) else ""
                for cell, found in stated.items()
            },
            groups=groups,
            compared=compared_words(groups),
            reached=best_words(groups),
            cells=list(cells),
            differing=differing_settings(groups),
            holds=HOLDS,
            pictures=pictures,
        )
    write_text(path, page)
    return path


@contextmanager
def _complete(*runs: Path) -> Iterator[None]:
    """Report an entry that a file of a run lacks as an error of that file, in one line."""
    try:
        yield
    except (*DAMAGED_JSON, UndefinedError) as error:
        where = ", ".join(str(path) for path in runs)
        raise InputError(f"{where}: {ROUNDS} or {SUMMARY} is incomplete or of another version ({error!r})") from error


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _render(template: str, **values: Any) -> str:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["epsilon"] = rounded_up
    environment.filters["delta"] = asked
    environment.filters["percent"] = _percent
    environment.filters["row_label"] = row_label
    style = Markup(_text("page.css"))
    return environment.from_string(_text(template)).render(style=style, **values)


def _text(name: str) -> str:
    return (resources.files("dpfedmeta.reporting.html") / name).read_text(encoding="utf-8")


def _percent(value: Any) -> str:
    if not value:
        return "not evaluated"
    if isinstance(value, Measured):
        value = value.as_json()
    return f"{100 * value['mean']:.1f}% ± {100 * value['ci95']:.1f}"


def ending_words(snapshot: Snapshot, summary: Mapping[str, Any]) -> str:
    """Return a sentence that says how the run ended and how long it took, or what its present state is."""
    if snapshot.words is not None:
        return f"{snapshot.words}."
    speed = f"{summary['clients_per_second']:.0f} clients/s"
    if summary.get("times"):
        took = f"{at_most(summary['seconds'])} of training (about {speed}; {summary['times']})"
    else:
        took = f"{clock(summary['seconds'])} of training ({speed})"
    return f"{summary['status']} after {took}."


def warning(snapshot: Snapshot) -> str | None:
    """Return the warning about all numbers of the page; None where the run completed, or its budget ended it."""
    planned = counted_words(snapshot.content.plan.rounds, "round")
    if snapshot.stage == "interrupted":
        done = len(snapshot.rows or ())
        # A round that was cut off is charged, and has no row.
        more = f" ({snapshot.rounds - done} more charged)" if snapshot.rounds > done else ""
        return (
            f"INTERRUPTED after {done} of {planned}{more}, to which all results refer; "
            f"go on with: {how_to_go_on(snapshot.run)}"
        )
    if snapshot.stage == DIVERGED:
        return f"DIVERGED after {snapshot.rounds} of {planned}; {NOT_FINITE}"
    if snapshot.words is None:
        return None
    return (
        f"{snapshot.words}. Accuracies and the epsilon spent are for these rounds; the epsilon promised is for all "
        "rounds."
    )


def refresh(snapshot: Snapshot) -> Markup:
    """Lets a browser read the page again while the run goes on; the page of its end has no such line."""
    if snapshot.stage != "running":
        return Markup()
    return Markup('<meta http-equiv="refresh" content="{}">').format(REFRESH)


def watch(runs: Sequence[RunDirectory], seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Write the pages of runs every so many seconds, or less often where writing takes long, until no run goes on.

    Raises:
        InputError: As `write_report` says.
    """
    left, written = list(runs), dict[RunDirectory, int]()
    while left:
        begun = time.perf_counter()
        # Asked before the page is written, so that the last page is that of the end.
        going_on = [run for run in left if stage_of(run) == "running"]
        for run in left:
            size = run.rounds_file.stat().st_size if run.rounds_file.exists() else -1
            if run not in going_on or written.get(run) != size:
                write_report(run)
                written[run] = size
        left = going_on
        if left:
            sleep(max(seconds, (time.perf_counter() - begun) / _SHARE))
