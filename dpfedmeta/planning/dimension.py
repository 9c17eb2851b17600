"""How many numbers a message holds: what secure aggregation has to know beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedmeta.data.task import Task
from dpfedmeta.planning.clients import algorithm_of, network_spec
from dpfedmeta.planning.clip import clip_policy
from dpfedmeta.settings import Settings

if TYPE_CHECKING:
    from dpfedmeta.accounting.plan import PrivacyPlan

# With next to no noise no policy refuses what it attaches, whose size depends on no noise.
_NEARLY_NONE = 1e-3


def message_dimension(settings: Settings, task: Task) -> int:
    """Learned weights of the network, or aggregation.dimension, and what the clip policy attaches.

    Needs PyTorch to count weights, which few who ask for guarantees do.
    """
    learned = settings.aggregation.dimension
    if learned is None:
        from dpfedmeta.parameters import dimension

        algorithm, network = algorithm_of(settings, task), network_spec(settings, task)
        learned = dimension(algorithm.learned(network, algorithm.initial(network, settings.run.seed)))
    attachment = clip_policy(settings, _plain(settings)).attachment
    return learned + (attachment.size if attachment else 0)


def _plain(settings: Settings) -> PrivacyPlan:
    from dpfedmeta.accounting.plan import PrivacyPlan

    population = settings.population
    return PrivacyPlan(
        clients=population.clients,
        cohort=population.cohort,
        rounds=settings.server.rounds,
        noise_multiplier=_NEARLY_NONE,
        sampler=population.sampler,
    )
