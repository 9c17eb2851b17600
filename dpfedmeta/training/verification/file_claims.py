"""Claims about privacy in the files beside a ledger, each compared with the facts that the ledger gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, complete, json_of
from dpfedmeta.core.files.run_directory import CONFIG, DIVERGED, PLAN, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.training.results.evaluation_store import measured_on
from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.verification.proven import Proven
from dpfedmeta.training.verification.unproven_words import check_words, check_written


def check_facts(path: Path, name: str, stated: Mapping[str, Any], proven: Proven) -> None:
    """Compare what plan.json, summary.json or the summary of a page states; what nobody proves has its form.

    Args:
        path: For errors.
        name: Of the file that has these entries.
        stated: What it states.
        proven: The ledger.

    Raises:
        InputError: An entry is another one, is missing, or is one too many; names it, with both values.
    """
    due = json_of(proven.facts(name))
    check(path, "", {key: stated[key] for key in due if key in stated}, due)
    check_words(path, name, {key: value for key, value in stated.items() if key not in due})


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
    stated = run.read_json(PLAN)
    with complete(path):
        check_facts(path, PLAN, stated, proven)
        check_written(path, stated)
    return ["plan.json agrees"]


def check_summary(snapshot: Snapshot, proven: Proven) -> list[str]:
    """summary.json states what the ledger adds up to, promised and spent, and the run that it is of.

    That of an earlier interruption states what the ledger added up to by then.

    Raises:
        InputError: It states something else; names it, with both values.
    """
    run, stated = snapshot.run, snapshot.summary
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
        check_facts(path, SUMMARY, stated, proven)
        accuracy = stated.get("accuracy") or {}
        for name, number in measured_on(proven.settings, accuracy.get("steps", 0)).items():
            if name in accuracy:
                check(path, f"accuracy.{name}", accuracy[name], number)
        _check_length(snapshot, stated, proven)
        check_written(path, stated)
    return ["summary.json agrees" if snapshot.ended else "summary.json, of an earlier interruption, agrees"]


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
