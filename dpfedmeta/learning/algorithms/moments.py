"""Moments: a client sends second moments of its records in place of a gradient, and the server solves for a metric.

Sufficient statistics with noise (Vu and Slavkovic 2009, https://doi.org/10.1109/ICDMW.2009.93; Dwork et al. 2014,
https://doi.org/10.1145/2591796.2591883) of linear discriminant analysis, used as meta-learning. One round is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import same_kind
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.maml import message_rows, whole_client_trial
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.algorithm import (
    ClientContext,
    ClientNoise,
    DataNeeds,
    NetworkTrial,
    NetworkWeights,
    NoRecordNoise,
    Sends,
)
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.learning.models.spec import BODY
from dpfedmeta.learning.models.weight_shapes import METRIC
from dpfedmeta.learning.record_dp.second_moments import SecondMoments

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.config.settings import Settings as RunSettings
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients


# Names of the weights of the network that are solved for.
CENTRE, MATRIX = f"{BODY}layers.1.centre", f"{BODY}layers.1.matrix"


@dataclass(frozen=True, kw_only=True)
class MomentSettings:
    """Settings of `meta.own`: public constants, to be chosen on public classes."""

    directions: Annotated[int | None, Field(ge=2, description="D, first numbers of a record; null: all")] = None
    constant: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False, description="a, beside a record")] = 0.3
    pair_bound: Annotated[float, Field(gt=0, le=2, description="c, most length of a difference; 2: none is cut")] = 2.0
    scale: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False, description="s, rounding under sums")] = 40.0
    pair_weight: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, description="beta, most of a pair")] = 8.0


@dataclass(frozen=True, kw_only=True)
class SentMoments(NoRecordNoise, NetworkWeights):
    """A client sends the moments of its records, `second_moments.SecondMoments`.

    Attributes:
        moments: Public constants of the message.
        client: What a client holds; public constants.
        adaptation: What a new client does with the metric: prototypes by cosine, no step.
        rounding_scale: s, by which records are multiplied before they are rounded, under sums.

    Guarantee:
        None by itself: a message is secret until it is clipped, summed and released.
    """

    moments: SecondMoments
    client: EpisodeShape
    adaptation: Adaptation
    rounding_scale: float = 40.0
    Settings: ClassVar[type] = MomentSettings
    plain_steps: ClassVar[bool] = False
    sends: ClassVar[Sends] = "update"
    few_shot: ClassVar[bool] = True
    computes_head: ClassVar[bool] = True
    releases: ClassVar[bool] = False
    message_deviation: ClassVar[float] = 0.0
    parts: ClassVar[int] = 1

    @classmethod
    def planned(cls, settings: RunSettings, task: Task, own: MomentSettings | None = None) -> SentMoments:
        """Build the method from the settings.

        Raises:
            InputError: Records are no vectors, there is no metric to solve for, or a client has no two records of a
                class.
        """
        own, size, client = own or MomentSettings(), task.form.shape[0], episode_shape(settings)
        if task.form.kind != "vectors":
            raise InputError(
                f"meta.method = moments: records are {task.form.words}, and moments are of vectors; give a public "
                "encoder (--model.encoder lite0 for photographs, strokes for characters)"
            )
        if settings.model.name != METRIC:
            raise InputError(
                f"model.name = {settings.model.name}: meta.method = moments solves for a metric; use --model.name "
                f"{METRIC}"
            )
        directions = own.directions or size
        if directions > size:
            raise InputError(
                f"meta.own.directions = {directions}: a record has {size} numbers; give at most {size}, or null"
            )
        if client.shots + client.queries < 2:
            raise InputError("task.shots, task.queries: pairs need two records of a class; give more")
        if settings.population.episodes == "whole":
            raise InputError(
                "population.episodes = whole with meta.method = moments: pairs and sizes are of a fixed shape; use "
                "--population.episodes fixed"
            )
        moments = SecondMoments(
            directions=directions,
            constant=own.constant,
            pair_bound=own.pair_bound,
            pair_weight=own.pair_weight,
        )
        how = Adaptation(adapt="head", steps=0, lr=settings.meta.lr, rule=CosinePrototypes(), targets=targets_of(task))
        return cls(moments=moments, client=client, adaptation=how, rounding_scale=own.scale)

    @property
    def needs(self) -> DataNeeds:
        """Records of the plan's number, class by class, since pairs go by number."""
        return DataNeeds(counts=(self.client.support_records, self.client.query_records), division=self)

    @property
    def weights(self) -> tuple[str, str]:
        """Names of the centre and the matrix."""
        return CENTRE, MATRIX

    def solved(self, model: Params) -> Params:
        """The model that was solved for."""
        return model

    @property
    def linear_head(self) -> bool:
        """False: no head is trained."""
        return False

    def fits(self, episode: Episode) -> bool:
        """Return whether the records are ordered by class, with the planned numbers of support and query records."""
        return self.client.ordered(episode.support_labels, episode.query_labels)

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the centre and the matrix, which the server solves for."""
        return {name: value for name, value in weights.items() if name in (CENTRE, MATRIX)}

    def form(self, learned: Params) -> Params:
        """Return the form of a message: that of the moments."""
        like = next(iter(learned.values()))
        return {
            name: same_kind(np.zeros(shape, dtype=np.float32), like) for name, shape in self.moments.shapes().items()
        }

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return 1: one call of `messages` takes one client."""
        return 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params]:
        """Exact moments."""
        for episode in episodes:
            found = self.moments.message(self.by_class(episode.to(context.device)))
            yield {name: value.float() for name, value in found.items()}

    def by_class(self, episode: Episode) -> Tensor:
        """SECRET: [ways, shots + queries, d], the records of each class."""
        import torch

        parts = (episode.support_images, episode.query_images)
        return torch.cat([part.reshape(self.client.ways, -1, part.shape[-1]) for part in parts], 1)

    def shortened(self) -> SentMoments:
        """The same: there is nothing to leave out."""
        return self

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """All data of a client are others; no other client's message may move."""
        return whole_client_trial(network)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a message of each client."""
        return message_rows(self, context, episodes)


MEMBER = SentMoments
