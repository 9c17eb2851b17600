"""Tables that evaluate.py prints, from the content of evaluation.json; also of people's own records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.learning.evaluation.people import PersonScores, compared, overall
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES
from dpfedmeta.training.results import evaluation_store as measured
from dpfedmeta.training.results.evaluation_store import OWN_MAJORITY, row_label, shown_rows, unfinished

ROWS = (
    ("accuracy", "this run, adapted"),
    ("accuracy_before_adaptation", "this run, before adaptation"),
    ("accuracy_untrained", "untrained, the same adaptation"),
    ("accuracy_fine_tuned", "untrained, all layers fine-tuned"),
    ("accuracy_trained_prototype", "prototype, features of this run"),
    ("accuracy_untrained_prototype", "prototype, untrained features"),
    ("accuracy_pixel_prototype", "prototype, pixels"),
    ("accuracy_pixel_neighbour", "nearest neighbour, pixels"),
    ("accuracy_own_majority", OWN_MAJORITY),
)
# Where nothing adapts.
CLASSIFIERS = (("accuracy", "this run"), ("accuracy_untrained", "untrained"))
_COLUMNS, _STEPS = 2, 8

Results = Sequence[Mapping[str, Any]]
_MOST_ROWS = 40
_WORDS = {"auc": "AUC", "mae": "mean absolute error", "rmse": "RMSE", "r2": "R2"}
# Of measures that are shares; the others are shown in their own unit.
_PERCENT = ("accuracy", "balanced", "auc")


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
    rows = CLASSIFIERS if "images" in results[0]["accuracy"] else ROWS
    shown = {row for result in results for row in shown_rows(rows, result)}
    for key, label in (row for row in rows if row in shown):
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


def people_tables(scores: Sequence[PersonScores], targets: TargetKind = OWN_CLASSES) -> Iterator[Table | str]:
    """Yield one row for each client, then one for each model over all clients.

    Args:
        scores: Of all clients; at least one was judged.
        targets: Kind of the labels.
    """
    measures, better = targets.measure_names, targets.higher_is_better
    first, names = measures[0], list(next(each for each in scores if each.judged).first)
    unit = " in %" if first in _PERCENT else ""
    several = any(half is not None for each in scores for half in each.ci95.values())
    own = Table(title=f"Each client, {_words(first)}{unit}{' ± 95% interval over splits' if several else ''}")
    for column in ("client", "classes", "records", *names):
        own.add_column(column, justify="left" if column == "client" else "right")
    for each in scores[:_MOST_ROWS]:
        cells = [_cell(each, first, name) for name in names]
        held = sum(count > 0 for count in each.records.values())
        own.add_row(Text(each.name or "this client"), f"{held}", f"{sum(each.records.values()):,}", *cells)
    yield own
    if len(scores) > _MOST_ROWS:
        yield f"... and {len(scores) - _MOST_ROWS} more; all of them are in the files"
    unjudged = [each.name for each in scores if not each.judged]
    if unjudged:
        needed = "two records" if targets.numbers else "two classes of two records each"
        yield f"not judged, with fewer than {needed}: {len(unjudged)} ({', '.join(unjudged[:5])})"
    every = Table(title=f"All clients, {_words(first)}{unit}")
    for column in ("model", "mean over clients", "over records", *map(_words, measures[1:]), "worst tenth"):
        every.add_column(column, justify="left" if column == "model" else "right")
    for name, found in overall(scores, higher_is_better=better).items():
        others = [_score(measure, found.others[measure]) for measure in measures[1:]]
        values = (_score(first, found.records), *others, _score(first, found.worst))
        every.add_row(name, f"{_score(first, found.people)}{_spread(first, found.ci95)}", *values)
    yield every
    yield from _undefined(scores, measures)
    for other in names[1:]:
        difference = compared(scores, names[0], other)
        if difference is not None:
            factor, unit = (100.0, " points") if first in _PERCENT else (1.0, "")
            low, high = (factor * (difference.mean + sign * difference.ci95) for sign in (-1, 1))
            mean = f"{factor * difference.mean:+.2f}{unit}, {low:+.2f} to {high:+.2f}"
            yield f"{names[0]}, against {other}: {mean} over clients"


def _undefined(scores: Sequence[PersonScores], measures: Sequence[str]) -> Iterator[str]:
    """Say of which clients a measure is left out of the means."""
    for measure in measures[1:]:
        odd = [each.name for each in scores if each.judged and None in each.measures[measure].values()]
        if odd:
            why = "all its targets are the same" if measure == "r2" else "it is judged on one class"
            named = f"{len(odd)} client(s) where {why}: {', '.join(odd[:5])}"
            yield f"{_words(measure)}: -, and left out of the mean, of {named}"


def _words(measure: str) -> str:
    return _WORDS.get(measure, measure)


def _score(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if measure in _PERCENT else f"{value:.3g}"


def _cell(scores: PersonScores, measure: str, name: str) -> str:
    if not scores.judged:
        return "-"
    return f"{_score(measure, scores.first[name])}{_spread(measure, scores.ci95[name])}"


def _spread(measure: str, ci95: float | None) -> str:
    """Nothing where one value says nothing of how far others lie."""
    return "" if ci95 is None else f" ± {_score(measure, ci95)}"
