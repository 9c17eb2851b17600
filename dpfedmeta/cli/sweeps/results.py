"""Results of a sweep: a table, a picture and a page, with one row or line for each setting, seeds pooled."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from rich.table import Table

from dpfedmeta.cli.sweeps.sweep_file import Value
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder, is_finished
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory, write_text
from dpfedmeta.reporting.compare.seed_groups import Group, Measured, describe
from dpfedmeta.reporting.html.page import write_comparison
from dpfedmeta.reporting.plots.comparison_plots import final_plot
from dpfedmeta.reporting.plots.style import entitle, finish, looks, mark, new_figure

RESULTS, TABLE, PICTURE, PAGE = "results.json", "results.csv", "accuracy.png", "report.html"
_MEASURED = ("validation_accuracy", "accuracy", "accuracy_untrained")
# Beyond this ratio of largest to smallest, a linear axis would hide the small ones.
_WIDE = 20.0
# At most so many means are written beside their dots.
_MOST_WRITTEN = 10

# Where it stands, its runs, and the mean over them.
Point = tuple[float, Group, Measured]


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """Combination of a sweep's values, of those that vary besides the seed, with its runs."""

    parameters: Mapping[str, Value]
    group: Group


def settings_of_sweep(path: Path) -> tuple[SweepSetting, ...]:
    """The finished runs of a sweep's folder, pooled over seeds, in the order of the sweep.

    Raises:
        InputError: No run has finished, or a file is damaged.
    """
    folder = SweepFolder(path)
    trials = {name: noted.parameters for name, noted in folder.noted().items()}
    names = dict.fromkeys(name for values in trials.values() for name in values if name != "run.seed")
    shown = [name for name in names if len({str(values.get(name)) for values in trials.values()}) > 1]
    found: dict[str, tuple[dict[str, Value], list[Path]]] = {}
    for run, values in trials.items():
        if is_finished(RunDirectory(folder.runs / run)):
            kept = {name: values[name] for name in shown if name in values}
            found.setdefault(json.dumps(kept), (kept, []))[1].append(folder.runs / run)
    if not found:
        raise InputError(f"{path}: no run of this sweep has finished")
    groups = ((kept, Group.of(describe(kept) or path.name, runs)) for kept, runs in found.values())
    return tuple(SweepSetting(parameters=kept, group=group) for kept, group in groups)


def write_results(path: Path) -> tuple[SweepSetting, ...]:
    """Write the table (JSON and CSV), the picture and the page of what has finished.

    Raises:
        InputError: As `settings_of_sweep` says.
    """
    settings = settings_of_sweep(path)
    rows = [_row(setting) for setting in settings]
    write_text(path / RESULTS, json.dumps({"settings": rows}, indent=2, allow_nan=False) + "\n")
    write_text(path / TABLE, _csv(rows))
    sweep_plot(path / PICTURE, settings)
    write_comparison([setting.group for setting in settings], path / PAGE)
    return settings


def results_table(settings: Sequence[SweepSetting]) -> Table:
    """For the terminal; the best by validation accuracy, which alone may choose, with a mark."""
    best = max(settings, key=lambda setting: setting.group.validation.mean if setting.group.validation else -1.0)
    table = Table(title="Accuracy, %; seeds pooled", title_justify="left", caption="*: best on validation classes")
    for column in ("setting", "seeds", "validation classes", "test classes"):
        table.add_column(column, justify="left" if column == "setting" else "right", overflow="fold")
    for setting in settings:
        group, best_mark, style = setting.group, *((" *", "bold") if setting is best else ("", ""))
        measured = (group.validation, group.accuracy())
        words = (f"{100 * value.mean:.1f} ± {100 * value.ci95:.1f}" if value else "none" for value in measured)
        # The mark too, for whoever reads a log.
        table.add_row(group.label + best_mark, str(len(group.runs)), *words, style=style)
    return table


def _row(setting: SweepSetting) -> dict[str, Any]:
    group = setting.group
    measured = (group.validation, group.accuracy(), group.accuracy("accuracy_untrained"))
    return {
        "label": group.label,
        "parameters": dict(setting.parameters),
        **{name: value.as_json() if value else None for name, value in zip(_MEASURED, measured, strict=True)},
        "epsilons": {f"{unit}_{observer}": epsilon for (unit, observer), epsilon in group.epsilons.items()},
        "minutes": group.minutes,
        "runs": [run.path.name for run in group.runs],
    }


