"""report.html: self-contained, with its pictures inside; the PNGs lie beside it too."""

from __future__ import annotations

import base64
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
from jinja2 import UndefinedError

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.comparison import complete
from dpfedmeta.core.files.run_directory import REPORT, ROUNDS, SUMMARY, RunDirectory, shown_name, write_text
from dpfedmeta.core.version import __version__
from dpfedmeta.reporting.compare.seed_groups import Group, costliest_relation, differing_settings, in_brackets
from dpfedmeta.reporting.html.evaluation_section import evaluations_shown
from dpfedmeta.reporting.html.run_page import PICTURES, Shown, digest_of, of_rows, render, rendered, shown_in
from dpfedmeta.reporting.html.top_of_page import best_words, compared_words
from dpfedmeta.reporting.plots import comparison_plots
from dpfedmeta.reporting.plots import run_plots as plots
from dpfedmeta.reporting.plots.evaluation_plots import audit_plot
from dpfedmeta.training.results.evaluation_store import AUDIT_PLOT, kept_audit
from dpfedmeta.training.results.snapshot import Snapshot, stage_of
from dpfedmeta.training.results.summary import summary_so_far
from dpfedmeta.training.state.how_to_resume import how_to_go_on
from dpfedmeta.training.terminal.tables import HOLDS
from dpfedmeta.training.verification.proven import Proven
from dpfedmeta.training.verification.verify import audit

DRAWN_BY = f"matplotlib {matplotlib.__version__} on {platform.system()} {platform.machine()}"
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
    # Before its first round a run has none; afterwards they are missed.
    rows = run.rounds() if snapshot.rows is None and proven.rounds else snapshot.rows or []
    summary = snapshot.summary if snapshot.ended else None
    summary = summary_so_far(snapshot, proven) if summary is None else summary
    with _complete(run.path):
        audits = kept_audit(run.path)
        pictures = {name: as_address(path) for name, path in draw(run.path, proven, summary, rows, audits).items()}
        shown = Shown(
            version=__version__,
            head=proven.content.heads[-1],
            name=shown_name(run.path),
            stage=snapshot.stage,
            go_on=how_to_go_on(run) if snapshot.stage in ("stopped", "interrupted") else "",
            summary=summary,
            evaluations=evaluations_shown(run.path),
            audits=None if audits is None else {name: audits[name] for name in ("cells", "size")},
            pictures={name: digest_of(picture) for name, picture in pictures.items()},
            drawn_by=DRAWN_BY,
            **of_rows(rows),
        )
        page = rendered(proven, shown, pictures)
    if _ended_since(snapshot):
        return write_report(run)
    write_text(run.path / REPORT, page)
    if _ended_since(snapshot):
        # This page may have replaced that of its end.
        return write_report(run)
    return run.path / REPORT


def draw(
    folder: Path,
    proven: Proven,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    audits: Mapping[str, Any] | None,
) -> dict[str, Path]:
    """Draw the pictures of a page into a folder; their paths by their names."""
    pictures = {name: folder / f"{name}.png" for name in PICTURES}
    plots.accuracy_plot(pictures["accuracy"], rows, summary)
    plots.clip_plot(pictures["clip"], rows)
    plots.guarantee_plot(pictures["guarantees"], [cell.as_json() for cell in proven.cells])
    if audits is not None:
        pictures["audit"] = folder / AUDIT_PLOT
        audit_plot(pictures["audit"], audits["cells"])
    return pictures


def check_pictures(snapshot: Snapshot, proven: Proven) -> str:
    """Draw the pictures of report.html and those beside it again, and compare; others' libraries draw others.

    Returns:
        What was found, in a line.

    Raises:
        InputError: One is another picture; names it.
    """
    assert snapshot.page is not None
    shown = shown_in(snapshot.page)
    if shown.drawn_by != DRAWN_BY:
        return f"the pictures were drawn by {shown.drawn_by}, not by {DRAWN_BY}, so they were not compared"
    if snapshot.rows is None:
        return "the pictures were not compared, for rounds.jsonl is not there"
    path = snapshot.run.path / REPORT
    with TemporaryDirectory() as folder, complete(path):
        paths = draw(Path(folder), proven.as_of(shown.head), shown.summary, snapshot.rows[: shown.rounds], shown.audits)
        for name, drawn in paths.items():
            beside = path.with_name(drawn.name)
            for place, same in (
                (f"{path}: the picture {name}", digest_of(as_address(drawn)) == shown.pictures[name]),
                # A run that goes on may have drawn it since.
                (str(beside), snapshot.written or not beside.exists() or beside.read_bytes() == drawn.read_bytes()),
            ):
                if not same:
                    raise InputError(
                        f"{place} is not what the run's numbers give; if nobody edited it, write it again: dpfedmeta "
                        f"report {snapshot.run.path}"
                    )
    return "the pictures in report.html and beside it are those that the run's numbers give"


def _ended_since(snapshot: Snapshot) -> bool:
    return snapshot.stage == "running" and stage_of(snapshot.run) != "running"


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
        pictures = {name: as_address(beside[name]) for name, something in drawn.items() if something}
        bracketed = costliest_relation(groups)
        cells = dict.fromkeys(cell for group in groups for cell in group.epsilons)
        stated = {cell: {group.adjacencies.get(cell, "") for group in groups} for cell in cells}
        page = render(
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


def as_address(path: Path) -> str:
    """A picture as a data: address."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


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
