"""Moments, then gradients: the first release solves for a metric, and further rounds move it by prototypes' gradients.

Both are rounds of one plan, with the same sampler and adjacency; `server.schedule` says how cohorts and noise differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.params import scaled, zeros_like
from dpfedmeta.learning.algorithms.moments import CENTRE, MATRIX, MomentSettings, SentMoments
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.config.settings import Settings as RunSettings
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.meta.algorithm import ClientContext, ClientNoise
    from dpfedmeta.learning.models.spec import NetworkSpec

# 0 before the metric is solved for: clients then send moments. Released with the model, so everybody knows.
PHASE = "moments.phase"


@dataclass(frozen=True)
class PrototypesOfPhases(CosinePrototypes):
    """Prototypes by cosine, of a model that says which phase it is in."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All but the phase."""
        return {name: value for name, value in weights.items() if name != PHASE}


@dataclass(frozen=True, kw_only=True)
class PhaseSettings(MomentSettings):
    """Settings of `meta.own`, with those of gradients."""

    gradient_bound: Annotated[
        float, Field(gt=0, le=1e6, allow_inf_nan=False, description="C of gradients; clip.initial is that of moments")
    ] = 1.0


@dataclass(frozen=True, kw_only=True)
class MomentsThenGradients(SentMoments):
    """A client sends moments while the model is not solved for, and the gradient of prototypes afterwards.

    A message has places for both, and those of the other phase are 0. A gradient is sent in units in which its own
    bound is that of moments, so one constant bound clips both.

    Attributes:
        gradient_scale: What gradients are multiplied by: the bound of moments over theirs.

    Guarantee:
        None by itself, as of `SentMoments`.
    """

    gradient_scale: float = 1.0
    Settings: ClassVar[type] = PhaseSettings
    solves_first: ClassVar[bool] = True
    computes_head: ClassVar[bool] = True

    @classmethod
    def planned(cls, settings: RunSettings, task: Task, own: PhaseSettings | None = None) -> MomentsThenGradients:  # type: ignore[override]
        """Build the method from the settings.

        Raises:
            InputError: As of `SentMoments`, or the clip bound is no constant.
            RefusedPlan: Cohorts of a fixed size.
        """
        own = own or PhaseSettings()
        if settings.clip.policy != "constant":
            raise InputError(
                f"clip.policy = {settings.clip.policy} with meta.method = moments-then-gradients: gradients are "
                "sent in units of one bound; use --clip.policy constant"
            )
        if sampling_of(settings.population.sampler).fixed_size:
            raise RefusedPlan(
                f"population.sampler = {settings.population.sampler} with meta.method = moments-then-gradients: "
                "nothing is stated for two phases whose cohorts have fixed sizes; use --population.sampler poisson"
            )
        if settings.population.episodes == "whole":
            raise InputError(
                "population.episodes = whole with meta.method = moments-then-gradients: gradients are of a fixed "
                "shape; use --population.episodes fixed, or --meta.method moments"
            )
        made = super().planned(settings, task, own)
        assert isinstance(made, cls)
        how = replace(made.adaptation, rule=PrototypesOfPhases())
        return replace(made, adaptation=how, gradient_scale=settings.clip.initial / own.gradient_bound)

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """The network's weights, in the first phase."""
        weights = super().initial(network, seed)
        return {**weights, PHASE: next(iter(weights.values())).new_zeros(1)}

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the centre and the matrix, and the phase."""
        return {name: value for name, value in weights.items() if name in (CENTRE, MATRIX, PHASE)}

    def form(self, learned: Params) -> Params:
        """Return the form of a message: moments, and gradients."""
        return {**super().form(learned), **zeros_like(_moved(learned))}

    def solved(self, mean: Params, deviation: float, size: int, width: int) -> Params:
        """The model that was solved for, in its second phase."""
        model = super().solved(mean, deviation, size, width)
        return {**model, PHASE: next(iter(model.values())).new_ones(1)}

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params]:
        """Exact moments, or exact gradients."""
        from dpfedmeta.learning.meta.prototype_gradients import prototype_gradients

        learned, nothing = _moved(context.learned), self.form(context.learned)
        if float(context.learned[PHASE]) == 0.0:
            for found in super().messages(context, episodes, bound, noises):
                yield {**nothing, **found}
            return
        weights = {**context.fixed, **context.learned}
        for episode in episodes:
            found = prototype_gradients(weights, learned, episode.to(context.device), self.adaptation.balance)
            yield {**nothing, **scaled(found, self.gradient_scale)}


def _moved(learned: Params) -> Params:
    """Weights that gradients move. The centre stays: its gradient is nine times as long, and says little."""
    return {MATRIX: learned[MATRIX]}


MEMBER = MomentsThenGradients