def _csv(rows: list[dict[str, Any]]) -> str:
    lines = [
        {
            **{name: row["parameters"].get(name, "") for each in rows for name in each["parameters"]},
            "seeds": len(row["runs"]),
            **{f"{name}_{part}": (row[name] or {}).get(part, "") for name in _MEASURED for part in ("mean", "ci95")},
            **{f"epsilon_{cell}": "inf" if value is None else value for cell, value in row["epsilons"].items()},
            "minutes": row["minutes"],
        }
        for row in rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def sweep_plot(path: Path, settings: Sequence[SweepSetting]) -> None:
    """Accuracy on test classes with 95% intervals and every seed, against the first number that is swept.

    One line for each setting of the others; where no number is swept, one row for each setting.
    """
    swept = next(
        (name for name in settings[0].parameters if all(_is_number(s.parameters.get(name)) for s in settings)), None
    )
    lines: dict[str, list[Point]] = {}
    for setting in settings:
        accuracy = setting.group.accuracy()
        if swept is not None and accuracy is not None:
            rest = describe({name: value for name, value in setting.parameters.items() if name != swept})
            lines.setdefault(rest, []).append((float(setting.parameters[swept]), setting.group, accuracy))
    if swept is None or not lines:
        final_plot(path, [setting.group for setting in settings])
        return
    # In a search no two share the rest: dots instead of lines.
    search = len(lines) > 1 and all(len(points) == 1 for points in lines.values())
    if search:
        lines = {"": [point for points in lines.values() for point in points]}
    figure, axis = new_figure(9.0 if any(lines) else 7.2, 4.0)
    written = not search and sum(map(len, lines.values())) <= _MOST_WRITTEN
    for place, ((label, points), (colour, style)) in enumerate(zip(lines.items(), looks(len(lines)), strict=True)):
        line = {"color": colour, "linestyle": "none" if search else style, "marker": mark(place)}
        _draw(axis, label, sorted(points, key=lambda point: point[0]), line, written=written)
    _scale(axis, sorted({at for points in lines.values() for at, *_ in points}), few=not search)
    axis.set_xlabel(swept)
    axis.set_ylabel("accuracy on held-out test classes, %")
    seeds = max(accuracy.runs for points in lines.values() for *_, accuracy in points)
    means = f": mean of {seeds} seeds with its 95% interval, and each seed" if seeds > 1 else ", with 95% intervals"
    entitle(axis, f"Final accuracy by {swept}{means}")
    finish(figure, axis, path)


def _is_number(value: Value | None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw(axis: Axes, label: str, points: Sequence[Point], line: Mapping[str, Any], *, written: bool) -> None:
    means, spreads = (
        [100 * part for part in parts] for parts in zip(*((a.mean, a.ci95) for *_, a in points), strict=True)
    )
    axis.errorbar([at for at, *_ in points], means, yerr=spreads, label=label or None, capsize=3, **line)
    for (at, group, _), mean in zip(points, means, strict=True):
        runs = [100 * float(summary["accuracy"]["mean"]) for summary in group.summaries if summary["accuracy"]]
        if len(runs) > 1:
            axis.plot([at] * len(runs), runs, "o", color=line["color"], markerfacecolor="white", markersize=4)
        if written:
            axis.annotate(f"{mean:.1f}", (at, mean), (7, 5), textcoords="offset points", fontsize=8)


def _scale(axis: Axes, places: Sequence[float], *, few: bool) -> None:
    """Logarithmic where the values are wide apart or double each time; a mark at each where they are few."""
    if places[0] > 0:
        ratios = [later / before for before, later in pairwise(places)]
        geometric = len(ratios) > 1 and ratios[0] >= 1.5 and max(ratios) <= 1.01 * min(ratios)
        if geometric or places[-1] / places[0] >= _WIDE:
            axis.set_xscale("log")
            axis.minorticks_off()
            axis.margins(x=0.08)
    if few and len(places) <= 8:
        axis.set_xticks(places, [f"{place:g}" for place in places])
