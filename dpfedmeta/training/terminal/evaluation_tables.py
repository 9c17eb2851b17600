"""Tables that evaluate.py prints, from the content of evaluation.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.training.results import evaluation_store as measured
from dpfedmeta.training.results.evaluation_store import row_label, unfinished

ROWS = (
    ("accuracy", "this run, adapted"),
    ("accuracy_before_adaptation", "this run, before adaptation"),
    ("accuracy_untrained", "untrained, the same adaptation"),
    ("accuracy_fine_tuned", "untrained, all layers fine-tuned"),
    ("accuracy_trained_prototype", "prototype, features of this run"),
    ("accuracy_untrained_prototype", "prototype, untrained features"),
    ("accuracy_pixel_prototype", "prototype, pixels"),
    ("accuracy_pixel_neighbour", "nearest neighbour, pixels"),
)
# Where nothing adapts.
CLASSIFIERS = (("accuracy", "this run"), ("accuracy_untrained", "untrained"))
_COLUMNS, _STEPS = 2, 8

Results = Sequence[Mapping[str, Any]]


def evaluation_tables(name: str, evaluation: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of an evaluation: by model, then by steps; the protocol is in the first line."""
    notes = [note for note in (unfinished(evaluation), evaluation["note"]) if note]
    yield f"{name}: {evaluation['protocol']}" + (f" ({'; '.join(notes)})" if notes else "")
    results = evaluation["results"]
    for start in range(0, len(results), _COLUMNS):
        yield _contest(evaluation, results[start : start + _COLUMNS])
        if "by_steps" in results[0]:
            yield _by_steps(results[start : start + _COLUMNS])
    for result in results:
        if "accuracy_fine_tuned" in result:
            tuned = result["accuracy_fine_tuned"]
            yield (
                f"fine-tuning, {size(result)}: {tuned['steps']} steps of {tuned['lr']:g}, the best of "
                f"{len(tuned['validation'])} step sizes on {tuned['validation_episodes']} validation episodes"
            )


def size(result: Mapping[str, Any]) -> str:
    """The shape of episodes in words."""
    return measured.size(result) or ("all images" if "images" in result["accuracy"] else "whole clients")


def selected(steps: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers of steps, denser at the beginning, where accuracy changes."""
    if len(steps) <= most:
        return list(steps)
    places = {round((len(steps) - 1) * (index / (most - 1)) ** 2) for index in range(most)}
    return [steps[place] for place in sorted(places)]


def _contest(evaluation: Mapping[str, Any], results: Results) -> Table:
    table = Table()
    table.add_column("accuracy, mean and 95% interval")
    for result in results:
        table.add_column(size(result), justify="right")
    for key, label in CLASSIFIERS if "images" in results[0]["accuracy"] else ROWS:
        if key in results[0]:
            table.add_row(row_label(key, label, evaluation), *(_shown(result[key]) for result in results))
    if "clients" in results[0]:
        for key, label in (("accuracy", "this run"), ("accuracy_untrained", "untrained")):
            tenths = (100 * result["clients"][key]["worst_tenth"] for result in results)
            model = row_label(key, label, evaluation)
            table.add_row(f"worst 10% of clients, {model}", *(f"{tenth:.1f}%" for tenth in tenths))
    if "queries" in results[0]:
        table.add_row("queries per class", *(str(result["queries"]) for result in results))
        table.add_row("steps", *(str(result["accuracy"]["steps"]) for result in results))
    count = next(count for count in ("episodes", "images") if count in results[0]["accuracy"])
    table.add_row(count, *(f"{result['accuracy'][count]:,}" for result in results))
    return table


def _by_steps(results: Results) -> Table:
    table = Table(title="this run, by gradient steps", title_justify="left")
    table.add_column("steps", justify="right")
    for result in results:
        table.add_column(size(result), justify="right")
    rows = [{row["steps"]: row for row in result["by_steps"]} for result in results]
    trained = results[0]["accuracy"]["steps"]
    for steps in sorted({*selected(list(rows[0]), _STEPS), trained}):
        mark = " (the run's own)" if steps == trained else ""
        table.add_row(f"{steps}{mark}", *(_shown(found[steps]["accuracy"]) for found in rows))
    return table


def _shown(value: Mapping[str, Any]) -> str:
    return str(Accuracy(mean=value["mean"], ci95=value["ci95"], episodes=0))
