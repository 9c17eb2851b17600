"""Training clients of a simulated run as people: their records that trained, and those that they kept back."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.config.dataset_names import data_of_run
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG
from dpfedmeta.core.random.random_sources import FloatArray, IntArray
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.row_layout import hashed_rows
from dpfedmeta.data.populations.natural import names_in_order, simulated_key
from dpfedmeta.data.populations.own_test import trains_on
from dpfedmeta.learning.evaluation.people import Person
from dpfedmeta.planning.client_population import training_part
from dpfedmeta.planning.data_digests import held_data, kept_data
from dpfedmeta.training.results.trained_run import TrainedRun


def own_records(run: TrainedRun, data_folder: Path | None) -> list[Person]:
    """SECRET: all training clients, each with the records that trained to adapt on; the others judge.

    Args:
        run: A run with population.own_test.
        data_folder: Where its data are looked for if they moved.

    Raises:
        InputError: No client of the run kept anything back, or its data are not there or not the same.
    """
    share, where = run.settings.population.own_test, run.directory.path
    if not share:
        raise InputError(
            f"--own-test: clients of {where} trained on all their records; train with --population.own_test 0.34, or "
            "judge other people with --on PATH"
        )
    dataset = open_dataset(data_of_run(run.settings.dataset, data_folder), data_folder, run.settings.task.ways)
    trained = training_part(run.settings, dataset)
    if kept_data(run.directory).sha256 != held_data(trained, None).sha256:
        raise InputError(
            f"--own-test: the records of {dataset.task.name}, or the share of them that {where / CONFIG} says, are not "
            "those that this run began with, so it is not known which records trained"
        )
    held: dict[str, list[int]] = {}
    for place, client in enumerate(dataset.train.clients):
        held.setdefault(client, []).append(place)
    seed = run.settings.run.seed
    keys = {
        name: simulated_key(seed, number) if trained.train.own_test else None
        for number, name in enumerate(names_in_order(dataset.train, seed))
    }
    return [_person(dataset.train, name, places, share, keys[name]) for name, places in sorted(held.items())]


def _person(pool: ClassPool, name: str, own: Sequence[int], share: float, key: bytes | None = None) -> Person:
    """All records of one client; which of them trained, by its key where the hash of each decided (HashedRows)."""
    counts = [pool.counts[place] for place in own]
    rows = np.concatenate([pool.first[place] + np.arange(pool.counts[place]) for place in own])
    if key is None:
        adapts = np.concatenate([np.arange(count) < trains_on(count, share) for count in counts])
    else:
        adapts = ~hashed_rows(pool, own, key).judging(share)
    plain = pool.images.ndim == 2
    records = pool.numbers(rows) if plain else pool.standardised(pool.images[rows].astype(np.float32))
    labels: IntArray | FloatArray = pool.listed(rows) if pool.labels else np.repeat(np.arange(len(own)), counts)
    if pool.targets:
        records, labels = np.ascontiguousarray(records[:, :-1]), records[:, -1].astype(np.float64)
    return Person(
        name=name,
        records=torch.from_numpy(records),
        labels=labels,
        classes=pool.labels or tuple(pool.names[place] for place in own),
        adapts=adapts,
    )
