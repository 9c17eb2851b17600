"""Layouts of rows by the settings: where clients hold rows of their own, and their records are promised something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.data.episodes.row_layout import GroupLayout, RoleLayout
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.task import holds_rows
from dpfedmeta.learning.meta.target_kind import targets_of

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


def episode_shape(settings: Settings) -> EpisodeShape:
    """The episode of a client, where it has a fixed size."""
    return EpisodeShape(ways=settings.task.ways, shots=settings.task.shots, queries=settings.task.queries)


def group_layout(settings: Settings, task: Task, method: Any, shape: EpisodeShape) -> GroupLayout | None:
    """Rows in groups, each a micro-episode of this shape; None: records are slots of simulated clients."""
    if not holds_rows(settings.population.kind, task):
        return None
    # What divides classes, or makes a head from them, needs all of them in each micro-episode.
    complete = method.needs.division is not None or getattr(method, "computes_head", False)
    shared = not targets_of(task).masked
    return GroupLayout(client=episode_shape(settings), shape=shape, complete=complete, shared=shared)


def role_layout(settings: Settings, task: Task) -> RoleLayout | None:
    """Rows in two roles; None: records are slots, or clients number their classes themselves.

    Of classes of a client's own, a row with a new label might displace another class with all its rows.
    """
    if targets_of(task).masked or not holds_rows(settings.population.kind, task):
        return None
    return RoleLayout(client=episode_shape(settings), labels=len(task.labels))
