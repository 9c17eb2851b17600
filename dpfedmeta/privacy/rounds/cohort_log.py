"""SECRET: who was invited to which round; on disk before anybody is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, cut_torn_line, replace_file
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines
from dpfedmeta.core.random.random_sources import Purpose, SecretSource
from dpfedmeta.privacy.samplers import Cohort, sampler_of

Key = tuple[int, ...]


def participations_file(run: RunDirectory) -> Path:
    """Path of the participations file, kept for the server alone."""
    return run.secret / "participations.jsonl"


class Participations:
    """SECRET: how often each client was invited, over all attempts at all rounds.

    Guarantee:
        A line is on disk before the round's clients are invited, so a cap counts what a crash cut short; a round that
        is done again with another cohort counts again.
    """

    def __init__(self, path: Path | None, cohorts: Sequence[Cohort] = ()) -> None:
        """Continue a file that holds `cohorts`; None: no file, for a run of one round without a cap."""
        self._path = path
        self._cohorts: dict[Key, Cohort] = {}
        self.counts: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        for cohort in cohorts:
            self._count(cohort)

    def record(self, cohort: Cohort) -> None:
        """Count a cohort."""
        if self._path is not None:
            append_lines(self._path, [_line(cohort)], mode=SECRET)
        self._count(cohort)

    def cohort(self, round_: int, again: tuple[int, ...]) -> Cohort:
        """Return the cohort that was invited to an attempt at a round."""
        key = (round_, *again)
        return self._cohorts[key]

    def before(self, round_: int) -> list[Cohort]:
        """The cohorts of earlier rounds, in the order in which they were invited."""
        return [cohort for cohort in self._cohorts.values() if cohort.round < round_]

    def _count(self, cohort: Cohort) -> None:
        key = (cohort.round, *cohort.again)
        self._cohorts[key] = cohort
        for client in cohort.clients.tolist():
            self.counts[client] = self.counts.get(client, 0) + 1
            self.latest[client] = max(self.latest.get(client, 0), cohort.round)


def reopen_participations(
    run: RunDirectory, plan: PrivacyPlan, source: SecretSource, events: Sequence[Charge]
) -> tuple[Participations, list[str]]:
    """(what the ledger's charges invited, what had to be mended).

    A line without a charge invited nobody and is dropped. Lines that are lost are drawn again from the secret seed.

    Raises:
        InputError: The file contradicts the ledger, or lost lines that only the operating system's randomness knew, or
            a client joined rounds that lie closer together than the plan counts with, or too many of them.
    """
    path = participations_file(run)
    remarks = (
        [f"{path}: a line that was cut off by a crash is dropped"] if path.exists() and cut_torn_line(path) else []
    )
    cohorts = _read(path)
    keys = [(event.round, *event.again) for event in events]
    for number, (cohort, key) in enumerate(zip(cohorts, keys, strict=False), start=1):
        if (cohort.round, *cohort.again) != key:
            raise InputError(
                f"{path}, line {number}: is not the round that the ledger charged; restore the file from a backup"
            )
    if len(cohorts) > len(keys) + 1:
        raise InputError(
            f"{path}, line {len(keys) + 2}: more rounds than the ledger charged; restore the ledger from a backup"
        )
    # Their fresh bytes stand in the charges.
    kept = [replace(cohort, fresh=event.stream) for cohort, event in zip(cohorts, events, strict=False)]
    _check_spacing(path, plan, kept)
    if len(kept) < len(keys):
        if not all(repeatable(source, event) for event in events[len(kept) :]):
            raise InputError(
                f"{path}, line {len(kept) + 1}: the participants of charged rounds are lost and cannot be drawn again "
                "(with --secure-rng); restore it from a backup"
            )
        remarks.append(f"{path}: lines after {len(kept)} were lost and are drawn again from the secret seed")
        kept = _drawn_again(plan, source, kept, events)
    if len(kept) != len(cohorts):
        text = "".join(json.dumps(_line(cohort)) + "\n" for cohort in kept)
        replace_file(path, text.encode(), SECRET)
    return Participations(path, kept), remarks


def _check_spacing(path: Path, plan: PrivacyPlan, cohorts: Sequence[Cohort]) -> None:
    spacing = spacing_of(plan)
    if spacing is None:
        return
    known = Participations(None)
    for number, cohort in enumerate(cohorts, start=1):
        for client in cohort.clients.tolist():
            if not spacing.allows(cohort.round, known.counts.get(client, 0), known.latest.get(client)):
                raise InputError(
                    f"{path}, line {number}: client {client} takes part in round {cohort.round} again, but the plan "
                    f"allows at most {spacing.participations} rounds, {spacing.separation} apart; restore it from a "
                    "backup"
                )
        known._count(cohort)


def _line(cohort: Cohort) -> dict[str, object]:
    again = {"again": list(cohort.again)} if cohort.again else {}
    return {"round": cohort.round, "clients": cohort.clients.tolist(), **again}


def _read(path: Path) -> list[Cohort]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    cohorts = []
    for number, line in enumerate(lines, start=1):
        try:
            body = json.loads(line)
            clients = np.asarray(body["clients"], dtype=np.int64).reshape(-1)
            cohorts.append(
                Cohort(round=int(body["round"]), clients=clients, again=tuple(map(int, body.get("again", ()))))
            )
        except DAMAGED_JSON as error:
            raise InputError(f'{path}, line {number}: damaged: not {{"round": ..., "clients": [...]}}') from error
    return cohorts


def _drawn_again(
    plan: PrivacyPlan, source: SecretSource, kept: Sequence[Cohort], events: Sequence[Charge]
) -> list[Cohort]:
    known = Participations(None, kept)
    cohorts = list(kept)
    for event in events[len(kept) :]:
        cohorts.append(draw(plan, source, event, known))
        known._count(cohorts[-1])
    return cohorts


def redrawn(plan: PrivacyPlan, source: SecretSource, events: Sequence[Charge]) -> Participations:
    """The cohorts of charges that can be drawn again, where no file keeps them: of a run of one round without a cap."""
    return Participations(None, [draw(plan, source, e, Participations(None)) for e in events if repeatable(source, e)])


def repeatable(source: SecretSource, event: Charge) -> bool:
    """Return whether the draws of an attempt can be repeated identically."""
    return source.reproducible and bool(event.fresh or not source.needs_fresh)


def draw(plan: PrivacyPlan, source: SecretSource, event: Charge, participations: Participations) -> Cohort:
    """SECRET: the cohort of a charge; a further attempt draws independently of those before it."""
    generator = source.again(event.again, event.stream).generator(Purpose.COHORT, event.round)
    sampler, again = sampler_of(plan.at(event.round), plan.max_participations), bool(event.attempt)
    drawn = sampler.draw(event.round, participations.counts, generator, participations.latest, again=again)
    return Cohort(round=event.round, clients=drawn.clients, again=event.again, fresh=event.stream)
