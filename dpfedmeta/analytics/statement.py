"""What an analysis released, to whom it promises what, and who sees what else: one page of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpfedmeta.tracking.terminal import HOLDS, number

STATEMENT = "statement.txt"


def statement(summary: Mapping[str, Any], words: Sequence[str]) -> str:
    """From summary.json and the words of the analysis."""
    lines = [
        f"{summary['analysis']}: {summary['clients']:,} clients, {_asked(summary)} asked once",
        "",
        *words,
        "",
        "spent, from the ledger alone:",
        *(f"  {cell_words(cell)}" for cell in summary["guarantees"]),
        f"the server sees besides: {summary['server_sees']}",
        HOLDS,
        "a client that says something here and in training is charged for both: name this folder in "
        "privacy.spent_before",
    ]
    if summary["simulation"]:
        lines.append(summary["simulation"])
    return "\n".join(lines) + "\n"


def cell_words(cell: Mapping[str, Any]) -> str:
    """One guarantee in a line."""
    epsilon = math.inf if cell["epsilon"] is None else cell["epsilon"]
    return (
        f"({cell['unit']}, {cell['observer']}): epsilon = {number(epsilon)} at delta = {cell['delta']:g}, "
        f"{cell['adjacency']}"
    )


def _asked(summary: Mapping[str, Any]) -> str:
    if summary["cohort"] == summary["clients"]:
        return "all"
    if summary.get("sampler") == "fixed":
        return f"{summary['cohort']:g} of them"
    return f"each with probability {float(summary['cohort']) / float(summary['clients']):.4g}"
