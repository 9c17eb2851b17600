"""report.html: self-contained, with its pictures inside; the PNGs lie beside it too."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, UndefinedError

from dpfedmeta.errors import InputError
from dpfedmeta.report import plots
from dpfedmeta.tracking.run_directory import REPORT, ROUNDS, SUMMARY, RunDirectory, write_text
from dpfedmeta.tracking.terminal import number


def write_report(run: RunDirectory) -> Path:
    """Write report.html and its pictures into the run directory.

    Guarantee:
        Reads rounds.jsonl and summary.json, which hold released quantities only.

    Raises:
        InputError: One of the two is missing, damaged or incomplete.
    """
    rows, summary = run.rounds(), run.read_json(SUMMARY)
    pictures = {
        "accuracy": run.path / "accuracy.png",
        "clip": run.path / "clip.png",
        "guarantees": run.path / "guarantees.png",
    }
    with _complete(run.path):
        plots.accuracy_plot(pictures["accuracy"], rows, summary)
        plots.clip_plot(pictures["clip"], rows)
        plots.guarantee_plot(pictures["guarantees"], summary["guarantees"])
        page = _render(
            "run.html.j2",
            name=run.path.name,
            summary=summary,
            held=sum(row.get("clip_mode") == "holding" for row in rows),
            rounds=len(rows),
            pictures={name: _embedded(path) for name, path in pictures.items()},
        )
    write_text(run.path / REPORT, page)
    return run.path / REPORT


def write_comparison(runs: Sequence[RunDirectory], path: Path) -> Path:
    """One page for several runs, side by side.

    Raises:
        InputError: A file of a run is missing, damaged or incomplete.
    """
    picture = path.with_suffix(".png")
    plain = len({run.path.name for run in runs}) == len(runs)
    named = {run.path.name if plain else str(run.path): run for run in runs}
    rows = {name: run.rounds() for name, run in named.items()}
    summaries = {name: run.read_json(SUMMARY) for name, run in named.items()}
    with _complete(*(run.path for run in runs)):
        plots.comparison_plot(picture, rows)
        page = _render("comparison.html.j2", summaries=summaries, picture=_embedded(picture))
    write_text(path, page)
    return path


@contextmanager
def _complete(*runs: Path) -> Iterator[None]:
    """What a file of a run lacks is the file's fault, in one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, UndefinedError) as error:
        where = ", ".join(str(path) for path in runs)
        raise InputError(f"{where}: {ROUNDS} or {SUMMARY} is incomplete or of another version ({error!r})") from error


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _render(template: str, **values: Any) -> str:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["epsilon"] = number
    environment.filters["percent"] = _percent
    text = (resources.files("dpfedmeta.report") / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(**values)


def _percent(value: Any) -> str:
    if not value:
        return "not evaluated"
    return f"{100 * value['mean']:.1f}% ± {100 * value['ci95']:.1f}"
