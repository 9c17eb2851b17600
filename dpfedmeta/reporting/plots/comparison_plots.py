"""The pictures of a comparison: one line for each setting, the mean over its seeds that got so far."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from dpfedmeta.reporting.compare.seed_groups import Group, Measured, pooled
from dpfedmeta.reporting.plots.run_plots import validation_points
from dpfedmeta.reporting.plots.style import (
    SMALL,
    WIDE,
    Look,
    entitle,
    finish,
    logarithmic,
    looks_of,
    mark,
    new_figure,
    save,
    show_zero,
)

# Per-round signal-to-noise jumps about; a mean over this share of the rounds shows where it goes.
_SMOOTH = 20
# Distance of neighbouring settings, in shares of the rounds.
_BESIDE = 0.003
# Marks along a line.
_MARKS = 12

Rows = Sequence[Mapping[str, Any]]


def _looks(groups: Sequence[Group]) -> list[Look]:
    """Return a look for each group, the same in all pictures of a comparison."""
    return looks_of([str(group.summaries[0]["algo"]) for group in groups])


def final_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Final accuracy on test classes, with 95% intervals; False where nothing was evaluated."""
    measured = [(group.label, group.accuracy(), look) for group, look in zip(groups, _looks(groups), strict=True)]
    found = [(label, accuracy, look) for label, accuracy, look in measured if accuracy is not None]
    if not found:
        return False
    figure, axis = new_figure(WIDE, 1.2 + 0.5 * len(found))
    for place, (_, accuracy, (colour, _)) in enumerate(found):
        _dot(axis, place, accuracy, colour)
    axis.set_yticks([])
    for place, (label, accuracy, _) in enumerate(found):
        # Above its dot: beside the axis a long name would leave no room for the axis.
        words = textwrap.shorten(f"{label} ({_seeds(accuracy.runs)})", 60, placeholder=" ...")
        axis.text(0.01, place - 0.32, words, transform=axis.get_yaxis_transform(), va="center", fontsize=SMALL)
    axis.set_ylim(len(found) - 0.5, -0.8)
    axis.margins(x=0.4)
    axis.set_xlabel("accuracy on held-out test classes, %")
    entitle(axis, "Final accuracy, with 95% intervals")
    axis.grid(alpha=0.25, axis="x")
    figure.tight_layout()
    save(figure, path)
    return True


