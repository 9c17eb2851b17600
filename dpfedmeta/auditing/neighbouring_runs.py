"""Two neighbouring worlds of a plan, what each observer sees in one of them, and what an attacker expects of either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.accounting.ledger.ledger import Budget
from dpfedmeta.auditing.canaries import SameDirection, with_canaries
from dpfedmeta.auditing.observed_loop import AuditedTraining, NoAccuracy, ObservedRound
from dpfedmeta.core.files.run_directory import RunDirectory, create
from dpfedmeta.core.params import Params, dimension, flatten
from dpfedmeta.core.random.random_sources import KeyedSource, SecretSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.evaluation import HeldOutEvaluation
from dpfedmeta.learning.record_dp.whole_moments import MomentGrid
from dpfedmeta.planning.privacy.aggregation import aggregation_of
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit
from dpfedmeta.simulation.backend import Backend
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import grid_of
from dpfedmeta.training.build_data import client_side

# Its number; who it is does not matter.
CANARY = 0
_CPU = torch.device("cpu")
_MOST_KEPT = 64
_NO_NOISE = 1e-12
# Of records that are rounded at random an attacker expects the mean.
_ROUNDINGS = 64


@dataclass(frozen=True, kw_only=True)
class Nobody:
    """Clients that hold nothing: an attacker who knows their messages subtracts them.

    Attributes:
        clients: N.
    """

    clients: int

    def episode(self, client: int) -> Episode:
        """None of them.

        Raises:
            LookupError: Always; such a client sends zeros, as every client does whose data cannot be read.
        """
        raise LookupError(client)


class Worlds(Protocol):
    """Two worlds that differ in one client, or in one record of one client."""

    @property
    def steady(self) -> bool:
        """Whether the canary's message depends on the bound alone."""
        ...

    def clients(self, one: bool, source: SecretSource) -> ClientRunner:
        """All clients of the one world, or of the other."""
        ...


@dataclass(frozen=True, kw_only=True)
class ClientWorlds:
    """The canary sends a message of its own choice; all others hold nothing.

    Attributes:
        plan: The plan.
        one: What it sends in the one world: 1, or -1 for the opposite; 0 where it holds nothing.
        other: What it sends in the other.
    """

    plan: Plan
    one: int = 1
    other: int = 0
    steady: ClassVar[bool] = True

    def clients(self, one: bool, source: SecretSource) -> ClientRunner:
        """Return all clients, with the canary of that world."""
        sign, nobody = self.one if one else self.other, Nobody(clients=self.plan.privacy.clients)
        side = client_side(self.plan, nobody, source, _CPU)
        return with_canaries(side, {CANARY: sign} if sign else {}, SameDirection(), others=False)


@dataclass(frozen=True, kw_only=True)
class RecordWorlds:
    """The canary client holds a glaring record under a wrong label, or in its place one that cannot be read.

    A record that holds NaN has no gradient, so it counts as null: that is the neighbour under zero-out. The population
    alone differs; the client computes as every client does.

    Attributes:
        plan: The plan.
        glaring: Every number of the record; or the first one alone, and the others are 0.
        first: Which of the two.
    """

    plan: Plan
    glaring: float
    first: bool = False

    @property
    def steady(self) -> bool:
        """Whether records are sent as they are: nothing of a message then depends on the model."""
        return sends_moments(self.plan)

    def clients(self, one: bool, source: SecretSource) -> ClientRunner:
        """Return all clients, with the population of that world."""
        return client_side(self.plan, self._population(one), source, _CPU)

    def _population(self, one: bool) -> RecordPopulation:
        plan = self.plan
        return RecordPopulation(
            clients=plan.privacy.clients,
            image=plan.network.form.shape,
            ways=plan.shape.ways,
            shots=plan.shape.shots,
            queries=plan.shape.queries,
            canary=self.glaring if one else math.nan,
            first=self.first and one,
        )


