"""Tables of an evaluation on people's own records, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from dpfedmeta.learning.evaluation.people import PersonScores, compared, overall

_MOST_ROWS = 40


def people_tables(scores: Sequence[PersonScores]) -> Iterator[Table | str]:
    """Yield one row for each client, then one for each learner over all clients.

    Args:
        scores: Of all clients; at least one was judged.
    """
    names = list(next(each for each in scores if each.judged).accuracy)
    own = Table(title="Each client, accuracy in % ± 95% interval over splits")
    for column in ("client", "classes", "records", *names):
        own.add_column(column, justify="left" if column == "client" else "right")
    for each in scores[:_MOST_ROWS]:
        cells = [_cell(each, name) for name in names]
        own.add_row(Text(each.name or "this client"), f"{len(each.records)}", f"{sum(each.records.values()):,}", *cells)
    yield own
    if len(scores) > _MOST_ROWS:
        yield f"... and {len(scores) - _MOST_ROWS} more; all of them are in the files"
    unjudged = [each.name for each in scores if not each.judged]
    if unjudged:
        names_of = ", ".join(unjudged[:5])
        yield f"not judged, with fewer than two classes of two records each: {len(unjudged)} ({names_of})"
    every = Table(title="All clients, accuracy in %")
    for column in ("model", "mean over clients", "over records", "balanced", "worst tenth"):
        every.add_column(column, justify="left" if column == "model" else "right")
    for name, found in overall(scores).items():
        spread = "" if found.ci95 is None else f" ± {100 * found.ci95:.1f}"
        others = (found.records, found.balanced, found.worst)
        every.add_row(name, f"{100 * found.people:.1f}{spread}", *(f"{100 * value:.1f}" for value in others))
    yield every
    for other in names[1:]:
        difference = compared(scores, names[0], other)
        if difference is not None:
            low, high = (100 * (difference.mean + sign * difference.ci95) for sign in (-1, 1))
            mean = f"{100 * difference.mean:+.1f} points, {low:+.1f} to {high:+.1f}"
            yield f"{names[0]}, against {other}: {mean} over clients"


def _cell(scores: PersonScores, name: str) -> str:
    if not scores.judged:
        return "-"
    return f"{100 * scores.accuracy[name]:.1f} ± {100 * scores.ci95[name]:.1f}"