def _dot(axis: Any, place: int, accuracy: Measured, colour: str) -> None:
    mean, spread = 100 * accuracy.mean, 100 * accuracy.ci95
    axis.errorbar(mean, place, xerr=spread, fmt="o", color=colour, capsize=3, markersize=5)
    axis.annotate(
        f"{mean:.1f}% ± {spread:.1f}",
        (mean + spread, place),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def validation_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Validation accuracy against the share of the plan's rounds, which may differ in number; False without any."""
    figure, axis = new_figure(WIDE, 3.4)
    drawn, seen = False, list[list[float]]()
    for index, (group, (colour, style)) in enumerate(zip(groups, _looks(groups), strict=True)):
        at: dict[float, list[Measured]] = {}
        for rows in group.rows:
            shares = [round((row["round"] + 1) / group.planned_rounds, 6) for row in rows]
            for share, value in validation_points(rows, shares):
                at.setdefault(share, []).append(Measured.of(value))
        means = {share: pooled(values) for share, values in sorted(at.items())}
        drawn = drawn or bool(means)
        mean = [100 * value.mean for value in means.values()]
        spread = [100 * value.ci95 for value in means.values()]
        # Side by side: intervals on top of each other cannot be told apart.
        places = [100 * (share + _BESIDE * (index - (len(groups) - 1) / 2)) for share in means]
        twins = seen.count(mean)
        seen.append(mean)
        axis.errorbar(
            places, mean, yerr=spread, label=group.label, color=colour, linestyle=_over(style, twins),
            marker=mark(index), markersize=4.5, linewidth=1.5, elinewidth=0.8,
        )  # fmt: skip
    axis.set_xlabel("share of the plan's rounds that are done, %")
    axis.set_ylabel("accuracy on validation classes, %")
    entitle(axis, "Validation accuracy along training; 0: untrained, where that was measured", 55)
    finish(figure, axis, path, below=True)
    return drawn


def bound_plot(path: Path, groups: Sequence[Group]) -> bool:
    """The clip bound by round; False where nothing is clipped."""
    figure, axis = new_figure(WIDE, 3.4)
    drawn = _curves(axis, groups, lambda rows: [row.get("clip") or math.nan for row in rows], in_logarithms=True)
    logarithmic(axis)
    axis.set_xlabel("rounds")
    axis.set_ylabel("clip bound, Euclidean norm")
    entitle(axis, "Clip bound by round")
    finish(figure, axis, path, below=True)
    return bool(drawn)


def signal_plot(path: Path, groups: Sequence[Group]) -> bool:
    """Signal-to-noise ratio of the released aggregates by round, zeros among them; False without noise."""
    figure, axis = new_figure(WIDE, 3.4)
    drawn = _curves(axis, groups, _smooth_signal, in_logarithms=False)
    show_zero(axis, drawn)
    axis.set_xlabel("rounds")
    axis.set_ylabel("signal / noise (0: no sign of a signal)")
    entitle(axis, f"Signal-to-noise ratio of the releases, mean over 1/{_SMOOTH} of the rounds", 55)
    finish(figure, axis, path, below=True)
    return bool(drawn)


def _smooth_signal(rows: Rows) -> list[float]:
    """The mean over rounds near by; those without a release (aborted) are left out."""
    values = np.array([row.get("signal_to_noise") for row in rows], dtype=float)
    width = max(1, len(values) // _SMOOTH)
    known = np.isfinite(values)

    def summed(each: Any) -> Any:
        padded = np.pad(each, (width // 2, width - 1 - width // 2), mode="edge")
        return np.convolve(padded, np.ones(width), mode="valid")

    total, count = summed(np.where(known, values, 0.0)), summed(known.astype(float))
    return [float(s / n) if n > 0 else math.nan for s, n in zip(total, count, strict=True)]


def _over(style: str, twins: int) -> str | tuple[int, tuple[int, int]]:
    """Line style of a line that lies upon so many others: dashes with gaps, through which they are seen."""
    return (0, (4, 4 * twins)) if twins else style


def _curves(
    axis: Any, groups: Sequence[Group], quantity: Callable[[Rows], list[float]], *, in_logarithms: bool
) -> list[float]:
    """Draw a line for each setting, in each round the mean over the seeds that got so far (of logarithms, if asked).

    Returns:
        The largest value over the seeds in each round; empty where nothing was drawn.
    """
    drawn, seen = list[float](), list[list[float]]()
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for index, (group, (colour, style)) in enumerate(zip(groups, _looks(groups), strict=True)):
        longest = max(len(rows) for rows in group.rows)
        values = np.full((len(group.rows), longest), np.nan)
        for line_of_seed, rows in zip(values, group.rows, strict=True):
            line_of_seed[: len(rows)] = quantity(rows) if rows else []
        if not np.isfinite(values).any():
            continue
        rounds, known = np.arange(1, longest + 1), np.ma.masked_invalid(values)
        middle = np.ma.exp(np.ma.log(known).mean(axis=0)) if in_logarithms else known.mean(axis=0)
        line = [float(value) for value in middle.filled(np.nan)]
        twins = sum(np.allclose(line, each, equal_nan=True) for each in seen if len(each) == len(line))
        seen.append(line)
        apart = max(1, longest // _MARKS)
        axis.plot(
            rounds, line, label=group.label, color=colour, linestyle=_over(style, twins), linewidth=1.6,
            marker=mark(index), markersize=5, markevery=(index % apart, apart),
        )  # fmt: skip
        low, high = (found.filled(np.nan) for found in (known.min(axis=0), known.max(axis=0)))
        if len(values) > 1:
            axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        drawn += [float(value) for value in high]
    return drawn
