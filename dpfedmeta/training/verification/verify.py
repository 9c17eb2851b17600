"""Verification of a run directory: its privacy recomputed from the ledger, and compared with the other files."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.ledger.published import Verified, chain_remark, check_weights, saved_at
from dpfedmeta.accounting.observers.four_guarantees import stated
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.other_accountants import opinion_remarks
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.release_costs import participations_of
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import end_of_whole_lines
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.planning.privacy.prior_spending import check_still_there
from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT
from dpfedmeta.training.results.snapshot import Snapshot, read_run
from dpfedmeta.training.state.extend import check_extension, limited
from dpfedmeta.training.verification.file_claims import check_config, check_plan_file, check_summary
from dpfedmeta.training.verification.proven import Proven
from dpfedmeta.training.verification.replan import check_plan
from dpfedmeta.training.verification.row_claims import check_rows


@dataclass(frozen=True, kw_only=True)
class VerifiedRun(Verified):
    """A verified training run.

    Attributes:
        proven: What the files beside its ledger were compared with.
        snapshot: These files as they were read.
    """

    proven: Proven
    snapshot: Snapshot

    def to_state(self) -> tuple[Guarantee, ...]:
        """As of any ledger; rounds that were done again may have spent a little more than was planned."""
        if self.snapshot.over:
            return self.guarantees
        both = zip(self.proven.promised, self.guarantees, strict=True)
        return tuple(max(cells, key=lambda cell: cell.epsilon) for cells in both)


def audit(run: RunDirectory) -> VerifiedRun:
    """Recompute what a run spent from its ledger alone, then compare with its settings and the run's other files.

    A run that another process writes is judged by what it had done when it was read.

    Guarantee:
        Whatever summary.json, plan.json, config.yaml and rounds.jsonl state about privacy is what the ledger adds up
        to, and the ledger's plan is what the settings in its first line give. Releases and weights are those whose
        digests the ledger holds, as far as it holds them (`unverified`). report.html: `check_report`.

    Raises:
        InputError: The ledger is damaged, or a file beside it contradicts it; names file, key and both values.
        RefusedPlan: Its rounds are not those of its plan, or its settings are refused today.
    """
    saved = saved_at(run)  # before the ledger, which goes on
    snapshot = read_run(run)
    content = snapshot.content
    proven = Proven.of(run, content)
    settings = proven.settings
    # What costs least is asked first.
    check_config(run, proven)
    beside = [
        *check_plan_file(run, proven),
        *check_rows(snapshot, proven),
        *check_summary(snapshot, proven),
    ]
    remarks = [chain_remark(content.charges), check_plan(run.ledger, content, settings)]
    check_extension(run, settings, content)
    remarks += check_still_there(settings, content.plan.earlier)
    beside += check_weights(run, content, saved, stage=snapshot.stage)
    within = "within its promise" if limited(settings, content.plan) else "and no target limits how many rounds follow"
    remarks += [f"extended from {end} rounds, {within}" for end in content.plan.ends]
    phases = (*content.plan.before, *phases_of(content.charges))
    remarks += [*opinion_remarks(phases, content.plan.client_delta, proven.spent), *beside]
    remarks += [f"{name}: its last line was never finished, so it was never used: left out" for name in snapshot.torn]
    copies = "that no copy of this run went on elsewhere (verify copies together: --verify A B)"
    return VerifiedRun(
        plan=content.plan,
        charges=content.charges,
        guarantees=proven.cells,
        remarks=tuple(remarks),
        simulation=proven.simulation,
        unverified=f"{proven.unverified}; {copies}",
        proven=proven,
        snapshot=snapshot,
    )


def compose(runs: Sequence[RunDirectory]) -> Verified | None:
    """Compute what the copies of one run spent together; None: they are not copies of one run.

    Guarantee:
        Charges are the same release only as long as all charges before them are the same too. From the first difference
        on, each copy's charges count, and so do its participations: a cap held in each copy alone.

    Raises:
        InputError: Two copies used the same noise for different sums; nothing covers that.
    """
    contents = [read_run(run).content for run in runs]
    first = contents[0]
    plan = max((other.plan for other in contents), key=lambda plan: plan.rounds)
    if len({other.identity.run for other in contents}) > 1 or len(runs) < 2:
        return None
    if any(other.plan.begun != plan.begun for other in contents):
        return None
    charges, phases = list(first.charges), list(phases_of(first.charges))
    for place, other in enumerate(contents[1:], start=1):
        shared = max(_shared(other.charges, earlier.charges) for earlier in contents[:place])
        for earlier, run in zip(contents[:place], runs, strict=False):
            if not first.identity.secure:
                _check_noise(other.charges, earlier.charges, runs[place], run)
        charges += other.charges[shared:]
        phases += [replace(phase, copy=place) for phase in phases_of(other.charges[shared:])]
    cells = stated(phases, Terms.of(plan))
    remarks = [f"{len(runs)} copies of run {first.identity.run}: together they charged {len(charges)} releases"]
    apart = len({phase.copy for phase in phases})
    if plan.max_participations is not None and apart > 1:
        remarks.append(
            f"{apart} of them went on separately, each with its own count of participations, so one client may have "
            f"taken part {participations_of(phases, plan.max_participations, 1.0)[0]} times"
        )
    return Verified(
        plan=plan, charges=tuple(charges), guarantees=cells, remarks=tuple(remarks), simulation=None, unverified=""
    )


def _shared(left: Sequence[Charge], right: Sequence[Charge]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _check_noise(left: Sequence[Charge], right: Sequence[Charge], one: RunDirectory, two: RunDirectory) -> None:
    """Past the first difference, no two attempts may have had the same keys: they share seed, noise and coins.

    Fresh bytes are part of the keys, so this finds simulations.
    """
    shared = _shared(left, right)
    clash = min((round_ for round_, *_ in _keys(left[shared:]) & _keys(right[shared:])), default=None)
    if 0 < shared < min(len(left), len(right)):
        # The last charge of both: where each names another release after it, it was released twice.
        before, ones, others = (charges.release for charges in (left[shared - 1], left[shared], right[shared]))
        if len({before, ones, others, ""}) == (4 if before else 3):
            clash = left[shared - 1].round
    if clash is not None:
        raise InputError(
            f"{one.path} and {two.path} are copies of one run that went on differently with the same noise in round "
            f"{clash}; whoever sees both learns their difference without noise, and no epsilon covers that"
        )


def _keys(charges: Sequence[Charge]) -> set[tuple[int, tuple[int, ...], str]]:
    """By what attempts draw, besides the secret."""
    return {(charge.round, charge.again, charge.fresh) for charge in charges}


@dataclass(frozen=True, kw_only=True)
class Realised:
    """SECRET: what really happened, for whoever holds the server's private folder; shown, never promised.

    Attributes:
        participants: Clients that took part at all.
        most_participations: Of one client.
        cohort_sizes: (smallest, mean, largest).
        left_out: (messages, rounds) that no honest client sends, and that were set to 0.
        record_server: Epsilon of the record with the most participations; inf where no noise covers it.
    """

    participants: int
    most_participations: int
    cohort_sizes: tuple[int, float, int]
    left_out: tuple[int, int]
    record_server: float

    @property
    def as_number(self) -> float | None:
        """record_server for JSON."""
        return self.record_server if math.isfinite(self.record_server) else None


def realised(run: RunDirectory, plan: PrivacyPlan, charges: Sequence[Charge]) -> Realised:
    """Read the private folder, beside what the ledger charges.

    Raises:
        InputError: It is not here, or damaged.
    """
    path = run.secret / "participations.jsonl"
    try:
        content = path.read_bytes()
        # A line that is being written, or was when the run was killed, is of a round that has no charge.
        lines = content[: end_of_whole_lines(content)].decode().splitlines()
        cohorts = [[int(client) for client in json.loads(line)["clients"]] for line in lines]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); only the server holds this file") from error
    except DAMAGED_JSON as error:
        raise InputError(f'{path}: damaged: a line is not {{"round": ..., "clients": [...]}}') from error
    counts = Counter(client for cohort in cohorts for client in cohort)
    most = max(counts.values(), default=0)
    sizes = [len(cohort) for cohort in cohorts] or [0]
    terms, dropped = replace(Terms.of(plan), max_participations=most), left_out(run)
    return Realised(
        participants=len(counts),
        most_participations=most,
        cohort_sizes=(min(sizes), sum(sizes) / len(sizes), max(sizes)),
        left_out=(sum(dropped.values()), len(dropped)),
        record_server=record_server(phases_of(charges), terms).epsilon if most else 0.0,
    )


def left_out(run: RunDirectory) -> dict[int, int]:
    """SECRET: messages that were left out, by round; of a round that was done again those of its last attempt.

    Raises:
        InputError: The file is damaged.
    """
    path = run.secret / LEFT_OUT
    if not path.exists():
        return {}
    content = path.read_bytes()
    try:
        lines = [json.loads(line) for line in content[: end_of_whole_lines(content)].decode().splitlines()]
        return {int(line["round"]): int(line["messages"]) for line in lines}
    except DAMAGED_JSON as error:
        raise InputError(f'{path}: damaged: a line is not {{"round": ..., "messages": ...}}') from error
