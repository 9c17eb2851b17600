"""Forecast of a run's time and memory on this machine, from a few seconds of the same work on public data."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from dpfedmeta.core.params import Params, dimension
from dpfedmeta.core.peak_memory import peak_memory_mb
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.learning.evaluation import HeldOutEvaluation
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import CLIENTS_PER_CHUNK, clients_per_task, nobody, sum_chunk
from dpfedmeta.training.terminal.progress_bar import clock


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Measured, and what follows for the whole run.

    Attributes:
        clients_per_second: Of all workers.
        start: Seconds before the first round: libraries, data, the plan, workers.
        rounds: Seconds of all rounds.
        validations: Seconds of all accuracies on validation classes.
        test: Seconds of the final evaluation.
        memory_mb: The most that all processes hold together; it does not grow with rounds, clients or cohort. Of whole
            clients each worker computes one of the largest size.
    """

    clients_per_second: float
    start: float
    rounds: float
    validations: float
    test: float
    memory_mb: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole run, without its report."""
        return self.start + self.rounds + self.validations + self.test

    def __str__(self) -> str:
        return (
            f"about {clock(self.seconds)}: {clock(self.start)} to start, {clock(self.rounds)} of rounds "
            f"at {self.clients_per_second:.0f} clients/s, {clock(self.validations)} of validation, "
            f"{clock(self.test)} of the final evaluation; at most {self.memory_mb:,.0f} MB in all processes"
        )


def clients_per_second(public: ClientRunner, workers: Workers, cohort: float, seconds: float) -> float:
    """Measured on clients of public data; also warms the workers up.

    Args:
        public: What every client runs, on public classes.
        workers: Who runs them.
        cohort: Clients of a round, as expected: no worker is given more than its share of them at once.
        seconds: The least to spend; 0: one chunk for each worker.
    """
    weights = _learned(public)
    arrays = {name: value.numpy() for name, value in weights.items()}
    count = workers.count
    size = min(clients_per_task(public, 2 * CLIENTS_PER_CHUNK * count, count), math.ceil(cohort / count))
    # Of a small population the same ones again.
    chunk = [number % public.population.clients for number in range(size)]
    common = (replace(public, source=nobody(0)), arrays, 1.0, 0)
    share, length = (chunk, public.source.of_clients(0, chunk)), dimension(public.form(weights))
    shape = tuple(public.whole_numbers(1.0, length).zero(length).shape)
    workers.total(sum_chunk, common, [share] * count, shape)
    done, begun = 0, time.perf_counter()
    while not done or time.perf_counter() - begun < seconds:
        workers.total(sum_chunk, common, [share] * count, shape)
        done += count * size
    return done / (time.perf_counter() - begun)


def cost_of(
    plan: Plan,
    public: ClientRunner,
    held_out_evaluations: Sequence[HeldOutEvaluation],
    workers: Workers,
    seconds: float,
    before: float,
) -> Cost:
    """The forecast of a run.

    Args:
        plan: Of the run.
        public: As in `clients_per_second`.
        held_out_evaluations: On validation classes, and on test classes.
        workers: Who runs clients and episodes.
        seconds: What to spend on the measurement, about.
        before: What this process has spent so far, as the run will.
    """
    begun = time.perf_counter()
    clients_per_second(public, workers, plan.privacy.cohort, 0.0)  # as a run begins
    start = before + time.perf_counter() - begun
    rate = clients_per_second(public, workers, plan.privacy.cohort, 0.6 * seconds)
    if plan.whole is not None:
        compute_largest(public, plan.whole, workers)
    validation, test = held_out_evaluations
    network, adaptation, model = plan.network, plan.evaluation, _all_weights(public)
    settings = plan.settings.evaluation

    def validate(episodes: int) -> None:
        validation.accuracy(workers, network, model, adaptation, episodes)

    def compete(episodes: int) -> None:
        test.compete(workers, network, model, model, adaptation, episodes)

    every, rounds = settings.every, plan.privacy.rounds
    validations = 1 + rounds // every + (rounds % every > 0)
    return Cost(
        clients_per_second=rate,
        start=start,
        rounds=plan.privacy.expected_participations / rate,
        validations=validations * _scaled(validate, settings.validation_episodes, 0.15 * seconds),
        test=_scaled(compete, settings.episodes, 0.25 * seconds),
        memory_mb=peak_memory_mb(workers),
    )


@dataclass(frozen=True, kw_only=True)
class Largest:
    """A population of one client that holds as many classes and records as the plan allows, all of them alike.

    Attributes:
        shape: Public limits of a client.
        form: Shape of a record.
        targets: Kind of the labels.
    """

    shape: WholeShape
    form: tuple[int, ...]
    targets: TargetKind = OWN_CLASSES
    clients: int = 1

    def episode(self, client: int) -> Episode:
        """The data of the client."""
        labels = torch.arange(self.shape.most_records) % self.shape.most_ways
        if not self.targets.masked:
            # Its outputs are the same, whichever of them are held.
            labels = self.targets.blank(self.shape.most_records)
        end = self.shape.support_of(self.shape.most_records // self.shape.most_ways) * self.shape.most_ways
        # Of tokens 0 alone is padding, and no record is nothing else.
        images = torch.ones(self.shape.most_records, *self.form)
        return Episode(
            support_images=images[:end],
            support_labels=labels[:end],
            query_images=images[end:],
            query_labels=labels[end:],
        )


def compute_largest(public: ClientRunner, shape: WholeShape, workers: Workers) -> None:
    """Have every worker compute one client of the largest size that a plan allows, so that its memory is measured."""
    targets = public.algorithm.adaptation.targets
    held = Largest(shape=shape, form=public.network.form.shape, targets=targets)
    largest = replace(public, population=held, source=nobody(0))
    weights = _learned(public)
    arrays = {name: value.numpy() for name, value in weights.items()}
    length = dimension(public.form(weights))
    total = tuple(public.whole_numbers(1.0, length).zero(length).shape)
    share = ([0], public.source.of_clients(0, [0]))
    workers.total(sum_chunk, (largest, arrays, 1.0, 0), [share] * workers.count, total)


def _scaled(measure: Callable[[int], None], episodes: int, seconds: float) -> float:
    """Seconds for so many episodes, from a first few and then as many as fit."""
    few = min(episodes, 16)
    measure(few)  # warms up
    first = _seconds(measure, few)
    more = min(episodes, max(2 * few, int(few * seconds / max(first, 1e-6))))
    if more == few:
        return first
    second = _seconds(measure, more)
    # By two points: what does not depend on the number of episodes is not multiplied by it.
    each = max(0.0, second - first) / (more - few)
    return second + each * (episodes - more)


def _seconds(measure: Callable[[int], None], episodes: int) -> float:
    begun = time.perf_counter()
    measure(episodes)
    return time.perf_counter() - begun


def _all_weights(public: ClientRunner) -> Params:
    return public.algorithm.initial(public.network, public.weights_seed)


def _learned(public: ClientRunner) -> Params:
    return public.algorithm.learned(public.network, _all_weights(public))
