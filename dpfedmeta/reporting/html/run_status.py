"""End of a run, or its present state, in the words of its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.state.how_to_resume import how_to_go_on
from dpfedmeta.training.state.private_timings import at_most
from dpfedmeta.training.terminal.progress_bar import clock

# Seconds after which the page of a running run looks for a newer one.
REFRESH = 10


def ending_words(snapshot: Snapshot, summary: Mapping[str, Any]) -> str:
    """Return a sentence that says how the run ended and how long it took, or what its present state is."""
    if snapshot.words is not None:
        return f"{snapshot.words}."
    speed = f"{summary['clients_per_second']:.0f} clients/s"
    if summary.get("times"):
        took = f"{at_most(summary['seconds'])} of training (about {speed}; {summary['times']})"
    else:
        took = f"{clock(summary['seconds'])} of training ({speed})"
    return f"{summary['status']} after {took}."


def warning(snapshot: Snapshot) -> str | None:
    """Return the warning about all numbers of the page; None where the run completed, or its budget ended it."""
    if snapshot.stage == "interrupted":
        done = len(snapshot.rows or ())
        # A round that was cut off is charged, and has no row.
        more = f" ({snapshot.rounds - done} more charged)" if snapshot.rounds > done else ""
        return (
            f"INTERRUPTED after {done} of {snapshot.content.plan.rounds} rounds{more}, to which all results refer; "
            f"go on with: {how_to_go_on(snapshot.run)}"
        )
    if snapshot.words is None:
        return None
    return (
        f"{snapshot.words}. Accuracies and the epsilon spent are for these rounds; the epsilon promised is for all "
        "rounds."
    )


def refresh(snapshot: Snapshot) -> Markup:
    """Lets a browser read the page again while the run goes on; the page of its end has no such line."""
    if snapshot.stage != "running":
        return Markup()
    return Markup('<meta http-equiv="refresh" content="{}">').format(REFRESH)
