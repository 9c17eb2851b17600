"""The lines of rounds.jsonl: what was released in a round, and what has been spent by its end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpfedmeta.accounting.events.events import Phase, first_rounds, neighbours_of, surplus
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.honest_norm import CHANCE, honest_norm
from dpfedmeta.accounting.ledger.ledger import Ledger
from dpfedmeta.accounting.observers.four_guarantees import four_cells
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs import composed_delta
from dpfedmeta.core.params import dimension, norm
from dpfedmeta.learning.server_step import ServerState
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.mechanisms import Released

# Only in rows of releases that honest clients do not give: the most that they give, and the length of the release, with
# what clients attached for the clip policy.
TOO_LONG, RELEASED = "longer_than_honest", "released_norm"


def charged_after(ledger: Ledger, round_: int) -> tuple[Phase, ...]:
    """Return the charges that the row of round `round_` counts.

    These are the round's own and those of the rounds before, or all charges once there was a further attempt. Without
    one the charges are those of rounds 0, 1, 2, ...: a round that is done again identically gets the row that it had,
    though later rounds may have been charged since.
    """
    repeated = bool(ledger.charges) and ledger.rounds > ledger.charges[-1].round + 1
    return ledger.phases if repeated else first_rounds(ledger.phases, round_ + 1)


def round_row(plan: Plan, charged: Sequence[Phase], state: ServerState, released: Released[Any, Any]) -> dict[str, Any]:
    """Make a row of rounds.jsonl: released quantities only.

    Args:
        plan: The plan.
        charged: As `charged_after` says.
        state: Before the round.
        released: Its aggregate.
    """
    aggregate = {name: released.value[name] for name in state.first}
    noise = released.noise_deviation * dimension(aggregate) ** 0.5
    return {
        "round": state.round,
        "clip": finite(state.bound),
        "clip_mode": state.policy.mode,
        "aggregate_norm": norm(aggregate),
        "noise_norm_expected": noise,
        "signal_to_noise": signal_to_noise(norm(aggregate), noise),
        "epsilons": running_epsilons(plan, charged),
    }


def compared(plan: Plan, ledger: Ledger, state: ServerState, released: Released[Any, Any]) -> dict[str, Any]:
    """Compare a release with the longest that honest clients give; what a row says of a longer one, else nothing.

    Args:
        plan: The plan.
        ledger: Of the run. Where clients rest between rounds, a round that is done again changes how many are free in
            later ones, and then nothing is known of their cohorts.
        state: Before the round.
        released: Its aggregate.

    Guarantee:
        Post-processing: a function of the release and of public constants. A row of honest clients has it with a
        probability of at most accounting.honest_norm.CHANCE.
    """
    if spacing_of(plan.privacy) is not None and any(charge.attempt for charge in ledger.charges):
        return {}
    found = released.length
    most = honest_norm(
        plan.privacy.at(state.round),
        moved=plan.message_bound(state.bound),
        deviation=released.noise_deviation,
        dimension=released.size,
        own_noise=":" in plan.settings.server.noise,
    )
    return {} if most is None or found <= most else {TOO_LONG: most, RELEASED: found}


def too_long_words(row: Mapping[str, Any]) -> str:
    """Tell the operator that a release is longer than honest clients give."""
    return (
        f"round {row['round']}: the released mean has norm {row[RELEASED]:.4g}, but honest clients give at most "
        f"{row[TOO_LONG]:.4g} (except in one round in {1 / CHANCE:,.0f}): a client sends more than its clip bound; the "
        "run goes on"
    )


def aborted_row(plan: Plan, charged: Sequence[Phase], state: ServerState) -> dict[str, Any]:
    """The line of a round in which nothing was released; it is charged like any other."""
    return {
        "round": state.round,
        "aborted": True,
        "clip": finite(state.bound),
        "clip_mode": state.policy.mode,
        "epsilons": running_epsilons(plan, charged),
    }


def running_epsilons(plan: Plan, charged: Sequence[Phase]) -> Mapping[str, float | None]:
    """Compute the epsilons that the charges add up to; None: infinite.

    Guarantee:
        Upper bounds, from the ledger's own charges, within 1% of the tight ones. Never above the plan's epsilon: the
        budget allows no charge that would exceed it.
    """
    spent = four_cells(charged, Terms.of(plan.privacy), (plan.running_grid,))
    return {cell(s): finite(min(s.epsilon, p.epsilon)) for s, p in zip(spent, plan.planned, strict=True)}


def delta_at_limit(charged: Sequence[Phase], epsilon: float) -> float:
    """Delta of (client, public) at the limit's epsilon after these charges (Geyer et al. stop by it)."""
    return min(1.0, composed_delta(charged, neighbours_of(charged), epsilon) + surplus(charged))


def signal_to_noise(aggregate: float, noise: float) -> float | None:
    """Estimated norm of the clipped mean over that of its noise, both from the release; None without noise."""
    return math.sqrt(max(aggregate**2 - noise**2, 0.0)) / noise if noise else None


def cell(guarantee: Guarantee) -> str:
    """Name of a cell in files and plots."""
    return f"{guarantee.unit}_{guarantee.observer}"


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < float("inf") else None
