"""Limits on what a server may ask a client to compute, where several settings together make the work."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import default_separation
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task import Task

# Methods whose inner steps are not differentiated through, so that one step at a time is held.
_STEP_BY_STEP = ("fomaml", "reptile", "fedavg", "protonet")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Sizes of what a plan asks one client for, known before anything is planned.

    Attributes:
        settings: Of the plan.
        task: Form of the records.
    """

    settings: Settings
    task: Task

    @property
    def records(self) -> int:
        """Records of a client."""
        sizes = self.settings.task
        return sizes.ways * (sizes.shots + sizes.queries)

    @property
    def passes(self) -> int:
        """Passes of a record through the network for one message."""
        return self.settings.meta.divisions * (self.settings.meta.steps + 1) * self.records

    @property
    def held(self) -> int:
        """Numbers of one layer for all records that are held at once: of a micro-episode, where there are such."""
        settings, sizes, record = self.settings, self.settings.task, self.settings.record
        ways, shots, queries = sizes.ways, sizes.shots, sizes.queries
        if record.enabled and record.release == "micro-episodes":
            ways, shots, queries = record.micro_ways or ways, record.micro_shots, record.micro_queries
        unrolled = settings.meta.order != 1 and settings.meta.method not in _STEP_BY_STEP
        at_once = ways * (settings.meta.steps * shots if unrolled else shots) + ways * queries
        shape, width = self.task.form.shape, settings.model.width
        places = math.prod(shape[1:]) // (settings.model.downscale or 1) ** 2 if len(shape) > 1 else 1
        deep = max(shape[0], width) if self.task.form.vocabulary is None else shape[0] * width
        return at_once * max(places, 1) * deep


@dataclass(frozen=True, kw_only=True)
class WorkLimit:
    """Largest amount of one kind of work that a client does.

    Attributes:
        settings: Settings that make it.
        what: What is limited, in words.
        most: The most that a client does.
        of: Takes it from the work of a plan.
    """

    settings: str
    what: str
    most: int
    of: Callable[[Work], int]


MOST_FITTED, MOST_BANDS = 5_000, 500_000
WORK_LIMITS = (
    WorkLimit(
        settings="task.ways, task.shots, task.queries",
        what="records of one client",
        most=100_000,
        of=lambda work: work.records,
    ),
    WorkLimit(
        settings="meta.divisions, meta.steps and the records",
        what="passes of a record through the network for one message",
        most=5_000_000,
        of=lambda work: work.passes,
    ),
    WorkLimit(
        settings="meta.steps, meta.order, model.width and the records",
        what="numbers of one layer held at once",
        most=2_000_000_000,
        of=lambda work: work.held,
    ),
)


def fitting_problem(noise: str, rounds: int, buffers: int | None, separation: int) -> str | None:
    """Why a client does not fit correlated noise to so many rounds and bands, in words; None: it does."""
    if noise not in KINDS:
        return None
    bands = rounds * min(separation if buffers is None else buffers + 1, rounds) if noise == "banded" else 0
    for what, found, most in (("rounds", rounds, MOST_FITTED), ("rounds times bands", bands, MOST_BANDS)):
        if found > most:
            return f"noise = {noise}: {found:,} {what}, and a client fits it to at most {most:,}; lower the rounds"
    return None


def check_work(settings: Settings, task: Task) -> None:
    """Refuse what no client of a federation computes, by sizes alone: nothing is planned, read or drawn before.

    Raises:
        InputError: Names the settings, what they come to, and the limit.
    """
    work = Work(settings=settings, task=task)
    for limit in WORK_LIMITS:
        found = limit.of(work)
        if found > limit.most:
            raise InputError(
                f"{limit.settings}: {found:,} {limit.what}, and a client of a federation takes at most "
                f"{limit.most:,}; lower one of them"
            )
    population, server = settings.population, settings.server
    apart = population.separation or default_separation(population.clients, population.cohort, server.rounds)
    problem = fitting_problem(server.noise, server.rounds, server.buffers, apart)
    if problem is not None:
        raise InputError(f"server.{problem}")
