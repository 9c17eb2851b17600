"""Moments: a client sends second moments of its records in place of a gradient, and the server solves for a model.

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
from dpfedmeta.core.params import norm, same_kind, scaled, zeros_like
from dpfedmeta.data.episodes.row_layout import AllRows
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.task import holds_rows
from dpfedmeta.learning.algorithms.maml import message_rows, whole_client_trial
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes
from dpfedmeta.learning.meta.adaptation import Adaptation, InnerRule
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
from dpfedmeta.learning.models.spec import BODY, HEAD
from dpfedmeta.learning.models.weight_shapes import GAUSSIAN, METRIC
from dpfedmeta.learning.record_dp.closed_heads import NearbyLine, OwnClassMeans, PosteriorMeans
from dpfedmeta.learning.record_dp.second_moments import SecondMoments
from dpfedmeta.learning.record_dp.shared_moments import SharedMoments

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.config.settings import Settings as RunSettings
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.moment_blocks import BlockMoments, Rows
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
    from dpfedmeta.learning.record_dp.second_moments import SolvedMetric


# Names of the weights of the networks that are solved for.
CENTRE, MATRIX = f"{BODY}layers.1.centre", f"{BODY}layers.1.matrix"
# Entries of a message's matrices: nobody is asked for more.
MOST_ENTRIES = 10_000_000
# R of standardised records with shared labels or numbers to predict.
_RADIUS = 3.0
_GAUSSIAN = (f"{BODY}layers.0.centre", f"{BODY}layers.0.matrix", f"{HEAD}weight", f"{HEAD}bias")


@dataclass(frozen=True, kw_only=True)
class MomentSettings:
    """Settings of `meta.own`: public constants, to be chosen on public classes or people."""

    directions: Annotated[int | None, Field(ge=2, description="D, first numbers of a record; null: all")] = None
    constant: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False, description="a, beside a record")] = 0.3
    pair_bound: Annotated[float, Field(gt=0, le=2, description="c, most length of a difference; 2: none is cut")] = 2.0
    scale: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False, description="s, rounding under sums")] = 40.0
    pair_weight: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, description="beta, most of a pair")] = 8.0
    between: Annotated[
        float, Field(ge=0, le=1e6, description="least variance between classes in a direction, where that within is 1")
    ] = 0.0
    groups: Annotated[int, Field(ge=1, le=10_000, description="M, of rows by their hash; pairs are inside of them")] = 5
    records: Annotated[int, Field(ge=2, le=10**6, description="n0, of a client that holds any number of them")] = 200
    radius: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="R, records are cut to it; null: 3, and of own labels all come to length 1"),
    ] = None
    label_weight: Annotated[float, Field(gt=0, le=100, description="v, most in the sum of a shared label")] = 1.0
    reach: Annotated[float, Field(gt=0, le=1e6, description="Y, numbers to predict are cut to it, in scales")] = 2.0
    prior: Annotated[float, Field(gt=0, le=1e9, description="kappa, records that the model counts as at a client")] = (
        30.0
    )
    shift: Annotated[
        float | None, Field(gt=0, le=1e9, description="classes that speak against a shift of all; null: none shifts")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SentMoments(NoRecordNoise, NetworkWeights):
    """A client sends the moments of its records: with classes of its own `second_moments.SecondMoments`.

    Attributes:
        moments: Public constants of the message.
        client: What a client holds, where its size is fixed; public constants.
        adaptation: What a new client does with the model, in closed form.
        rounding_scale: s, by which records are multiplied before they are rounded, under sums.
        most: n0, where clients hold any number of records; None: `client` says how many.
        layout: All rows by their hash, where records are promised something and clients hold rows of their own.

    Guarantee:
        None by itself: a message is secret until it is clipped, summed and released.
    """

    moments: BlockMoments
    client: EpisodeShape
    adaptation: Adaptation
    rounding_scale: float = 40.0
    most: int | None = None
    layout: AllRows | None = None
    Settings: ClassVar[type] = MomentSettings
    rule: ClassVar[InnerRule] = CosinePrototypes()
    solves_first: ClassVar[bool] = False
    network_name: ClassVar[str] = METRIC
    solved_names: ClassVar[tuple[str, ...]] = (CENTRE, MATRIX)
    smaller: ClassVar[str] = "give --meta.own.directions {} or fewer"
    plain_steps: ClassVar[bool] = False
    sends: ClassVar[Sends] = "update"
    few_shot: ClassVar[bool] = True
    computes_head: ClassVar[bool] = False
    takes_whole: ClassVar[bool] = True
    releases: ClassVar[bool] = False
    message_deviation: ClassVar[float] = 0.0
    parts: ClassVar[int] = 1

    @classmethod
    def planned(cls, settings: RunSettings, task: Task, own: MomentSettings | None = None) -> SentMoments:
        """Build the method from the settings; of shared labels and numbers to predict `MomentsOfTargets`.

        Raises:
            InputError: Records are no vectors or too long, there is no model to solve for, or a client has no two
                records of a class.
        """
        own, kind = own or MomentSettings(), cls
        if not targets_of(task).masked:
            kind = MomentsOfTargets
        elif own.radius is not None:
            kind = MomentsOfOwnClasses
        if cls.solves_first and own.radius is not None:
            raise InputError(
                f"meta.own.radius = {own.radius:g} with meta.method = {settings.meta.method}: gradients are those of "
                "prototypes by cosine, of records at length 1; use --meta.method moments, or leave out meta.own.radius"
            )
        if task.form.kind != "vectors":
            raise InputError(
                f"meta.method = moments: records are {task.form.words}, and moments are of vectors; give a public "
                "encoder (--model.encoder lite0 for photographs, strokes for characters)"
            )
        if settings.model.name != kind.network_name:
            raise InputError(
                f"model.name = {settings.model.name}: meta.method = moments solves for another network here; use "
                f"--model.name {kind.network_name}"
            )
        rows = settings.record.enabled and holds_rows(settings.population.kind, task)
        moments, adaptation = kind.of_targets(settings, task, own)
        if moments.entries > MOST_ENTRIES:
            fitting = moments.most_numbers(MOST_ENTRIES)
            raise InputError(
                f"meta.method = moments: {moments.entries:,} entries of second moments in a message, and sums carry at "
                f"most {MOST_ENTRIES:,}; {kind.smaller.format(fitting)}"
            )
        return kind(
            moments=moments,
            client=episode_shape(settings),
            adaptation=adaptation,
            rounding_scale=own.scale,
            most=own.records if rows or settings.population.episodes == "whole" else None,
            layout=AllRows(groups=own.groups if moments.blocks.pairs else 0) if rows else None,
        )

    @classmethod
    def of_targets(cls, settings: RunSettings, task: Task, own: MomentSettings) -> tuple[BlockMoments, Adaptation]:
        """The message, and how a new client adapts: prototypes by cosine, or posterior class means.

        Raises:
            InputError: More directions than numbers, or no pairs.
        """
        size, sizes = task.form.shape[0], settings.task
        directions = own.directions or size
        if directions > size:
            raise InputError(
                f"meta.own.directions = {directions}: a record has {size} numbers; give at most {size}, or null"
            )
        if sizes.shots + sizes.queries < 2:
            raise InputError("task.shots, task.queries: pairs need two records of a class; give more")
        moments = SecondMoments(
            directions=directions,
            constant=own.constant,
            pair_bound=own.pair_bound,
            pair_weight=own.pair_weight,
            radius=own.radius,
            least=own.between,
        )
        return moments, Adaptation(adapt="head", steps=0, lr=settings.meta.lr, rule=cls.rule, targets=targets_of(task))

    @property
    def records(self) -> int:
        """n, public: what messages are over."""
        return self.most or self.client.support_records + self.client.query_records

    @property
    def needs(self) -> DataNeeds:
        """Records of the plan's number, class by class, since pairs go by number; or any."""
        if self.most is not None:
            return DataNeeds(queries=False, layout=self.layout)
        return DataNeeds(counts=(self.client.support_records, self.client.query_records), division=self)

    def solved(self, mean: Params, deviation: float, size: int, width: int) -> Params:
        """The weights that follow from the mean of all messages, and the deviation of its noise."""
        found = self.metric(mean, deviation, size, width)
        return {CENTRE: found.centre, MATRIX: found.matrix}

    def metric(self, mean: Params, deviation: float, size: int, width: int) -> SolvedMetric:
        """The metric of the mean of all messages."""
        moments, each = self.moments, self.client.shots + self.client.queries
        assert isinstance(moments, SecondMoments)
        # Of any number of records most are in pairs, or half of them are not: no number is known.
        return moments.metric(mean, deviation, size, width, each if self.most is None else None)

    @property
    def linear_head(self) -> bool:
        """False: no head is trained."""
        return False

    def fits(self, episode: Episode) -> bool:
        """Return whether the records are ordered by class, with the planned numbers of support and query records."""
        return self.client.ordered(episode.support_labels, episode.query_labels)

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the weights that the server solves for."""
        return {name: value for name, value in weights.items() if name in self.solved_names}

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
        """Exact moments, float32: what is promised of a whole client is that its message is cut."""
        for episode in episodes:
            yield self.exact(episode.to(context.device), single=True)

    def exact(self, episode: Episode, *, single: bool = False) -> Params:
        """SECRET: the moments of a client over n, float64 or float32, of length 1 at most.

        Where records are promised something n is public, and what is longer than 1 is projected onto that length. This
        brings no two messages further apart, so relations of a record stay. Else it is their number, if it is larger.
        """
        over, rows = self.records, self.rows(episode, single=single)
        if self.most is None:
            # Exactly n records: no longer than 1.
            return self.moments.summed(rows, over)
        if self.layout is None:
            over = max(over, len(episode.support_labels) + len(episode.query_labels))
        found = self.moments.summed(rows, over)
        return scaled(found, 1.0 / max(1.0, float(norm(found))))

    def rows(self, episode: Episode, *, single: bool = False) -> Rows:
        """SECRET: what a client adds, row by row, in float64 or float32."""
        import torch

        moments, images = self.moments, (episode.support_images, episode.query_images)
        assert isinstance(moments, SecondMoments)
        if self.most is None:
            each = [part.reshape(self.client.ways, -1, part.shape[-1]) for part in images]
            return moments.rows(torch.cat(each, 1), single=single)
        paired, others = images[0], images[1]
        if self.layout is None:
            labels, both = torch.cat([episode.support_labels, episode.query_labels]), torch.cat(images)
            held = [(labels == label).nonzero()[:, 0] for label in torch.unique(labels)]
            paired = both[torch.cat([own[: len(own) // 2 * 2] for own in held])]
            others = both[torch.cat([own[len(own) // 2 * 2 :] for own in held])]
        count = len(paired) // 2 * 2
        others = torch.cat([paired[count:], others])
        return moments.rows(paired[:count].reshape(-1, 2, paired.shape[-1]), others[:, None], single=single)

    def shortened(self) -> SentMoments:
        """The same: there is nothing to leave out."""
        return self

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """All data of a client are others; no other client's message may move."""
        return whole_client_trial(network)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a message of each client."""
        return message_rows(self, context, episodes)


@dataclass(frozen=True, kw_only=True)
class MomentsOfOwnClasses(SentMoments):
    """The same of records that are cut to R (`meta.own.radius`), so that their length counts: a Gaussian model.

    Records of a class differ equally in all directions of the matrix. A row of the head holds how much classes differ
    in each, from which the posterior means of a new client's classes follow.
    """

    rule: ClassVar[InnerRule] = OwnClassMeans()
    network_name: ClassVar[str] = GAUSSIAN
    solved_names: ClassVar[tuple[str, ...]] = _GAUSSIAN

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """Return the network's weights; classes differ as much as their records, in all directions."""
        weights = super().initial(network, seed)
        head, bias = _GAUSSIAN[2:]
        return {**weights, head: weights[head].new_ones(weights[head].shape), **zeros_like({bias: weights[bias]})}

    def solved(self, mean: Params, deviation: float, size: int, width: int) -> Params:
        """As of `SentMoments`: centre, matrix and head, in the records' own unit."""
        assert isinstance(self.moments, SecondMoments)
        radius = self.moments.radius or 1.0
        found, ways = self.metric(mean, deviation, size, size), self.client.ways
        head = found.between.expand(ways, -1).clone(), found.between.new_zeros(ways)
        return dict(zip(_GAUSSIAN, (found.centre * radius, found.whitening / radius, *head), strict=True))


