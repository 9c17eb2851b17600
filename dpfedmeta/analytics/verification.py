"""Verification of the folder of an analysis: recomputed from its ledger, compared with every file beside it."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from dpfedmeta.accounting.ledger.ledger import LedgerContent, phases_of, read_content, spent
from dpfedmeta.accounting.ledger.published import Verified, chain_remark, check_releases, not_verified
from dpfedmeta.accounting.other_accountants import opinion_remarks
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.execute import found_digest, plan_content, summary_content
from dpfedmeta.analytics.statement import STATEMENT, statement
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.comparison import check, json_of
from dpfedmeta.core.files.run_directory import ANALYSIS, LEDGER, PLAN, SUMMARY, RunDirectory, config_of


def is_analysis(path: Path) -> bool:
    """Return whether a folder holds the ledger of an analysis."""
    return config_of(path).startswith(ANALYSIS)


def verify(run: RunDirectory) -> Verified:
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
    cells = spent(content.plan, content.charges, content.lines)
    check(run.path / PLAN, "", run.read_json(PLAN), json_of(plan_content(request, content.plan)))
    remarks = [chain_remark(content.charges), "its request fits its plan", "plan.json agrees"]
    remarks += opinion_remarks(phases_of(content.charges), content.plan.client_delta, cells)
    if complete:
        remarks += _check_summary(run, request, content)
        check_releases(run.ledger, content, [found_digest(run.read_json(SUMMARY)["found"])], str(run.path / SUMMARY))
    else:
        remarks.append(f"it has not finished: go on with dpfedmeta analyse --resume {quote(str(run.path))}")
    simulation = "a simulation: the noise seed was chosen" if request.noise_seed is not None else None
    return Verified(
        plan=content.plan,
        charges=content.charges,
        guarantees=cells,
        remarks=tuple(remarks),
        simulation=simulation,
        unverified=not_verified(content, "what was found"),
    )


def check_request(path: Path, content: LedgerContent) -> Request:
    """Return the request of an analysis, after checking that it gives the plan in its ledger; `path` is for errors.

    Raises:
        InputError: It gives another plan.
    """
    request = Request.from_text(content.identity.config, f"{path}, line 1: identity.config")
    check(path, "plan", json_of(plan_content(request, content.plan)), json_of(plan_content(request, request.planned())))
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
            remarks.append(f"spent before: the request of {name} gives the plan that its ledger charges")
    return remarks


def _check_summary(run: RunDirectory, request: Request, content: LedgerContent) -> list[str]:
    stated = run.read_json(SUMMARY)
    due = json_of(summary_content(request, content, stated.get("found", {})))
    asked = ("status", "analysis", "clients", "cohort", "sampler", "simulation")
    for name in (*asked, "server_sees", "guarantees", "planned", "ledger"):
        check(run.path / SUMMARY, name, stated.get(name), due.get(name))
    try:
        text = statement(stated, request.analysis.words(stated["found"]), spent(content.plan, content.charges))
    except DAMAGED_JSON as error:
        raise InputError(f"{run.path / SUMMARY}: found: incomplete ({error!r})") from error
    path = run.path / STATEMENT
    if not path.exists():
        return ["summary.json agrees"]
    if path.read_text(encoding="utf-8") != text:
        raise InputError(f"{path}: does not agree with summary.json and the ledger")
    return ["summary.json agrees", "statement.txt agrees"]
