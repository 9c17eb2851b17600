"""How a run ended, or where it stands, as its page says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dpfedmeta.runs.going_on import how_to_go_on
from dpfedmeta.runs.snapshot import Snapshot
from dpfedmeta.runs.times import at_most
from dpfedmeta.tracking.pace import clock

# Seconds after which the page of a running run looks for a newer one.
REFRESH = 10


def ending_words(snapshot: Snapshot, summary: Mapping[str, Any]) -> str:
    """One sentence: how it ended and what it took, or where it stands."""
    if snapshot.words is not None:
        return f"{snapshot.words}."
    speed = f"{summary['clients_per_second']:.0f} clients/s"
    if summary.get("times"):
        took = f"{at_most(summary['seconds'])} of training (about {speed}; {summary['times']})"
    else:
        took = f"{clock(summary['seconds'])} of training ({speed})"
    return f"{summary['status']} after {took}."


def warning(snapshot: Snapshot) -> str | None:
    """What has to be known about every number of the page; None: the run ended as planned."""
    rounds = f"{snapshot.rounds} of {snapshot.content.plan.rounds} rounds"
    if snapshot.stage == "interrupted":
        return f"INTERRUPTED: everything here is of {rounds}; go on with: {how_to_go_on(snapshot.run)}"
    if snapshot.words is None:
        return None
    return f"{snapshot.words}. Spent, and every accuracy, is of these rounds; promised is for all of them."


def refresh(snapshot: Snapshot) -> Markup:
    """Lets a browser read the page again while the run goes on; the page of its end has no such line."""
    if snapshot.stage != "running":
        return Markup()
    return Markup('<meta http-equiv="refresh" content="{}">').format(REFRESH)