@dataclass(frozen=True, kw_only=True)
class MomentsOfTargets(SentMoments):
    """The same with labels of one list, or numbers to predict: `shared_moments.SharedMoments`.

    One model is solved for, for all clients, from which each one goes on by itself.
    """

    network_name: ClassVar[str] = GAUSSIAN
    solved_names: ClassVar[tuple[str, ...]] = _GAUSSIAN
    smaller: ClassVar[str] = "a model for everybody uses all numbers of a record: leave columns out, down to {}"

    @classmethod
    def of_targets(cls, settings: RunSettings, task: Task, own: MomentSettings) -> tuple[BlockMoments, Adaptation]:
        """The message, and how a new client adapts: class means, or a line, near those for everybody.

        Raises:
            InputError: Some numbers of a record are left out.
        """
        targets = targets_of(task)
        if own.directions is not None:
            raise InputError(
                f"meta.own.directions = {own.directions}: {task.name} has shared labels or numbers to predict, and a "
                "model for them uses all numbers; give null"
            )
        moments = SharedMoments(
            size=task.form.shape[0],
            constant=own.constant,
            radius=own.radius or _RADIUS,
            weight=own.label_weight,
            labels=0 if targets.numbers else targets.outputs(settings.task.ways),
            reach=own.reach,
        )
        rule = (NearbyLine if targets.numbers else PosteriorMeans)(prior=own.prior, shift=own.shift)
        return moments, Adaptation(adapt="head", steps=0, lr=settings.meta.lr, rule=rule, targets=targets)

    @property
    def needs(self) -> DataNeeds:
        """Records of the plan's number, in any order; or any."""
        if self.most is not None:
            return DataNeeds(queries=False, layout=self.layout)
        return DataNeeds(counts=(self.client.support_records, self.client.query_records))

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """Return the network's weights, with a head of zeros: no label is special."""
        weights = super().initial(network, seed)
        return {**weights, **zeros_like({name: weights[name] for name in weights if name.startswith(HEAD)})}

    def solved(self, mean: Params, deviation: float, size: int, width: int) -> Params:
        """As of `SentMoments`: centre, matrix and head."""
        assert isinstance(self.moments, SharedMoments)
        found = self.moments.model(mean, deviation)
        return dict(zip(self.solved_names, (found.centre, found.matrix, found.rows, found.bias), strict=True))

    def rows(self, episode: Episode, *, single: bool = False) -> Rows:
        """SECRET: what a client adds, row by row, likewise."""
        import torch

        assert isinstance(self.moments, SharedMoments)
        parts = (episode.support_images, episode.query_images), (episode.support_labels, episode.query_labels)
        return self.moments.rows(*map(torch.cat, parts), single=single)


MEMBER = SentMoments
