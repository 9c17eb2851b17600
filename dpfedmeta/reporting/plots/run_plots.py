"""The pictures of a report, from rounds.jsonl and summary.json."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dpfedmeta.accounting.right_guesses import protects
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.reporting.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SMALL,
    STYLES,
    WIDE,
    entitle,
    logarithmic,
    new_figure,
    save,
    show_zero,
)
from dpfedmeta.training.results.evaluation_store import row_label

# Points of accuracy by which a level may lie outside of all else, and be drawn all the same.
_LEAST_REACH = 10.0
_AXES = ("client_public", "record_server", "client_server", "record_public")
Rows = Sequence[Mapping[str, Any]]
Point = tuple[float, Mapping[str, Any]]
"""Where on the axis, and the accuracy there in the form of summary.json."""


def accuracy_plot(path: Path, rows: Rows, summary: Mapping[str, Any]) -> None:
    """Accuracy in percent from round 0 on, against rounds and against the epsilon spent of a promised cell."""
    name = _epsilon_axis(rows, summary.get("planned", ()))
    figure, axes = plt.subplots(2 if name else 1, 1, figsize=(WIDE, 6.4 if name else 3.8), squeeze=False)
    _accuracy(axes[0, 0], rows, summary, [float(row["round"] + 1) for row in rows])
    axes[0, 0].set_xlabel("rounds done")
    axes[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel("accuracy after adaptation, %")
    entitle(axes[0, 0], "Accuracy along training")
    figure.suptitle(f"{summary['algo']} on {summary['dataset']}", fontsize=11, x=0.02, ha="left")
    if name:
        _accuracy(axes[1, 0], rows, summary, [row["epsilons"][name] for row in rows])
        axes[1, 0].set_xlabel(f"epsilon of ({name.replace('_', ', ')}) spent")
        axes[1, 0].set_ylabel("accuracy after adaptation, %")
        entitle(axes[1, 0], "The same, by epsilon spent")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=1, frameon=False, fontsize=SMALL)
    figure.tight_layout(rect=(0, 0.11 if name else 0.19, 1, 1))
    save(figure, path)


def _epsilon_axis(rows: Rows, planned: Sequence[Mapping[str, Any]]) -> str | None:
    """The first cell that hides somebody and grows with rounds, if any; without a plan (client, public)."""
    bounds = {f"{cell['unit']}_{cell['observer']}": (cell["epsilon"], cell["delta"]) for cell in planned}
    kept = {name for name, (epsilon, delta) in bounds.items() if epsilon is not None and protects(epsilon, delta)}
    last = rows[-1]["epsilons"] if rows else {}
    return next((name for name in _AXES if last.get(name) is not None and (name in kept or not planned)), None)


def _accuracy(axis: Axes, rows: Rows, summary: Mapping[str, Any], places: Sequence[float]) -> None:
    """Along the way on validation classes; on test classes before and after, which is all that is measured there."""
    pixels = summary.get("accuracy_pixel_prototype")
    if pixels:
        label = f"{row_label('accuracy_pixel_prototype', 'pixel prototypes', summary)}, test classes"
        _level(axis, rows, summary, 100 * pixels["mean"], label)
    ends = ((0.0, summary.get("accuracy_untrained")), (places[-1] if places else 0.0, summary.get("accuracy")))
    test = [(place, value) for place, value in ends if value]
    # Nothing is known between the two: they are joined by dots.
    look = {"color": ORANGE, "marker": "D", "linestyle": (0, (1, 4))}
    before = row_label("accuracy_untrained", "untrained", summary)
    _points(axis, test, label=f"test classes, {before}; and at the end", **look)
    _points(axis, validation_points(rows, places), color=BLUE, marker="o", linestyle="-", label="validation classes")
    axis.grid(alpha=0.25)


def _level(axis: Axes, rows: Rows, summary: Mapping[str, Any], level: float, label: str) -> None:
    """A line across, where it does not press all else together; else its number in the legend."""
    found = [summary.get("accuracy_untrained"), summary.get("accuracy"), *(value for _, value in _validated_of(rows))]
    means = [100 * value["mean"] for value in found if value]
    reach = max([2.0 * (max(means) - min(means)), _LEAST_REACH]) if means else math.inf
    if not means or min(means) - reach <= level <= max(means) + reach:
        axis.axhline(level, color=GREY, linestyle=":", linewidth=1.4, label=label)
    else:
        axis.plot([], [], color=GREY, linestyle=":", linewidth=1.4, label=f"{label}: {level:.1f}%, outside")


def _validated_of(rows: Rows) -> list[Point]:
    return validation_points(rows, [0.0] * len(rows))


def validation_points(rows: Rows, places: Sequence[float]) -> list[Point]:
    """Accuracy on validation classes, from before round 0 where that was measured.

    Args:
        rows: Of rounds.jsonl.
        places: Where each round ends on the axis; before round 0 is 0.
    """
    first = rows[0].get("validation_accuracy_untrained") if rows else None
    found = [(place, row["validation_accuracy"]) for row, place in zip(rows, places, strict=True) if _validated(row)]
    return [(0.0, first), *found] if first else found


def _validated(row: Mapping[str, Any]) -> bool:
    return "validation_accuracy" in row


def _points(axis: Axes, points: Sequence[Point], **look: Any) -> None:
    if points:
        places = [place for place, _ in points]
        mean, spread = ([100 * value[part] for _, value in points] for part in ("mean", "ci95"))
        axis.errorbar(places, mean, yerr=spread, markersize=4, linewidth=1.5, elinewidth=0.9, capsize=2, **look)


def clip_plot(path: Path, rows: Rows) -> None:
    """Clip bound, norm of the released aggregate and of its noise; below, how much of the release is signal.

    Where noise is nearly all of a release its two norms lie upon each other: the noise is a wide band, the release a
    thin line on it.
    """
    ratios = [_number(row.get("signal_to_noise")) for row in rows]
    below = any(math.isfinite(ratio) for ratio in ratios)
    figure, axes = plt.subplots(
        1 + below, 1, figsize=(WIDE, 6.0 if below else 3.8), squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": [2, 1] if below else [1]},
    )  # fmt: skip
    rounds = [row["round"] + 1 for row in rows]
    lines = (
        ("noise_norm_expected", "expected norm of its noise", ORANGE, {"linewidth": 6.0, "alpha": 0.45}),
        ("aggregate_norm", "norm of the released mean", BLUE, {"linewidth": 1.2}),
        ("clip", "clip bound", GREEN, {"linewidth": 1.8, "linestyle": "--"}),
    )
    axis = axes[0, 0]
    for key, label, colour, look in lines:
        # A round that was aborted has a bound and no aggregate; no noise has no place on a logarithmic axis.
        values = [_number(row.get(key)) or math.nan for row in rows]
        if not all(math.isnan(value) for value in values):
            axis.plot(rounds, values, label=label, color=colour, **look)
    logarithmic(axis)
    axis.set_ylabel("Euclidean norm")
    entitle(axis, "What was released in each round" + (", its noise, and the clip bound" if below else ""), 50)
    axis.grid(alpha=0.25)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=SMALL, loc="best")
    if below:
        _signal_below(axes[1, 0], rounds, ratios)
    axes[-1, 0].set_xlabel("rounds")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.tight_layout()
    save(figure, path)


def _signal_below(axis: Axes, rounds: Sequence[int], ratios: Sequence[float]) -> None:
    seen = [(round_, ratio) for round_, ratio in zip(rounds, ratios, strict=True) if ratio > 0]
    zeros = [round_ for round_, ratio in zip(rounds, ratios, strict=True) if ratio == 0]
    axis.vlines([round_ for round_, _ in seen], 0.0, [ratio for _, ratio in seen], color=BLUE, linewidth=1.0)
    axis.plot(*zip(*seen, strict=True), "o", color=BLUE, markersize=3.5, label="estimate") if seen else None
    axis.plot(zeros, [0.0] * len(zeros), "o", color=GREY, markersize=3.5, markerfacecolor="white", label="0: all noise")
    show_zero(axis, ratios)
    axis.set_ylabel("signal / noise")
    entitle(axis, "Estimated signal-to-noise ratio of each release", 50)
    axis.legend(frameon=False, fontsize=SMALL, loc="upper left", ncol=2, bbox_to_anchor=(0.0, -0.35))
    axis.grid(alpha=0.25)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def curve_plot(path: Path, rounds: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    """Epsilon of each cell for which something is promised against the number of rounds."""
    figure, axis = new_figure(7.6, 4.2)
    colours = (BLUE, ORANGE, GREEN, GREY)
    for (name, epsilons), colour, style in zip(curves.items(), colours, STYLES, strict=False):
        if all(math.isfinite(epsilon) for epsilon in epsilons):
            axis.plot(rounds, epsilons, label=name, color=colour, linestyle=style, linewidth=1.6)
            text = rounded_up(epsilons[-1])
            axis.annotate(
                text, (rounds[-1], epsilons[-1]), (4, 0), textcoords="offset points", va="center", fontsize=SMALL,
                color=colour,
            )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("rounds")
    axis.set_ylabel("epsilon (smaller is stronger)")
    axis.grid(alpha=0.25, which="both")
    axis.set_xlim(right=max(2, rounds[-1]) ** 1.14)
    figure.suptitle(f"Epsilon of each promise after 1 to {rounds[-1]:,} rounds", fontsize=11, x=0.02, ha="left")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=SMALL, ncol=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    save(figure, path)


def guarantee_plot(path: Path, guarantees: Sequence[Mapping[str, Any]]) -> None:
    """Draw epsilon of the four cells as dots on a logarithmic axis; it has no zero, so bars would have no base."""
    figure, axis = new_figure(WIDE, 2.6)
    names = [f"{cell['unit']} towards\n{cell['observer']}, {asked(cell['delta'])}" for cell in guarantees]
    values = [cell["epsilon"] for cell in guarantees]
    known = [value for value in values if value]
    least = min([0.1, *(value / 3 for value in known)])
    limit = 10 * max([1.0, *known])
    for place, value in enumerate(values):
        if value is None:
            axis.text(least * 1.2, place, "nothing is promised", va="center", fontsize=9, color=GREY)
            continue
        at = max(value, least)
        axis.plot(at, place, "o", color=BLUE, markersize=7)
        axis.text(at * 1.2, place, rounded_up(value), va="center", fontsize=9)
    axis.set_xscale("log")
    axis.set_xlim(least, limit)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_yticks(range(len(names)), names, fontsize=SMALL)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(alpha=0.25)
    axis.set_xlabel("epsilon spent, at the delta of its line")
    entitle(axis, "Smaller is stronger")
    figure.tight_layout()
    save(figure, path)
