"""What `model.initial` may name, and what a plan says of it."""

from __future__ import annotations

from pathlib import Path

from dpfedmeta.config import resolve
from dpfedmeta.data.task import Task, load_task
from dpfedmeta.errors import RefusedPlan
from dpfedmeta.models import NetworkSpec, initial_weights
from dpfedmeta.settings import Settings
from dpfedmeta.tracking.run_directory import CONFIG


def check_initial(settings: Settings, spec: NetworkSpec, task: Task) -> None:
    """Whether there are such weights, and whether they can be public.

    Raises:
        InputError: They cannot be read, or belong to another network.
        RefusedPlan: They learned from the images that this run wants to protect.
    """
    if spec.initial is None:
        return
    initial_weights(spec, settings.run.seed)
    config = Path(spec.initial) / CONFIG
    if not config.is_file():
        return
    other, _ = load_task(resolve(None, None, config).dataset)
    if other.source == task.source:
        raise RefusedPlan(
            f"model.initial = {spec.initial}: that run learned from the images of {task.name} too, and what it "
            "spent of them is not in this run's ledger; begin with public data, or go on with it: --resume"
        )


def initial_line(settings: Settings) -> list[str]:
    """What the guarantees leave out, in words."""
    if settings.model.initial is None:
        return []
    known = "procedural images, nobody's data" if settings.model.initial == "textures" else "taken as public"
    return [f"begins with the body of {settings.model.initial} ({known}); no guarantee covers what it learned from"]
