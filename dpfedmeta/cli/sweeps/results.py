"""Results of a sweep: a table, a picture and a page, with one row or line for each setting, seeds pooled."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dpfedmeta.cli.sweeps.directory import SweepDirectory, is_finished, noted_trials
from dpfedmeta.cli.sweeps.parameters import Value
from dpfedmeta.cli.sweeps.plot import sweep_plot
from dpfedmeta.cli.sweeps.trials import SEED
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import write_text
from dpfedmeta.reporting.compare.seed_groups import Group, Measured, describe
from dpfedmeta.reporting.html.page import write_comparison

RESULTS, TABLE, PICTURE, PAGE = "results.json", "results.csv", "accuracy.png", "report.html"


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """Combination of a sweep's values without its seed.

    Attributes:
        parameters: What varies in the sweep besides the seed.
        group: Its runs.
    """

    parameters: Mapping[str, Value]
    group: Group


def settings_of_sweep(path: Path) -> tuple[SweepSetting, ...]:
    """The finished runs of a sweep's folder, pooled over seeds, in the order of the sweep.

    Raises:
        InputError: No run has finished, or a file is damaged.
    """
    directory = SweepDirectory(path)
    trials = noted_trials(path)
    varying = [name for name in _names(trials) if len({str(values.get(name)) for values in trials.values()}) > 1]
    shown = [name for name in varying if name != SEED]
    found: dict[str, tuple[dict[str, Value], list[Path]]] = {}
    for name, values in trials.items():
        if is_finished(directory.runs / name):
            kept = {name: values[name] for name in shown if name in values}
            found.setdefault(json.dumps(kept), (kept, []))[1].append(directory.runs / name)
    if not found:
        raise InputError(f"{path}: no run of this sweep has finished")
    return tuple(
        SweepSetting(parameters=kept, group=Group.of(describe(kept) or path.name, runs))
        for kept, runs in found.values()
    )


def _names(trials: Mapping[str, Mapping[str, Value]]) -> list[str]:
    return list(dict.fromkeys(name for values in trials.values() for name in values))


def write_results(path: Path) -> tuple[SweepSetting, ...]:
    """Write the table (JSON and CSV), the picture and the page of what has finished.

    Raises:
        InputError: As `settings_of_sweep` says.
    """
    settings = settings_of_sweep(path)
    rows = [_row(setting) for setting in settings]
    write_text(path / RESULTS, json.dumps({"settings": rows}, indent=2, allow_nan=False) + "\n")
    write_text(path / TABLE, _csv(rows))
    sweep_plot(path / PICTURE, [(setting.parameters, setting.group) for setting in settings])
    write_comparison([setting.group for setting in settings], path / PAGE)
    return settings


def results_table(settings: Sequence[SweepSetting]) -> Table:
    """For the terminal; the best by validation accuracy, which alone may choose, in bold."""
    best = max(settings, key=lambda setting: setting.group.validation.mean if setting.group.validation else -1.0)
    table = Table(title="Accuracy, %; seeds pooled", title_justify="left", caption="bold: best on validation classes")
    for column in ("setting", "seeds", "validation classes", "test classes"):
        table.add_column(column, justify="left" if column == "setting" else "right", overflow="fold")
    for setting in settings:
        group = setting.group
        words = (_percent(group.validation), _percent(group.accuracy()))
        table.add_row(group.label, str(len(group.runs)), *words, style="bold" if setting is best else "")
    return table


def _percent(value: Measured | None) -> str:
    return f"{100 * value.mean:.1f} ± {100 * value.ci95:.1f}" if value else "none"


def _row(setting: SweepSetting) -> dict[str, Any]:
    group = setting.group
    return {
        "label": group.label,
        "parameters": dict(setting.parameters),
        "validation_accuracy": _as_json(group.validation),
        "accuracy": _as_json(group.accuracy()),
        "accuracy_untrained": _as_json(group.accuracy("accuracy_untrained")),
        "epsilons": {f"{unit}_{observer}": epsilon for (unit, observer), epsilon in group.epsilons.items()},
        "minutes": group.minutes,
        "runs": [run.path.name for run in group.runs],
    }


def _as_json(value: Measured | None) -> dict[str, float | int] | None:
    return value.as_json() if value else None


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["parameters"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured = ("validation_accuracy", "accuracy", "accuracy_untrained")
    heads = [f"{name}_{part}" for name in measured for part in ("mean", "ci95")]
    cells = list(rows[0]["epsilons"])
    writer.writerow([*names, "seeds", *heads, *(f"epsilon_{cell}" for cell in cells), "minutes"])
    for row in rows:
        values = [(row[name] or {}).get(part, "") for name in measured for part in ("mean", "ci95")]
        epsilons = ["inf" if row["epsilons"][cell] is None else row["epsilons"][cell] for cell in cells]
        plain = [row["parameters"].get(name, "") for name in names]
        writer.writerow([*plain, len(row["runs"]), *values, *epsilons, row["minutes"]])
    return text.getvalue()
