"""Interface of client algorithms: the computation of a round, its record-level guarantee, and how to add one.

A method (meta/algorithms/, the name of `meta.method`) turns a client's data into a message for the server's optimizer.
A release (meta/releases/, the name of `record.release`) does the same with noise added inside the client, for its
records. Both are values that can be sent to a worker process. Their files import PyTorch only where something is
computed, so that plans and guarantees need none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.core.params import dimension
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.weight_shapes import Shapes, weight_shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import SecretGenerator
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.episodes.row_layout import Layout
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import RecordUnit


Item = TypeVar("Item")
Made = TypeVar("Made")

# Clients that are computed side by side are taken so many at a time (or run.chunk), twice that being held in memory.
TOGETHER = 256

Sends = Literal["query", "update"]
"""The gradient of the query loss at theta_K, or theta_0 - theta_K."""


class Division(Protocol):
    """Way in which a client cuts its records into smaller episodes.

    Attributes:
        linear_head: Whether it requires a head that is one linear layer.
    """

    @property
    def linear_head(self) -> bool:
        """See above."""
        ...

    def fits(self, episode: Episode) -> bool:
        """Return whether the episode can be cut in this way."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataNeeds:
    """Requirements of an algorithm on the data of every client.

    Attributes:
        counts: (n_s, n_q) if they are public constants; None: any numbers above 0.
        queries: Whether a query set is required.
        division: Way in which records are cut into smaller episodes, or None.
        layout: Places of a client's rows, by a hash of each, where row relations are promised; None: populations choose
            records by number.
    """

    counts: tuple[int, int] | None = None
    queries: bool = True
    division: Division | None = None
    layout: Layout | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientContext:
    """State that the clients of one machine share while they compute.

    Attributes:
        network: The network.
        module: The built network, without state of its own.
        learned: The released initialisation: the weights that are learned and sent.
        fixed: The other weights, which are public and never sent.
        device: Device that computes.
        engine: Engine of per-record gradients.
        built: Builds another network on this machine from its specification.
        pieces: Applies a function to as many items at once as the device holds.
        side_by_side: Whether one call computes several clients, if the algorithm can.
        parts: If the episodes given to a method are parts of clients: the number of consecutive episodes that belong to
            one client. They may share a pass through the network, as long as no record of one enters the gradient of
            another. Else None.
    """

    network: NetworkSpec
    module: nn.Module
    learned: Params
    fixed: Params
    device: torch.device
    engine: PerRecordGradients
    built: Callable[[NetworkSpec], nn.Module]
    pieces: Callable[[Callable[[Sequence[Any]], Sequence[Any]], Sequence[Any]], list[Any]]
    side_by_side: bool = False
    parts: int | None = None


def message_form(algorithm: ClientAlgorithm, learned: Params) -> Params:
    """The names and shapes of a message: those of what is learned, unless the algorithm has a `form` of its own.

    Args:
        algorithm: What clients compute.
        learned: The released initialisation.
    """
    own: Callable[[Params], Params] | None = getattr(algorithm, "form", None)
    return learned if own is None else own(learned)


def form_problem(message: object, form: Params, parts: int = 1) -> str | None:
    """Say what a client did that its message is not of this form, whose names may come in any order; None: it is.

    Args:
        message: What a client sends.
        form: The names and shapes of a message.
        parts: Above 1, each tensor is [parts, *shape].
    """
    import torch

    if not isinstance(message, Mapping):
        return f"returned {_kind(message)}, expected a mapping of names to tensors"
    for name, due in form.items():
        if name not in message:
            return f"left out {name}"
        value, shape = message[name], [*(() if parts == 1 else (parts,)), *due.shape]
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float64):
            return f"returned {_kind(value)} at {name}, expected a tensor of float32 or float64"
        if [*value.shape] != shape:
            return f"returned shape {[*value.shape]} at {name}, expected {shape}"
    return next((f"added {name}, which is not learned" for name in message if name not in form), None)


def _kind(value: object) -> str:
    """None, the type of a tensor's numbers, or the name of a class."""
    dtype = str(getattr(value, "dtype", ""))
    return "None" if value is None else dtype if dtype.startswith("torch.") else type(value).__name__


def numbers_sent(algorithm: ClientAlgorithm, learned: Params) -> int:
    """Count the numbers of a message as it leaves a client, without what a clip policy attaches.

    Args:
        algorithm: What clients compute; one whose messages to a sum are whole numbers has `whole`, which counts them.
        learned: The released initialisation.
    """
    whole: Any = getattr(algorithm, "whole", None)
    return dimension(message_form(algorithm, learned)) if whole is None else int(whole.dimension)


def in_pieces(
    context: ClientContext, function: Callable[[Sequence[Item]], Sequence[Made]], items: Sequence[Item]
) -> Sequence[Made]:
    """function(items); in pieces that the device holds where several clients are computed by one call.

    A piece that did not fit is computed again in smaller ones. What it drew from its clients' generators by then was
    seen by nobody; these go on from there, so no noise is used twice.
    """
    return context.pieces(function, items) if context.side_by_side else function(items)


@dataclass(frozen=True, kw_only=True)
class ClientNoise:
    """Secret random generators of one client in one round."""

    support: SecretGenerator
    query: SecretGenerator
    batches: SecretGenerator


