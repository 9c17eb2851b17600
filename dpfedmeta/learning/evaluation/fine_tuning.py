"""The baseline without meta-learning: fine-tune all layers of the untrained network, without noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpfedmeta.core.params import Params
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.learning.evaluation.baselines import Adapted, arrays_of
from dpfedmeta.learning.evaluation.few_shot import Benchmark, outcomes
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.spec import NetworkSpec

# Wide enough for raw and for scaled features; the best one is looked for on validation classes.
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Tried one after the other where the best so far lies at an end, so that the baseline is not held down by our choice.
FURTHER = (0.0003, 0.001, 30.0, 100.0, 300.0)
LEAST_STEPS = 20
MOST_VALIDATION_EPISODES = 40


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Fine-tuning of the untrained network: the baseline without meta-learning.

    Attributes:
        steps: Gradient steps on all layers.
        lr: Step size with the best accuracy on validation classes after these steps.
        tried: Mean validation accuracy by step size.
        episodes: Number of validation episodes.
    """

    steps: int
    lr: float
    tried: Mapping[float, float]
    episodes: int

    @property
    def adaptation(self) -> Adaptation:
        """Inner loop that does this fine-tuning."""
        return Adaptation(adapt="all", steps=self.steps, lr=self.lr)

    def as_json(self) -> dict[str, object]:
        """The form of evaluation.json."""
        tried = {f"{lr:g}": accuracy for lr, accuracy in self.tried.items()}
        return {"lr": self.lr, "steps": self.steps, "validation": tried, "validation_episodes": self.episodes}


def choose_fine_tuning(
    workers: Workers, network: NetworkSpec, untrained: Params, validation: Benchmark, steps: int, episodes: int
) -> FineTuning:
    """Choose the step size on validation classes, never on test classes.

    Args:
        workers: Where episodes run.
        network: The untrained network, for the number of classes of `validation`.
        untrained: Its weights.
        validation: Episodes of validation classes.
        steps: The run's own number of steps; at least LEAST_STEPS are taken.
        episodes: Validation episodes; at most MOST_VALIDATION_EPISODES are used.
    """
    taken, count = max(steps, LEAST_STEPS), min(episodes, MOST_VALIDATION_EPISODES)
    weights = arrays_of(untrained)
    tried: dict[float, float] = {}
    wanted: tuple[float, ...] = STEP_SIZES
    while wanted:
        how = {lr: Adaptation(adapt="all", steps=taken, lr=lr) for lr in wanted}
        learners = {
            str(lr): Adapted(network=network, weights=weights, adaptation=adaptation, at=(taken,))
            for lr, adaptation in how.items()
        }
        found = outcomes(workers, validation, learners, count)
        tried |= {lr: float(found[str(lr)].mean()) for lr in wanted}
        best = max(sorted(tried), key=lambda lr: tried[lr])
        wanted = beyond(best, tried)
    return FineTuning(steps=taken, lr=best, tried=dict(sorted(tried.items())), episodes=count)


def beyond(best: float, tried: Mapping[float, float]) -> tuple[float, ...]:
    """Return the next step size to try if the best one so far is at an end of those tried; else empty."""
    if best == max(tried):
        return tuple(lr for lr in FURTHER if lr > best)[:1]
    if best == min(tried):
        return tuple(lr for lr in FURTHER if lr < best)[-1:]
    return ()
