"""What a client computes in a round, and what that means for its records: the seam that an algorithm is added at.

A method (meta/algorithms/, the name of `meta.method`) turns a client's data into a message for the server's optimizer.
A release (meta/releases/, the name of `record.release`) does that with noise inside the client, for its records. Both
are values that a worker process can be sent. Their files import PyTorch only where something is computed, so that plans
and guarantees need none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from dpfedmeta.accounting.record_layer import RecordLayer
from dpfedmeta.meta.adaptation import Adaptation

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dpfedmeta.data.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.models.spec import NetworkSpec
    from dpfedmeta.parameters import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.per_record import PerRecordGradients
    from dpfedmeta.privacy.units import Record
    from dpfedmeta.randomness import SecretGenerator
    from dpfedmeta.settings import Settings


Item = TypeVar("Item")
Made = TypeVar("Made")

# Clients that are computed side by side are taken so many at a time (or run.chunk), twice that being held in memory.
TOGETHER = 256

Sends = Literal["query", "update"]
"""The gradient of the query loss at theta_K, or theta_0 - theta_K."""


class Division(Protocol):
    """How a client cuts its records into smaller episodes.

    Attributes:
        linear_head: Whether it counts on a head that is one linear layer.
    """

    @property
    def linear_head(self) -> bool:
        """See above."""
        ...

    def fits(self, episode: Episode) -> bool:
        """Whether the episode can be cut so."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataNeeds:
    """What an algorithm counts on in the data of every client.

    Attributes:
        counts: (n_s, n_q) where they are public constants; None: any number above 0.
        queries: Whether there must be a query set.
        division: How records are cut into smaller episodes, or None.
    """

    counts: tuple[int, int] | None = None
    queries: bool = True
    division: Division | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientContext:
    """What the clients of one machine share while they compute.

    Attributes:
        network: The network.
        module: It, built; without state of its own.
        learned: The released initialisation: what is learned and sent.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        device: Where to compute.
        engine: How per-record gradients are computed.
        built: Another network of this machine, by its description.
        pieces: Applies a function to as many items at once as the device holds.
        side_by_side: Whether several clients are to be computed by one call, where the algorithm can.
        parts: Where the episodes that a method is given are parts of clients: how many in a row are one client's. They
            may share a pass through the network, as long as no record of one enters the gradient of another.
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
    """One client's own secret randomness of one round."""

    support: SecretGenerator
    query: SecretGenerator
    batches: SecretGenerator


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a network is tried out with before the first round (planning.coupling): one client's data are changed.

    Attributes:
        unit: What has to stay where it is, in words.
        one: What is changed, in words.
        each: Records of a class and role that a client holds.
        ways: Classes of a client.
        changed: How many of the first client's support and query images are others; None: all.
        apart: Whether units share no arithmetic, only what a network keeps.
    """

    unit: str
    one: str
    each: int
    ways: int
    changed: tuple[int | None, int | None]
    apart: bool


class ClientAlgorithm(Hashable, Protocol):
    """What all methods and releases have in common."""

    @property
    def adaptation(self) -> Adaptation:
        """The inner loop."""
        ...

    @property
    def needs(self) -> DataNeeds:
        """What it counts on in the data of every client."""
        ...

    @property
    def message_deviation(self) -> float:
        """Deviation of the noise that a message carries and that counts at the server, over its clip bound."""
        ...

    @property
    def parts(self) -> int:
        """How many vectors a message is the mean of, each clipped on its own: more than 1 come as [parts, ...]."""
        ...

    @property
    def releases(self) -> bool:
        """Whether messages may be seen by the server as they are: each is released towards it."""
        ...

    def record_layer(self) -> RecordLayer | None:
        """What it promises to a record; None: nothing. Noises that are not given yet have some value."""
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
        """How many clients one call of `messages` takes; None: all that there are."""
        ...

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[Record, Params]]:
        """One message for each client, before the message clip: SECRET, or released towards the server.

        Args:
            context: The machine.
            episodes: The clients' data, of the form that `needs` states.
            bound: C, or C_q of a release.
            noises: The clients' own randomness.
        """
        ...

    def shortened(self) -> ClientAlgorithm:
        """The same without the steps, mini-batches and divisions that show nothing more in a trial."""
        ...

    def trial(self, network: NetworkSpec) -> Trial:
        """How a network is tried out with this algorithm."""
        ...

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: [units, d] of every phase of such a trial, that of the changed data first."""
        ...


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
        """As of every algorithm."""
        ...

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Method:
        """From the settings.

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
        """From the settings.

        Raises:
            InputError: A setting does not fit it.
            RefusedPlan: Its guarantee would not hold for this method.
        """
        ...
