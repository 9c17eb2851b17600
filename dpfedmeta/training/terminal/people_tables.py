"""Tables of an evaluation on people's own records, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from dpfedmeta.learning.evaluation.people import PersonScores, compared, overall
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES

_MOST_ROWS = 40
_WORDS = {"auc": "AUC", "mae": "mean absolute error", "rmse": "RMSE", "r2": "R2"}
# Of measures that are shares; the others are shown in their own unit.
_PERCENT = ("accuracy", "balanced", "auc")


def people_tables(scores: Sequence[PersonScores], targets: TargetKind = OWN_CLASSES) -> Iterator[Table | str]:
    """Yield one row for each client, then one for each model over all clients.

    Args:
        scores: Of all clients; at least one was judged.
        targets: Kind of the labels.
    """
    measures, better = targets.measure_names, targets.higher_is_better
    first, names = measures[0], list(next(each for each in scores if each.judged).first)
    unit = " in %" if first in _PERCENT else ""
    own = Table(title=f"Each client, {_words(first)}{unit} ± 95% interval over splits")
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
        spread = "" if found.ci95 is None else f" ± {_shown(first, found.ci95)}"
        others = [_shown(measure, found.others[measure]) for measure in measures[1:]]
        values = (_shown(first, found.records), *others, _shown(first, found.worst))
        every.add_row(name, f"{_shown(first, found.people)}{spread}", *values)
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


def _shown(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if measure in _PERCENT else f"{value:.3g}"


def _cell(scores: PersonScores, measure: str, name: str) -> str:
    if not scores.judged:
        return "-"
    return f"{_shown(measure, scores.first[name])} ± {_shown(measure, scores.ci95[name])}"
