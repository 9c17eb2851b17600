"""Planning of a run from Python: the guarantees that it would have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.early_checks import check_first
from dpfedmeta.privacy.clip_policy import ClipPolicy

if TYPE_CHECKING:
    from dpfedmeta.training.tracking.plan_summary import Planned


def plan(settings: Settings, *, clip_policy: ClipPolicy[Any] | None = None) -> Planned:
    """Solve the noise and state the promise, as a run does before its first round. No images are needed.

    Args:
        settings: As Settings.preset(...) makes them.
        clip_policy: A clip policy of your own.

    Raises:
        InputError: A setting does not fit another one, or the data set.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    check_settings(settings)
    if clip_policy is None:
        check_first(settings)
    from dpfedmeta.planning.run_plan import make_plan  # brings PyTorch, and wrong settings need none
    from dpfedmeta.training.tracking.plan_summary import planned_of

    task, _ = task_of(settings)
    return planned_of(make_plan(settings, task, clip_policy), task)


def check_settings(settings: object) -> None:
    """Refuse what are no settings.

    Raises:
        InputError: Says what was given.
    """
    if not isinstance(settings, Settings):
        raise InputError(f"settings: expected what Settings.preset(algo, dataset, ...) makes, got {settings!r:.80}")
