"""A sampler that nobody planned for: clients are shuffled in each epoch and come in blocks, each once. One file.

Without replacement, with an event and a cost of its own. Which block a client is in depends on no data, and given that,
a client whose data are replaced moves one sum of each epoch by 2C at most. So E epochs are 2 sqrt(E)/z-GDP, whatever
the server learns from earlier releases; the mean over all shuffles is no worse.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.accounting.release_costs import ReleaseCost
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler


class EpochCost(ReleaseCost):
    """Begun epochs compose; a further attempt at a round has nobody in it and costs nothing."""

    def composed(self, phases, neighbours, delta, grids=()):
        return gaussian_epsilon(self.mu(phases), delta), "gdp"

    def delta_at(self, phases, neighbours, epsilon):
        return float(gaussian_delta(epsilon, self.mu(phases)))

    def mu(self, phases):
        return math.sqrt(self.epochs(phases)) * max(phase.event.noise.mu(2.0) for phase in phases)

    def epochs(self, phases):
        rounds = Counter()
        for phase in phases:
            rounds[phase.copy] += 0 if phase.again else phase.rounds
        blocks = min(round(phase.event.clients / phase.event.cohort) for phase in phases)
        return sum(-(-each // blocks) for each in rounds.values())

    def pair(self, phases, neighbours):
        return "N(2, z^2) against N(0, z^2), once in each of the epochs"

    def participations(self, phases, cap, delta):
        return (self.epochs(phases) if phases else 0), delta


@dataclass(frozen=True, kw_only=True)
class Blocks(Sampler):
    clients: int
    cohort: int
    neighbours: ClassVar = "replace-one"
    fixed_size: ClassVar = True
    cost: ClassVar = f"{__name__}:EpochCost"

    @classmethod
    def of(cls, constants, max_participations):
        return cls(clients=constants.clients, cohort=int(constants.cohort))

    @classmethod
    def check(cls, plan):
        super().check(plan)
        check("cohort", plan.cohort, plan.clients % plan.cohort == 0, "a cohort that divides the clients into blocks")
        check("max_participations", plan.max_participations, plan.max_participations is None, "no cap under blocks")
        check("schedule", plan.schedule, not plan.schedule, "blocks of one size")
        check("secure", plan.secure, plan.secure is None, "messages: an attempt that is made again has nobody in it")

    @classmethod
    def drawn_words(cls, event):
        return f"a block of {event.cohort:g}, each client in one of an epoch"

    @classmethod
    def cohort_words(cls, plan):
        return f"blocks of {plan.cohort:g}, each client once in an epoch"

    def draw(self, round_, participations, generator, latest=NEVER, *, again=False):
        if again:
            return Cohort(round=round_, clients=np.zeros(0, dtype=np.int64))
        began = round_ - round_ % (self.clients // self.cohort)
        waiting = np.array([client for client in range(self.clients) if latest.get(client, -1) < began])
        # Whoever missed a block that was done again missed the epoch.
        size = min(self.cohort, len(waiting))
        return Cohort(round=round_, clients=np.sort(waiting[generator.sample(len(waiting), size)]))


class Unstated(Blocks):
    """States no neighbours, so no guarantee says what it is of."""

    neighbours: ClassVar = None


class Uncosted(Blocks):
    """Is accounted for by its noise, and does not say what one of its rounds costs."""

    cost: ClassVar = None
