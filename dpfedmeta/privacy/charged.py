"""The release of a round's sum, compared with what the round was charged with before anything leaves."""

from __future__ import annotations

import math

from dpfedmeta.accounting.deviations import planned_deviation
from dpfedmeta.accounting.events.events import Event
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import Params
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import Purpose, SecretSource
from dpfedmeta.privacy.mechanisms import Mechanism, MechanismState, Released
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit, message_of

# A deviation is computed in another order here and there.
_LAST_DIGITS = 1e-6


def release_sum(
    mechanism: Mechanism,
    secret: Bounded[ClientUnit, Params],
    cohort: Cohort,
    source: SecretSource,
    remembered: MechanismState,
) -> tuple[Released[ClientUnit, Params], MechanismState]:
    """Release the sum of a cohort that is charged already; `check_charged` comes before its use.

    Args:
        mechanism: The plan's.
        secret: The sum.
        cohort: The attempt at the round, with its fresh bytes.
        source: Secret randomness of the server.
        remembered: SECRET: the mechanism's state before the round.

    Returns:
        The release, and the mechanism's next state.

    Guarantee:
        Where the key was drawn, the noise follows from the key, the attempt and the exact sum: it never stands on two
        different sums, and the same sum is the same release.
    """
    noise = source.again(cohort.again, cohort.fresh).generator(Purpose.SERVER_NOISE, cohort.round)
    # Here and not in the mechanism, which may be the user's own.
    noise = for_message(noise, lambda: message_of(secret))
    return mechanism.release(cohort.round, secret, remembered, noise)


def check_charged(released: object, event: Event, round_: int, bound: float) -> None:
    """Check that a release states the noise that the ledger was charged with.

    Args:
        released: Value that the mechanism returned.
        event: The plan's event, with which the round was charged.
        round_: The round.
        bound: Clip bound of a message: the largest change of the sum by one client.

    Guarantee:
        A release that passes states exactly the noise of the event, once, and where the plan fixes a deviation, that
        deviation. That the numbers which a mechanism of the user's own adds have the law that it states is its author's
        word: no program can tell from one release.

    Raises:
        RefusedPlan: It states another noise, several releases, or another deviation; nothing may leave.
    """
    if not isinstance(released, Released):
        raise RefusedPlan(
            f"server.noise: in round {round_} it returned {type(released).__name__}, expected Released; use "
            "release_with or a mechanism of dpfedmeta.privacy.mechanisms; nothing was released"
        )
    if released.noises != (event.noise,):
        stated = ", ".join("no noise" if noise is None else noise.words for noise in released.noises[:3])
        more = f" and {len(released.noises) - 3} more" if len(released.noises) > 3 else ""
        charged = "no noise" if event.noise is None else event.noise.words
        raise RefusedPlan(
            f"server.noise: in round {round_} it released with {stated or 'nothing'}{more}, but the ledger was "
            f"charged for one release with {charged}; nothing was released"
        )
    planned, stated_deviation = planned_deviation(event, round_), released.noise_deviation
    due = planned * bound / event.cohort if planned else planned
    if due is None and not 0 < stated_deviation < math.inf:
        raise RefusedPlan(
            f"server.noise: in round {round_} its release states noise of deviation {stated_deviation:.6g}, but the "
            f"ledger was charged for {event.noise.words if event.noise else 'no noise'}; nothing was released"
        )
    if due is not None and not math.isclose(stated_deviation, due, rel_tol=_LAST_DIGITS):
        raise RefusedPlan(
            f"server.noise: in round {round_} its release states noise of deviation {stated_deviation:.6g}, "
            f"but the plan's is {due:.6g} for a bound of {bound:.6g}; nothing was released"
        )
