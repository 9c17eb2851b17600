"""In words, how far a client that sends what no honest client sends moves a sum: a plan says it beside its noise."""

from __future__ import annotations

import math

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import ThresholdedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


def dishonest_words(plan: PrivacyPlan) -> str:
    """Say in one or two sentences how far a dishonest client moves a round. Privacy does not rest on it.

    Where the server sees messages it leaves out those that are longer than an honest one, so a clip bound bounds what
    anybody can do. Under sums nobody can look inside.
    """
    event = plan.at(0)
    if isinstance(event.noise, ThresholdedNoise):
        return (
            "a dishonest client moves each count by at most 1, whatever it sends, but it can make the whole analysis "
            "fail"
        )
    if plan.server_sees == "sum":
        return f"a dishonest client {_inside(event.whole)}; nobody can look into a sum{_told(event.whole)}"
    if plan.noise_multiplier is None:
        return "a dishonest client can move the sum of a round as far as it likes: messages are not clipped"
    own = _own_noise(plan)
    if own == 0:
        return (
            "a dishonest client moves the sum of a round by at most one clip bound, whatever it sends: the server sees "
            "every message and leaves out longer ones"
        )
    return (
        "a dishonest client moves the sum of a round by at most one clip bound plus the largest noise of an honest "
        f"message (in d coordinates {own:.3g} (sqrt(d) + 10) clip bounds): the server sees every message and leaves "
        "out longer ones"
    )


def reach(whole: WholeSum) -> float:
    """Bound the move of a sum modulo 2^b by one client, in units of the longest honest message.

    It hands over any number from 0 to 2^b - 1 in each of D coordinates, which is read as one from -2^(b-1) to
    2^(b-1) - 1: at most 2^(b-1) sqrt(D) steps of the grid, of which an honest message, before it is rounded, has M c at
    most.
    """
    return 2.0 ** (whole.bits - 1) * math.sqrt(whole.dimension) / (whole.parts * whole.units)


def _inside(whole: WholeSum | None) -> str:
    if whole is None:
        return "moves the sum of a round as far as it likes"
    unit = "times what an honest one adds at most" if whole.exact else "clip bounds"
    return (
        f"moves the sum of a round by up to {reach(whole):,.0f} {unit}, in any direction (any whole numbers modulo "
        f"2^{whole.bits} in {whole.dimension:,} coordinates)"
    )


def _told(whole: WholeSum | None) -> str:
    if whole is None or whole.exact:
        return ""
    return ", so after each round the release is compared with the longest that honest clients give"


def _own_noise(plan: PrivacyPlan) -> float:
    """Deviation of the noise that a message may carry, in clip bounds: then the server allows for its length."""
    event, record = plan.at(0), plan.record
    if event.message_noise:
        return event.message_noise
    if record is None or plan.noise_mode != "shared" or record.query_noise is None:
        return 0.0
    return record.query_noise / record.query_records
