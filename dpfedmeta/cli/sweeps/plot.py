"""Accuracy against the first number that is swept, one line for each setting of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes

from dpfedmeta.cli.sweeps.parameters import Value
from dpfedmeta.reporting.compare.seed_groups import Group, Measured, describe
from dpfedmeta.reporting.plots.comparison_plots import final_plot
from dpfedmeta.reporting.plots.style import Look, entitle, finish, looks, mark, new_figure

# Where it stands, the mean over its runs, and each of them.
Point = tuple[float, Measured, Sequence[float]]

# Beyond this ratio of largest to smallest, a linear axis would hide the small ones.
_WIDE = 20.0
# At most so many means are written beside their dots.
_MOST_WORDS = 10


def sweep_plot(path: Path, settings: Sequence[tuple[Mapping[str, Value], Group]]) -> None:
    """Accuracy on test classes with 95% intervals and every run; where no number is swept, one row for each setting."""
    axis_name = first_number([parameters for parameters, _ in settings])
    lines: dict[str, list[Point]] = {}
    for parameters, group in settings:
        accuracy = group.accuracy()
        if axis_name is not None and accuracy is not None:
            rest = {name: value for name, value in parameters.items() if name != axis_name}
            runs = [float(summary["accuracy"]["mean"]) for summary in group.summaries if summary["accuracy"]]
            lines.setdefault(describe(rest), []).append((float(parameters[axis_name]), accuracy, runs))
    if axis_name is None or not lines:
        final_plot(path, [group for _, group in settings])
        return
    # In a search no two share the rest: dots instead of lines.
    search = len(lines) > 1 and all(len(points) == 1 for points in lines.values())
    if search:
        lines = {"": [point for points in lines.values() for point in points]}
    looked = [(looks(1)[0][0], "none")] if search else looks(len(lines))
    figure, axis = new_figure(9.0 if any(lines) else 7.2, 4.0)
    for place, ((label, points), look) in enumerate(zip(lines.items(), looked, strict=True)):
        _line(axis, label, sorted(points, key=lambda point: point[0]), look, mark(place))
    _scale(axis, sorted({place for points in lines.values() for place, *_ in points}), few=not search)
    if not search and sum(map(len, lines.values())) <= _MOST_WORDS:
        _means(axis, [point for points in lines.values() for point in points])
    axis.set_xlabel(axis_name)
    axis.set_ylabel("accuracy on held-out test classes, %")
    seeds = max(accuracy.runs for points in lines.values() for _, accuracy, _ in points)
    means = f": mean of {seeds} seeds with its 95% interval, and each seed" if seeds > 1 else ", with 95% intervals"
    entitle(axis, f"Final accuracy by {axis_name}{means}")
    finish(figure, axis, path)


def _line(axis: Axes, label: str, points: Sequence[Point], look: Look, shape: str) -> None:
    colour, style = look
    places = [place for place, *_ in points]
    means, spreads = zip(*((100 * value.mean, 100 * value.ci95) for _, value, _ in points), strict=True)
    axis.errorbar(
        places, means, yerr=spreads, label=label or None, color=colour, linestyle=style, marker=shape, capsize=3
    )
    for place, _, runs in points:
        if len(runs) > 1:
            each = [100 * run for run in runs]
            axis.plot([place] * len(runs), each, "o", color=colour, markerfacecolor="white", markersize=4)


def _means(axis: Axes, points: Sequence[Point]) -> None:
    for place, value, _ in points:
        axis.annotate(
            f"{100 * value.mean:.1f}", (place, 100 * value.mean), (7, 5), textcoords="offset points", fontsize=8
        )


def _scale(axis: Axes, places: Sequence[float], *, few: bool) -> None:
    """Logarithmic where the values are wide apart or double each time; a mark at each where they are few."""
    if places[0] > 0 and (places[-1] / places[0] >= _WIDE or _geometric(places)):
        axis.set_xscale("log")
        axis.minorticks_off()
        axis.margins(x=0.08)
    if few and len(places) <= 8:
        axis.set_xticks(places, [f"{place:g}" for place in places])


def _geometric(places: Sequence[float]) -> bool:
    ratios = [later / before for before, later in pairwise(places)]
    same = all(math.isclose(ratio, ratios[0], rel_tol=0.01) for ratio in ratios)
    return same and len(ratios) > 1 and ratios[0] >= 1.5


def first_number(settings: Sequence[Mapping[str, Value]]) -> str | None:
    """The first parameter whose values are all numbers and not all the same."""
    for name in dict.fromkeys(name for parameters in settings for name in parameters):
        values = [parameters.get(name) for parameters in settings]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return name
    return None
