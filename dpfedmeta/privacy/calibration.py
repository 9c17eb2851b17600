"""From targets to noise: the smallest multipliers whose guarantees do not exceed the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dpfedmeta.errors import RefusedPlan
from dpfedmeta.privacy.accounting import guarantees, worst_participations
from dpfedmeta.privacy.gaussian import gaussian_mu
from dpfedmeta.privacy.plan import PrivacyPlan
from dpfedmeta.privacy.sampled_gaussian import COARSE, add_remove_epsilon, rdp_epsilon

# A calibrated epsilon lies within this factor below its target.
TOLERANCE = 0.002
_LARGEST_NOISE = 1e6


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What shall be promised; None where a noise was given instead.

    Attributes:
        client_epsilon: For (client, public), at the plan's client_delta.
        record_epsilon: For (record, record_observer), at the plan's record_delta.
        record_observer: Towards whom the record target counts.
    """

    client_epsilon: float | None = None
    record_epsilon: float | None = None
    record_observer: Literal["server", "public"] = "server"


def calibrate(plan: PrivacyPlan, targets: Targets) -> PrivacyPlan:
    """The plan with the noise that meets the targets; noises without a target stay as they are.

    The record level comes first, since in shared mode the clients' noise pays for the server's.

    Raises:
        RefusedPlan: No noise reaches a target; says which cell and what helps.
    """
    if targets.record_epsilon is not None and plan.record is not None:
        plan = _calibrate_record(plan, targets.record_epsilon, targets.record_observer)
    if targets.client_epsilon is not None:
        plan = _calibrate_client(plan, targets.client_epsilon)
    return plan


def with_local_mu(plan: PrivacyPlan, mu: float) -> PrivacyPlan:
    """Balanced record-level noise: every role is mu-GDP per participation (z_s = sqrt(K) z_q)."""
    assert plan.record is not None
    steps = math.sqrt(plan.record.support_steps)
    return replace(plan, record=replace(plan.record, support_noise=steps / mu, query_noise=1.0 / mu))


def _calibrate_record(plan: PrivacyPlan, epsilon: float, observer: str) -> PrivacyPlan:
    if observer == "server":
        participations, delta = worst_participations(plan, plan.rounds, plan.record_delta)
        return with_local_mu(plan, gaussian_mu(epsilon, delta) / math.sqrt(max(participations, 1)))
    # The (record, public) cell falls as the local noise grows, but not below what the server's noise gives.
    plan = replace(plan, noise_multiplier=plan.noise_multiplier or 0.0)

    def reached(noise: float) -> float:
        return guarantees(with_local_mu(plan, 1.0 / noise))[3].epsilon

    return with_local_mu(plan, 1.0 / _smallest_noise(reached, epsilon, "(record, public)"))


def _calibrate_client(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan:
    delta = plan.client_delta - replace(plan, noise_multiplier=1.0).surplus_probability

    def reached(noise: float) -> float:
        # The coarse grid errs upwards, so what meets the target here meets it on the fine grid too.
        return add_remove_epsilon(plan.rate, noise, plan.rounds, delta, COARSE)

    # RDP never lies below PLD: its solution is an upper bracket that costs milliseconds.
    bracket = _smallest_noise(
        lambda noise: rdp_epsilon(plan.rate, noise, plan.rounds, delta), epsilon, "(client, public)"
    )
    noise = _smallest_noise(reached, epsilon, "(client, public)", start=bracket)
    return replace(plan, noise_multiplier=noise)


def _smallest_noise(reached: Callable[[float], float], epsilon: float, cell: str, start: float = 1.0) -> float:
    """Bisection on the logarithm of the noise; the result meets epsilon, within TOLERANCE below it."""
    high = start
    while reached(high) > epsilon:
        high *= 2.0
        if high > _LARGEST_NOISE:
            raise RefusedPlan(
                f"{cell}: epsilon = {epsilon:g} is out of reach at this delta, whatever the noise; raise "
                "epsilon or delta, or lower server.rounds or population.cohort"
            )
    low = high / 2.0
    while reached(low) <= epsilon:
        low, high = low / 2.0, low
        if high < 1.0 / _LARGEST_NOISE:
            return high
    best = reached(high)
    while best < epsilon * (1.0 - TOLERANCE) and high - low > 1e-9 * high:
        middle = math.sqrt(low * high)
        value = reached(middle)
        if value <= epsilon:
            high, best = middle, value
        else:
            low = middle
    return high
