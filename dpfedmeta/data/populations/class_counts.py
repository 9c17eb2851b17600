"""Numbers of records that each client holds, by class name; no contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation
from dpfedmeta.data.populations.population import Population, VirtualPopulation
from dpfedmeta.data.populations.shards import ShardPopulation


@runtime_checkable
class Holding(Protocol):
    """Clients that hold more than their episode."""

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: how many records a client holds of each of its classes, by the names of these."""
        ...


def holdings(population: Population, client: int) -> Mapping[str, int]:
    """SECRET: how many records a client holds of each of its classes, by the names of these.

    Clients that the data name hold all that the data give them, whether an episode uses it or not. Clients of a
    simulation hold their episode; where that keeps no names of classes, these are the numbers of its labels.

    Raises:
        Exception: The client's data cannot be read, and its population says so in its own way.
    """
    if isinstance(population, Holding):
        return population.holdings(client)
    episode = population.episode(client)
    labels = Counter([*episode.support_labels.tolist(), *episode.query_labels.tolist()])
    if isinstance(population, VirtualPopulation):
        named = population.classes_of(client)
    elif isinstance(population, ShardPopulation):
        named = list(range(population.pool.classes))
    else:
        return {str(label): count for label, count in labels.items()}
    return {population.pool.names[named[label]]: count for label, count in labels.items()}


def check_named(population: Population) -> None:
    """Refuse clients of whose classes nobody knows the names.

    Raises:
        InputError: They are such.
    """
    if isinstance(population, Holding | VirtualPopulation | ShardPopulation):
        return
    kind = "population.kind" if isinstance(population, DisjointPopulation | NaturalPopulation) else "a population"
    raise InputError(
        f"{kind}: these clients keep no names of their classes; use --population.kind virtual, data that name clients, "
        "or a file of names (--names FILE)"
    )
