"""The pictures of a report, from rounds.jsonl and summary.json."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfedmeta.durable import replace_file

Rows = Sequence[Mapping[str, Any]]
_BLUE, _ORANGE, _GREY, _GREEN = "#1f5fa8", "#d9730d", "#8a8f98", "#2a8c4a"


def accuracy_plot(path: Path, rows: Rows, summary: Mapping[str, Any]) -> None:
    """Validation accuracy against rounds and against the spent (client, public) or (record, server) epsilon."""
    points = [row for row in rows if "validation_accuracy" in row]
    name = _epsilon_axis(rows)
    figure, axes = plt.subplots(1, 2 if name else 1, figsize=(10 if name else 5.4, 3.6), squeeze=False)
    _accuracy_line(axes[0, 0], [row["round"] + 1 for row in points], points, summary)
    axes[0, 0].set_xlabel("rounds")
    axes[0, 0].set_ylabel("accuracy")
    if name:
        epsilons = [row["epsilons"][name] for row in points]
        _accuracy_line(axes[0, 1], epsilons, points, summary)
        axes[0, 1].set_xlabel(f"epsilon spent, ({name.replace('_', ', ')})")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    save(figure, path)


def _epsilon_axis(rows: Rows) -> str | None:
    """The cell that grows with rounds and is finite, if any."""
    if rows and rows[-1]["epsilons"]["client_public"] is not None:
        return "client_public"
    return None


def _accuracy_line(axis: Axes, x: Sequence[float], rows: Rows, summary: Mapping[str, Any]) -> None:
    mean = [row["validation_accuracy"]["mean"] for row in rows]
    spread = [row["validation_accuracy"]["ci95"] for row in rows]
    axis.errorbar(x, mean, yerr=spread, color=_BLUE, marker="o", markersize=3, label="validation classes")
    references = (
        ("accuracy", "test classes, at the end", _GREEN, "-"),
        ("accuracy_untrained", "untrained, test classes", _ORANGE, "--"),
        ("accuracy_pixel_prototype", "pixel prototype, test classes", _GREY, ":"),
    )
    for key, label, colour, style in references:
        if summary.get(key):
            axis.axhline(summary[key]["mean"], color=colour, linestyle=style, linewidth=1.2, label=label)
    shown = [*mean, *(summary[key]["mean"] for key, *_ in references if summary.get(key))]
    axis.set_ylim(max(0.0, min(shown, default=0.0) - 0.05), 1.01)
    axis.grid(alpha=0.25)


def clip_plot(path: Path, rows: Rows) -> None:
    """Clip bound, norm of the released aggregate, and the norm its noise is expected to have."""
    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    rounds = [row["round"] + 1 for row in rows]
    lines = (
        ("clip", "clip bound", _GREEN),
        ("aggregate_norm", "norm of the released aggregate", _BLUE),
        ("noise_norm_expected", "expected norm of its noise", _ORANGE),
    )
    for key, label, colour in lines:
        # A round that was aborted has a bound and no aggregate.
        values = [row.get(key) or math.nan for row in rows]
        if not all(math.isnan(value) for value in values):
            axis.plot(rounds, values, label=label, color=colour, linewidth=1.3)
    axis.set_yscale("log")
    axis.set_xlabel("rounds")
    axis.grid(alpha=0.25)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    save(figure, path)


def curve_plot(path: Path, rounds: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    """Epsilon of each cell that holds something against the number of rounds."""
    figure, axis = plt.subplots(figsize=(7.2, 4.0))
    styles = zip((_BLUE, _ORANGE, _GREEN, _GREY), ("-", "--", "-.", ":"), strict=True)
    for (name, epsilons), (colour, style) in zip(curves.items(), styles, strict=False):
        if all(math.isfinite(epsilon) for epsilon in epsilons):
            axis.plot(rounds, epsilons, label=name, color=colour, linestyle=style, linewidth=1.6)
            axis.annotate(
                f"{epsilons[-1]:.3g}",
                (rounds[-1], epsilons[-1]),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=colour,
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rounds")
    axis.set_ylabel("epsilon (smaller is stronger)")
    axis.grid(alpha=0.25, which="both")
    axis.set_xlim(right=max(2, rounds[-1]) ** 1.08)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8, ncol=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    save(figure, path)


def guarantee_plot(path: Path, guarantees: Sequence[Mapping[str, Any]]) -> None:
    """Who is promised what: epsilon of the four cells on a logarithmic scale."""
    figure, axis = plt.subplots(figsize=(7.2, 2.6))
    names = [f"{cell['unit']} towards {cell['observer']}" for cell in guarantees]
    values = [cell["epsilon"] for cell in guarantees]
    known = [value for value in values if value]
    least = min([0.1, *(value / 3 for value in known)])
    limit = 10 * max([10.0, *known])
    for place, value in enumerate(values):
        held = value is not None
        axis.barh(place, max(value, least) if held else limit, left=0, color=_BLUE if held else "#e4e6ea")
        text = f"{value:.3g}" if held else "infinite: nothing is promised"
        axis.text(max(value, least) * 1.15 if held else least * 1.2, place, text, va="center", fontsize=9)
    axis.set_xscale("log")
    axis.set_xlim(least, limit)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("epsilon (smaller is stronger)")
    figure.tight_layout()
    save(figure, path)


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """One set of axes; sizes in inches."""
    figure, axis = plt.subplots(figsize=(width, height))
    return figure, axis


def save(figure: Any, path: Path) -> None:
    """Write and close."""
    drawn = io.BytesIO()
    # No time stamp in the file: the same run gives the same bytes.
    figure.savefig(drawn, format=path.suffix[1:] or "png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    # A run that ends and somebody who watches it may draw the same picture.
    replace_file(path, drawn.getvalue())
