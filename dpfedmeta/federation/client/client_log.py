"""Lines of a client's log, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.federation.client.client_budget import (
    Promise,
    counted,
    epsilon_after,
    left_of_run,
    participation,
    run_cost,
)
from dpfedmeta.planning.caveats import dishonest_words

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.guarantee import Guarantee
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.federation.client.analytics_participation import JoinedAnalysis
    from dpfedmeta.federation.client.training_participation import Joined
    from dpfedmeta.federation.offers.signed_analysis import SignedAnalysis
    from dpfedmeta.federation.offers.signed_plan import SignedPlan
    from dpfedmeta.federation.wire_format import Attempt, RoundTask


def offered_words(signed: SignedPlan) -> Iterator[str]:
    """Yield log lines that describe a plan that is offered."""
    plan = signed.plan
    privacy, shape = plan.privacy, plan.shape
    yield (
        f"offered: a plan of run {signed.run.hex()[:8]}, {plan.settings.algo}: "
        f"{counted_words(privacy.rounds, 'round')}, {privacy.cohort:g} of {privacy.clients:,} clients in each; "
        f"a client uses {shape.ways} classes with "
        f"{shape.shots} support and {shape.queries} query records each"
    )
    server = (
        "the sum of all clients' vectors, modulo a power of two, with the noise that the clients made"
        if privacy.server_sees == "sum"
        else "every client's vector"
    )
    yield f"the server sees {server}"
    if signed.task.encoding is not None:
        yield f"images are encoded on this machine, once: {signed.task.encoding.facts(signed.task.name).words}"
    if privacy.secure is not None:
        yield company_words(privacy, plan.settings.aggregation.company)
    yield (
        "the plan's guarantees towards the public hold if the server draws cohorts as it says, keeps them secret and "
        "adds its noise; no client can check that"
    )
    yield dishonest_words(privacy)
    yield from map(cell_words, plan.planned)


def company_words(privacy: PrivacyPlan, company: str) -> str:
    """On whom a client counts beside it."""
    if company == "drawn" and privacy.cohort < privacy.clients:
        who = "assumes that the server draws cohorts at random, as it says"
    else:
        who = "does not rely on how the server chooses clients"
    colluding = "one" if privacy.colluding == 1 else f"{privacy.colluding}"
    return f"the plan {who}; {colluding} of the clients that are asked may collude with the server"


def cell_words(cell: Guarantee) -> str:
    """Return a line with one of the plan's own guarantees."""
    return f"  the plan's ({cell.unit}, {cell.observer}): {epsilon_words(cell.epsilon)} at delta = {asked(cell.delta)}"


