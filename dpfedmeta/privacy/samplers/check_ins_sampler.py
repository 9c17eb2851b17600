"""Clients that choose their own round: each draws one of the slots for itself and tells nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.events.failure_probability import fuller, least_capacity
from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.rounded import asked
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.events import Event
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class CheckInSampler(Sampler):
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
        of E both populations are those of `random_allocation`, given the others' slots, so for every set A of
        releases P(A) <= e^epsilon Q(A) + delta + beta, and likewise with P and Q exchanged: beta is taken off delta.
        This counts on the others to draw their slots as they should; so many who come on purpose in one round that it
        is full may see a client turned away.
        *Once.* A round that is done again, as another release, has nobody in it: whoever had drawn it has come. It is
        noise that no data touches, and costs nothing; its clients' messages are lost, never their privacy.
    """

    clients: int
    slots: int
    largest: int | None = None
    neighbours: ClassVar[Neighbours] = "add-remove"
    independent: ClassVar[bool] = True
    cost: ClassVar[str | None] = "allocated"

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> Sampler:
        """For rounds that cost this; each client comes once."""
        assert constants.slots is not None
        return cls(clients=constants.clients, slots=constants.slots, largest=constants.largest_cohort)

    @classmethod
    def slots_of(cls, plan: PrivacyPlan) -> int | None:
        """T: each client draws one of all rounds."""
        return plan.rounds

    @classmethod
    def largest_of(cls, plan: PrivacyPlan, cohort: float) -> tuple[int, float]:
        """What a round takes, and how likely the others, at most N - 1, are as many."""
        assert plan.capacity is not None
        never = plan.capacity >= plan.clients
        return plan.capacity, 0.0 if never else fuller(plan.capacity, plan.clients, 1.0 / plan.rounds)

    @classmethod
    def check(cls, plan: PrivacyPlan) -> None:
        """Refuse what the proof in random_allocation does not cover."""
        check("ends", plan.ends, not plan.ends, "no extension: every client has come; start a new run with all rounds")
        check("cohort", plan.cohort, plan.cohort == plan.clients / plan.rounds, "clients / rounds with check-ins")
        check("max_participations", plan.max_participations, plan.max_participations == 1, "1 with check-ins")
        check("schedule", plan.schedule, not plan.schedule, "no changes between rounds with check-ins")
        check("earlier", len(plan.earlier), not plan.earlier, "nothing spent before with check-ins")
        check("noise", plan.noise, plan.noise == "independent", "independent with check-ins")
        check("server_sees", plan.server_sees, plan.secure is None, "messages with check-ins")
        check("hostile", plan.hostile, plan.hostile == 0, "0 with check-ins")
        check("capacity", plan.capacity, plan.capacity is not None and plan.capacity >= 1, "the largest round")
        least = least_capacity(plan.clients, plan.rounds, min(plan.client_delta, plan.record_delta))
        rare = f"{least} or more, so that a full round is unlikely enough compared with delta"
        check("capacity", plan.capacity, (plan.capacity or 0) >= least, rare)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Refuse what goes beyond one round of a client's own choice: it has no proof."""
        population, server = settings.population, settings.server
        if server.rounds > population.clients:
            raise InputError(
                f"server.rounds = {server.rounds}: there are only {population.clients} clients (population.clients), "
                "and each takes part in one round, so rounds would be empty; lower --rounds"
            )
        for name, refused, why in _refusals(settings):
            if refused:
                raise RefusedPlan(f"population.sampler = check-ins with {name}: {why}")
        _check_capacity(settings)

    @classmethod
    def check_solved(cls, solve: str) -> None:
        """Refuse to solve for rounds or a cohort: there are N/T clients in each of T rounds."""
        if solve in ("rounds", "cohort"):
            raise InputError(
                f"--solve {solve} with population.sampler = check-ins: N/T clients are expected in each of T rounds, "
                "and more rounds cost less, so a target sets no limit; use --solve noise, or --advise for a table"
            )

    @classmethod
    def planned(cls, settings: Settings) -> Mapping[str, Any]:
        """N/T clients in a round, each once, and population.cohort as the most that one takes."""
        population = settings.population
        expected = population.clients / settings.server.rounds
        return {"cohort": expected, "max_participations": 1, "capacity": int(population.cohort)}

    @classmethod
    def drawn_words(cls, event: Event) -> str:
        """Description of who is in a round, behind a bound."""
        return f"each client in one of t = {event.slots}, which it drew itself; at most {event.largest_cohort} in one"

    @classmethod
    def check_new_run(cls, *, cohort: float, separation: int | None, rounds: int) -> None:
        """Refuse a part of a client, which earlier versions cut off."""
        if cohort % 1:
            raise RefusedPlan(
                f"cohort = {cohort:g} with sampler = check-ins: it is the most clients that a round accepts; give a "
                "whole number"
            )

    @classmethod
    def cohort_words(cls, plan: PrivacyPlan) -> str:
        """Description of a cohort, in the plan and the report."""
        return f"each in a round of its own choice, {plan.cohort:.4g} expected per round and at most {plan.capacity}"

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


def _refusals(settings: Settings) -> list[tuple[str, bool, str]]:
    population, server = settings.population, settings.server
    cap, limit, hostile = population.max_participations, settings.privacy.client.limit, settings.privacy.client.hostile
    return [
        (
            f"population.max_participations = {cap}",
            cap not in (None, 1),
            "each client takes part once, in the slot that it drew, and nothing is proved for more often; leave it "
            "out, or use --population.sampler poisson",
        ),
        (
            "privacy.spent_before",
            bool(settings.privacy.spent_before),
            "its cost together with other releases cannot be computed; use --population.sampler poisson",
        ),
        ("server.schedule", bool(server.schedule), "all rounds must be equal for clients that draw one; leave it out"),
        (
            f"server.noise = {server.noise}",
            server.noise != "independent",
            "rounds that clients choose themselves are only supported with independent Gaussian noise; use "
            "--server.noise independent",
        ),
        (
            f"aggregation.mode = {settings.aggregation.mode}",
            settings.aggregation.mode != "messages",
            "the number of clients in a round is random, but clients that make the noise need a cohort of known size; "
            "use --aggregation messages, or --population.sampler fixed",
        ),
        (
            "server.noise_site = clients",
            server.noise_site == "clients",
            "the number of clients that share the noise of a round is random; use --server.noise_site server",
        ),
        (
            f"privacy.client.hostile = {hostile:g}",
            bool(hostile),
            "hostile clients choose their round too, and may all choose the same one; use --population.sampler poisson",
        ),
        (
            f"privacy.client.limit = {limit}",
            limit is not None,
            "the number of rounds must be fixed before training, because a client's chance of a slot depends on it; "
            "give privacy.client.epsilon (--epsilon), which solves the noise for all rounds",
        ),
    ]


def _check_capacity(settings: Settings) -> None:
    population, rounds = settings.population, settings.server.rounds
    CheckInSampler.check_new_run(cohort=population.cohort, separation=population.separation, rounds=rounds)
    delta = min(settings.privacy.client.delta, settings.privacy.record.delta)
    least = least_capacity(population.clients, rounds, delta)
    if population.cohort < least:
        raise RefusedPlan(
            f"population.cohort = {population.cohort:g}: {population.clients / rounds:.4g} clients are expected in "
            f"each of {rounds} rounds; a round that accepts fewer than {least} is full too often for delta = "
            f"{asked(delta)}, and a client that is turned away reveals that others came; give {least} or more"
        )


MEMBER = CheckInSampler
