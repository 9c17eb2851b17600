"""Accuracy against the epsilon that it cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.reporting.compare.seed_groups import Cell, Group, Measured
from dpfedmeta.reporting.plots.style import GREY, SMALL, entitle, looks_of, mark, save
from dpfedmeta.training.results.evaluation_store import row_label, size_and_count

_CLIENT_PUBLIC, _RECORD_SERVER = ("client", "public"), ("record", "server")
_WORDS = {
    _CLIENT_PUBLIC: ("A whole client, towards the public", "epsilon of (client, public)"),
    _RECORD_SERVER: ("One record, towards the server", "epsilon of (record, server)"),
}
# The width of a number under an axis, as a share of the axis.
_ROOM = 0.07


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Curve of one algorithm.

    Attributes:
        algo: Its name.
        cell: The guarantee that it is for; None: it has none.
        points: (epsilon, accuracy), in order of epsilon, which is 0 where there is no guarantee.
        untrained: Accuracy before training, where it was measured.
        before: What had it.
        relation: What neighbours differ in, where the cell is a record's.
    """

    algo: str
    cell: Cell | None
    points: tuple[tuple[float, Measured], ...]
    untrained: Measured | None = None
    before: str = "untrained"
    relation: str = "zero-out"


def epsilon_plot(path: Path, groups: Sequence[Group]) -> None:
    """Draw a panel for each guarantee with a curve for each algorithm.

    An algorithm without privacy is a horizontal line in every panel. The cell is (record, server) where that is finite,
    else (client, public). Intervals are those of `pooled`.

    Raises:
        InputError: The runs are of several data sets, ways or shots, or none was evaluated.
    """
    found = [group for group in groups if group.accuracy() is not None]
    names = sorted({_benchmark(summary) for group in found for summary in group.summaries})
    if len(names) != 1:
        raise InputError(
            f"accuracy against epsilon: expected evaluated runs on one data set, ways and shots, found {names}"
        )
    keys = dict.fromkeys((str(group.summaries[0]["algo"]), _cell(group)) for group in found)
    curves = [_curve(algo, cell, [g for g in found if _key(g) == (algo, cell)]) for algo, cell in keys]
    of_pixels = (group for group in found if not group.summaries[0].get("encoder"))
    pixels = [value for group in of_pixels if (value := group.accuracy("accuracy_pixel_prototype")) is not None]
    draw_curves(path, curves, names[0], pixels[0] if pixels else None)


def draw_curves(path: Path, curves: Sequence[Curve], benchmark: str, pixels: Measured | None = None) -> None:
    """The picture from its numbers.

    Args:
        path: A PNG file.
        curves: What to draw.
        benchmark: What accuracies were measured on, for the axis.
        pixels: Of the nearest class prototype in pixels.
    """
    known = {curve.cell for curve in curves}
    cells: list[Cell | None] = [cell for cell in _WORDS if cell in known]
    cells = cells or [None]
    figure, axes = plt.subplots(
        1, len(cells), figsize=(1.6 + 4.4 * len(cells), 4.6), squeeze=False, sharey=True, layout="constrained"
    )
    colours = {curve.algo: look[0] for curve, look in zip(curves, looks_of([c.algo for c in curves]), strict=True)}
    places = {algo: place for place, algo in enumerate(colours)}
    for axis, cell in zip(axes[0], cells, strict=True):
        for curve in curves:
            _draw(axis, curve, cell, colours[curve.algo], mark(places[curve.algo]))
        if pixels is not None:
            axis.axhline(100 * pixels.mean, color=GREY, linestyle=":", linewidth=1.4, label="pixel prototypes")
        of_records = {curve.relation for curve in curves if curve.cell == cell == _RECORD_SERVER}
        _label(
            axis,
            cell,
            sorted(of_records),
            [place for curve in curves if curve.cell == cell for place, _ in curve.points],
        )
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(
            handles, labels, frameon=False, fontsize=SMALL, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.17)
        )
    axes[0, 0].set_ylabel("accuracy on test classes, %")
    figure.suptitle(f"{benchmark}: accuracy against the epsilon of each guarantee", fontsize=11)
    save(figure, path)


def _label(axis: Axes, cell: Cell | None, relations: Sequence[str], places: Sequence[float]) -> None:
    title, words = _WORDS[cell] if cell else ("Without privacy", "")
    entitle(axis, title)
    axis.grid(alpha=0.25)
    axis.set_xlabel(", ".join([words, " or ".join(relations)] if relations else [words]))
    ticks = tick_words(places)
    if not ticks:
        axis.set_xticks([])
        return
    axis.set_xscale("log")
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.minorticks_off()


def tick_words(places: Sequence[float]) -> dict[float, str]:
    """Return the label of each epsilon on a logarithmic axis, empty where it would run into the label before it.

    An epsilon of 0 has no place there.
    """
    found = sorted({place for place in places if place > 0})
    if not found:
        return {}
    room, words, written = _ROOM * math.log(found[-1] / found[0]), dict[float, str](), 0.0
    for place in found:
        said = rounded_up(place)
        near = written > 0 and (said == words[written] or math.log(place / written) < room)
        words[place] = "" if near else said
        written = written if near else place
    return words


def _draw(axis: Axes, curve: Curve, cell: Cell | None, colour: str, shape: str) -> None:
    if curve.cell is None:
        for _, accuracy in curve.points:
            axis.axhline(100 * accuracy.mean, color=colour, linewidth=1.4, label=f"{curve.algo}, no privacy")
        return
    if curve.cell != cell:
        return
    values = [accuracy for _, accuracy in curve.points]
    axis.errorbar(
        [place for place, _ in curve.points], [100 * v.mean for v in values], yerr=[100 * v.ci95 for v in values],
        color=colour, marker=shape, markersize=5, capsize=3, label=curve.algo,
    )  # fmt: skip
    if curve.untrained is not None:
        level = 100 * curve.untrained.mean
        axis.axhline(level, color=colour, linestyle="--", linewidth=1.0, label=f"{curve.algo}, {curve.before}")


def _benchmark(summary: Mapping[str, Any]) -> str:
    """Accuracies of one picture are of one kind of episode."""
    return ", ".join(filter(None, (str(summary["dataset"]), size_and_count(summary["accuracy"]))))


def _cell(group: Group) -> Cell | None:
    cells = group.epsilons
    return next((cell for cell in (_RECORD_SERVER, _CLIENT_PUBLIC) if cells.get(cell) is not None), None)


def _key(group: Group) -> tuple[str, Cell | None]:
    return str(group.summaries[0]["algo"]), _cell(group)


def _curve(algo: str, cell: Cell | None, members: Sequence[Group]) -> Curve:
    points = [
        (float(group.epsilons[cell] or 0.0) if cell else 0.0, accuracy)
        for group in members
        if (accuracy := group.accuracy()) is not None
    ]
    points.sort(key=lambda point: point[0])
    untrained = members[0].accuracy("accuracy_untrained")
    before = row_label("accuracy_untrained", "untrained", members[0].summaries[0])
    relation = members[0].adjacencies.get(_RECORD_SERVER, "zero-out")
    return Curve(algo=algo, cell=cell, points=tuple(points), untrained=untrained, before=before, relation=relation)
