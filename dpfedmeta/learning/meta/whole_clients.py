"""Clients that use all their records: each is computed alone, with a head for its own classes or for all labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dpfedmeta.data.episodes.shape import LEAST_WAYS, WholeShape
from dpfedmeta.learning.meta.algorithm import (
    ClientContext,
    ClientNoise,
    DataNeeds,
    NetworkTrial,
    NoRecordNoise,
    OverMethod,
)
from dpfedmeta.learning.models.spec import HEAD

Rows = TypeVar("Rows", bound=Any)

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import RecordUnit


@dataclass(frozen=True, kw_only=True)
class WholeClients(NoRecordNoise, OverMethod):
    """A method for whole clients: one after the other, so that no record is padded and time follows their records.

    Where clients number their own classes, the head that they begin with is the same for every class, and is not sent,
    so a client takes as many rows of it as it has classes. With a public list of labels, or numbers to predict, all
    take the whole head, and it may be learned.

    Attributes:
        method: An exact method.
        shape: Public limits of an episode.

    Guarantee:
        None by itself: a message is secret and unbounded until it is clipped, summed and released. Clipping bounds it
        whatever a client holds, so how records are grouped costs no privacy of clients. Of records it promises nothing.
    """

    method: Any
    shape: WholeShape
    releases: ClassVar[bool] = False
    message_deviation: ClassVar[float] = 0.0
    parts: ClassVar[int] = 1

    @property
    def linear_head(self) -> bool:
        """True if clients take rows of the head."""
        return self.adaptation.targets.masked

    @property
    def needs(self) -> DataNeeds:
        """Any numbers of records within the limits."""
        own: DataNeeds = self.method.needs
        return DataNeeds(queries=own.queries, division=self)

    def fits(self, episode: Episode) -> bool:
        """Return whether an episode is within the limits; of own classes, with records of each to adapt on."""
        import torch

        support, query = episode.support_labels, episode.query_labels
        targets, most = self.adaptation.targets, self.shape.most_ways
        if len(support) + len(query) > self.shape.most_records:
            return False
        if not targets.masked:
            return targets.numbers or len(torch.unique(torch.cat([support, query]))) <= most
        classes = torch.unique(support)
        ways = len(classes)
        return (
            LEAST_WAYS <= ways <= most
            and torch.equal(classes, torch.arange(ways, device=classes.device))
            and (len(query) == 0 or int(query.max()) < ways)
        )

    def shapes(self, network: NetworkSpec) -> Any:
        """Return the shapes of a built-in network's weights."""
        return self.method.shapes(network)

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return 1: one call of `messages` takes one client."""
        return 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[RecordUnit, Params]]:
        """Exact messages, each with a head of the client's own classes, or of all labels."""
        masked = self.adaptation.targets.masked
        for episode, noise in zip(episodes, noises, strict=True):
            own = _with_head_of(context, ways_held(episode)) if masked else context
            yield from self.method.messages(own, [episode], bound, [noise])

    def shortened(self) -> WholeClients:
        """Two steps."""
        return replace(self, method=self.method.shortened())

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """Return the trial of the method."""
        own: NetworkTrial = self.method.trial(network)
        return own

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a message of each client."""
        found: list[Tensor] = self.method.units(context, episodes)
        return found


def ways_held(episode: Episode) -> int:
    """SECRET: the number of classes of an episode."""
    return int(episode.support_labels.max()) + 1


def head_rows(weights: Mapping[str, Rows], ways: int) -> dict[str, Rows]:
    """Weights with the first `ways` rows of the head."""
    return {name: value[:ways] if name.startswith(HEAD) else value for name, value in weights.items()}


def _with_head_of(context: ClientContext, ways: int) -> ClientContext:
    # The module itself is only asked for the kind of its head, which is linear.
    return replace(context, network=replace(context.network, ways=ways), fixed=head_rows(context.fixed, ways))
