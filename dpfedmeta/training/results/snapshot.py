"""Snapshot of a run directory at one moment, also while another process writes it.

A round writes its charge first, then its release, then its row; the summary comes last. So whatever is read in the
opposite order fits together: the page, the summary, the rows, and the ledger, which has a charge for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpfedmeta.accounting.ledger.ledger import LedgerContent, read_content
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import whole_lines
from dpfedmeta.core.files.lock import being_written, goes_on
from dpfedmeta.core.files.run_directory import OVER, REPORT, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.training.state.how_to_resume import how_to_go_on

# running: another process writes it now; stopped: nobody does, and nothing says how it ended.
Stage = Literal["running", "stopped", "completed", "budget", "interrupted", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The files of a run as they were read; every row, summary and page has its charges in `content`.

    Attributes:
        run: Where they are.
        stage: Whether the run goes on, or how it ended.
        page: report.html; None: there is none.
        summary: summary.json; None: there is none. While a run is running or stopped, that of an earlier interruption.
        rows: The lines of rounds.jsonl; None: there is none.
        content: The ledger.
        torn: Names of files whose last line was not finished, and is left out; such a line was never used.
        written: Whether a process held the run when this was read; one that has ended may still write its last page.
    """

    run: RunDirectory
    stage: Stage
    page: str | None
    summary: Mapping[str, Any] | None
    rows: Sequence[Mapping[str, Any]] | None
    content: LedgerContent
    torn: tuple[str, ...] = ()
    written: bool = False

    @property
    def ended(self) -> bool:
        """True if the summary is that of the run's end, or of the interruption at which it stands."""
        return self.stage not in ("running", "stopped")

    @property
    def over(self) -> bool:
        """True if no round is left to do: the run is completed, its budget is spent, or its training diverged."""
        return self.stage in OVER

    @property
    def rounds(self) -> int:
        """Rounds that were charged, each once however often it was done again."""
        return sum(not charge.attempt for charge in self.content.charges)

    @property
    def words(self) -> str | None:
        """State of a running or stopped run, and what to do about it; None: it has ended or was interrupted."""
        return state_words(self.stage, self.rounds, self.content.plan.rounds, how_to_go_on(self.run))


def state_words(stage: str, rounds: int, planned: int, go_on: str) -> str | None:
    """State of a running or stopped run after so many charged rounds; None: it has ended or was interrupted."""
    so_far = f"{rounds} of {counted_words(planned, 'round')}"
    if stage == "running":
        return f"running: {so_far} so far"
    if stage == "stopped":
        return f"stopped after {so_far} and does not say how (killed, or a crash?); go on with: {go_on}"
    return None


def stage_of(run: RunDirectory) -> Stage:
    """Return whether a run is being written, or how it ended according to its summary; the ledger is not read."""
    # Asked first: a run that ends meanwhile has its summary by the time that this is looked for.
    written = goes_on(run.path)
    return _stage(run, written, run.read_json(SUMMARY) if (run.path / SUMMARY).exists() else None)


def _stage(run: RunDirectory, written: bool, summary: Mapping[str, Any] | None) -> Stage:
    status = summary.get("status") if summary is not None else None
    if summary is not None and status not in ("interrupted", *OVER):
        raise InputError(f"{run.path / SUMMARY}: incomplete or of another version: its status is {status!r}")
    if written and status not in OVER:
        return "running"
    stage: Stage = status or "stopped"
    return stage


def may_be_torn(stage: Stage) -> bool:
    """Tell whether a last line that is not whole is no damage: the run goes on, or a crash may have cut it."""
    return stage not in OVER


def read_run(run: RunDirectory) -> Snapshot:
    """Read what is needed to judge a run.

    While it goes on, or after a crash, a last line that was not finished is left out; after its end that is damage.

    Raises:
        InputError: A file is missing or damaged; says which, and where.
    """
    written, alive = being_written(run.path), goes_on(run.path)
    page = _page(run)
    summary = run.read_json(SUMMARY) if (run.path / SUMMARY).exists() else None
    stage = _stage(run, alive, summary)
    open_end = may_be_torn(stage)
    torn = [path.name for path in (run.rounds_file, run.ledger) if open_end and whole_lines(path)[1]]
    rows = run.rounds(torn=open_end) if run.rounds_file.exists() else None
    content = read_content(run.ledger, torn=open_end)
    if stage == "interrupted" and summary and _went_on(summary, content):
        stage = "stopped"
    if stage == "interrupted" and torn:
        # It ended cleanly, so a line that is not whole was damaged later: say which.
        rows, content = run.rounds(), read_content(run.ledger)
    return Snapshot(
        run=run, stage=stage, page=page, summary=summary, rows=rows, content=content,
        torn=() if stage == "running" else tuple(torn), written=written,
    )  # fmt: skip


def _page(run: RunDirectory) -> str | None:
    path = run.path / REPORT
    try:
        return path.read_bytes().decode() if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _went_on(summary: Mapping[str, Any], content: LedgerContent) -> bool:
    """Return whether the ledger has lines after the one that the summary ends with."""
    stated = summary.get("ledger")
    head = stated.get("head") if isinstance(stated, Mapping) else None
    return head in content.heads[:-1]
