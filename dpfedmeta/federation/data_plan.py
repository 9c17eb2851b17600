"""From a plan and a data set to who holds what, and to the public data that models are judged on."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dpfedmeta.data import Dataset, ShardPopulation, VirtualPopulation
from dpfedmeta.data.episode import check_shape
from dpfedmeta.evaluation import Benchmark, Classification, Examination
from dpfedmeta.federation.clients import ClientSide
from dpfedmeta.federation.plan import Plan
from dpfedmeta.randomness import KeyedSource


def population(plan: Plan, dataset: Dataset) -> VirtualPopulation | ShardPopulation:
    """Who holds what."""
    clients, seed = plan.privacy.clients, plan.settings.run.seed
    if dataset.task.shared_classes is not None:
        records = plan.settings.population.records
        return ShardPopulation(pool=dataset.train, records=records, clients=clients, seed=seed)
    check_shape(dataset.train, plan.shape, "train")
    return VirtualPopulation(pool=dataset.train, shape=plan.shape, clients=clients, seed=seed)


def public_side(clients: ClientSide, dataset: Dataset) -> ClientSide:
    """The same clients made of public validation data, with noise that is no secret."""
    made = replace(clients.population, pool=dataset.val)
    if isinstance(made, VirtualPopulation):
        check_shape(dataset.val, made.shape, "val")
    return replace(clients, population=made, source=KeyedSource(0))


def examination(plan: Plan, dataset: Dataset, split: Literal["val", "test"]) -> Examination:
    """How models are judged on a split that no client holds."""
    pool, seed = getattr(dataset, split), plan.settings.run.seed
    if dataset.task.shared_classes is not None:
        # A validation looks at as many images as its episodes would hold.
        few = plan.settings.evaluation.validation_episodes * plan.settings.evaluation.queries
        return Classification(pool=pool, seed=seed, images=few if split == "val" else None)
    shape = replace(plan.shape, queries=plan.settings.evaluation.queries)
    return Benchmark(pool=pool, shape=shape, seed=seed, split=split)
