"""Pictures of evaluations and of audits, from evaluation.json and audit.json."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from dpfedmeta.reporting.plots.style import BLUE, GREEN, GREY, ORANGE, entitle, finish, looks, mark, new_figure, save
from dpfedmeta.training.results.evaluation_store import row_label, size, unfinished

Evaluation = Mapping[str, Any]
Result = Mapping[str, Any]
_PATHS = (
    ("accuracy", "this run", BLUE, "-"),
    ("accuracy_untrained", "untrained, the same adaptation", ORANGE, "--"),
    ("accuracy_fine_tuned", "untrained, all layers fine-tuned", GREEN, "-."),
)
_LEVELS = (
    ("accuracy_trained_prototype", "prototype, features of this run", BLUE, ":"),
    ("accuracy_untrained_prototype", "prototype, untrained features", ORANGE, "-."),
    ("accuracy_pixel_prototype", "prototype, pixels", GREY, "--"),
)
_ACROSS = 3
_LEAST = 1e-2


def steps_plot(path: Path, name: str, evaluation: Evaluation) -> None:
    """Accuracy against gradient steps, a panel for each size of episodes, with intervals and baselines."""
    results = evaluation["results"]
    figure, panels = _panels(results)
    for axis, result in zip(panels, results, strict=True):
        for number, (key, label, colour, style) in enumerate(_PATHS):
            label = row_label(key, label, evaluation)
            _path(axis, result, key, label=label, colour=colour, style=style, shape=mark(number))
        for key, label, colour, style in _LEVELS:
            if key in result:
                label = row_label(key, label, evaluation)
                axis.axhline(100 * result[key]["mean"], color=colour, linestyle=style, linewidth=1.3, label=label)
        axis.axvline(result["accuracy"]["steps"], color=GREY, linewidth=0.8, alpha=0.6)
        _steps_axis(axis, result)
    _finish(
        figure,
        panels[0],
        path,
        f"Accuracy by gradient steps. {name}: {_caption(evaluation)}; 95% intervals",
        len(_PATHS) + len(_LEVELS),
    )


def clients_plot(path: Path, name: str, evaluation: Evaluation) -> None:
    """Draw how accuracy after adaptation spreads over clients, trained against untrained."""
    results = evaluation["results"]
    figure, panels = _panels(results)
    for axis, result in zip(panels, results, strict=True):
        # Hatched and dotted otherwise, for who sees no colours.
        for (key, label, colour, _), hatch, style in zip(_PATHS[:2], ("", "///"), (":", "-."), strict=True):
            found, label = result["clients"][key], row_label(key, label, evaluation)
            edges = [100 * edge for edge in found["histogram"]["edges"]]
            counts = found["histogram"]["episodes"]
            share = [100 * count / sum(counts) for count in counts]
            axis.stairs(
                share, edges, fill=True, facecolor=colour, edgecolor=colour, hatch=hatch, alpha=0.45, label=label
            )
            axis.axvline(
                100 * found["worst_tenth"], color=colour, linestyle=style, linewidth=1.6,
                label=f"{label}: mean of the worst 10%",
            )  # fmt: skip
        axis.set_xlim(0, 100)
        axis.set_xlabel("accuracy of a client after adaptation, %")
        axis.set_title(size(result), fontsize=9)
        axis.grid(alpha=0.25)
    panels[0].set_ylabel("share of clients, %")
    _finish(figure, panels[0], path, f"How accuracy spreads over clients. {name}: {_caption(evaluation)}", 4)


def comparison_plot(path: Path, evaluations: Mapping[str, Evaluation]) -> None:
    """Several runs on the same episodes: accuracy against steps, or one value each where nothing adapts.

    Args:
        path: A PNG file.
        evaluations: Content of evaluation.json by name of the run; of the same sizes of episodes.
    """
    first = next(iter(evaluations.values()))
    if "by_steps" not in first["results"][0]:
        _classifiers(path, evaluations)
        return
    figure, panels = _panels(first["results"])
    for place, axis in enumerate(panels):
        looked = zip(evaluations.items(), looks(len(evaluations)), strict=True)
        for number, ((name, evaluation), (colour, style)) in enumerate(looked):
            result, shape = evaluation["results"][place], mark(number)
            _path(axis, result, "accuracy", label=name, colour=colour, style=style, shape=shape)
            untrained = f"{name}, {row_label('accuracy_untrained', 'untrained', evaluation)}"
            _path(
                axis, result, "accuracy_untrained", label=untrained, colour=colour, style=":", shape=shape, faint=True
            )
        pixels = 100 * first["results"][place]["accuracy_pixel_prototype"]["mean"]
        axis.axhline(
            pixels,
            color=GREY,
            linestyle="--",
            linewidth=1.2,
            label=row_label("accuracy_pixel_prototype", "prototype, pixels", first),
        )
        _steps_axis(axis, *(evaluation["results"][place] for evaluation in evaluations.values()))
    captions = dict.fromkeys(_caption(evaluation) for evaluation in evaluations.values())
    _finish(
        figure,
        panels[0],
        path,
        "Accuracy by gradient steps. " + "; ".join(captions) + "; 95% intervals",
        2 * len(evaluations) + 1,
    )


def _classifiers(path: Path, evaluations: Mapping[str, Evaluation]) -> None:
    figure, axis = new_figure(8.0, 1.9 + 0.45 * len(evaluations))
    # One above the other, so that intervals do not hide each other.
    shown = (("accuracy", "trained", BLUE, "o", -0.12), ("accuracy_untrained", "untrained", ORANGE, "s", 0.12))
    for key, label, colour, shape, shift in shown:
        label = " or ".join(dict.fromkeys(row_label(key, label, evaluation) for evaluation in evaluations.values()))
        values = [evaluation["results"][0][key] for evaluation in evaluations.values()]
        mean, spread = ([100 * value[part] for value in values] for part in ("mean", "ci95"))
        places = [place + shift for place in range(len(values))]
        axis.errorbar(mean, places, xerr=spread, fmt=shape, color=colour, capsize=3, markersize=5, label=label)
    axis.set_yticks(range(len(evaluations)), list(evaluations))
    axis.set_ylim(len(evaluations) - 0.5, -0.5)
    axis.set_xlabel("accuracy, %")
    axis.grid(alpha=0.25, axis="x")
    protocol = next(iter(evaluations.values()))["protocol"]
    _finish(figure, axis, path, f"Accuracy on held-out images. {protocol}; 95% intervals", len(shown))


def _panels(results: Sequence[Result]) -> tuple[Figure, list[Axes]]:
    across = 2 if len(results) == 4 else min(_ACROSS, len(results))
    down = math.ceil(len(results) / across)
    width = 6.8 if across == 1 else 4.4 * across
    figure, axes = plt.subplots(down, across, figsize=(width, 3.5 * down + 1.2), squeeze=False, sharey=False)
    flat = list(axes.flat)
    for empty in flat[len(results) :]:
        empty.remove()
    return figure, flat[: len(results)]


def _path(
    axis: Axes,
    result: Result,
    key: str,
    *,
    label: str,
    colour: str,
    style: str,
    shape: str = "o",
    faint: bool = False,
) -> None:
    if key not in result:
        return
    rows = [row for row in result["by_steps"] if key in row]
    if len(rows) < 2:
        # Asked at its end alone: a level, since it belongs to no step of the others.
        axis.axhline(100 * result[key]["mean"], color=colour, linestyle=style, linewidth=1.3, label=label)
        return
    steps = [row["steps"] for row in rows]
    mean = [100 * row[key]["mean"] for row in rows]
    low = [100 * (row[key]["mean"] - row[key]["ci95"]) for row in rows]
    high = [100 * (row[key]["mean"] + row[key]["ci95"]) for row in rows]
    marker = shape if len(rows) <= 12 else None
    width = 1.0 if faint else 1.6
    axis.plot(steps, mean, color=colour, linestyle=style, linewidth=width, marker=marker, markersize=4, label=label)
    axis.fill_between(steps, low, high, color=colour, alpha=0.10 if faint else 0.18, linewidth=0)


def _steps_axis(axis: Axes, *results: Result) -> None:
    largest = max(row["steps"] for result in results for row in result["by_steps"])
    ticks = [tick for tick in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= largest]
    # 0 has a place, and the first steps, which matter most, have room.
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlim(-0.1, max(1.0, largest * 1.1))
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set_xlabel("gradient steps")
    axis.set_ylabel("accuracy, %")
    axis.set_title(size(results[0]), fontsize=9)
    axis.grid(alpha=0.25)


def _caption(evaluation: Evaluation) -> str:
    counted = evaluation["results"][0]["accuracy"]["episodes"]
    note = f"; {evaluation['note']}" if evaluation["note"] else f"; {counted:,} episodes"
    stage = unfinished(evaluation)
    return f"{evaluation['protocol']}{note}{f'; {stage}' if stage else ''}"


def _finish(figure: Figure, axis: Axes, path: Path, title: str, entries: int) -> None:
    """A title that says the protocol, and one legend below all panels."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(title, int(width * 14))
    columns = min(entries, max(1, int(width // 2.9)))
    rows = math.ceil(entries / columns)
    handles, labels = axis.get_legend_handles_labels()
    figure.suptitle("\n".join(lines), fontsize=8.5)
    figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, (0.1 + 0.19 * rows) / height, 1, 1 - 0.06 * len(lines) / height))
    save(figure, path)


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
