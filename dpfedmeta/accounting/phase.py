"""Rounds in a row that share all their constants: what a plan is made of, and what a ledger adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

SamplerName = Literal["poisson", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rounds in a row that share all their constants.

    Attributes:
        rounds: How many.
        sampler: How a cohort is drawn.
        clients: N.
        cohort: L, the public denominator: the expected size (poisson) or the size (fixed).
        rate: q, how likely a client is in the cohort for an observer who knows its own part: L/N, and L/(N - c) under
            fixed-size sampling, where c colluding clients who were not drawn leave the places to the others.
        largest_cohort: M of shared mode; None where nothing limits the cohort.
        hostile: H, messages of a round whose own noise is not counted, since they may come without it; 0 where the
            server adds it all.
        surplus_probability: P(more than M clients are drawn, or more than H hostile ones) in one round.
        total_noise: z, or z_T where clients add noise of their own: all noise of the sum over its sensitivity, if every
            client adds its own.
        assured_noise: What is left of it when H messages come without theirs.
        effective_noise: z, or z_eff where clients add noise: what is left of the assured noise for an observer who
            colludes. None without a client-level mechanism.
        message_noise: Deviation of the noise that each client adds to its own message over C; 0 where the server adds
            it all.
        copy: Which copy of a run made these rounds: each counts participations for itself.
    """

    rounds: int
    sampler: SamplerName
    clients: int
    cohort: float
    rate: float
    largest_cohort: int | None
    surplus_probability: float
    total_noise: float | None
    effective_noise: float | None
    message_noise: float = 0.0
    assured_noise: float | None = None
    hostile: int = 0
    copy: int = 0


def first_rounds(stretches: Sequence[Stretch], rounds: int) -> tuple[Stretch, ...]:
    """The first `rounds` of them, or all that there are."""
    kept, left = [], rounds
    for stretch in stretches:
        if left <= 0:
            break
        kept.append(replace(stretch, rounds=min(stretch.rounds, left)))
        left -= stretch.rounds
    return tuple(kept)