def joined_words(joined: Joined, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
    """Yield log lines on the cost of taking part in a run and on what would leave the machine."""
    privacy = joined.signed.plan.privacy
    promise = counted(privacy, promise, ledger)
    each, run = epsilon_after(privacy, promise, 1), joined.signed.run.hex()
    taken, more = len(ledger.keys(run)), left_of_run(privacy, promise, ledger, run, joined.limits)
    yield spent_words(ledger, promise)
    yield (
        f"the promise allows {taken + more} of the {counted_words(privacy.rounds, 'round')}"
        + (f", of which {taken} are answered" if taken else "")
        + f"; ({promise.unit}, server) in this run: {epsilon_words(each)} after one round, "
        f"{epsilon_words(epsilon_after(privacy, promise, taken + more))} after {taken + more}"
    )
    under = "masked vector of whole numbers" if privacy.secure is not None else "vector of floating-point numbers"
    yield (
        f"what would leave this machine in a round: one {under}, {joined.numbers_sent:,} coordinates, clipped to the "
        "clip bound of the round"
        + ("" if not math.isfinite(each) else ", with the noise that the promise needs")
        + "; no records, labels, counts, losses or accuracies"
    )


def without_images(why: str) -> str:
    """Why a client has nothing but noise to send, for its owner."""
    return f"ONLY NOISE: {why}; this client sends only noise, it is charged like any other, and the server is not told"


def spent_words(ledger: ClientLedger, promise: Promise) -> str:
    """Return a line on the promise, and on what earlier rounds and runs spent of it."""
    spent = "" if promise.epsilon is None else f", in all {epsilon_words(ledger.epsilon)}"
    others = {name: epsilon for name, epsilon in ledger.epsilons.items() if name != ledger.relation}
    if promise.epsilon is not None and ledger.relation is not None and others:
        spent += f" if {RELATIONS[ledger.relation].words} ({ledger.relation}); "
        spent += ", ".join(f"{name} {rounded_up(epsilon, 4)}" for name, epsilon in others.items())
    return f"promised here: {promise.words}; so far {ledger.participations} participations in all runs{spent}"


def sent_words(
    joined: Joined, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: RoundTask, what: str
) -> str:
    """Return a log line on what left the machine in a round."""
    privacy = joined.signed.plan.privacy
    promise = counted(privacy, promise, ledger)
    run = joined.signed.run.hex()
    taken = len(ledger.keys(run))
    allowed = taken + left_of_run(privacy, promise, ledger, run, joined.limits)
    clipped = f"clipped to {task.bound:.4g}" + ("" if joined.why is None else ", only noise")
    return (
        f"round {attempt.round}: {what} left this machine ({joined.numbers_sent:,} coordinates, {clipped}); "
        f"participation {taken} of {allowed} allowed, in {counted_words(privacy.rounds, 'round')}; "
        f"({promise.unit}, server) in this run so far: {epsilon_words(epsilon_after(privacy, promise, taken))}"
    )


def analysis_words(signed: SignedAnalysis, cells: Sequence[Guarantee]) -> Iterator[str]:
    """Yield log lines that describe an analysis that is offered."""
    privacy, analysis = signed.privacy, signed.analysis
    yield (
        f"offered: an analysis of run {signed.run.hex()[:8]}, {signed.request.kind}: {privacy.cohort:g} of "
        f"{privacy.clients:,} clients are asked once; each says {analysis.asks}"
    )
    yield f"the server sees {analysis.server_sees}"
    yield company_words(privacy, signed.plan.settings.aggregation.company)
    yield dishonest_words(privacy)
    yield from map(cell_words, cells)


def answering_words(joined: JoinedAnalysis, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
    """Yield log lines on the cost of an answer and on what would leave the machine."""
    signed = joined.signed
    promise = counted(signed.privacy, promise, ledger)
    cost, form = epsilon_after(signed.privacy, promise, 1), signed.analysis.form(signed.privacy)
    yield spent_words(ledger, promise)
    in_all = ""
    if promise.epsilon is not None and not ledger.keys(signed.run.hex()):
        one = participation(signed.privacy, promise, 0)
        after = ledger.after([one], run=signed.run.hex(), cost=run_cost(signed.privacy))
        in_all = f"; with it this client's ledger counts {epsilon_words(after)} in all, by a bound that adds up"
    yield f"the answer would cost {epsilon_words(cost)} of ({promise.unit}, server){in_all}"
    yield (
        f"what would leave this machine: one vector of {form.dimension:,} whole numbers under masks, once"
        + (", with this client's share of the noise" if math.isfinite(cost) else "")
        + "; no images; the server sees only the sum of all clients' vectors"
    )


def answered_words(joined: JoinedAnalysis, promise: Promise, what: str) -> str:
    """Return a log line on what left the machine in an analysis."""
    signed = joined.signed
    form, spent = signed.analysis.form(signed.privacy), epsilon_after(signed.privacy, promise, 1)
    return (
        f"{signed.request.kind}: {what} left this machine ({form.dimension:,} whole numbers: {signed.analysis.asks}); "
        f"({promise.unit}, server) in this analysis: {epsilon_words(spent)}"
    )


def epsilon_words(value: float) -> str:
    """A number, or that there is none."""
    return f"epsilon {rounded_up(value, 4)}" if math.isfinite(value) else "no finite epsilon (no noise covers it)"