@dataclass(frozen=True, kw_only=True)
class RecordPopulation:
    """Population of one client that holds records, one of which may be missing; all others hold nothing.

    Attributes:
        clients: N.
        image: Form of a record.
        ways: Number of classes.
        shots: Support records of each class.
        queries: Query records of each class.
        canary: Every number of the canary's record; NaN: it cannot be read.
        first: Only the first number, and the others are 0.
    """

    clients: int
    image: tuple[int, ...]
    ways: int
    shots: int
    queries: int
    canary: float
    first: bool = False

    def episode(self, client: int) -> Episode:
        """The canary's data.

        Raises:
            LookupError: Another client holds nothing.
        """
        if client != CANARY:
            raise LookupError(client)
        labels, support, query = torch.arange(self.ways), self.ways * self.shots, self.ways * self.queries
        queries = torch.zeros(query, *self.image)
        queries[0].view(-1)[: 1 if self.first else None] = self.canary
        return Episode(
            support_images=torch.zeros(support, *self.image),
            support_labels=labels.repeat_interleave(self.shots),
            query_images=queries,
            query_labels=labels.repeat_interleave(self.queries),
        )


@dataclass(frozen=True, kw_only=True)
class MomentWorlds:
    """All records of the canary client lie along one line, to both sides in turn; in the other world along another.

    For clients that send moments of records with noise, or whole numbers: nothing else bounds a client there, so one
    that sends what it likes is none of them.

    Attributes:
        plan: The plan.
        other: -1: the records of the other world lie along another direction; 0: the client holds nothing there.
    """

    plan: Plan
    other: int = 0
    steady: ClassVar[bool] = True

    def clients(self, one: bool, source: SecretSource) -> ClientRunner:
        """Return all clients, with the population of that world."""
        direction = 0 if one else 1 if self.other else None
        held = None if direction is None else self._along(direction)
        return client_side(self.plan, OnlyCanary(clients=self.plan.privacy.clients, held=held), source, _CPU)

    def _along(self, direction: int) -> Episode:
        shape, (size,) = self.plan.shape, self.plan.network.form.shape
        records = torch.zeros(shape.ways, shape.shots + shape.queries, size)
        records[:, 0::2, direction], records[:, 1::2, direction] = 1.0, -1.0
        labels = torch.arange(shape.ways)
        return Episode(
            support_images=records[:, : shape.shots].flatten(0, 1),
            support_labels=labels.repeat_interleave(shape.shots),
            query_images=records[:, shape.shots :].flatten(0, 1),
            query_labels=labels.repeat_interleave(shape.queries),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OnlyCanary:
    """Population of one client that holds something; all others hold nothing.

    Attributes:
        clients: N.
        held: What it holds; None: nothing either.
    """

    clients: int
    held: Episode | None

    def episode(self, client: int) -> Episode:
        """The canary's data.

        Raises:
            LookupError: The client holds nothing.
        """
        if client != CANARY or self.held is None:
            raise LookupError(client)
        return self.held


def sends_moments(plan: Plan) -> bool:
    """Return whether clients send moments of records with noise for each record, or whole numbers."""
    record = plan.privacy.record
    return record is not None and record.kind == "moments"


@dataclass(kw_only=True, eq=False)
class Noting:
    """A backend as it is; what the server sees of each sum is noted."""

    backend: Backend
    sums: list[tuple[Cohort, Bounded[ClientUnit, Params]]] = field(default_factory=list)

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[ClientUnit, Params]:
        """Return the backend's sum, and note it."""
        found = self.backend.cohort_sum(model, bound, cohort)
        self.sums.append((cohort, found))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Record of one run in one world, as its observers saw it.

    Attributes:
        releases: What everybody saw.
        sums: What the server added up, with who took part; SECRET to all others.
        clients: The clients of that run, with their own noise.
    """

    releases: Sequence[ObservedRound]
    sums: Sequence[tuple[Cohort, Bounded[ClientUnit, Params]]]
    clients: ClientRunner


def observe(
    plan: Plan,
    clients: ClientRunner,
    source: SecretSource,
    folder: Path | None = None,
    training: type[AuditedTraining] = AuditedTraining,
) -> Observed:
    """Run a plan once, and return what its observers saw.

    Args:
        plan: The plan.
        clients: All of them, in one world.
        source: Secret randomness of the server.
        folder: Where a whole run keeps its books; None: the rounds alone, without books.
        training: Another loop, for tests with a planted mistake.
    """
    settings, workers = plan.settings, InProcess()
    made = aggregation_of(settings).made(settings, clients, workers)
    noting = Noting(backend=made)
    run = RunDirectory(Path()) if folder is None else create(folder, "run-with-canaries")
    loop = training(
        plan=plan,
        run=run,
        backend=noting,
        workers=workers,
        validation=cast(HeldOutEvaluation, NoAccuracy()),
        source=source,
        trackers=(),
        budget=Budget.of(plan.planned),
    )
    if folder is None:
        loop.without_books()
    else:
        loop()
    return Observed(releases=loop.seen, sums=noting.sums, clients=clients)


@dataclass(kw_only=True, eq=False)
class Known:
    """Messages of the canary in either world, without noise, as the loop would clip them.

    Attributes:
        worlds: The two worlds.
    """

    worlds: Worlds
    _found: dict[tuple[float, int, bool], Tensor] = field(default_factory=dict)

    def message(self, release: ObservedRound, one: bool) -> Tensor:
        """[d] float64. Of a canary that sends what it likes it depends on the bound alone."""
        round_ = -1 if self.worlds.steady else release.round
        key = (release.bound, round_, one)
        if round_ >= 0:
            return exact_message(self._sides[one], release)
        if key not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = exact_message(self._sides[one], release)
        return self._found[key]

    @cached_property
    def _sides(self) -> dict[bool, ClientRunner]:
        return {one: quiet(self.worlds.clients(one, KeyedSource(0))) for one in (True, False)}


def quiet(side: ClientRunner) -> ClientRunner:
    """The same clients without any noise of their own."""
    if not side.algorithm.releases:
        return replace(side, message_noise=0.0)
    algorithm = side.algorithm.quiet(support=False, noise=_NO_NOISE)
    return replace(side, algorithm=algorithm, message_noise=0.0, record_noises=())


def exact_message(side: ClientRunner, release: ObservedRound) -> Tensor:
    """The canary's message: [d] float64; of several parts, and of many roundings of its records, their mean."""
    if side.whole is None:
        return message_of(side, release, [CANARY])
    grid = grid_of(side, release.model, release.bound, release.round)
    if isinstance(grid, MomentGrid):
        total = np.zeros(side.whole.dimension)
        for draw in range(_ROUNDINGS):
            (whole,) = side.whole_messages(release.round, [CANARY], KeyedSource(draw))
            total += 0 if whole is None else whole * (grid.steps / _ROUNDINGS)
        return flatten(grid.read({"": torch.from_numpy(total)})).double()
    (parts,) = side.bounded_parts(release.model, release.bound, release.round, [CANARY])
    return torch.from_numpy(np.mean(parts or [np.zeros(dimension(side.form(release.model)))], axis=0))


def message_of(side: ClientRunner, release: ObservedRound, clients: list[int]) -> Tensor:
    """Return the sum of some clients' messages in a round, as the loop computes it."""
    numbers = side.whole_numbers(release.bound, dimension(side.form(release.model)))
    return numbers.values(side.clipped_sum(release.model, release.bound, release.round, clients)[0])


def over_nothing(values: Tensor, message: Tensor, variance: float) -> float:
    """Log-likelihood ratio of a message in normal noise, against nothing in it."""
    return float(values @ message - message @ message / 2) / variance
