"""Findings of audits of the program with a run's settings, kept beside the run: never in its ledger or its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.errors import InputError
from dpfedmeta.run_directory import SUMMARY, RunDirectory

AUDIT, AUDIT_PLOT = "audit.json", "audit.png"
_NEEDED = ("unit", "observer", "promised", "audited", "confidence", "audit", "method", "runs", "canaries")


def keep_audit(run: RunDirectory, content: Mapping[str, Any]) -> None:
    """Write audit.json, and what it found into summary.json where the run has ended."""
    run.write_json(AUDIT, content)
    if (run.path / SUMMARY).exists():
        run.write_json(SUMMARY, {**run.read_json(SUMMARY), "audited": content["cells"]})


def audited_cells(folder: Path) -> dict[str, Any]:
    """Return the entry that a kept audit adds to a new summary.json: {} where there is none.

    A damaged one does not stand in the way of a summary: the report, which reads it next, says what is wrong with it.
    """
    try:
        content = kept_audit(folder)
    except InputError:
        return {}
    return {} if content is None else {"audited": content["cells"]}


def kept_audit(folder: Path) -> Mapping[str, Any] | None:
    """Read the findings of a run's audit; None: the run was not audited.

    Raises:
        InputError: The file is damaged.
    """
    if not (folder / AUDIT).exists():
        return None
    content = RunDirectory(folder).read_json(AUDIT)
    cells = content.get("cells")
    whole = isinstance(cells, list) and all(isinstance(c, dict) and {*_NEEDED} <= {*c} for c in cells)
    if not whole or not isinstance(content.get("size"), str):
        raise InputError(f"{folder / AUDIT}: not an audit, or of another version; audit the run again, or remove it")
    return content  # type: ignore[no-any-return]
