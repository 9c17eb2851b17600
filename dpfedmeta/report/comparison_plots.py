"""The pictures of a comparison: one line for each setting, the mean over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.report.groups import Group
from dpfedmeta.report.plots import new_figure, save
from dpfedmeta.report.pooling import Measured, pooled

_COLOURS = ("#1f5fa8", "#d9730d", "#2a8c4a", "#b03a5b", "#6b4fa0", "#8a6d1f", "#1c8a95", "#5b6270")
_STYLES = ("-", "--", "-.", ":")
# Per-round signal-to-noise jumps about; a mean over this share of the rounds shows where it goes.
_SMOOTH = 20
# Distance of neighbouring settings, in shares of the rounds.
_BESIDE = 0.003

Rows = Sequence[Mapping[str, Any]]
Look = tuple[str, str]


def looks(count: int) -> list[Look]:
    """(colour, line style) of each line, all different up to 32."""
    colours = cycle(_COLOURS)
    return [(next(colours), _STYLES[index // len(_COLOURS) % len(_STYLES)]) for index in range(count)]


def final_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Final accuracy on test classes, with 95% intervals; False where nothing was evaluated."""
    measured = [(group.label, group.accuracy()) for group in groups]
    found = [(label, accuracy) for label, accuracy in measured if accuracy is not None]
    if not found:
        return False
    figure, axis = new_figure(9.0, 0.9 + 0.36 * len(found))
    for place, ((_, accuracy), (colour, _)) in enumerate(zip(found, looks(len(found)), strict=True)):
        _dot(axis, place, accuracy, colour)
    axis.set_yticks(range(len(found)), [f"{label} ({_seeds(accuracy.runs)})" for label, accuracy in found])
    axis.set_ylim(len(found) - 0.4, -0.6)
    axis.margins(x=0.16)
    axis.set_xlabel("accuracy on held-out test classes, %")
    axis.grid(alpha=0.25, axis="x")
    figure.tight_layout()
    save(figure, path)
    return True


def _dot(axis: Any, place: int, accuracy: Measured, colour: str) -> None:
    mean, spread = 100 * accuracy.mean, 100 * accuracy.ci95
    axis.errorbar(mean, place, xerr=spread, fmt="o", color=colour, capsize=3, markersize=5)
    axis.annotate(
        f"{mean:.1f} ± {spread:.1f}",
        (mean + spread, place),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def validation_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Validation accuracy against the share of a run's rounds, which may differ in number; False without any."""
    figure, axis = new_figure(9.0, 4.0)
    for index, (group, (colour, style)) in enumerate(zip(groups, looks(len(groups)), strict=True)):
        at: dict[float, list[Measured]] = {}
        for rows in group.rows:
            for row in rows:
                if "validation_accuracy" in row:
                    share = round((row["round"] + 1) / len(rows), 6)
                    at.setdefault(share, []).append(Measured.of(row["validation_accuracy"]))
        means = {share: pooled(values) for share, values in sorted(at.items())}
        mean = [100 * value.mean for value in means.values()]
        spread = [100 * value.ci95 for value in means.values()]
        # Side by side: intervals on top of each other cannot be told apart.
        places = [share + _BESIDE * (index - (len(groups) - 1) / 2) for share in means]
        axis.errorbar(
            places, mean, yerr=spread, label=group.label, color=colour, linestyle=style, marker="o", markersize=3,
            linewidth=1.5, elinewidth=0.8,
        )  # fmt: skip
    axis.set_xlabel("share of the run's rounds")
    axis.set_ylabel("validation accuracy, %")
    finish(figure, axis, path)
    return any("validation_accuracy" in row for group in groups for rows in group.rows for row in rows)


def bound_plot(path: Path, groups: Sequence[Group]) -> bool:
    """The clip bound by round; False where nothing is clipped."""
    return _curves(path, groups, lambda rows: [row.get("clip") or math.nan for row in rows], "clip bound")


def signal_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Signal-to-noise ratio of the released aggregates by round; False without noise."""
    return _curves(path, groups, _smooth_signal, f"signal-to-noise (mean over 1/{_SMOOTH} of the rounds)")


def _smooth_signal(rows: Rows) -> list[float]:
    values = np.array(
        [row.get("signal_to_noise") if row.get("signal_to_noise") is not None else math.nan for row in rows]
    )
    width = max(1, len(values) // _SMOOTH)
    kernel = np.ones(width) / width
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return [float(value) for value in np.convolve(padded, kernel, mode="valid")]


def _curves(path: Path, groups: Sequence[Group], quantity: Callable[[Rows], list[float]], name: str) -> bool:
    figure, axis = new_figure(9.0, 4.0)
    drawn = False
    for group, (colour, style) in zip(groups, looks(len(groups)), strict=True):
        shortest = min(len(rows) for rows in group.rows)
        values = np.array([quantity(rows[:shortest]) for rows in group.rows if shortest], dtype=float)
        # Zero has no place on a logarithmic axis: the release held no sign of a signal.
        values = np.where(values > 0, values, np.nan)
        if not np.isfinite(values).any():
            continue
        drawn = True
        rounds = np.arange(1, shortest + 1)
        middle = np.ma.masked_invalid(np.log(values)).mean(axis=0).filled(np.nan)
        axis.plot(rounds, np.exp(middle), label=group.label, color=colour, linestyle=style, linewidth=1.6)
        if len(values) > 1:
            low, high = (np.ma.masked_invalid(f(values)).filled(np.nan) for f in (_lowest, _highest))
            axis.fill_between(rounds, low, high, color=colour, alpha=0.10, linewidth=0)
    axis.set_yscale("log")
    axis.set_xlabel("rounds")
    axis.set_ylabel(name)
    finish(figure, axis, path)
    return drawn


def _lowest(values: Any) -> Any:
    return np.ma.masked_invalid(values).min(axis=0)


def _highest(values: Any) -> Any:
    return np.ma.masked_invalid(values).max(axis=0)


def finish(figure: Any, axis: Any, path: Path) -> None:
    """Grid, a legend beside the picture, and to disk."""
    axis.grid(alpha=0.25)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path)
