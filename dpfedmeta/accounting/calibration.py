"""Calibration of a plan to its targets: the smallest noise that meets them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dpfedmeta.accounting.bisection import smallest_noise
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, gaussian_mu
from dpfedmeta.accounting.divergences.pld_composition import COARSE, GRIDS
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon, round_event
from dpfedmeta.accounting.events.events import Phase, surplus
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.observers.four_guarantees import client_public, client_public_epsilon, record_public
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.release_costs import participations_of
from dpfedmeta.core.errors import TOWARDS_MESSAGES, RefusedPlan


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Privacy targets of a plan; None where a noise was given instead.

    Attributes:
        client_epsilon: For (client, client_observer), at the plan's client_delta.
        client_observer: Observer of the client target; server only where it sees sums alone.
        record_epsilon: For (record, record_observer), at the plan's record_delta.
        record_observer: Observer of the record target.
    """

    client_epsilon: float | None = None
    client_observer: Literal["server", "public"] = "public"
    record_epsilon: float | None = None
    record_observer: Literal["server", "public"] = "server"

    def __post_init__(self) -> None:
        for cell, epsilon in (("client", self.client_epsilon), ("record", self.record_epsilon)):
            if epsilon is not None and not 0 < epsilon < math.inf:
                raise RefusedPlan(f"privacy.{cell}.epsilon = {epsilon}: a target is a finite number above 0")


def calibrate(plan: PrivacyPlan, targets: Targets) -> PrivacyPlan:
    """The plan with the smallest noise that meets the targets; noises without a target stay as they are.

    Guarantee:
        No cell with a target exceeds it, and the binding one lies within TOLERANCE below. In shared mode the
        clients' noise pays for the server's, so (client, public) may be met with room.

    Raises:
        RefusedPlan: No noise reaches a target; says which cell, what is reachable and what helps.
    """
    _check_left(plan, targets)
    if plan.secure is not None:
        return _calibrate_sum(plan, targets)
    check_observer(plan, targets)
    server_first = targets.record_observer == "public"
    if targets.client_epsilon is not None and server_first:
        plan = _calibrate_client(plan, targets.client_epsilon)
    if targets.record_epsilon is not None:
        plan = _calibrate_record(plan, targets.record_epsilon, targets.record_observer)
    if targets.client_epsilon is not None and not server_first:
        plan = _calibrate_client(plan, targets.client_epsilon)
    return plan


def _check_left(plan: PrivacyPlan, targets: Targets) -> None:
    """Check that earlier releases have not used up a target.

    Raises:
        RefusedPlan: The epsilon that is spent already reaches a target.
    """
    if not plan.before:
        return
    terms = replace(Terms.of(plan), server_sees="sum", record=None)
    for cell, target, observer, cells in (
        ("client", targets.client_epsilon, targets.client_observer, (client_server, client_public)),
        ("record", targets.record_epsilon, targets.record_observer, (record_server, record_public)),
    ):
        spent = None if target is None else cells[observer == "public"]((), terms).epsilon
        if target is not None and spent is not None and spent >= target:
            raise RefusedPlan(
                f"privacy.spent_before: ({cell}, {observer}): epsilon = {_shown(spent)} is spent already by earlier "
                f"releases, and the target for them and this plan together is {target!r}; raise privacy.{cell}.epsilon"
            )


def check_observer(plan: PrivacyPlan, targets: Targets) -> None:
    """Refuse a client target towards a server that sees every message."""
    if plan.secure is None and targets.client_epsilon is not None and targets.client_observer == "server":
        raise RefusedPlan(TOWARDS_MESSAGES)


def with_local_mu(plan: PrivacyPlan, mu: float) -> PrivacyPlan:
    """Balanced record-level noise: every role is mu-GDP per participation (z_s = sqrt(K) z_q)."""
    assert plan.record is not None
    return replace(plan, record=plan.record.with_mu(mu))


def _shown(epsilon: float) -> str:
    from dpfedmeta.accounting.rounded import rounded_up

    return rounded_up(epsilon, 4)


def epsilon_of_client(plan: PrivacyPlan, observer: Literal["server", "public"]) -> float:
    """Epsilon of the client cell that a target is for."""
    if observer == "server":
        return client_server(plan.phases, Terms.of(plan)).epsilon
    if plan.record is not None and plan.record.unbounded:
        return math.inf
    return client_public_epsilon((*plan.before, *plan.phases), plan.client_delta)


def cell_of_record(plan: PrivacyPlan, targets: Targets) -> Guarantee:
    """The record cell that a target is for."""
    of_record = record_server if targets.record_observer == "server" else record_public
    return of_record(plan.phases, Terms.of(plan))


def _calibrate_sum(plan: PrivacyPlan, targets: Targets) -> PrivacyPlan:
    """Calibrate the noise of the sum, which serves all cells: the largest noise that a target needs."""
    noise = plan.noise_multiplier or 0.0
    if targets.client_epsilon is not None and plan.record is not None and plan.record.unbounded:
        from dpfedmeta.accounting.rounded import asked

        raise RefusedPlan(
            f"privacy.client.epsilon = {asked(targets.client_epsilon)}: any number of a client's rows enter the sum as "
            "whole numbers, so nothing bounds a client as a whole; leave it out, or use --aggregation messages"
        )
    if targets.client_epsilon is not None and targets.client_observer == "public":
        noise = _calibrate_client(plan, targets.client_epsilon).noise_multiplier or 0.0
    elif targets.client_epsilon is not None:

        def towards_the_server(noise: float) -> float:
            return epsilon_of_client(replace(plan, noise_multiplier=noise), "server")

        noise = _smallest_that_fits(towards_the_server, targets.client_epsilon, "(client, server)")
    if targets.record_epsilon is not None:

        def reached(noise: float) -> float:
            return cell_of_record(replace(plan, noise_multiplier=noise), targets).epsilon

        if not noise or reached(noise) > targets.record_epsilon:
            cell = f"(record, {targets.record_observer})"
            noise = max(noise, _smallest_that_fits(reached, targets.record_epsilon, cell))
    return replace(plan, noise_multiplier=noise)


