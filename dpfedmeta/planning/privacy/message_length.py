"""Length of a message vector, which secure aggregation has to know beforehand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpfedmeta.config.settings import Settings
from dpfedmeta.data.task import Task
from dpfedmeta.planning.client_spec import algorithm_of, message_clip_ratio, network_spec
from dpfedmeta.planning.clipping.policy_from_settings import clip_policy
from dpfedmeta.privacy.clip_policy import moved_by_a_client

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

# With next to no noise no policy refuses what it attaches, whose size depends on no noise.
_NEARLY_NONE = 1e-3


def message_dimension(settings: Settings, task: Task) -> int:
    """Learned weights of the network, or aggregation.dimension, and what the clip policy attaches.

    Needs PyTorch to count weights, which few who ask for guarantees do.
    """
    learned = settings.aggregation.dimension
    if learned is None:
        learned = learned_dimension(settings, task)
    attachment = clip_policy(settings, _plain(settings)).attachment
    return learned + (attachment.size if attachment else 0)


def learned_dimension(settings: Settings, task: Task) -> int:
    """Number of learned weights of the network."""
    from dpfedmeta.core.params import dimension

    algorithm, network = algorithm_of(settings, task), network_spec(settings, task)
    return dimension(algorithm.learned(network, algorithm.initial(network, settings.run.seed)))


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
