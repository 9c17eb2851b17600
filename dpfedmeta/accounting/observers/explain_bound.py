"""Text for a guarantee: the rounds that the observer sees and the composition behind the epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.events import (
    Event,
    Phase,
    are_allocated,
    are_correlated,
    as_released,
    is_one_release,
    surplus,
)
from dpfedmeta.accounting.events.noise_cost import JointNoise
from dpfedmeta.accounting.events.sampling import sampling_of

if TYPE_CHECKING:
    from dpfedmeta.accounting.divergences.pld_composition import ComposedBy

REMOVED_PAIR = "(1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2)"
REPLACED_PAIR = "(1-q) N(0, z^2) + q N(1, z^2) against (1-q) N(0, z^2) + q N(-1, z^2)"
ALLOCATED_PAIR = "1/t sum over j <= t of N(e_j, z^2 I) against N(0, z^2 I), in the worse order"
REPLACED_ALLOCATED_PAIR = "1/t sum over j <= t of N(e_j, z^2 I) against 1/t sum over j <= t of N(-e_j, z^2 I)"
# Until 0.2.0.
IN_TWO_HALVES = "the same pair in both orders, one after the other"
FIXED_PAIR = "the symmetric pair of (1-q) N(0, z^2) + q N(2, z^2) against N(0, z^2)"


def composition(method: ComposedBy, pair: str) -> str:
    """Describe the method of composition and the pair that it composes; for a closed bound, say why it is used."""
    if method == "pld":
        return f"PLD of {pair}"
    how = "RDP" if method == "rdp" else "GDP without sampling"
    return f"{how} of {pair} (a closed bound, where their distribution is too much to compute)"


def of_one_release(phases: Sequence[Phase], moved: float) -> str | None:
    """The formula of rounds that are one Gaussian release together; None: some of them compose round by round."""
    released = as_released(phases)
    if not are_correlated(phases) or not is_one_release(released):
        return None
    mu = math.sqrt(sum(phase.event.noise.mu(moved) ** 2 for phase in released if phase.event.noise))
    further = sum(phase.rounds for phase in phases if phase.again or phase.copy)
    words = f"; {further} further attempts add the largest row of C squared" if further else ""
    twice = "2 " if moved == 2 else ""
    return f"({twice}sens/z)-GDP of all rounds as one Gaussian release, mu = {mu:.4g}, nothing amplified{words}"


def rounds_seen(phases: Sequence[Phase]) -> str:
    """Describe the rounds of each phase: their number, the sampling and the noise."""
    return (
        ", then ".join(f"{phase.rounds} rounds ({_drawn(phase.event)}) with {_noise(phase.event)}" for phase in phases)
        or "no round"
    )


def _drawn(event: Event) -> str:
    if isinstance(event.noise, JointNoise):
        turns = f"each client whose group's turn it is with q = {event.rate:.4g}"
        return turns if event.rate < 1.0 else "whoever takes part, seen or not"
    return sampling_of(event.sampler).drawn_words(event)


def _noise(event: Event) -> str:
    return event.noise.words if event.noise else "no noise"


def folded(phases: Sequence[Phase]) -> str:
    """Behind a formula: how often it is composed, and at which delta."""
    if are_allocated(phases):
        return ", as the mean of t factors (random allocation)" + off_delta(phases)
    released = as_released(phases)
    turns = " (turns of a client; z is over the length of its bands)" if _takes_turns(phases) else ""
    return f", {sum(s.rounds for s in released)}-fold{turns}{off_delta(phases)}"


def _takes_turns(phases: Sequence[Phase]) -> bool:
    return any(isinstance(phase.event.noise, JointNoise) and phase.event.rate < 1.0 for phase in phases)


def off_delta(phases: Sequence[Phase]) -> str:
    """Behind a formula: what rare events take of delta."""
    beta = surplus(phases)
    return f", at delta - {beta:.2g} ({_what(phases)})" if beta else ""


def _what(phases: Sequence[Phase]) -> str:
    return "a full round" if are_allocated(phases) else "surplus or hostile clients"
