"""Rows, summaries and settings as names and plain values, and as tables: the form that dashboards take."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.config.settings import Settings
from dpfedmeta.training.results.evaluation_store import SIZES
from dpfedmeta.training.tracking.callbacks import Row

_GUARANTEES = ("planned", "guarantees")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of plain values.

    Attributes:
        columns: Their names.
        rows: A value for each column; None: there is none.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def flat(row: Row, prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by '/'."""
    result: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}/"))
        elif value is not None:
            result[f"{prefix}{name}"] = value
    return result


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Flatten config.yaml to the dotted names of the command line and of sweep files; no secret is in it."""
    return dict(flattened(dataclasses.asdict(settings)))


def flat_summary(summary: Row) -> dict[str, Any]:
    """summary.json by its own names; a guarantee by its cell (guarantees/client_public/epsilon), none: infinite."""
    cells = {
        name: {
            f"{cell['unit']}_{cell['observer']}": {key: cell.get(key) for key in ("epsilon", "delta")}
            for cell in summary.get(name) or ()
        }
        for name in _GUARANTEES
    }
    return flat({**summary, **cells})


def guarantee_sheet(summary: Row) -> Sheet:
    """Sheet of the guarantees, before round 0 and in the end; an empty epsilon is infinite, as the words say."""
    planned = {(cell["unit"], cell["observer"]): cell for cell in summary.get("planned") or ()}
    rows = []
    for cell in summary.get("guarantees") or ():
        promised, spent = planned.get((cell["unit"], cell["observer"]), {}).get("epsilon"), cell["epsilon"]
        words = (
            "nothing is promised" if spent is None else f"epsilon {rounded_up(spent)} at delta {asked(cell['delta'])}"
        )
        others = ", ".join(
            f"{name} {rounded_up(epsilon)}"
            for name, epsilon in cell.get("relations", {}).items()
            if name != cell["adjacency"]
        )
        words += f" ({others})" if others and spent is not None else ""
        who = (cell["unit"], cell["observer"])
        rows.append((*who, promised, spent, cell["delta"], cell["adjacency"], cell["method"], words))
    columns = ("unit", "observer", "epsilon planned", "epsilon spent", "delta", "adjacency", "method", "in words")
    return Sheet(columns=columns, rows=tuple(rows))


def evaluation_sheet(summary: Row) -> Sheet:
    """Sheet of the accuracies on test classes when the run ended, a row for each model or baseline."""
    from dpfedmeta.training.terminal.evaluation_tables import CLASSIFIERS, ROWS  # brings PyTorch

    measured = summary.get("accuracy") or {}
    few_shot, steps = "episodes" in measured, measured.get("steps")
    steps_of = {"accuracy": steps, "accuracy_untrained": steps, "accuracy_before_adaptation": 0}
    rows = []
    for name, label in ROWS if few_shot else CLASSIFIERS:
        found = summary.get(name)
        if found:
            size = (*(measured.get(part) for part in SIZES), steps_of.get(name) if few_shot else None)
            rows.append((label, *size, found["mean"], found["ci95"], found.get("episodes", found.get("images"))))
    return Sheet(columns=("who", *SIZES, "steps", "accuracy", "ci95", "count"), rows=tuple(rows))


def last_round(rows: Sequence[Row]) -> int:
    """The number of the last row; 0 without any."""
    return int(rows[-1]["round"]) if rows else 0
