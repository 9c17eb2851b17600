"""Data that clients hold, their records by class, and each client's computation on them, simulated or real."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, arrays_of, dimension, norm, unflatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation, ShardPopulation
from dpfedmeta.data.populations.population import Population, VirtualPopulation
from dpfedmeta.learning.evaluation.baselines import Adapted, accuracies
from dpfedmeta.learning.evaluation.held_out_clients import AdaptedWhole
from dpfedmeta.learning.models.frozen import mixes_queries
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.training import build_data as training_data

_FLOAT = np.dtype("<f4")


class Held(Protocol):
    """SECRET: what clients hold, by the number of the client. No data make a call fail."""

    def holdings(self, client: int) -> Mapping[str, int]:
        """Images of each class; nothing where the client's data cannot be read."""
        ...

    def names(self, client: int) -> Mapping[str, int]:
        """The names that a client holds, and how often."""
        ...

    def message_norm(self, client: int) -> float | None:
        """Length of the message that a client would send in round 0, before clipping; None: it has none.

        Where a message is the sum of parts that are clipped one by one, the median of their lengths.
        """
        ...

    def check_model(self, model: bytes) -> None:
        """Refuse what are no weights of the network; nobody's data decide over it.

        Raises:
            InputError: Another number of them, or one that is not finite.
        """
        ...

    def accuracies(self, client: int, model: bytes) -> tuple[float, float] | None:
        """(before, after) adapting a model to its own support images, on its own query images."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldImages:
    """Clients with images (a `Held`).

    Attributes:
        plan: Of the training that is served.
        population: From client number to images.
    """

    plan: Plan
    population: Population
    _learners: dict[bytes, Adapted] = field(default_factory=dict)

    def holdings(self, client: int) -> Mapping[str, int]:
        """Return the number of images of each class (see `Held`)."""
        try:
            return holdings(self.population, client)
        except MemoryError:
            raise
        except Exception:
            return {}

    def names(self, client: int) -> Mapping[str, int]:
        """Those of its classes."""
        return self.holdings(client)

    def message_norm(self, client: int) -> float | None:
        """Return the norm of the client's message of round 0 before clipping (see `Held`)."""
        (message,) = self._side.exact_messages(self._start, 0, [client])
        if message is None:
            return None
        if self._side.parts == 1:
            return norm(message)
        parts = range(self._side.parts)
        return median(norm({name: value[part] for name, value in message.items()}) for part in parts)

    def check_model(self, model: bytes) -> None:
        """Check that the bytes are finite weights of the network (see `Held`)."""
        if self.plan.evaluation.targets.numbers:
            raise InputError(
                "the training predicts numbers, and this analysis counts accuracies from 0 to 1; use another one"
            )
        count = dimension(self._initial)
        if len(model) != _FLOAT.itemsize * count:
            raise InputError(f"the model has {len(model):,} bytes, expected {count:,} weights of 4 bytes")
        if not np.isfinite(np.frombuffer(model, dtype=_FLOAT)).all():
            raise InputError("the model has weights that are not finite")

    def accuracies(self, client: int, model: bytes) -> tuple[float, float] | None:
        """Return the accuracy before and after adapting a model to the client's own images (see `Held`)."""
        held = self._side.data_form.held(self.population, client)
        if held is None:
            return None
        after = self._learner(model)
        (first,), (last,) = (accuracies(each, held, transductive=self._transductive) for each in (after.before, after))
        return first, last

    def _learner(self, model: bytes) -> Adapted:
        if model not in self._learners:
            self.check_model(model)
            weights = unflatten(torch.from_numpy(np.frombuffer(model, dtype=_FLOAT).copy()), self._initial)
            adaptation = self.plan.evaluation
            kind = Adapted if self.plan.whole is None else AdaptedWhole
            self._learners[model] = kind(
                network=self.plan.network,
                weights=arrays_of(weights),
                adaptation=adaptation,
                at=(adaptation.steps,),
            )
        return self._learners[model]

    @cached_property
    def _side(self) -> ClientRunner:
        # No message carries noise here, so its source is never asked.
        return training_data.client_side(self.plan, self.population, KeyedSource(0), torch.device("cpu"))

    @cached_property
    def _initial(self) -> Params:
        return self.plan.algorithm.initial(self.plan.network, self.plan.settings.run.seed)

    @cached_property
    def _start(self) -> Params:
        return self.plan.algorithm.learned(self.plan.network, self._initial)

    @cached_property
    def _transductive(self) -> bool:
        return mixes_queries(build_network(self.plan.network))


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldNames:
    """Clients of a file of names, who hold nothing else (a `Held`).

    Attributes:
        lines: What each of them names, and how often.
    """

    lines: Sequence[Mapping[str, int]]

    def holdings(self, client: int) -> Mapping[str, int]:
        """None."""
        return {}

    def names(self, client: int) -> Mapping[str, int]:
        """Those of its line."""
        return self.lines[client]

    def message_norm(self, client: int) -> float | None:
        """None."""
        return None

    def check_model(self, model: bytes) -> None:
        """No model fits.

        Raises:
            InputError: Always.
        """
        raise InputError("clients of a file of names (--names) have no images to adapt a model to")

    def accuracies(self, client: int, model: bytes) -> tuple[float, float] | None:
        """None."""
        return None


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
