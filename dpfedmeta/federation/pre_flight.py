"""A site's own look, before it takes part: a round of the plan on its data by the run's code; nothing is sent."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import LEDGER
from dpfedmeta.core.params import flatten
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.data.client_inspection import missing_remarks
from dpfedmeta.data.columns import other_units
from dpfedmeta.data.episodes.row_layout import Layout, few_of_labels
from dpfedmeta.data.repeated_images import different
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.sound_rows import any_rows
from dpfedmeta.federation.client.client_budget import Promise, check_allowed, left_of_run, limit_of
from dpfedmeta.federation.client.client_home import check_newest
from dpfedmeta.federation.client.signed_participation import ClientSetup
from dpfedmeta.federation.client.training_participation import Joined, join
from dpfedmeta.federation.offers.signed_plan import SignedPlan, opened_plan, sign_plan
from dpfedmeta.federation.wire_format import Attempt, RoundTask
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

_NOISE = "ONLY NOISE"


@dataclass(frozen=True, kw_only=True)
class PreFlight:
    """SECRET: how a site's data would take part, for their owner alone.

    Attributes:
        lines: What was found.
        sound: True if a message of a round holds more than noise, and the client's limit allows it.
        signed: The plan.
    """

    lines: tuple[str, ...]
    sound: bool
    signed: SignedPlan


def pre_flight(
    data: Path, config: Path, promise: Promise | None = None, spent: Path | None = None, *, change: bool = False
) -> PreFlight:
    """Join a plan and compute the message of its first round, as `federate client` does, in a home that is dropped.

    Args:
        data: The site's own.
        config: Settings of the plan (`federate plan --out`); the task file that they name lies here or beside them,
            with its table, which names the columns.
        promise: The client's limit; None: that of `spent`, or none is compared.
        spent: The client's home, whose ledger says what is spent already; None: nothing is.
        change: Whether the promise may differ from that of `spent`: how it would be if it took its place.

    Raises:
        InputError: The plan or its task cannot be read or made, or no client takes it, or the home has no ledger, or
            another limit.
        RefusedPlan: There is no such plan.
    """
    signed, said = _signed(config), list[str]()
    before = None if spent is None else _ledger_of(spent, promise, change)
    promise = before[1] if before else promise
    lines = [f"{data}: one client of {config}, as federate client --data {data} would take part"]
    if spent is not None and before is not None:
        stands = "would hold from then on (--change-limit); nothing is written" if change else "is its limit"
        lines.append(f"home {spent}: {before[1].words} {stands}")
    try:
        rows = any_rows(data)
    except InputError as error:
        why = f"{_NOISE}: {error}; federate client does not begin with such data, and one that waits sends only noise"
        return PreFlight(lines=(*lines, why), sound=False, signed=signed)
    with TemporaryDirectory() as home:
        setup = ClientSetup(
            number=0,
            images=data,
            folder=Path(home),
            promise=promise or Promise(participations=1),
            noise_seed=None,
            fresh_of=lambda attempt: secrets.token_bytes(32),
            log=said.append,
        )
        joined = join(signed, setup)
        if joined.why is None:
            _compute(joined)
        held = joined.images.holdings(0)
        records = joined.images.labelled()[0] if held else np.zeros((0, 1))
        ledger = (
            None if promise is None else before[0] if before else ClientLedger(Path(home, LEDGER), promise.budget())
        )
        allowed, limit = _allowed(joined, promise, ledger)
    sound = not any(line.startswith(_NOISE) for line in said)
    counts = ", ".join(f"{name} ({count:,})" for name, count in sorted(held.items()))
    if held:
        lines.append(f"{sum(held.values()):,} records of {len(held)} classes take part: {counts}")
        lines += _remarks(signed, np.asarray(records), getattr(joined.images, "layout", None), held)
    if signed.task.form.kind == "vectors":
        lines += missing_remarks(rows, signed.task.missing)
    lines += [*said, *(each.words for each in (before[0].older_copies if before else ())), limit]
    if sound:
        end = "this client takes part" if allowed else "it would be refused, and this client does not take part"
        lines.append(f"the message of the first round was computed here, and nothing was sent: {end}")
    return PreFlight(lines=tuple(lines), sound=sound and allowed, signed=signed)


def _ledger_of(home: Path, promise: Promise | None, change: bool) -> tuple[ClientLedger, Promise]:
    """SECRET: a home's ledger and its limit, which the one given may differ from under `change`; nothing is written."""
    if not (home / LEDGER).is_file():
        raise InputError(f"--home {home}: has no ledger, so nothing is spent; leave --home out before the first run")
    check_newest(home, keep=False)
    kept = replace(promise or Promise(participations=1), **limit_of(home))
    if promise is not None and promise != kept and not change:
        raise InputError(
            f"{home}: has the limit {kept.words}; give the same one, leave it out, or add --change-limit to look at "
            "another"
        )
    promise = promise or kept
    with TemporaryDirectory() as folder:
        copy = Path(folder, LEDGER)
        copy.write_bytes((home / LEDGER).read_bytes())
        try:
            ledger = ClientLedger(copy, promise.budget(), change=change)
        except InputError as error:
            raise InputError(str(error).replace(folder, str(home))) from error
    return ledger, replace(promise, relation=ledger.budget.relation)


