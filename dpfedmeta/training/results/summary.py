"""summary.json: how a run ended, what it reached and what it spent."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any, Literal

from dpfedmeta.accounting.ledger.ledger import read_content, spent
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.provenance import made_by
from dpfedmeta.core.version import __version__
from dpfedmeta.training.results.evaluation_store import audited_cells
from dpfedmeta.training.results.facts import summary_facts
from dpfedmeta.training.state.private_timings import COARSE, coarse, hides_times

if TYPE_CHECKING:
    from dpfedmeta.learning.server_step import ServerState
    from dpfedmeta.planning.run_plan import Plan
    from dpfedmeta.training.results.snapshot import Snapshot
    from dpfedmeta.training.verification.proven import Proven

Status = Literal["completed", "budget", "interrupted", "diverged"]
NOT_FINITE = "training diverged: the model holds NaN or Inf; lower server.lr or meta.lr in a new run"
ACCURACIES = ("", "_before_adaptation", "_untrained", "_pixel_prototype", "_pixel_neighbour")


def summary_of(
    run: RunDirectory,
    plan: Plan,
    state: ServerState,
    status: Status,
    spent_on_it: tuple[float, float],
    accuracies: dict[str, dict[str, object]],
) -> dict[str, Any]:
    """Everything that summary.json states; released quantities only. `spent_on_it`: seconds and megabytes."""
    content = read_content(run.ledger, torn=True)
    cells = spent(content.plan, content.charges)
    return {
        "status": status,
        "rounds": state.round,
        **summary_facts(plan.settings, content, cells, plan.planned),
        **({"records": plan.network.records} if plan.network.records != "images" else {}),
        **{f"accuracy{name}": accuracies.get(f"accuracy{name}") for name in ACCURACIES},
        **{name: value for name, value in accuracies.items() if name.removeprefix("accuracy") not in ACCURACIES},
        **what_it_took(plan, state.round, *spent_on_it),
        "versions": versions(),
        "made_by": made_by(),
        **audited_cells(run.path),
    }


def summary_so_far(snapshot: Snapshot, proven: Proven) -> dict[str, Any]:
    """Summary so far of a run that has not ended, in the form of summary.json; None: not known yet."""
    return {
        "status": snapshot.stage,
        "rounds": proven.rounds,
        **proven.summary_facts(),
        **dict.fromkeys(f"accuracy{name}" for name in ACCURACIES),
        **dict.fromkeys(("seconds", "clients_per_second", "peak_memory_mb", "times")),
        "versions": {},
    }


def what_it_took(plan: Plan, rounds: int, seconds: float, memory: float) -> dict[str, float | str | None]:
    """Time and memory; in a private run coarse, and the speed from the coarse time."""
    hidden = hides_times(plan)
    if hidden:
        seconds, memory = coarse(seconds), coarse(memory)
    speed = rounds * plan.privacy.cohort / seconds
    return {
        "seconds": seconds,
        "clients_per_second": coarse(speed) if hidden else speed,
        "peak_memory_mb": memory,
        "times": COARSE if hidden else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of the software that produced the result."""
    packages = ("torch", "opacus", "dp-accounting", "numpy", "scipy", "numba")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"dpfedmeta": __version__, "python": platform.python_version(), **found}
