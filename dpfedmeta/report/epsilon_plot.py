"""Accuracy against the epsilon that it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedmeta.errors import InputError
from dpfedmeta.report.groups import Cell, Group
from dpfedmeta.report.drawing import looks, new_figure, save

_CLIENT_PUBLIC, _RECORD_SERVER = ("client", "public"), ("record", "server")


def epsilon_plot(path: Path, groups: Sequence[Group]) -> None:
    """One curve for each algorithm, over the cell that it is for; what has no privacy is a horizontal line.

    The cell is (record, server) where that is finite, else (client, public). Intervals are those of `pooled`.

    Raises:
        InputError: The runs are of several data sets, ways or shots, or none was evaluated.
    """
    found = [group for group in groups if group.accuracy() is not None]
    names = sorted({_benchmark(summary) for group in found for summary in group.summaries})
    if len(names) != 1:
        raise InputError(
            f"accuracy against epsilon: expected evaluated runs on one data set, ways and shots, found {names}"
        )
    curves = {(g.summaries[0]["algo"], _cell(g)): [h for h in found if _same(g, h)] for g in found}
    figure, axis = new_figure(7.2, 4.2)
    for (curve, members), (colour, _) in zip(curves.items(), looks(len(curves)), strict=True):
        _draw(axis, *curve, members, colour)
    pixels = [value for g in found if (value := g.accuracy("accuracy_pixel_prototype")) is not None]
    if pixels:
        axis.axhline(100 * pixels[0].mean, color="#8a8f98", linestyle=":", linewidth=1.4, label="pixel prototypes")
    axis.set_xscale("log")
    places = sorted(place for (_, cell), members in curves.items() if cell is not None for place in _places(members))
    ticks = {f"{place:.2g}": place for place in places}
    axis.set_xticks(list(ticks.values()), list(ticks))
    axis.minorticks_off()
    axis.set_xlabel("epsilon of the cell that the algorithm is for")
    axis.set_ylabel(f"accuracy on test classes of {names[0]}, %")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path)


def _benchmark(summary: Mapping[str, Any]) -> str:
    """Accuracies of one picture are of one kind of episode."""
    task = summary.get("task") or {}
    return f"{summary['dataset']}" + (f", {task['ways']}-way {task['shots']}-shot" if task.get("ways") else "")


def _cell(group: Group) -> Cell | None:
    cells = group.epsilons
    return next((cell for cell in (_RECORD_SERVER, _CLIENT_PUBLIC) if cells.get(cell) is not None), None)


def _same(one: Group, other: Group) -> bool:
    return one.summaries[0]["algo"] == other.summaries[0]["algo"] and _cell(one) == _cell(other)


def _places(members: Sequence[Group]) -> list[float]:
    return [float(group.epsilons[cell] or 0.0) for group in members if (cell := _cell(group)) is not None]


def _draw(axis: Any, algo: str, cell: Cell | None, members: Sequence[Group], colour: str) -> None:
    if cell is None:
        for group in members:
            accuracy = group.accuracy()
            assert accuracy is not None
            axis.axhline(100 * accuracy.mean, color=colour, linewidth=1.4, label=f"{algo}, no privacy")
        return
    ordered = sorted(members, key=lambda group: float(group.epsilons[cell] or 0.0))
    values = [accuracy for group in ordered if (accuracy := group.accuracy()) is not None]
    words = "(record, server), zero-out" if cell == _RECORD_SERVER else "(client, public)"
    axis.errorbar(
        _places(ordered), [100 * v.mean for v in values], yerr=[100 * v.ci95 for v in values],
        color=colour, marker="o", markersize=4, capsize=3, label=f"{algo}, {words}",
    )  # fmt: skip
    untrained = ordered[0].accuracy("accuracy_untrained")
    if untrained is not None:
        axis.axhline(
            100 * untrained.mean, color=colour, linestyle="--", linewidth=1.0, label=f"{algo}, before training"
        )
