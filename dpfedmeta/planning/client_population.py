"""Clients of a run, built from the settings, and the reasons to refuse them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.row_layout import Layout
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.populations.own_test import without_own_test
from dpfedmeta.data.populations.population import Population, open_population
from dpfedmeta.data.populations.whole_population import open_whole
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.planning.client_spec import layout_of, whole_shape


def training_part(settings: Settings, dataset: Dataset, *, ready_made: bool = False) -> Dataset:
    """The same data without what its training clients keep back to be judged on.

    Args:
        settings: What the user gave.
        dataset: All of it.
        ready_made: As in `without_own_test`.

    Raises:
        InputError: The data do not say whose which record is, or clients are not made of them.
    """
    share = settings.population.own_test
    by_row = bool(share) and not ready_made and layout_of(settings, dataset.task) is not None
    return without_own_test(dataset, share, ready_made=ready_made, by_row=by_row)


def clients_of(settings: Settings, dataset: Dataset, clients: int, own: Population | None = None) -> Population:
    """Return the clients on a data set: those that the settings describe, or the caller's own.

    Args:
        settings: What the user gave.
        dataset: Whose training images they hold.
        clients: N of the plan.
        own: Clients in place of those made from the images.

    Raises:
        InputError: There are fewer images or clients than the settings say, or they do not fit the benchmark.
        RefusedPlan: The record-level accountant would count with sizes that the clients do not have.
    """
    own = None if own is None else _told_the_task(own, settings, dataset)
    if dataset.task.shared_classes is None:
        layout = layout_of(settings, dataset.task)
        return plan_population(settings, dataset.train, episode_shape(settings), own, layout)
    chosen = settings.population
    if own is not None or chosen.kind != "virtual" or chosen.most_shots is not None or settings.task.shift:
        raise InputError(
            f"dataset = {dataset.task.name}: its images are split into shards of population.records / 2, which fixes "
            "the clients; leave out population.kind, population.most_shots, task.shift and clients of your own"
        )
    return ShardPopulation(pool=dataset.train, records=chosen.records, clients=clients, seed=settings.run.seed)


def plan_population(
    settings: Settings,
    pool: ClassPool,
    shape: EpisodeShape,
    own: Population | None = None,
    layout: Layout | None = None,
) -> Population:
    """The clients that the settings describe, or the caller's own.

    Args:
        settings: What the user gave.
        pool: The training classes.
        shape: The episode that the plan counts with.
        own: Clients in place of those made from the pool.
        layout: Of the algorithm, where relations between rows are promised.

    Raises:
        InputError: There are fewer images or clients than the settings say.
        RefusedPlan: The record-level accountant would count with sizes that the clients do not have.
    """
    chosen, record = settings.population, settings.record.enabled
    if record and chosen.most_shots is not None:
        raise RefusedPlan(
            "population.most_shots with record-level privacy: the accountant assumes ways * shots support records in "
            "every client; leave it out, or use an algorithm without record-level privacy"
        )
    if own is None:
        pool, whole = training_pool(settings, pool), whole_shape(settings)
        if whole is not None:
            return open_whole(chosen.kind, pool, whole, chosen.clients, settings.run.seed, authors_of(settings))
        return open_population(chosen.kind, pool, shape, chosen.clients, settings.run.seed, chosen.most_shots, layout)
    if settings.task.shift:
        raise InputError(
            f"task.shift = {settings.task.shift} with clients of your own: their records are used unchanged; shift the "
            "images where you make them, and give task.shift=0 (--task.shift 0)"
        )
    _check_protocol(own)
    if own.clients == 0:
        raise InputError("population: holds no clients; hand over a mapping or a population with at least one")
    if own.clients != chosen.clients:
        raise InputError(
            f"population.clients = {chosen.clients:,}, but {own.clients:,} clients were handed over; give "
            f"clients={own.clients} (--clients {own.clients})"
        )
    _check_form(own, pool)
    _check_labels(own, pool)
    if layout is not None:
        raise RefusedPlan(
            f"population.kind = {chosen.kind}: promises something of rows that come and go, and clients of your own "
            "hold a fixed number of records each; give the setting population.kind = virtual"
        )
    if record and not _of_shape(own, shape):
        raise RefusedPlan(
            "population: with record-level privacy the sizes of your clients must be checked against the plan; hand "
            "over a SequencePopulation with the plan's ways, shots and queries"
        )
    return _standardised(own, pool)


def population_of(
    settings: Settings, given: Population | Mapping[Any, Any] | None, data_folder: Path | None = None
) -> Population | None:
    """Return clients that were handed over, those of a mapping from each to its records and targets as whole clients.

    Raises:
        InputError: It is a mapping, and the settings ask for episodes of a fixed size.
    """
    if not isinstance(given, Mapping):
        return given
    whole = whole_shape(settings)
    if whole is None:
        raise InputError(
            "population: a mapping from each client to (records, targets) is for whole clients; give the setting "
            'population.episodes = whole ({"population.episodes": "whole"}); episodes of a fixed size are made by '
            "dpfedmeta.data.populations.from_pairs.from_pairs"
        )
    from dpfedmeta.data.populations.from_records import RecordsPopulation

    task, _ = load_task(settings.dataset, data_folder)
    source = task.source
    return RecordsPopulation(
        held=given,
        shape=whole,
        seed=settings.run.seed,
        labels=task.labels,
        range=task.targets,
        columns=columns_in(source.reader, Path(source.path)) if isinstance(source, OwnSource) else (),
    )


def authors_of(settings: Settings) -> int:
    """Number of authors (drawers) that are one whole client together, where the data name no clients."""
    return settings.task.shots + settings.task.queries


def _standardised(own: Population, pool: ClassPool) -> Population:
    """The same clients, whose images are standardised as those are on which the model is judged."""
    from dpfedmeta.data.populations.from_pairs import SequencePopulation
    from dpfedmeta.data.populations.from_records import RecordsPopulation

    if not isinstance(own, SequencePopulation | RecordsPopulation) or pool.images.dtype != np.uint8:
        return own
    return replace(own, constants=(pool.mean, pool.deviation))


def _told_the_task(own: Population, settings: Settings, dataset: Dataset) -> Population:
    """The same clients; those of a mapping know whether the task would have changed the numbers of a table."""
    from dpfedmeta.data.populations.from_records import RecordsPopulation

    changes = any(dataset.task.constants) or dataset.task.missing is not None
    return replace(own, task=settings.dataset) if changes and isinstance(own, RecordsPopulation) else own


def _of_shape(own: Population, shape: EpisodeShape) -> bool:
    from dpfedmeta.data.populations.from_pairs import SequencePopulation

    return isinstance(own, SequencePopulation) and own.shape == shape


def training_pool(settings: Settings, pool: ClassPool) -> ClassPool:
    """The training images, drawn as the settings have it.

    Raises:
        InputError: They cannot be moved so far.
    """
    shift, form = settings.task.shift, pool.images.shape[1:]
    if shift and len(form) != 3:
        raise InputError(
            f"task.shift = {shift}: only images can be shifted, but records here are {form[0]} numbers; give "
            "task.shift=0 (--task.shift 0)"
        )
    # Beyond half a side, more of an image would be reflection than image.
    if shift > min(form[1:], default=0) // 2:
        raise InputError(
            f"task.shift = {shift}: images have {form[1]} x {form[2]} pixels; give at most {min(form[1:]) // 2}"
        )
    return replace(pool, shift=shift)


def _check_protocol(own: object) -> None:
    if isinstance(getattr(own, "clients", None), int) and callable(getattr(own, "episode", None)):
        return
    raise InputError(
        f"population: {type(own).__name__} has no {'clients' if not hasattr(own, 'clients') else 'episode'}; it needs "
        "clients (their number) and episode(client); dpfedmeta.data.populations.from_pairs.from_pairs makes one "
        "of pairs of (images, labels)"
    )


def _check_labels(own: Population, pool: ClassPool) -> None:
    """Refuse pairs where labels mean the same for all clients: they are numbered anew in each."""
    from dpfedmeta.data.populations.from_pairs import SequencePopulation

    if pool.shared and isinstance(own, SequencePopulation):
        raise InputError(
            "population: pairs are numbered anew in every client, but the task has labels that all clients share, or "
            "numbers to predict; hand over a mapping from each client to (records, targets), with "
            "population.episodes = whole"
        )


def _check_form(own: Population, pool: ClassPool) -> None:
    """Refuse a population whose stated image form differs from that of the task.

    The form that a population states is public, as the task is; nobody's data are read.
    """
    stated = getattr(own, "image", None)
    expected = tuple(pool.images.shape[1:])
    if stated is None or tuple(stated) == expected:
        return
    held, wanted = (" x ".join(map(str, form)) for form in (stated, expected))
    raise InputError(
        f"population.image: your clients' records are {held}, but those of the data set that models are tested on are "
        f"{wanted} (channels x height x width): convert them, or name a data set of that form (an image folder, or a "
        "task file)"
    )