def _allowed(joined: Joined, promise: Promise | None, ledger: ClientLedger | None) -> tuple[bool, str]:
    """(True if the limit allows a round beside what the ledger holds; how many)."""
    if promise is None or ledger is None:
        return True, "no limit was given (--epsilon), so none was compared with what this plan spends"
    signed, why = joined.signed, ""
    privacy, count = signed.privacy, 0
    try:
        promise.floors.check(privacy, rough=signed.plan.settings.aggregation.rough)
        check_allowed(privacy, promise)
        count = left_of_run(privacy, promise, ledger, signed.run.hex(), joined.limits)
    except Refused as error:
        why = f": {error}"
    spent = f" beside the {counted_words(ledger.participations, 'participation')} of before"
    allows = f"your limit allows {count} of {counted_words(privacy.rounds, 'round')}"
    return count > 0, f"{allows}{spent if ledger.participations else ''}{why}"


def _signed(config: Path) -> SignedPlan:
    """The plan as its server would offer it, signed by nobody in particular."""
    settings = resolve(None, None, config, default_dataset="strokes")
    beside = config.parent / settings.dataset
    if beside.exists() and not Path(settings.dataset).exists():
        settings = replace(settings, dataset=os.fspath(beside))
    try:
        task, _ = load_task(settings.dataset)
    except InputError as error:
        raise InputError(
            f"{config}: {error}; a look needs the operator's task file and its table, which name columns, labels and "
            "constants: put them beside it"
        ) from error
    task = replace(task, encoding=encoding_of_run(settings))
    plan, server = make_plan(settings, task), Identity(secrets.token_bytes(SECRET_BYTES))
    roster = [Identity(secrets.token_bytes(SECRET_BYTES)).public for _ in range(plan.privacy.clients)]
    offered = sign_plan(plan, task, run=secrets.token_bytes(32), server=server, roster=roster)
    try:
        return opened_plan(offered.text, offered.signature, server.public)
    except Refused as error:
        raise InputError(f"{config}: no client takes part in this plan: {error}") from error


def _compute(joined: Joined) -> None:
    """SECRET: the message of round 0; where it cannot be computed from the data, the log says so."""
    plan = joined.signed.plan
    bound = plan.policy.initial().bound
    task = RoundTask(bound=bound, model=flatten(joined.signed.learned).numpy().astype(np.float32))
    attempt = Attempt(run=joined.signed.run, round=0)
    if plan.privacy.secure is None:
        joined.vector(task, attempt)
    else:
        joined.whole(task.encode(), attempt, plan.privacy.clients)


def _remarks(signed: SignedPlan, records: FloatArray, layout: Layout | None, held: Mapping[str, int]) -> list[str]:
    """SECRET: what the owner may not have meant, of rows that are sound."""
    labels, said = signed.task.labels, list[str]()
    # Where clients hold some labels of many, as writers or speakers do, the others are nobody's loss.
    if layout is not None and len(labels) == signed.plan.settings.task.ways:
        said += few_of_labels(layout, held, labels)
    if copies := len(records) - different(records):
        said.append(f"records that repeat another one: {copies:,}")
    if signed.task.form.kind == "vectors":
        width = len(records[0]) - bool(signed.task.targets)
        said += other_units(signed.columns, records[:, :width], *signed.task.constants)
    return said
