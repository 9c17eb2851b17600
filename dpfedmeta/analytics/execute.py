"""An analysis from its request to its folder: charged in its ledger, released, and stated; or gone on with."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import Ledger, LedgerContent, RunIdentity, check_rounds, read_content, spent
from dpfedmeta.accounting.ledger.versions import constants
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import PendingRelease
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.simulated_clients import Clients, SimulatedClients
from dpfedmeta.analytics.statement import STATEMENT, statement
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, cut_torn_line, whole_lines
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY, RunDirectory, create, write_text
from dpfedmeta.core.plugins.user_code import own_sources, unseen
from dpfedmeta.core.random.fresh_seeds import draw_fresh, new_source
from dpfedmeta.core.random.random_sources import Purpose, SecretSource
from dpfedmeta.planning.user_modules import own_modules
from dpfedmeta.privacy.samplers import sampler_of
from dpfedmeta.training.results.summary import SIMULATION, versions
from dpfedmeta.training.state.cohort_log import repeatable
from dpfedmeta.training.state.lock import only_writer
from dpfedmeta.training.state.recover import check_lineage
from dpfedmeta.training.state.resume import keep_secret, registered, secret_of_run

_DATA = "data.json"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folder in which a new analysis is kept.

    Attributes:
        folder: The parent folder.
        name: Its name; None: kind and time.
    """

    folder: str = "runs"
    name: str | None = None


# Who is asked, from what is asked.
AskedOf = Callable[[Request], Clients]


def begin(
    request: Request,
    place: Place,
    *,
    data_folder: Path | None = None,
    secure_rng: bool = False,
    asked_of: AskedOf | None = None,
) -> RunDirectory:
    """Plan, charge, ask, release.

    Args:
        request: What is asked.
        place: Where it is kept.
        data_folder: Where data sets are; None: DPFEDMETA_DATA.
        secure_rng: Randomness from the operating system.
        asked_of: Clients that are elsewhere; None: those of a simulation.

    Raises:
        InputError: Something that was given does not fit; nothing was charged, unless it says so.
        RefusedPlan: What is asked for cannot be promised.
    """
    if secure_rng and request.noise_seed is not None:
        raise InputError("--secure-rng: randomness is the operating system's, so --noise-seed has no place; drop one")
    if secure_rng and asked_of is not None:
        raise InputError(
            "--secure-rng: real clients answer once, so an analysis that is stopped has to go on with the same noise; "
            "leave it out"
        )
    plan, asked = request.planned(), _asked(request, data_folder, asked_of)
    source = new_source(request.noise_seed, secure_rng=secure_rng)
    digest = asked.digest
    asked.check(request.analysis)
    asked.ready()

    def fill(run: RunDirectory) -> None:
        text = request.as_text()
        run.write_json(PLAN, plan_content(request, plan))
        keep_secret(run, source)
        write_text(run.secret / _DATA, json.dumps({"digest": digest}) + "\n", mode=SECRET)
        Ledger(run.ledger, plan, RunIdentity(run=secrets.token_hex(16), config=text, secure=secure_rng))

    name = place.name or f"{request.kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = create(Path(place.folder), name, fill)
    with only_writer(run.path):
        _complete(run, read_content(run.ledger), request, asked, source)
    return run


def resume(path: Path, data_folder: Path | None = None, *, asked_of: AskedOf | None = None) -> RunDirectory:
    """Go on with an analysis that was stopped; one that is complete stays as it is.

    Guarantee:
        With the same data the release comes out as it did, and is not charged again. Without a key (--secure-rng), or
        where an earlier version charged it, it is another release, and charged as one.

    Raises:
        InputError: It is no folder of an analysis, or the clients hold other data now.
    """
    run = RunDirectory(path)
    with only_writer(run.path):
        content = read_content(run.ledger, torn=True)
        if (run.path / SUMMARY).exists():
            return run
        request = Request.from_text(content.identity.config, f"{run.ledger}, line 1")
        asked = _asked(request, data_folder, asked_of)
        kept = RunDirectory(run.secret).read_json(_DATA).get("digest")
        if kept != asked.digest:
            raise InputError(f"{run.path}: the clients hold other data than when it began; start a new analysis")
        asked.ready()
        _complete(run, content, request, asked, secret_of_run(run, request.noise_seed))
    return run


