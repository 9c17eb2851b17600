"""More rounds for a completed run: charged as if they had been planned from the start, within what was promised."""

import math
import shutil
from pathlib import Path
from shlex import quote

from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, LedgerContent
from dpfedmeta.accounting.ledger.ledger_register import Lineage, check_lineage
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.atomic_files import sync_folder
from dpfedmeta.core.files.run_directory import DIVERGED, EPISODES, EVALUATION, REPORT, SELECTION, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words

_CELLS = (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))
# What describes the run as it ended; all of it is made again.
_OF_THE_END = (SUMMARY, REPORT, EPISODES, EVALUATION, "evaluations", "checkpoint/model.safetensors")


def promise(settings: Settings, begun: PrivacyPlan) -> Budget:
    """Return the epsilons that a run may not exceed however often it is extended: its targets; inf where there is none.

    A client that keeps a ledger of its own holds the server to what the plan said at first, so that is a limit too.
    """
    privacy = settings.privacy
    limits = dict.fromkeys(_CELLS, math.inf)
    for cell, epsilon in (
        (("client", privacy.client.observer), privacy.client.epsilon),
        (("client", "public"), privacy.client.limit),
        (("record", privacy.record.observer), privacy.record.epsilon),
    ):
        if epsilon is not None:
            limits[cell] = min(limits[cell], epsilon)
    if settings.record.client_ledgers:
        stated = next(cell for cell in guarantees(begun) if (cell.unit, cell.observer) == ("record", "server"))
        limits["record", "server"] = min(limits["record", "server"], stated.epsilon)
    return Budget(limits=tuple(limits[cell] for cell in _CELLS))


def limited(settings: Settings, plan: PrivacyPlan) -> bool:
    """Return whether anything that was promised limits how far a run is extended."""
    return any(map(math.isfinite, promise(settings, plan.begun).limits))


def extended_plan(run: RunDirectory, settings: Settings, content: LedgerContent, rounds: int) -> PrivacyPlan:
    """The plan of a completed run with `rounds` rounds in all.

    Guarantee:
        Its four cells are those of all rounds, the old ones too, and within every target that the run began with.

    Raises:
        InputError: The run is not completed, has as many rounds already, or is a candidate of a private sweep.
        RefusedPlan: The promise would be exceeded, with how many rounds it allows; or the noise is one of somebody's
            own, of which nobody knows whether it goes on.
    """
    plan = content.plan
    if content.identity.candidate or (run.path / SELECTION).exists():
        raise InputError(
            f"{run.path}: is a candidate of a private sweep, whose price covers the rounds of its list alone; start a "
            "run with more rounds"
        )
    done = sum(not charge.attempt for charge in content.charges)
    status = run.read_json(SUMMARY).get("status") if (run.path / SUMMARY).exists() else "interrupted"
    if status == DIVERGED:
        raise InputError(f"{run.path}: its training diverged, so no further round would learn anything")
    if done < plan.rounds or status == "interrupted":
        what = f"{run.path}: {done} of {counted_words(plan.rounds, 'round')} are charged and the run is not completed"
        remedy = (
            "its promise is used up" if status == "budget" else f"finish it first (--resume {quote(str(run.path))})"
        )
        raise InputError(f"{what}; {remedy}")
    if rounds <= plan.rounds:
        raise InputError(
            f"--rounds {rounds}: is the number of rounds in all, and {run.path} already has {plan.rounds}; give more"
        )
    if plan.secure is not None and plan.max_participations is not None:
        raise RefusedPlan(
            f"aggregation.mode = {settings.aggregation.mode} with population.max_participations = "
            f"{plan.max_participations}: more rounds would change which cohorts count as rare in the rounds already "
            "done; start a new run with all rounds"
        )
    if plan.noise != "independent":
        raise RefusedPlan(
            f"server.noise = {plan.noise}: its noise was planned for {plan.rounds} rounds, and the cost of more "
            "rounds is not known; start a new run with more rounds"
        )
    longer = plan.extended(rounds)
    _check_promise(run, promise(settings, plan.begun), longer)
    return longer


def _check_promise(run: RunDirectory, limits: Budget, longer: PrivacyPlan) -> None:
    after = guarantees(longer)
    if limits.allows(after):
        return
    cell, limit = next(
        (cell, limit)
        for cell, limit in zip(after, limits.limits, strict=True)
        if math.isnan(cell.epsilon) or cell.epsilon > limit
    )
    most, done = limits.affordable_rounds(longer), longer.ends[-1]
    how_many = f"{most} rounds in all are allowed" if most > done else "it is used up, so no further round is allowed"
    raise RefusedPlan(
        f"--rounds {longer.rounds}: {run.path} promised {cell.name} = {asked(limit)}, and {longer.rounds} rounds spend "
        f"{rounded_up(cell.epsilon, 4)}; {how_many}, and a promise cannot be raised afterwards"
    )


def check_extension(run: RunDirectory, settings: Settings, content: LedgerContent) -> None:
    """Check that the rounds to which a ledger was extended are within the run's promise.

    Raises:
        RefusedPlan: They are not.
    """
    if content.plan.ends:
        _check_promise(run, promise(settings, content.plan.begun), content.plan)


def extend(run: RunDirectory, content: LedgerContent, rounds: int, lineage: Lineage | None) -> None:
    """Write the extension to the ledger; from here on the run is one that is not finished.

    Raises:
        InputError: A newer copy of this run was written on this machine.
    """
    if lineage is not None:
        check_lineage(run, content, lineage)
    ledger = Ledger.resume(run.ledger, content, run.ledger.stat().st_size)
    ledger.extend(rounds)
    if lineage is not None:
        lineage.follow(ledger.lines, ledger.head)


def set_aside(run: RunDirectory, rounds: int) -> Path:
    """Move what describes the run as it was after `rounds` rounds into a folder of its own; again is harmless."""
    folder = run.after(rounds)
    folder.mkdir(exist_ok=True)
    found = [run.path / name for name in _OF_THE_END]
    summary = run.read_json(SUMMARY) if found[0].exists() else {}
    if summary.get("rounds") != rounds or summary.get("status") == "interrupted":
        return folder
    # The summary last: as long as it is there, this is to be done.
    for path in [*found[1:], *sorted(run.path.glob("*.png")), found[0]]:
        if path.exists():
            shutil.move(path, folder / path.name)
    sync_folder(folder)
    sync_folder(run.path)
    return folder
