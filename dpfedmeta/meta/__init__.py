"""Client-side mathematics: adaptation and meta-gradients, pure functions of (model, episode, noise)."""

from dpfedmeta.meta.divisions import Divisions, division_slots
from dpfedmeta.meta.dp_steps import RecordSpec, private_contributions
from dpfedmeta.meta.gradients import Message, MetaSpec, contribution
from dpfedmeta.meta.inner_loop import Adaptation, adapted_logits, adapted_params, logits_along
from dpfedmeta.meta.local_training import LocalSteps, PrivateSteps, local_update, private_local_update
from dpfedmeta.meta.micro import MicroSpec, meta_gradients, micro_contributions, micro_slots
from dpfedmeta.meta.side_by_side import stacked, stacked_query_gradients

__all__ = [
    "Adaptation",
    "Divisions",
    "LocalSteps",
    "Message",
    "MetaSpec",
    "MicroSpec",
    "PrivateSteps",
    "RecordSpec",
    "adapted_logits",
    "adapted_params",
    "contribution",
    "division_slots",
    "local_update",
    "logits_along",
    "meta_gradients",
    "micro_contributions",
    "micro_slots",
    "private_contributions",
    "private_local_update",
    "stacked",
    "stacked_query_gradients",
]
