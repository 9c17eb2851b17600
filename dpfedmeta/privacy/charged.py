"""The release of a round's sum, compared with what the round was charged with before anything leaves."""

import math
from collections.abc import Sequence

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.noise_cost import Noise
from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import Params
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import Purpose, SecretGenerator, SecretSource
from dpfedmeta.privacy.mechanisms import Mechanism, MechanismState, Released
from dpfedmeta.privacy.units import Bounded, ClientUnit, message_of

# A deviation is computed in another order here and there.
_LAST_DIGITS = 1e-6


def noise_of_attempt(source: SecretSource, round_: int, again: tuple[int, ...], fresh: bytes) -> SecretGenerator:
    """SECRET: the server's noise for one attempt at a round.

    Args:
        source: Secret randomness of the server.
        round_: The round.
        again: What a further attempt adds to the key; () for the first.
        fresh: What the streams of the attempt are keyed by besides (ledger.charges.Charge.stream).
    """
    return source.again(again, fresh).generator(Purpose.SERVER_NOISE, round_)


def release_sum(
    mechanism: Mechanism,
    round_: int,
    secret: Bounded[ClientUnit, Params],
    remembered: MechanismState,
    noise: SecretGenerator,
) -> tuple[Released[ClientUnit, Params], MechanismState]:
    """Release the sum of a cohort by the plan's mechanism; for `Journal.release`, which compares it with its charge.

    Args:
        mechanism: The plan's.
        round_: The round.
        secret: The sum.
        remembered: SECRET: the mechanism's state before the round.
        noise: The server's noise for this attempt.

    Returns:
        The release, and the mechanism's next state.

    Guarantee:
        Where the key was drawn, the noise follows from the key, the attempt and the exact sum: it never stands on two
        different sums, and the same sum is the same release.
    """
    # Here and not in the mechanism, which may be the user's own.
    return mechanism.release(round_, secret, remembered, for_message(noise, lambda: message_of(secret)))


def check_charged(released: object, event: Event, round_: int, bound: float, denominator: float | None = None) -> None:
    """Check that a release states the noise that the ledger was charged with.

    Args:
        released: Value that the mechanism returned.
        event: The event with which the round was charged.
        round_: The round.
        bound: Clip bound of a message: the largest change of the sum by one client.
        denominator: What the sum is divided by; None: the expected cohort.

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
        charged = "no noise" if event.noise is None else event.noise.words
        raise RefusedPlan(
            f"server.noise: in round {round_} it released with {_words(released.noises)}, but the ledger was "
            f"charged for one release with {charged}; nothing was released"
        )
    planned, stated_deviation = planned_deviation(event, round_), released.noise_deviation
    due = planned * bound / (event.cohort if denominator is None else denominator) if planned else planned
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


def check_record_release(message: object, charged: Sequence[Noise]) -> None:
    """Check that a client's message states the noise on its records that each participation is charged with.

    Args:
        message: What the client's algorithm gave.
        charged: Noise of each release of a participation (Event.record_noises).

    Guarantee:
        A message that passes comes from exactly so many releases, with that noise each.

    Raises:
        RefusedPlan: It is no release, or states other noise; nothing may leave the client.
    """
    if not isinstance(message, Released):
        raise RefusedPlan(
            f"record.release: a client's message is {type(message).__name__}, expected Released; use a mechanism of "
            "dpfedmeta.privacy.mechanisms; nothing was sent"
        )
    if message.noises != tuple(charged):
        raise RefusedPlan(
            f"record.release: a client's message was released with {_words(message.noises)}, but a participation is "
            f"charged for {_words(charged)}; nothing was sent"
        )


def _words(noises: Sequence[Noise | None]) -> str:
    shown = ", ".join("no noise" if noise is None else noise.words for noise in noises[:3])
    return (shown or "nothing") + (f" and {len(noises) - 3} more" if len(noises) > 3 else "")
