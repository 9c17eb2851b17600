"""The most rounds, the largest cohort and the fewest bits with which a plan's noise meets its targets."""

from dataclasses import replace
from fractions import Fraction
from math import lcm

from dpfedmeta.accounting.bisection import largest_whole
from dpfedmeta.accounting.calibration import Targets, calibrate, cell_of_record, check_observer, epsilon_of_client
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.errors import RefusedPlan

# Fewer bits are solved for only where rounding lengthens a message by no more.
_LITTLE_GROWTH = 1.01


def most_rounds(plan: PrivacyPlan, targets: Targets, limit: int = 10_000_000) -> PrivacyPlan:
    """The plan with as many rounds as its noise can afford within the targets, at most `limit`.

    Raises:
        RefusedPlan: Not even one round is within the targets.
    """
    rounds = largest_whole(lambda rounds: _reached(replace(plan, rounds=rounds), targets), limit, "server.rounds")
    return replace(plan, rounds=rounds)


def largest_cohort(plan: PrivacyPlan, targets: Targets) -> PrivacyPlan:
    """The plan with the largest (whole) expected cohort that its noise can afford within the targets.

    Raises:
        RefusedPlan: Not even an expected cohort of one is within the targets.
    """
    scales = [1.0, *(change.cohort_scale for change in plan.schedule)]
    # Cohorts of a fixed size are whole numbers in every stretch of the schedule.
    parts = (Fraction(repr(scale)).denominator for scale in scales)
    step = lcm(*parts) if plan.sampling.fixed_size else 1
    limit = int(plan.clients / max(scales)) // step

    def reached(steps: int) -> tuple[float, str]:
        return _reached(replace(plan, cohort=float(steps * step)), targets)

    steps = largest_whole(reached, limit, "population.cohort", _fewest_steps(plan, step, limit), step)
    return replace(plan, cohort=float(steps * step))


def _fewest_steps(plan: PrivacyPlan, step: int, limit: int) -> int:
    """The fewest steps with which a plan can be made: a power of two, above 1 where clients make the noise.

    Raises:
        RefusedPlan: No cohort can.
    """
    steps = 1
    while True:
        try:
            _ = replace(plan, cohort=float(steps * step)).phases
        except RefusedPlan:
            if plan.secure is None or 2 * steps > limit:
                raise
            steps *= 2
        else:
            return steps


def fewest_bits(plan: PrivacyPlan, targets: Targets) -> PrivacyPlan:
    """The plan with the fewest bits with which rounding lengthens a message by at most a hundredth, and its noise.

    Raises:
        RefusedPlan: Even the most are too few, or no noise reaches a target.
    """
    from dpfedmeta.accounting.events.integer_sum import BITS
    from dpfedmeta.accounting.privacy_plan.secure_round import is_fine, with_bits

    finest = with_bits(plan, BITS[-1])
    # About the noise that every grid needs that is fine enough.
    enough = is_fine(replace(finest, noise_multiplier=plan.noise_multiplier or 1.0), _LITTLE_GROWTH)
    found = calibrate(finest, targets) if enough else finest
    for bits in BITS if enough else ():
        if is_fine(with_bits(found, bits), _LITTLE_GROWTH):
            solved = calibrate(with_bits(plan, bits), targets)
            if is_fine(solved, _LITTLE_GROWTH):
                return solved
    raise RefusedPlan(f"--solve bits: even {BITS[-1]} bits are too few; lower population.cohort or the network's width")


def _reached(plan: PrivacyPlan, targets: Targets) -> tuple[float, str]:
    """(the largest epsilon of a cell with a target, in parts of its target; that cell in words)."""
    share, words = 0.0, ""
    check_observer(plan, targets)
    if targets.client_epsilon is not None:
        epsilon = epsilon_of_client(plan, targets.client_observer)
        share = epsilon / targets.client_epsilon
        words = _above(f"(client, {targets.client_observer})", epsilon, targets.client_epsilon)
    if targets.record_epsilon is not None and share <= 1:
        of_record = cell_of_record(plan, targets)
        if of_record.epsilon / targets.record_epsilon > share:
            share = of_record.epsilon / targets.record_epsilon
            words = _above(of_record.name, of_record.epsilon, targets.record_epsilon)
    return share, words


def _above(cell: str, epsilon: float, target: float) -> str:
    return f"{cell}: epsilon = {rounded_up(epsilon, 4)} is above the target {target!r}"
