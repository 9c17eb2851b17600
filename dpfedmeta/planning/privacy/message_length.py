"""Length of a message vector, which secure aggregation has to know beforehand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.data.task import Task
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import stand_ins
from dpfedmeta.planning.client_spec import algorithm_of, message_clip_ratio, network_spec
from dpfedmeta.planning.clipping.policy_from_settings import clip_policy
from dpfedmeta.privacy.clip_policy import moved_by_a_client

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.core.params import Params

# With next to no noise no policy refuses what it attaches, whose size depends on no noise.
_NEARLY_NONE = 1e-3


def message_dimension(settings: Settings, task: Task) -> int:
    """Learned weights of the network, or aggregation.dimension, and what the clip policy attaches."""
    learned = settings.aggregation.dimension
    if learned is None:
        learned = learned_dimension(settings, task)
    attachment = clip_policy(settings, _plain(settings)).attachment
    return learned + (attachment.size if attachment else 0)


def learned_dimension(settings: Settings, task: Task) -> int:
    """Number of learned weights of the network."""
    algorithm, network = algorithm_of(settings, task), network_spec(settings, task)
    # Values of either kind have names and axes, which is what decides.
    weights: Any = countable_weights(algorithm, network, settings.run.seed)
    return sum(math.prod(value.shape) for value in algorithm.learned(network, weights).values())


def countable_weights(algorithm: ClientAlgorithm, network: NetworkSpec, seed: int) -> Params | dict[str, FloatArray]:
    """All weights before round 0; of built-in networks and methods zeros of their shapes, which need no PyTorch."""
    shapes = getattr(getattr(algorithm, "method", algorithm), "shapes", None)
    if ":" in network.name or shapes is None:
        return algorithm.initial(network, seed)
    return stand_ins(shapes(network))


def noise_of_unit_bound(settings: Settings, task: Task, privacy: PrivacyPlan) -> float:
    """Expected norm of the noise of an aggregate, without what is attached, at a clip bound of 1.

    In units of what planned_deviation says, and before the public denominator divides: sqrt(d) times how far one client
    moves a sum.
    """
    ratio = message_clip_ratio(settings, algorithm_of(settings, task), privacy.noise_mode)
    moved = moved_by_a_client(1.0, clip_policy(settings, privacy).attachment, ratio)
    return moved * math.sqrt(learned_dimension(settings, task))


def _plain(settings: Settings) -> PrivacyPlan:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

    population = settings.population
    return PrivacyPlan(
        clients=population.clients,
        cohort=population.cohort,
        rounds=settings.server.rounds,
        noise_multiplier=_NEARLY_NONE,
        sampler=population.sampler,
    )
