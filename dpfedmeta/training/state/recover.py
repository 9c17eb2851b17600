"""Reopening of a run directory, however its last process ended: where the run goes on, or why it cannot."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpfedmeta.accounting.ledger.ledger import Budget, LedgerContent, released_before
from dpfedmeta.accounting.ledger.ledger_register import Lineage, holds
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import cut_torn_line
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.random_sources import SecretSource
from dpfedmeta.learning.server_step import ServerState
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.rounds.cohort_log import reopen_participations
from dpfedmeta.privacy.rounds.round_journal import Journal, round_inputs
from dpfedmeta.training.state.checkpoint import Checkpoint, checkpoint_files, load_checkpoint


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """State from which a run goes on.

    Attributes:
        journal: Its charges so far.
        state: Before the next round.
        remarks: What was mended, and what is done again; a line each.
        head: Hash of the ledger's last line when the state was reached; empty before the first round.
    """

    journal: Journal
    state: ServerState
    remarks: tuple[str, ...]
    head: str = ""


def reopen(
    run: RunDirectory,
    plan: Plan,
    initial: ServerState,
    budget: Budget,
    source: SecretSource,
    environment: str | None,
    lineage: Lineage | None,
) -> Reopened:
    """Check and mend what a crash may leave, and find the latest state that all files agree on.

    Guarantee:
        A charge that is on disk stays. Only a last line that was never finished, hence never used, is left out of the
        ledger; it is written again before its round is.

    Raises:
        InputError: Lines that were charged or released are missing, or a file is damaged otherwise; says which.
    """
    opened = open_ledger(run, plan.privacy, source, environment, lineage)
    content, restorable = opened.content, opened.restorable
    rows, mended = _rows(run)
    participations, more = reopen_participations(run, plan.privacy, source, content.charges)
    chosen, skipped = _latest(
        run, content, initial, rows=len(rows) if opened.reproducible else None, restorable=restorable
    )
    state = chosen.state if chosen else initial
    _check_released(run, content, rows, chosen, restorable=restorable)
    journal = Journal(
        plan=plan.privacy,
        ledger=opened.ledger,
        participations=participations,
        budget=budget,
        source=source,
        environment=environment,
        released=released_before(run.ledger, content) | {r["round"]: r["release"] for r in rows if "release" in r},
        lineage=lineage,
    )
    return Reopened(
        journal=journal,
        state=state,
        remarks=(*opened.remarks, *mended, *more, *skipped, *_progress(journal, state)),
        head=chosen.head if chosen else "",
    )


def _rows(run: RunDirectory) -> tuple[list[dict[str, Any]], list[str]]:
    path = run.rounds_file
    if not path.exists():
        return [], []
    remarks = [f"{path}: a line that was cut off by a crash is dropped"] if cut_torn_line(path) else []
    rows, before = run.rounds(), -1
    for number, row in enumerate(rows, start=1):
        if type(row.get("round")) is not int or row["round"] <= before:
            raise InputError(f"{path}, line {number}: is not the next round; restore it from a backup")
        before = row["round"]
    return rows, remarks


def _latest(
    run: RunDirectory, content: LedgerContent, initial: ServerState, rows: int | None, *, restorable: bool
) -> tuple[Checkpoint | None, list[str]]:
    """The latest checkpoint that is whole, charged, and, where that can be made good, has all its rows."""
    remarks = []
    for _, path in checkpoint_files(run.path / "checkpoint"):
        try:
            found = load_checkpoint(path, initial)
        except InputError as error:
            remarks.append(f"{error}; an earlier checkpoint is used")
            continue
        if not holds(content, found.lines, found.head):
            if not restorable:
                raise InputError(f"{run.ledger}: lacks lines from before {path.name}; restore it from a backup")
            remarks.append(f"{path.name}: is later than the ledger; an earlier checkpoint is used")
        elif rows is not None and found.state.round > rows:
            remarks.append(f"{run.rounds_file}: lacks lines before {path.name}; they are made again")
        else:
            return found, remarks
    return None, remarks


def _check_released(
    run: RunDirectory,
    content: LedgerContent,
    rows: list[dict[str, Any]],
    chosen: Checkpoint | None,
    *,
    restorable: bool,
) -> None:
    """No release without a charge; one line may have been torn off where doing it again restores it."""
    charged = len({event.round for event in content.charges})
    released = max([row["round"] + 1 for row in rows] + [chosen.state.round if chosen else 0])
    if released > charged + (1 if restorable else 0):
        raise InputError(
            f"{run.ledger}: ends with round {charged - 1}, but round {released - 1} was released; lines after "
            f"{len(content.heads)} are lost; restore the ledger from a backup"
        )


def _progress(journal: Journal, state: ServerState) -> Iterable[str]:
    """Yield the first lines that a resumed run prints."""
    charged = len({event.round for event in journal.ledger.charges})
    if not charged:
        return
    rounds = journal.plan.rounds
    yield f"resuming at round {state.round} of {rounds}; {journal.ledger.rounds} charges are in the ledger"
    if charged > state.round:
        what = f"rounds {state.round} to {charged - 1}" if charged > state.round + 1 else f"round {state.round}"
        inputs = round_inputs(state.round, state.model, state.bound, journal.environment)
        same = journal.reproducible and journal.charged(state.round, journal.last_question(state.round, inputs))
        yield f"{what}, charged before the interruption, repeated: " + (
            "not charged again where the results are the same" if same else "as new releases, and charged again"
        )
