"""The picture of what each noise costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.noise_decomposition import Decomposition
from dpfedmeta.reporting.plots.style import BLUE, GREEN, GREY, ORANGE, entitle, save

_MARKS = (
    ("without", "no noise: sampling of the cohort alone", GREY, "o"),
    ("support_only", "support noise only", GREEN, "s"),
    ("query_only", "query noise only", ORANGE, "D"),
)


def decomposition_plot(path: Path, found: Mapping[str, Decomposition]) -> None:
    """A bar for each variant as released, with marks where one noise or both are left out."""
    places = list(range(len(found)))[::-1]
    figure, axis = plt.subplots(figsize=(8.2, 0.34 * len(found) + 1.6))
    axis.barh(places, [row.both for row in found.values()], height=0.62, color=BLUE, label="both, as released")
    for key, label, colour, marker in _MARKS:
        values = [getattr(row, key) for row in found.values()]
        axis.plot(values, places, marker, color=colour, markersize=5, label=label, linestyle="none")
    axis.set_yticks(places, list(found), fontsize=8)
    axis.set_xlim(0.0, 1.02)
    axis.set_xlabel("cosine of a round's aggregate with its direction without noise\n(simulated clients; not private)")
    axis.spines[["top", "right"]].set_visible(False)
    entitle(axis, "What each noise leaves of a round's direction (1: all of it)")
    figure.legend(loc="lower center", ncol=2, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.16 if len(found) < 8 else 0.07, 1, 1))
    save(figure, path)
