"""summary.json: how a run ended, what it reached and what it spent."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any, Literal

from dpfedmeta.accounting.ledger.ledger import read_content, spent
from dpfedmeta.core.files.run_directory import PLAN, RunDirectory
from dpfedmeta.core.provenance import made_by
from dpfedmeta.core.version import __version__
from dpfedmeta.planning.client_spec import sizes_of_clients
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum
from dpfedmeta.training.results.evaluation_store import audited_cells
from dpfedmeta.training.state.private_timings import COARSE, coarse, hides_times

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.learning.server_step import ServerState
    from dpfedmeta.planning.run_plan import Plan
    from dpfedmeta.training.results.snapshot import Snapshot
    from dpfedmeta.training.verification.file_claims import Proven

Status = Literal["completed", "budget", "interrupted", "diverged"]
NOT_FINITE = "training diverged: the model holds NaN or Inf; lower server.lr or meta.lr in a new run"
ACCURACIES = ("", "_before_adaptation", "_untrained", "_pixel_prototype", "_pixel_neighbour")
SIMULATION = "simulation: no guarantee towards whoever knows the seed"


def summary_of(
    run: RunDirectory,
    plan: Plan,
    state: ServerState,
    status: Status,
    spent_on_it: tuple[float, float],
    accuracies: dict[str, dict[str, object]],
) -> dict[str, Any]:
    """Everything that summary.json states; released quantities only. `spent_on_it`: seconds and megabytes."""
    from dpfedmeta.planning.network_trial.pretraining_overlap import (
        initial_words,  # brings PyTorch; whoever verifies needs none
    )

    ledger = read_content(run.ledger, torn=True)
    privacy, events = ledger.plan, ledger.charges
    return {
        "status": status,
        "algo": plan.settings.algo,
        "dataset": plan.settings.dataset,
        "task": sizes_of_clients(plan.settings),
        "rounds": state.round,
        **({"extended_from": list(privacy.ends)} if privacy.ends else {}),
        "population": {
            "clients": privacy.clients,
            "cohort": privacy.cohort,
            "sampler": plan.settings.population.sampler,
            "max_participations": privacy.max_participations,
        },
        "aggregation": aggregation(plan.settings.aggregation.mode, privacy),
        "begins_with": initial_words(plan.settings),
        **({"encoder": plan.settings.model.encoder} if plan.settings.model.encoder else {}),
        **({"records": plan.network.records} if plan.network.records != "images" else {}),
        **{f"accuracy{name}": accuracies.get(f"accuracy{name}") for name in ACCURACIES},
        **{name: value for name, value in accuracies.items() if name.removeprefix("accuracy") not in ACCURACIES},
        "guarantees": [guarantee.as_json() for guarantee in spent(privacy, events)],
        "planned": [guarantee.as_json() for guarantee in plan.planned],
        "ledger": {"rounds": len(events), "head": ledger.heads[-1]},
        "simulation": SIMULATION if plan.settings.run.noise_seed is not None else None,
        **what_it_took(plan, state.round, *spent_on_it),
        "versions": versions(),
        "made_by": made_by(),
        **audited_cells(run.path),
    }


def summary_so_far(snapshot: Snapshot, proven: Proven) -> dict[str, Any]:
    """Summary so far of a run that has not ended, in the form of summary.json; None: not known yet."""
    run, settings, plan = snapshot.run, proven.settings, proven.content.plan
    planned = run.read_json(PLAN)
    population = {name: getattr(plan, name) for name in ("clients", "cohort", "sampler", "max_participations")}
    return {
        "status": snapshot.stage,
        "algo": settings.algo,
        "dataset": settings.dataset,
        "task": sizes_of_clients(settings),
        "rounds": proven.rounds,
        "population": population | {"kind": planned["population"]["kind"], "statement": planned["population"]},
        "aggregation": aggregation(settings.aggregation.mode, plan),
        "begins_with": planned["begins_with"],
        **dict.fromkeys(f"accuracy{name}" for name in ACCURACIES),
        "guarantees": [cell.as_json() for cell in proven.cells],
        "planned": [cell.as_json() for cell in proven.promised],
        "ledger": {"rounds": len(proven.content.charges), "head": proven.content.heads[-1]},
        "simulation": proven.simulation,
        **dict.fromkeys(("seconds", "clients_per_second", "peak_memory_mb", "times")),
        "versions": {},
    }


def aggregation(mode: str, plan: PrivacyPlan) -> dict[str, object]:
    """Return how messages are added up, and the constants of the plan that this rests on.

    How many rounds were aborted for want of survivors is not among them: nobody but the server may tell such a round
    from another one.
    """
    secure = plan.secure
    return {
        "mode": mode,
        "server_sees": plan.server_sees,
        "dimension": secure.dimension if secure else None,
        "dropout": secure.dropout if secure else None,
        "adversarial": secure.adversarial if secure else None,
        **constants_of_the_sum(plan),
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
