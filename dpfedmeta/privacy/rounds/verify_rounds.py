"""Verification of the rounds of a caller's own loop: recomputed from the ledger, compared with every file beside it."""

from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.ledger.ledger import LedgerContent, held_releases, phases_of, read_content, spent
from dpfedmeta.accounting.ledger.published import Verified, chain_remark, check_releases, not_verified
from dpfedmeta.accounting.other_accountants import opinion_remarks
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, json_of
from dpfedmeta.core.files.run_directory import PLAN, RELEASES, RunDirectory
from dpfedmeta.privacy.rounds.promise import RoundsRequest, plan_content, plan_of_rounds
from dpfedmeta.privacy.rounds.stored_release import load_release, stored_rounds


def verify_rounds(run: RunDirectory) -> Verified:
    """Recompute what the rounds spent, and compare.

    Guarantee:
        The ledger's plan is what its request solves to, plan.json states it, and every stored release belongs to a
        charge, states the noise that the charge counts with, and is the one whose digest a later line of the ledger
        holds. That the loop added nothing but updates is the word of whoever wrote it.

    Raises:
        InputError: The ledger is damaged, or a file beside it contradicts it; names the file and what it says.
        RefusedPlan: Its charges are not those of its plan.
    """
    content = read_content(run.ledger, torn=True)
    request = RoundsRequest.from_text(content.identity.config, f"{run.ledger}, line 1: identity.config")
    cells = spent(content.plan, content.charges, content.lines)
    due = json_of(plan_of_rounds(request))
    check(run.ledger, "plan", json_of(plan_content(content.plan)), {key: due[key] for key in due if key != "loop"})
    check(run.path / PLAN, "", run.read_json(PLAN), due)
    released = _check_releases(run, content)
    bound = check_releases(run.ledger, content, released, f"{run.path / RELEASES}")
    remarks = [
        chain_remark(content.charges),
        "what was asked for gives its plan, and plan.json agrees",
        f"{len(released)} stored releases, each charged, stating the noise that is charged; {bound} of them are those "
        "whose digests the ledger holds",
        "by word of whoever wrote the loop: an update depends on releases and on its own client alone",
        *opinion_remarks(phases_of(content.charges), content.plan.client_delta, cells),
    ]
    simulation = "a simulation: the noise seed was chosen" if request.simulation else None
    return Verified(
        plan=content.plan,
        charges=content.charges,
        guarantees=cells,
        remarks=tuple(remarks),
        simulation=simulation,
        unverified=not_verified(content, "the last release", "the model of the loop, which is no file of these rounds"),
    )


def _check_releases(run: RunDirectory, content: LedgerContent) -> list[str]:
    charged = {(charge.round, charge.attempt) for charge in content.charges}
    rounds, digests = stored_rounds(run), []
    held = max(held_releases(run.ledger, content), default=0)
    if rounds < held:
        raise InputError(f"{run.path / RELEASES}: lacks the release of round {held - 1}, which the ledger holds")
    for round_ in range(rounds):
        release, where = load_release(run, round_), f"{run.path}: the release of round {round_}"
        if (round_, release.attempt) not in charged or release.head not in content.heads:
            raise InputError(f"{where} has no charge in the ledger")
        event = content.plan.at(round_)
        due = planned_deviation(event, round_)
        if due is None or not release.sensitivity >= release.bound:
            raise InputError(
                f"{where} states a sensitivity of {release.sensitivity:g} for a bound of {release.bound:g}"
            )
        check(run.path, f"deviation of round {round_}", release.deviation, due * release.sensitivity / event.cohort)
        digests.append(release.digest)
    return digests
