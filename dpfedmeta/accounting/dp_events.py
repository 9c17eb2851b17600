"""Rounds as events of dp-accounting, for whoever wants to account for them without this package."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from dp_accounting import ComposedDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpfedmeta.accounting.divergences.rdp import ORDERS, round_event
from dpfedmeta.accounting.events.events import Phase, have_whole_numbers, neighbours_of, surplus
from dpfedmeta.accounting.other_accountants import on_a_fine_grid, second_opinion
from dpfedmeta.accounting.release_costs import released


def events_for_others(phases: Sequence[Phase], delta: float) -> dict[str, Any] | None:
    """The rounds as one event of dp-accounting, in the fields of its `to_named_tuple`, and what it computes from it.

    Guarantee:
        The event states no less than the rounds cost: it is None where dp-accounting has no event of them (check-ins, a
        threshold, a cost or a noise of one's own that names none), and for sums of whole numbers, since the Gaussian
        event of one round leaves out what discrete noise costs more.

    Args:
        phases: The rounds, with those that were made before.
        delta: Of (client, public); rare events are taken off it.
    """
    if have_whole_numbers(phases) or second_opinion(phases, delta) is None:
        return None
    rounds = released(phases)
    events = [round_event(phase.event) for phase in rounds]
    if any(each is None for each in events) or len({phase.event.sampler for phase in rounds}) > 1:
        return None
    together = zip(events, rounds, strict=True)
    composed = ComposedDpEvent([SelfComposedDpEvent(one, phase.rounds) for one, phase in together])
    left = delta - surplus(phases)
    arguments: dict[str, Any] = {"neighboring_relation": NeighboringRelation.ADD_OR_REMOVE_ONE.name}
    if neighbours_of(rounds) == "replace-one":
        arguments = {"orders": ORDERS, "neighboring_relation": NeighboringRelation.REPLACE_ONE.name}
        accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    else:
        arguments["value_discretization_interval"] = width = on_a_fine_grid(rounds, left)[1]
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=width)
    epsilon = float(accountant.compose(composed).get_epsilon(left))
    read = {"accountant": type(accountant).__name__, "arguments": arguments, "delta": left, "epsilon": epsilon}
    return {"read_by": {"dp_accounting": version("dp-accounting"), **read}, "event": _named(composed.to_named_tuple())}


def _named(event: Any) -> Any:
    """A named tuple of dp-accounting as an object of JSON, and what is inside."""
    if hasattr(event, "_asdict"):
        return {name: _named(value) for name, value in event._asdict().items()}
    return [_named(each) for each in event] if isinstance(event, list) else event
