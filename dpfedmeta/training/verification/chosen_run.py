"""A run that a private sweep chose: what its selection.json states, computed again, and the cells that hold for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.guarantee import Bound, FourGuarantees, Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.private_selection import RunCount, SelectionCost, selection_cost
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import DAMAGED_JSON, InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import SELECTION, SUMMARY, RunDirectory
from dpfedmeta.training.results.facts import CHOSEN

# Epsilons of one list differ in their last digits from machine to machine.
_ALIKE = 1e-6
_SEEN = "the best run of a private sweep, and nothing of the others"
_FORMULA = "Papernot, Steinke 2022, theorem 2, at every Renyi order (docs/sweeps.md)"


def selection_content(cost: SelectionCost, plans: Sequence[PrivacyPlan]) -> dict[str, Any]:
    """Content of selection.json: the price, and all that it is computed from."""
    listed = [constants(plan) for plan in dict.fromkeys(plans)]
    return {**asdict(cost), "plans": listed}


def mark_of(content: Mapping[str, Any]) -> str:
    """Hash of what selection.json states, by which the first line of each candidate's ledger names its search."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def verified_selection(run: RunDirectory, ledger: LedgerContent, cells: Sequence[Guarantee]) -> SelectionCost | None:
    """Compute the price of a choice again, from the list in selection.json and the run's own plan.

    Args:
        run: The run.
        ledger: Its ledger.
        cells: What its charges cost without a choice.

    Returns:
        The price as it is stated; None: no private sweep chose this run.

    Raises:
        InputError: It is damaged, or states less than what is computed; names the file, the key and both values. Or it
            is missing or another one than the ledger names, or summary.json alone says that the run was chosen.
    """
    path, plan, mark = run.path / SELECTION, ledger.plan, ledger.identity.candidate
    if not path.exists():
        if mark:
            raise InputError(
                f"{path}: is missing, but the ledger's first line says that the run is a candidate of a private sweep, "
                "so nothing can be stated of it alone; restore it from the sweep's folder"
            )
        if (run.path / SUMMARY).exists() and run.read_json(SUMMARY).get(CHOSEN) is not None:
            raise InputError(f"{path}: is missing, but {SUMMARY} says that the run was chosen; restore it")
        return None
    content = run.read_json(SELECTION)
    if mark and mark_of(content) != mark:
        raise InputError(f"{path}: is not what the ledger's first line names; restore it from the sweep's folder")
    stated, plans = _read(path, content)
    if stated.delta != plan.client_delta:
        raise InputError(
            f"{path}: delta = {stated.delta!r}, but the run's plan has client_delta = {plan.client_delta!r}"
        )
    own = next(cell for cell in cells if (cell.unit, cell.observer) == ("client", "public")).epsilon
    if any(charge.attempt for charge in ledger.charges):
        raise InputError(f"{path}: prices runs whose rounds are charged once, but {run.ledger} charges a round again")
    if plan.ends:
        raise InputError(
            f"{path}: prices the rounds that were planned, but {run.ledger} was extended after the choice (rounds "
            f"{plan.ends[-1]} to {plan.rounds - 1}), and no price of both is known"
        )
    try:
        # Its own plan is one of the list; if it were not, it would still be paid for here.
        due = selection_cost([plan, *plans], RunCount(mean=stated.mean, eta=stated.eta, cap=stated.cap))
    except (InputError, RefusedPlan) as error:
        raise InputError(f"{path}: there is no such choice: {error}") from error
    least = max(due.epsilon, own)
    if not stated.epsilon >= least * (1 - _ALIKE):
        raise InputError(f"{path}: epsilon = {stated.epsilon!r}, but its list and the run's ledger give {asked(least)}")
    if stated.adjacency != due.adjacency:
        raise InputError(f"{path}: adjacency = {stated.adjacency}, but the run's ledger has {due.adjacency}")
    return stated


def _read(path: Path, content: dict[str, Any]) -> tuple[SelectionCost, list[PrivacyPlan]]:
    missing = [key for key in (*(each.name for each in fields(SelectionCost)), "plans") if key not in content]
    if missing:
        raise InputError(f"{path}: damaged: has no {missing[0]}; restore it from the sweep's folder")
    try:
        plans = [plan_of(each) for each in content["plans"]]
        values = {each.name: content[each.name] for each in fields(SelectionCost)}
        numbers = {name: float(values[name]) for name in ("epsilon", "delta", "single", "mean", "eta", "beyond")}
        cap = None if values["cap"] is None else int(values["cap"])
        return SelectionCost(**{**values, **numbers, "cap": cap}), plans
    except (*DAMAGED_JSON, RefusedPlan) as error:
        raise InputError(f"{path}: damaged ({' '.join(str(error).split())})") from error


def cells_of_choice(cells: Sequence[Guarantee], cost: SelectionCost | None) -> tuple[Guarantee, ...]:
    """Return the cells that hold for a run that was chosen; the run's own where it was not.

    Guarantee:
        (client, public) is the price of the choice. All other cells hold nothing: towards the server all runs of the
        search compose, and the theorem was applied to clients, not to a record beyond its client.
    """
    return tuple(cells) if cost is None else FourGuarantees(_of_choice(cell, cost) for cell in cells)


def _of_choice(cell: Guarantee, cost: SelectionCost) -> Guarantee:
    if (cell.unit, cell.observer) == ("client", "public"):
        bound = Bound(method="rdp", epsilon=cost.epsilon, event=_SEEN, formula=_FORMULA)
        return replace(cell, delta=cost.delta, bounds=(bound,))
    seen = "all runs of the search, which compose" if cell.observer == "server" else _SEEN
    bound = Bound(method="none", epsilon=math.inf, event=seen, formula="nothing is computed of the search")
    return replace(cell, bounds=(bound,), relations=dict.fromkeys(cell.relations, math.inf))


def choice_words(cost: SelectionCost) -> str:
    """Say which number to report of a run that was chosen."""
    return (
        f"chosen by a private sweep: report (client, public) epsilon = {rounded_up(cost.epsilon, 4)} at delta = "
        f"{asked(cost.delta)}, and no smaller number of the run alone; towards the server all runs of the search "
        "compose, so nothing is promised there, nor for a record beyond its client"
    )
