"""Client-side mathematics: adaptation and meta-gradients, pure functions of (model, episode, noise)."""

from dpfedmeta.meta.adapt import Adaptation, adapted_logits
from dpfedmeta.meta.gradients import MetaSpec, contribution
from dpfedmeta.meta.private import RecordSpec, private_contributions

__all__ = [
    "Adaptation",
    "MetaSpec",
    "RecordSpec",
    "adapted_logits",
    "contribution",
    "private_contributions",
]
