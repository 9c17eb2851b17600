"""Accuracy against the first number that is swept, one line for each setting of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpfedmeta.report.comparison_plots import final_plot, finish, looks
from dpfedmeta.report.groups import Group, describe
from dpfedmeta.report.plots import new_figure
from dpfedmeta.report.pooling import Measured
from dpfedmeta.sweeps.parameters import Value

Point = tuple[float, Measured]

# Beyond this ratio of largest to smallest, a linear axis would hide the small ones.
_WIDE = 20.0


def sweep_plot(path: Path, settings: Sequence[tuple[Mapping[str, Value], Group]]) -> None:
    """Accuracy on test classes with 95% intervals; where no number is swept, one row for each setting."""
    axis_name = first_number([parameters for parameters, _ in settings])
    lines: dict[str, list[Point]] = {}
    for parameters, group in settings:
        accuracy = group.accuracy()
        if axis_name is not None and accuracy is not None:
            rest = {name: value for name, value in parameters.items() if name != axis_name}
            lines.setdefault(describe(rest), []).append((float(parameters[axis_name]), accuracy))
    if axis_name is None or not lines:
        final_plot(path, [group for _, group in settings])
        return
    # In a search no two share the rest: dots instead of lines.
    search = len(lines) > 1 and all(len(points) == 1 for points in lines.values())
    if search:
        lines = {"": [point for points in lines.values() for point in points]}
    looked = [(looks(1)[0][0], "none")] if search else looks(len(lines))
    figure, axis = new_figure(9.0 if any(lines) else 7.2, 4.0)
    for (label, points), (colour, style) in zip(lines.items(), looked, strict=True):
        points.sort(key=lambda point: point[0])
        means, spreads = zip(*((100 * value.mean, 100 * value.ci95) for _, value in points), strict=True)
        places = [place for place, _ in points]
        axis.errorbar(
            places, means, yerr=spreads, label=label or None, color=colour, linestyle=style, marker="o", capsize=3
        )
    places = sorted({place for points in lines.values() for place, _ in points})
    if places[0] > 0 and places[-1] / places[0] >= _WIDE:
        axis.set_xscale("log")
    elif len(places) <= 8 and not search:
        axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.set_xlabel(axis_name)
    axis.set_ylabel("accuracy on held-out test classes, %")
    finish(figure, axis, path)


def first_number(settings: Sequence[Mapping[str, Value]]) -> str | None:
    """The first parameter whose values are all numbers and not all the same."""
    for name in dict.fromkeys(name for parameters in settings for name in parameters):
        values = [parameters.get(name) for parameters in settings]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return name
    return None