def plan_content(request: Request, plan: PrivacyPlan) -> dict[str, Any]:
    """Return the content of plan.json."""
    return {
        "analysis": request.kind,
        "planned": [cell.as_json() for cell in guarantees(plan)],
        "privacy": constants(plan),
        "phases": [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in plan.phases],
    }


def summary_content(request: Request, content: LedgerContent, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of summary.json: public values only."""
    sampler = {} if request.fixed is None else {"sampler": "fixed"}
    return {
        "status": "completed",
        "analysis": request.kind,
        "clients": request.clients,
        "cohort": request.cohort,
        **sampler,
        "found": dict(found),
        "server_sees": request.analysis.server_sees,
        "guarantees": [cell.as_json() for cell in spent(content.plan, content.charges)],
        "planned": [cell.as_json() for cell in guarantees(content.plan)],
        "simulation": SIMULATION if request.noise_seed is not None else None,
        "ledger": {"head": content.heads[-1], "lines": len(content.heads)},
        "versions": versions(),
    }


def _asked(request: Request, data_folder: Path | None, asked_of: AskedOf | None) -> Clients:
    return SimulatedClients(request, data_folder) if asked_of is None else asked_of(request)


def _complete(
    run: RunDirectory, content: LedgerContent, request: Request, asked: Clients, source: SecretSource
) -> None:
    """Charge what is not charged yet, then ask, release and write."""
    plan, (size, torn) = content.plan, whole_lines(run.ledger)
    check_rounds(plan, content.charges)
    with registered(run) as (lineage, _):
        if lineage is not None:
            restored = source.reproducible and not source.needs_fresh
            check_lineage(run, content, lineage, mended=bool(torn) and restored)
        due, last = _next(plan, content, source, request), content.charges[-1] if content.charges else None
        same = last is not None and last.inputs == due.inputs and repeatable(source, last)
        charge = last if last is not None and same else due
        if torn:
            # A line that was never finished was never used.
            cut_torn_line(run.ledger)
        if charge not in content.charges:
            ledger = Ledger.resume(run.ledger, content, size)
            ledger.charge(charge)
            if lineage is not None:
                lineage.follow(ledger.lines, ledger.head)
    asking, analysis = _asking(plan, charge, source), request.analysis
    told = analysis.told(asking, asked.ground)
    found = analysis.released(asking, told, asked.sums(analysis, asking, told, run))
    summary = summary_content(request, read_content(run.ledger), found)
    write_text(
        run.path / STATEMENT,
        statement(summary, analysis.words(found), spent(content.plan, read_content(run.ledger).charges)),
    )
    run.write_json(SUMMARY, summary)


def _next(plan: PrivacyPlan, content: LedgerContent, source: SecretSource, request: Request) -> Charge:
    """Return the charge of a further attempt; an attempt that was charged with the same inputs is the same release."""
    attempt, own = len(content.charges), own_sources(_own_code(request))
    inputs = hashlib.sha256((content.identity.config + (json.dumps(own) if own else "")).encode()).hexdigest()
    if not source.reproducible or unseen(own):
        inputs = secrets.token_hex(32)
    fresh = draw_fresh() if source.needs_fresh else ""
    return Charge(round=0, event=plan.at(0), attempt=attempt, inputs=inputs, fresh=fresh)


def _own_code(request: Request) -> list[str]:
    named = [] if request.settings is None else own_modules(request.settings)
    return [*named, type(request.analysis).__module__]


def _asking(plan: PrivacyPlan, charge: Charge, source: SecretSource) -> PendingRelease:
    source = source.again(charge.again, charge.stream)
    cohort = sampler_of(charge.event, None).draw(0, {}, source.generator(Purpose.COHORT, 0))
    return PendingRelease(plan=plan, cohort=replace(cohort, again=charge.again, fresh=charge.stream), source=source)