def _smallest_that_fits(reached: Callable[[float], float], epsilon: float, cell: str) -> float:
    """The smallest noise, where a sum of whole numbers may have too few bits for some that are tried on the way.

    Raises:
        RefusedPlan: It has too few for the noise that is needed.
    """

    refusals: list[RefusedPlan] = []

    def tried(noise: float) -> float:
        try:
            return reached(noise)
        except RefusedPlan as error:
            refusals.append(error)
            return 0.0  # more than enough, so a smaller one is looked for

    noise = smallest_noise(tried, epsilon, cell, start=1.0)
    try:
        reached(noise)
    except RefusedPlan:
        raise refusals[0] from None
    return noise


def _calibrate_record(plan: PrivacyPlan, epsilon: float, observer: Literal["server", "public"]) -> PrivacyPlan:
    if observer == "public":
        return _calibrate_record_public(plan, epsilon)
    if plan.record is None:
        raise RefusedPlan(
            "(record, server): without record-level noise in the clients this cell is infinite, whatever the server "
            "does; use --algo dp-agrlr-micro, or --privacy.record.observer public"
        )
    if plan.record.batch_rate < 1:
        layer = plan.record

        def with_noise(noise: float) -> PrivacyPlan:
            return replace(plan, record=replace(layer, support_noise=noise))

        def reached(noise: float) -> float:
            mini_batched = with_noise(noise)
            return record_server(mini_batched.phases, Terms.of(mini_batched)).epsilon

        return with_noise(smallest_noise(reached, epsilon, "(record, server)", start=1.0))
    if plan.before:

        def beside(noise: float) -> float:
            layered = with_local_mu(plan, 1.0 / noise)
            return record_server(layered.phases, Terms.of(layered)).epsilon

        return with_local_mu(plan, 1.0 / smallest_noise(beside, epsilon, "(record, server)", start=1.0))
    participations, delta = participations_of(plan.phases, plan.max_participations, plan.record_delta)
    # Of a record that moves each release by one clip bound: its neighbours may move them further.
    further, _ = plan.record.with_mu(1.0).towards_messages(plan.relation)
    mu = gaussian_mu(epsilon, delta) / math.sqrt(max(participations, 1))
    # Rounding in 1/mu may lift epsilon over its target by parts in 10^16.
    while gaussian_epsilon(mu * math.sqrt(max(participations, 1)), delta) > epsilon:
        mu *= 1.0 - 1e-12
    return with_local_mu(plan, mu * (1.0 - 1e-12) / further)


def _calibrate_record_public(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan:
    """The local noise, or the server's where there is no record-level layer."""
    cell = "(record, public)"
    if plan.record is None:

        def through_the_server(noise: float) -> float:
            return _record_public_epsilon(replace(plan, noise_multiplier=noise))

        if plan.noise_multiplier and through_the_server(plan.noise_multiplier) <= epsilon:
            return plan
        return replace(plan, noise_multiplier=smallest_noise(through_the_server, epsilon, cell, start=1.0))
    plan = replace(plan, noise_multiplier=plan.noise_multiplier or 0.0)

    def through_the_clients(noise: float) -> float:
        return _record_public_epsilon(with_local_mu(plan, 1.0 / noise))

    return with_local_mu(plan, 1.0 / smallest_noise(through_the_clients, epsilon, cell, start=1.0))


def _record_public_epsilon(plan: PrivacyPlan) -> float:
    return record_public(plan.phases, Terms.of(plan)).epsilon


def _calibrate_client(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan:
    # In shared mode the surplus clients' probability is off delta whatever z is, and the clients' noise only helps:
    # z alone has to meet the target.
    alone = replace(plan, record=None)
    beta = surplus(replace(plan, noise_multiplier=1.0).phases) - surplus(replace(alone, noise_multiplier=1.0).phases)
    delta = plan.client_delta - beta

    def seen(noise: float) -> tuple[Phase, ...]:
        return *plan.before, *replace(alone, noise_multiplier=noise).phases

    def tight(noise: float, grids: tuple[float, ...] = GRIDS) -> float:
        return client_public_epsilon(seen(noise), delta, grids)

    def quick(noise: float) -> float:
        return rdp_epsilon(seen(noise), delta, patient=False)

    # From the loosest bound, in milliseconds, to the tight one: each never lies below the next, so its solution is
    # enough noise for the next. What was spent before is tight alone: a looser bound of it may be above the target,
    # which no noise would then reach.
    noise = 1.0
    if not plan.before:
        if all(round_event(phase.event) for phase in seen(1.0)):
            noise = smallest_noise(quick, epsilon, "(client, public)", start=noise)
        noise = smallest_noise(lambda z: tight(z, COARSE), epsilon, "(client, public)", start=noise)
    return replace(plan, noise_multiplier=smallest_noise(tight, epsilon, "(client, public)", start=noise))
