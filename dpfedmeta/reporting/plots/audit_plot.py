"""The picture of an audit: what is promised, and what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedmeta.reporting.plots.style import BLUE, GREY, ORANGE, entitle, finish, new_figure

_LEAST = 1e-2


def audit_plot(path: Path, cells: Sequence[Mapping[str, Any]]) -> None:
    """A line for each cell and audit: a bar for the promise, a mark for what was audited.

    Args:
        path: A .png file.
        cells: As in audit.json.
    """
    rows = [row for row in cells if row["promised"] is not None and row["audited"] is not None]
    figure, axis = new_figure(8.2, 0.36 * max(len(rows), 2) + 1.4)
    places = list(range(len(rows)))[::-1]
    axis.barh(places, [row["promised"] for row in rows], height=0.6, color=GREY, alpha=0.45, label="promised")
    for bound, colour, marker, label in (
        (True, BLUE, "o", "audited: lower bound"),
        (False, ORANGE, "D", "audited: estimate"),
    ):
        found = [
            (row, place) for row, place in zip(rows, places, strict=True) if (row["confidence"] is not None) == bound
        ]
        if found:
            values = [max(row["audited"], _LEAST) for row, _ in found]
            axis.plot(values, [place for _, place in found], marker, color=colour, linestyle="none", label=label)
    names = [f"({row['unit']}, {row['observer']}) {row['audit']}, {_made(row)}" for row in rows]
    axis.set_yticks(places, names, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlabel("epsilon")
    entitle(axis, "Epsilon promised, and lower bounds from audits")
    finish(figure, axis, path)


def _made(row: Mapping[str, Any]) -> str:
    return f"{row['runs']:,} runs" if row["runs"] > 1 else f"{row['canaries']:,} canaries"
