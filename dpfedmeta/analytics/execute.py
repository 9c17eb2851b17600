"""An analysis from its request to its folder: charged in its ledger, released, and stated; or gone on with."""

import hashlib
import json
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from dpfedmeta.accounting.ledger.ledger import Ledger, LedgerContent, RunIdentity, read_content, released_before, spent
from dpfedmeta.accounting.ledger.ledger_register import registered
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import PendingRelease
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.simulated_clients import Clients, SimulatedClients
from dpfedmeta.analytics.statement import STATEMENT, statement
from dpfedmeta.core.errors import InputError, going_on_with
from dpfedmeta.core.files.atomic_files import SECRET, cut_torn_line
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY, RunDirectory, create, write_text
from dpfedmeta.core.plugins.user_code import own_sources, unseen
from dpfedmeta.core.random.fresh_seeds import keep_secret, new_source, secret_of_run
from dpfedmeta.core.random.random_sources import SecretSource
from dpfedmeta.planning.caveats import simulation_words
from dpfedmeta.planning.user_modules import own_modules
from dpfedmeta.privacy.rounds.cohort_log import redrawn
from dpfedmeta.privacy.rounds.promise import plan_content as of_plan
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.training.results.summary import versions

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
        raise InputError("--secure-rng takes no seed, and --noise-seed sets one; drop one of them")
    if secure_rng and asked_of is not None:
        raise InputError(
            "--secure-rng: real clients answer once, so a stopped analysis has to resume with the same noise; leave it "
            "out"
        )
    _check_uncounted(request)
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
    with only_writer(run.path), going_on_with(partial(_how_to_go_on, run, asked_of)):
        _complete(run, read_content(run.ledger), request, asked, source)
    return run


def _check_uncounted(request: Request) -> None:
    register = None if request.settings is None else request.settings.population.register
    if register is None:
        return
    if request.run is None:
        raise InputError(f"population.register = {register}: does not count what an analysis spends; leave it out")
    warnings.warn(f"{request.run}: its register {register} does not count what this analysis spends", stacklevel=3)


def resume(path: Path, data_folder: Path | None = None, *, asked_of: AskedOf | None = None) -> RunDirectory:
    """Go on with an analysis that was stopped; one that is complete stays as it is.

    Guarantee:
        With the same data the release comes out as it did, and is not charged again. Without a key
        (--secure-rng) it is another release, and charged as one.

    Raises:
        InputError: It is no folder of an analysis, or the clients hold other data now.
    """
    run = RunDirectory(path)
    with only_writer(run.path), going_on_with(partial(_how_to_go_on, run, asked_of)):
        content = read_content(run.ledger, torn=True)
        if (run.path / SUMMARY).exists():
            return run
        request = Request.from_text(content.identity.config, f"{run.ledger}, line 1")
        asked = _asked(request, data_folder, asked_of)
        kept = RunDirectory(run.secret).read_json(_DATA).get("digest")
        if kept != asked.digest:
            raise InputError(f"{run.path}: the clients hold other data than when it began; start a new analysis")
        asked.ready()
        _complete(run, content, request, asked, secret_of_run(run, request.noise_seed, secure=content.identity.secure))
    return run


def _how_to_go_on(run: RunDirectory, asked_of: AskedOf | None) -> str:
    words = f"dpfedmeta analyse --resume {quote(str(run.path))}"
    return words if asked_of is None else f"{words}, with --keys and --roster as before"


def plan_content(request: Request, plan: PrivacyPlan) -> dict[str, Any]:
    """Return the content of plan.json."""
    return {"analysis": request.kind, **of_plan(plan)}


def found_digest(found: Mapping[str, Any]) -> str:
    """Digest of what an analysis found, as summary.json states it."""
    stated = json.loads(json.dumps(found))  # as it would come back from the file
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


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
        "simulation": simulation_words(request.noise_seed),
        "ledger": {"head": content.heads[-1], "lines": len(content.heads)},
        "versions": versions(),
    }


def _asked(request: Request, data_folder: Path | None, asked_of: AskedOf | None) -> Clients:
    return SimulatedClients(request, data_folder) if asked_of is None else asked_of(request)


def _complete(
    run: RunDirectory, content: LedgerContent, request: Request, asked: Clients, source: SecretSource
) -> None:
    """Charge what is not charged yet, then ask, release and write."""
    plan, own = content.plan, own_sources(_own_code(request, asked))
    with registered(run) as (lineage, missing):
        if missing:
            warnings.warn(missing, stacklevel=3)
        # Where nobody can see what runs, no release can be told from another one.
        environment = None if unseen(own) else ""
        opened = open_ledger(run, plan, source, environment, lineage)
        if opened.remarks:
            # A line that was never finished was never used.
            cut_torn_line(run.ledger)
        journal = Journal(
            plan=plan,
            ledger=opened.ledger,
            participations=redrawn(plan, source, opened.content.charges),
            budget=None,
            source=source,
            environment=environment,
            lineage=lineage,
            released=released_before(run.ledger, opened.content),
        )
        inputs = hashlib.sha256((content.identity.config + (json.dumps(own) if own else "")).encode()).hexdigest()
        cohort = journal.begin(0, inputs)
        assert cohort is not None  # no budget, no end of it
        asking = PendingRelease(plan=plan, cohort=cohort, source=source.again(cohort.again, cohort.fresh))
        analysis = request.analysis
        told = analysis.told(asking, asked.ground)
        sums = asked.sums(analysis, asking, told, run)
        released, _ = journal.release(
            cohort,
            lambda noise: (analysis.released(asking, told, sums, noise), {}),
            bound=analysis.longest(plan),
            denominator=1.0,
        )
        found = analysis.result(plan, released)
        digest = found_digest(found)
        if not journal.repeats(0, digest):
            raise InputError(
                f"{run.path}: was released once, and comes to something else now, which no charge covers; start a new "
                "analysis"
            )
        journal.released[0] = digest
        journal.close(1, {})
    summary = summary_content(request, read_content(run.ledger), found)
    write_text(
        run.path / STATEMENT,
        statement(summary, analysis.words(found), spent(content.plan, read_content(run.ledger).charges)),
    )
    run.write_json(SUMMARY, summary)


def _own_code(request: Request, asked: Clients) -> list[str]:
    named = [] if request.settings is None else own_modules(request.settings, asked.ground.task)
    return [*named, type(request.analysis).__module__]
