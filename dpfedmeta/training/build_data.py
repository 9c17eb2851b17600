"""Clients of a plan on a data set, and the public data on which models are evaluated."""

from dataclasses import replace
from typing import Literal

import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import KeyedSource, SecretSource
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.populations.population import Population, VirtualPopulation, laid_out
from dpfedmeta.data.populations.whole_population import AbleClients, WholePopulation, check_whole, everybody
from dpfedmeta.learning.evaluation import Benchmark, HeldOutEvaluation, SharedClassifier
from dpfedmeta.learning.evaluation.held_out_clients import WholeClientsBenchmark
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.learning.models.frozen import mixes_queries
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.planning.client_population import authors_of, clients_of
from dpfedmeta.planning.client_spec import clients_at_once, evaluation_shape
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.client_runner import ClientRunner


def population(plan: Plan, dataset: Dataset, own: Population | None = None) -> Population:
    """Return the clients of the plan: see `clients_of`."""
    return clients_of(plan.settings, dataset, plan.privacy.clients, own)


def client_side(plan: Plan, population: Population, source: SecretSource, device: torch.device) -> ClientRunner:
    """Build the client side of the plan: the computation of every client.

    Guarantee:
        Clients that hold rows of their own use them as the plan's accountant counts with, however they were built.
    """
    return ClientRunner(
        network=plan.network,
        weights_seed=plan.settings.run.seed,
        population=laid_out(population, plan.algorithm.needs.layout),
        algorithm=plan.algorithm,
        message_clip_ratio=plan.message_clip_ratio,
        engine=plan.settings.record.engine,
        source=source,
        device=device,
        attachment=plan.policy.attachment,
        scope=plan.settings.clip.scope,
        message_noise=plan.message_noise,
        chunk=clients_at_once(plan.settings, plan.network, plan.algorithm, device.type),
        whole=plan.privacy.at(0).whole,
        record_noises=plan.privacy.at(0).record_noises,
    )


def public_side(clients: ClientRunner, plan: Plan, dataset: Dataset) -> ClientRunner:
    """The same clients made of public validation data, with noise that is no secret."""
    made: Population
    whole = whole_clients(plan, dataset.val)
    if isinstance(clients.population, ShardPopulation):
        made = replace(clients.population, pool=dataset.val)
    elif whole is not None:
        check_whole(dataset.val, whole.shape, "val", whole.authors)
        made = AbleClients(of=whole)
        if plan.settings.track.public_clients > made.clients:
            raise InputError(
                f"track.public_clients = {plan.settings.track.public_clients}: the validation part of the data has "
                f"{made.clients} client(s) with enough records; give at most so many"
            )
    else:
        check_shape(dataset.val, plan.shape, "val")
        _check_fits(plan)
        made = VirtualPopulation(pool=dataset.val, shape=plan.shape, clients=plan.privacy.clients, seed=0)
    return replace(clients, population=made, source=KeyedSource(0))


def _check_fits(plan: Plan) -> None:
    """Refuse public clients, whose episodes have a fixed size, that whole clients of the plan could not hold."""
    shape, whole = plan.shape, plan.whole
    if whole is None:
        return
    records = shape.support_records + shape.query_records
    if shape.ways > whole.most_ways or records > whole.most_records:
        raise InputError(
            f"task.ways, task.shots, task.queries: public clients, made of classes that name no clients, hold "
            f"{shape.ways} classes and {records} records, but task.most_ways = {whole.most_ways} and task.most_records "
            f"= {whole.most_records}; lower the first, or raise the latter"
        )


def whole_clients(plan: Plan, pool: ClassPool) -> WholePopulation | None:
    """All whole clients of a public part of the data; None: there are none in the plan, or in the data."""
    if plan.whole is None or not (pool.clients or pool.groups):
        return None
    return everybody(pool, plan.whole, 0, authors_of(plan.settings))


def held_out_evaluation(plan: Plan, dataset: Dataset, split: Literal["val", "test"]) -> HeldOutEvaluation:
    """Build the evaluation of models on a split that no client holds."""
    pool, seed = getattr(dataset, split), plan.settings.run.seed
    if dataset.task.shared_classes is not None:
        # A validation looks at as many images as its episodes would hold.
        few = plan.settings.evaluation.validation_episodes * plan.settings.evaluation.queries
        return SharedClassifier(pool=pool, seed=seed, images=few if split == "val" else None)
    # Where the network cannot tell support from query images, the protocol must say so.
    mixed, whole = mixes_queries(build_network(plan.network)), whole_clients(plan, pool)
    targets = targets_of(dataset.task)
    if whole is not None:
        check_whole(pool, whole.shape, split, whole.authors)
        return WholeClientsBenchmark(clients=replace(whole, seed=seed), transductive=mixed, targets=targets)
    shape = evaluation_shape(plan.settings)
    return Benchmark(pool=pool, shape=shape, seed=seed, split=split, transductive=mixed, targets=targets)
