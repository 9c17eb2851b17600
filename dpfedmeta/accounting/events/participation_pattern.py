"""Spacing of one client's participations: their number and distance, which correlated noise depends on."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.core.errors import RefusedPlan


@dataclass(frozen=True, kw_only=True)
class Spacing:
    """Limits on one client's participations that every client keeps, whatever the server does.

    Attributes:
        participations: R, the most rounds that a client joins.
        separation: b, the fewest rounds between any two of them.
    """

    participations: int
    separation: int

    def __post_init__(self) -> None:
        check("participations", self.participations, self.participations >= 1, "at least 1")
        check("separation", self.separation, self.separation >= 1, "at least 1")

    def allows(self, round_: int, taken: int, latest: int | None) -> bool:
        """Return whether a client may join a round.

        Args:
            round_: Number of the round.
            taken: Number of its invitations so far, over all attempts at all rounds.
            latest: The last round of those; None: never.

        Guarantee:
            Whatever is done again after a crash: the rounds of any one course of a run that a client joins are at
            least `separation` apart, and at most `participations`.
        """
        return taken < self.participations and (latest is None or round_ >= latest + self.separation)


@lru_cache(maxsize=64)
def joining_rates(clients: int, cohort: float, rounds: int, spacing: Spacing) -> tuple[float, ...]:
    """By round, how likely a client that may join does: so that a cohort has the expected size in every round.

    Public constants: the expected number of clients that may join follows from N, L, R and b alone.

    Raises:
        RefusedPlan: In some round fewer clients than a cohort may be expected to be free.
    """
    free = np.zeros(spacing.participations)
    free[0] = clients
    # Expected clients by how often they joined before, of the rounds whose clients still rest.
    resting: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    rates = []
    for round_ in range(rounds):
        if round_ >= spacing.separation:
            free[1:] += resting[round_ - spacing.separation][:-1]
        there = float(free.sum())
        if cohort > there * (1.0 + 1e-12):
            raise RefusedPlan(
                f"population.separation = {spacing.separation} with population.max_participations = "
                f"{spacing.participations}: in round {round_} only {there:.4g} of {clients:,} clients are free on "
                f"average, but population.cohort is {cohort:g}; both cohort * separation <= clients and cohort * "
                "rounds <= clients * max_participations are needed: lower the separation, the cohort or the rounds"
            )
        rates.append(min(1.0, cohort / there))
        joined = rates[-1] * free
        free = free - joined
        resting.append(joined)
    return tuple(rates)