@dataclass(frozen=True, kw_only=True)
class NetworkTrial:
    """Test of a network before the first round (independence_test): the data of one client are changed.

    Attributes:
        unit: The value that must not change, in words.
        one: The data that are changed, in words.
        each: Records that a client holds of each class, in the support set and in the query set.
        ways: Number of classes of a client.
        changed: Numbers of the first client's support and query images that are replaced; None: all.
        apart: Whether units are computed separately, so that only state kept by the network can couple them.
    """

    unit: str
    one: str
    each: int
    ways: int
    changed: tuple[int | None, int | None]
    apart: bool


class ClientAlgorithm(Hashable, Protocol):
    """Interface shared by all methods and releases.

    One whose messages have another form than what is learned has `form` besides (see `message_form`).
    """

    @property
    def adaptation(self) -> Adaptation:
        """The inner loop."""
        ...

    @property
    def needs(self) -> DataNeeds:
        """Requirements on the data of every client."""
        ...

    @property
    def message_deviation(self) -> float:
        """Deviation of the noise that a message carries and that counts at the server, over its clip bound."""
        ...

    @property
    def parts(self) -> int:
        """Number of vectors that a message averages, each clipped on its own; if above 1, they come as [parts, ...]."""
        ...

    @property
    def releases(self) -> bool:
        """True if every message is released towards the server, which may then see it."""
        ...

    def record_layer(self) -> RecordLayer | None:
        """Return its record-level layer; None if it adds none. Noises that are not given yet have some value."""
        ...

    def with_noise(self, layer: RecordLayer) -> ClientAlgorithm:
        """The same with noises that were solved."""
        ...

    def quiet(self, *, support: bool, noise: float) -> ClientAlgorithm:
        """The same with next to no noise, and none less in its support steps if `support` says so. For measurements."""
        ...

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """All weights before round 0, with those that it learns besides the network's."""
        ...

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Those of them that are learned and sent."""
        ...

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return the number of clients that one call of `messages` takes; None: all."""
        ...

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[RecordUnit, Params]]:
        """Compute one message for each client, before the message clip: SECRET, or released towards the server.

        Args:
            context: Shared state of this machine.
            episodes: Data of the clients, of the form that `needs` states.
            bound: Clip bound: C, or C_q of a release.
            noises: Secret random generators of the clients.
        """
        ...

    def shortened(self) -> ClientAlgorithm:
        """The same without the steps, mini-batches and divisions that show nothing more in a trial."""
        ...

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """Return the test of a network for this algorithm."""
        ...

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: [units, d] of every phase of such a trial, that of the changed data first."""
        ...


class NoRecordNoise:
    """The part of an exact method: it promises nothing of records, and adds no noise."""

    def record_layer(self) -> RecordLayer | None:
        """None: there is no such layer."""
        return None

    def with_noise(self, layer: RecordLayer) -> Self:
        """Return the same: there is no noise to solve."""
        return self

    def quiet(self, *, support: bool, noise: float) -> Self:
        """Return the same: there is no noise to lower."""
        return self


class NetworkWeights:
    """The part of a method that begins with the network's weights, and no others."""

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """Return the network's weights before round 0."""
        from dpfedmeta.learning.models.initial_weights import initial_weights

        return initial_weights(network, seed)

    def shapes(self, network: NetworkSpec) -> Shapes:
        """Return the shapes of a built-in network's weights."""
        return weight_shapes(network)


class OverMethod:
    """The part of an algorithm that another one computes for: its inner loop and its weights.

    Attributes:
        method: The other one.
    """

    method: Any

    @property
    def adaptation(self) -> Adaptation:
        """Inner loop of the method."""
        own: Adaptation = self.method.adaptation
        return own

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """Return the method's weights before round 0."""
        weights: Params = self.method.initial(network, seed)
        return weights

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the method's weights that are learned and sent."""
        model: Params = self.method.learned(network, weights)
        return model


class Method(ClientAlgorithm, Protocol):
    """An exact method: what a release can be put on.

    Attributes:
        plain_steps: Whether its inner loop is nothing but gradient steps from theta_0 at one rate, so that noise in
            each step covers all that reads a support record.
        sends: The gradient of the query loss, or the update of the inner loop.
        few_shot: Whether it needs support and query sets.
    """

    plain_steps: ClassVar[bool]
    sends: ClassVar[Sends]
    few_shot: ClassVar[bool]

    def shortened(self) -> Method:
        """Return the same method without the steps, mini-batches and divisions that show nothing more in a trial."""
        ...

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Method:
        """Build the method from the settings.

        Raises:
            InputError: A setting does not fit the method.
            RefusedPlan: Record-level privacy would not cover it.
        """
        ...


class Release(Protocol):
    """The class of a release: how it is planned on top of a method.

    What it makes has `towards_a_sum`: the same where the server sees nothing but the sum of all clients' messages. One
    that says `divides = True` clips all that a method's divisions make of a record as one vector; only such a release
    is given a method that divides records again and again.
    """

    @classmethod
    def planned(cls, settings: Settings, task: Task, method: Method) -> ClientAlgorithm:
        """Build the release from the settings.

        Raises:
            InputError: A setting does not fit the release.
            RefusedPlan: Its guarantee would not hold for this method.
        """
        ...
