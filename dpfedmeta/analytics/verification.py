"""Verification of the folder of an analysis: recomputed from its ledger, compared with every file beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent, phases_of, read_content, spent
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.execute import plan_content, summary_content
from dpfedmeta.analytics.statement import STATEMENT, statement
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import ANALYSIS, LEDGER, PLAN, SUMMARY, RunDirectory, config_of

_ALIKE = 1e-6


@dataclass(frozen=True, kw_only=True)
class VerifiedAnalysis:
    """A ledger of an analysis, and what it proves.

    Attributes:
        plan: The plan in its first line.
        guarantees: What its charges cost, from their own numbers.
        remarks: What was checked, a line each.
        simulation: What is said where somebody chose the noise seed.
    """

    plan: PrivacyPlan
    guarantees: tuple[Guarantee, ...]
    remarks: tuple[str, ...]
    simulation: str | None


def is_analysis(path: Path) -> bool:
    """Return whether a folder holds the ledger of an analysis."""
    return config_of(path).startswith(ANALYSIS)


def verify(run: RunDirectory) -> VerifiedAnalysis:
    """Recompute what an analysis spent, and compare.

    Guarantee:
        What plan.json, summary.json and statement.txt say of privacy is what the ledger adds up to, and the ledger's
        plan is what its request gives.

    Raises:
        InputError: The ledger is damaged, or a file beside it contradicts it; names the file and what it says.
        RefusedPlan: Its charges are not those of its plan.
    """
    complete = (run.path / SUMMARY).exists()
    content = read_content(run.ledger, torn=not complete)
    request = check_request(run.ledger, content)
    cells = spent(content.plan, content.charges)
    _same(run.path / PLAN, "", run.read_json(PLAN), plan_content(request, content.plan))
    remarks = [f"{len(content.charges)} charges, hash chain intact", "its request gives its plan", "plan.json agrees"]
    other = second_opinion(phases_of(content.charges), content.plan.client_delta)
    if other is not None:
        remarks.append(f"(client, public) by {other[0]}: {other[1]:.3g}, and {cells[0].epsilon:.3g} here")
    if complete:
        remarks += _check_summary(run, request, content)
    else:
        remarks.append(f"it has not finished: go on with dpfedmeta analyse --resume {run.path}")
    simulation = "a simulation: the noise seed was chosen" if request.noise_seed is not None else None
    return VerifiedAnalysis(plan=content.plan, guarantees=cells, remarks=tuple(remarks), simulation=simulation)


def check_request(path: Path, content: LedgerContent) -> Request:
    """Return the request of an analysis, after checking that it gives the plan in its ledger; `path` is for errors.

    Raises:
        InputError: It gives another plan.
    """
    request = Request.from_text(content.identity.config, f"{path}, line 1: identity.config")
    _same(path, "plan", plan_content(request, content.plan), plan_content(request, request.planned()))
    return request


def check_counted(folders: Sequence[str]) -> list[str]:
    """Check that the analyses that a training counts as spent before charge what they were asked for; return remarks.

    Args:
        folders: `privacy.spent_before`; one that is gone cannot be checked, and is passed over.

    Raises:
        InputError: A ledger was written anew with other noise.
    """
    remarks = []
    for name in folders:
        path = Path(name, LEDGER)
        if path.exists():
            check_request(path, read_content(path, torn=True))
            remarks.append(f"spent before: what {name} was asked for gives what it charges")
    return remarks


def _check_summary(run: RunDirectory, request: Request, content: LedgerContent) -> list[str]:
    stated = run.read_json(SUMMARY)
    due = summary_content(request, content, stated.get("found", {}))
    asked = ("status", "analysis", "clients", "cohort", "sampler", "simulation")
    for name in (*asked, "server_sees", "guarantees", "planned", "ledger"):
        _same(run.path / SUMMARY, name, stated.get(name), due.get(name))
    try:
        words, cells = request.analysis.words(stated["found"]), spent(content.plan, content.charges)
        texts = {statement(stated, words, cells), statement(stated, words)}
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{run.path / SUMMARY}: found: incomplete ({error!r})") from error
    path = run.path / STATEMENT
    if path.exists() and path.read_text(encoding="utf-8") not in texts:
        raise InputError(f"{path}: says something else than summary.json and the ledger")
    return ["summary.json agrees", "statement.txt agrees"]


def _same(path: Path, name: str, stated: Any, due: Any) -> None:
    """Alike but for the last digits of numbers.

    Raises:
        InputError: They are not.
    """
    if isinstance(due, Mapping) and isinstance(stated, Mapping):
        for key in sorted({*due, *stated}):
            _same(path, f"{name}.{key}".lstrip("."), stated.get(key), due.get(key))
        return
    if isinstance(due, list | tuple) and isinstance(stated, list | tuple) and len(due) == len(stated):
        for place, (left, right) in enumerate(zip(stated, due, strict=True)):
            _same(path, f"{name}[{place}]", left, right)
        return
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stated, due))
    alike = numbers and math.isclose(stated, due, rel_tol=_ALIKE)
    # Sentences hold rounded numbers, which stand beside them as well.
    words = name.rsplit(".", 1)[-1] in ("event", "formula")
    if stated != due and not alike and not words:
        raise InputError(f"{path}: {name}: states {stated!r}, but the ledger gives {due!r}")
