"""What a client's log says, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpfedmeta.federation.joined import Joined
from dpfedmeta.federation.messages import Attempt, Task
from dpfedmeta.federation.promise import Promise, epsilon_after
from dpfedmeta.federation.signed_plan import SignedPlan
from dpfedmeta.ledger.client_ledger import ClientLedger


def offered_words(signed: SignedPlan, promise: Promise) -> Iterator[str]:
    """What a plan is."""
    plan = signed.plan
    privacy, shape = plan.privacy, plan.shape
    yield (
        f"offered: a plan of run {signed.run.hex()[:8]}, {plan.settings.algo}: {privacy.rounds} rounds, "
        f"{privacy.cohort:g} of {privacy.clients:,} clients in each, {shape.ways} classes with {shape.shots} + "
        f"{shape.queries} images of a client"
    )
    server = (
        "the sum of all clients' vectors, modulo a power of two, with the noise that the clients made"
        if privacy.server_sees == "sum"
        else "every client's vector"
    )
    yield f"the server sees {server}"
    for cell in plan.planned:
        yield f"  the plan's ({cell.unit}, {cell.observer}): {_epsilon(cell.epsilon)} at delta = {cell.delta:g}"


def joined_words(joined: Joined, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
    """What taking part would cost, and what would leave the machine."""
    privacy = joined.signed.plan.privacy
    each = epsilon_after(privacy, promise, 1)
    whole = epsilon_after(privacy, promise, joined.most)
    yield f"promised here: {promise.words}; {ledger.participations} participations in earlier rounds and runs"
    yield (
        f"it allows {joined.most} of the {privacy.rounds} rounds: ({promise.unit}, server) {_epsilon(each)} after one, "
        f"{_epsilon(whole)} after {joined.most}"
    )
    under = "under masks, of whole numbers" if privacy.secure is not None else "of floating-point numbers"
    yield (
        f"what would leave this machine in a round: one vector {under}, {joined.dimension:,} coordinates, clipped to "
        "the round's bound"
        + ("" if not math.isfinite(each) else ", with noise that covers the promise")
        + "; no images, labels, counts, losses or accuracies"
    )


def sent_words(joined: Joined, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: Task, what: str) -> str:
    """What left in a round."""
    privacy = joined.signed.plan.privacy
    taken = len(ledger.keys(joined.signed.run.hex()))
    return (
        f"round {attempt.round}: {what} left this machine ({joined.dimension:,} coordinates, clipped to "
        f"{task.bound:.4g}); participation {taken} of {joined.most} that are allowed, {privacy.rounds} rounds in all; "
        f"({promise.unit}, server) in this run so far: {_epsilon(epsilon_after(privacy, promise, taken))}"
    )


def _epsilon(value: float) -> str:
    return f"epsilon {value:.4g}" if math.isfinite(value) else "no epsilon (nothing covers it)"
