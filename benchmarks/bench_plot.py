"""The benchmark as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dpfedmeta.reporting.plots.style import BLUE

_OURS, _OTHERS = BLUE, "#b0b0b0"


def save_bench_plot(path: Path, rows: Sequence[Mapping[str, Any]], setting: str) -> None:
    """Clients per second of one setting, a panel for each algorithm, the fastest on top.

    Args:
        path: Of the PNG.
        rows: As in scripts/bench.py's JSON.
        setting: Which rows.
    """
    own = [row for row in rows if row["setting"] == setting]
    algorithms = list(dict.fromkeys(row["algorithm"] for row in own))
    figure = Figure(figsize=(9.0, 1.2 + 1.6 * len(algorithms)), layout="constrained")
    for index, algorithm in enumerate(algorithms):
        panel = figure.add_subplot(len(algorithms), 1, index + 1)
        shown = sorted((row for row in own if row["algorithm"] == algorithm), key=lambda row: row["clients_per_second"])
        rates = [row["clients_per_second"] for row in shown]
        colours = [_OURS if row["engine"].startswith("dpfedmeta") else _OTHERS for row in shown]
        bars = panel.barh([row["engine"] for row in shown], rates, color=colours)
        panel.bar_label(bars, [f"{rate:.1f}" for rate in rates], padding=3)
        panel.set_xlim(0.0, 1.15 * max(rates))
        panel.set_title(algorithm, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle("How fast each engine computes clients (longer is faster)", fontsize=11)
    figure.supxlabel(f"clients per second, setting {setting!r}, median of interleaved repetitions")
    figure.savefig(path, dpi=120)
