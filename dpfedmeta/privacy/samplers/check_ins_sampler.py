"""Clients that choose their own round: each draws one of the slots for itself and tells nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort


@dataclass(frozen=True, kw_only=True)
class CheckInSampler:
    """Each client comes in one of t rounds, all equally likely, and in no other; a round takes who shows up.

    A client of a federation draws its slot before the first round. Here the draw is made when it is due: of the clients
    that have not come before round r, each comes in it with probability 1 / (t - r). The joint distribution is the
    same, nothing has to be remembered but who has come, which the server keeps in `secret/` before anybody is invited,
    and so it survives a crash under any source of randomness.

    Attributes:
        clients: N.
        slots: t.
        largest: M; of more that show up in one round as many are taken, at random.

    Guarantee:
        *Slots.* A client's slot is uniform and independent of all data and of everybody else's slot. Who is absent, who
        drops out and who declines sends a message of 0 (a dummy): the noise and the denominator N/t stay, and an empty
        round releases noise. How many came is as secret as who came.
        *Turning away.* That a client's coming may keep another one out would move the sum by 2 C, and no add/remove
        bound covers it. It cannot happen in a round where at most M - 1 others come. Let E be that in some round there
        are M others or more: it depends on the others' slots alone, and P(E) <= t P(Bin(N, 1/t) >= M) = beta. Outside
        of E both populations are those of `accounting.allocation`, given the others' slots, so for every set A of
        releases P(A) <= e^epsilon Q(A) + delta + beta, and likewise with P and Q exchanged: beta is taken off delta.
        This counts on the others to draw their slots as they should; so many who come on purpose in one round that it
        is full may see a client turned away.
        *Once.* A round that is done again, as another release, has nobody in it: whoever had drawn it has come. It is
        noise that no data touches, and costs nothing; its clients' messages are lost, never their privacy.
    """

    clients: int
    slots: int
    largest: int | None = None

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> CheckInSampler:
        """For rounds that cost this; each client comes once."""
        assert constants.slots is not None
        return cls(clients=constants.clients, slots=constants.slots, largest=constants.largest_cohort)

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Memory grows with the number of clients that have come so far."""
        left = self.slots - round_
        if left < 1:
            raise ValueError(f"round {round_}: there are {self.slots} slots, and every client has come")
        came = np.sort(np.fromiter(participations, dtype=np.int64, count=len(participations)))
        waiting = self.clients - len(came)
        if again or not waiting:
            return Cohort(round=round_, clients=np.zeros(0, dtype=np.int64))
        size = waiting if left == 1 else generator.binomial(waiting, 1.0 / left)
        drawn = _among_the_others(generator.sample(waiting, size), came)
        if self.largest is not None:
            drawn = drawn[: self.largest]  # the sample is in random order
        return Cohort(round=round_, clients=np.sort(drawn))


def _among_the_others(places: IntArray, came: IntArray) -> IntArray:
    """The clients at these places in the line of those that have not come, who keep the order of their numbers."""
    # Before the i-th that came there are came[i] - i who have not.
    return places + np.searchsorted(came - np.arange(len(came)), places, side="right")


MEMBER = CheckInSampler
