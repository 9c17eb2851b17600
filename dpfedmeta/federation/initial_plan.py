"""What `model.initial` may name, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpfedmeta.config import resolve
from dpfedmeta.data.task import Task, load_task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.models import NetworkSpec, initial_weights
from dpfedmeta.settings import Settings
from dpfedmeta.tracking.run_directory import CONFIG

# Runs that began with each other in a circle.
_DEEPEST = 20


def check_initial(settings: Settings, spec: NetworkSpec, task: Task) -> None:
    """Whether there are such weights, and whether they can be public.

    Raises:
        InputError: They cannot be read, or belong to another network.
        RefusedPlan: They learned from the images that this run wants to protect.
    """
    if spec.initial is None:
        return
    initial_weights(spec, settings.run.seed)
    for number, other in enumerate(_origins(spec.initial)):
        # What the first of them trained is what this run takes over.
        for key, own, its in (("name", spec.name, other.model.name), ("norm", spec.norm, other.model.norm)):
            if number == 0 and own != its:
                raise InputError(f"model.initial = {spec.initial}: it was trained with model.{key} = {its}, not {own}")
        if load_task(other.dataset)[0].source != task.source:
            continue
        raise RefusedPlan(
            f"model.initial = {spec.initial}: a run behind it learned from the images of {task.name} too, and what it "
            "spent of them is not in this run's ledger; begin with public data, or go on with it: --resume"
        )


def _origins(initial: str, depth: int = 0) -> Iterator[Settings]:
    """Settings of the run that left these weights, of the one that it began with, and so on."""
    path = Path(initial)
    folders = (folder for folder in (path, path.parent, path.parent.parent) if (folder / CONFIG).is_file())
    found = next(folders, None)
    if found is None or depth > _DEEPEST:
        return
    settings = resolve(None, None, found / CONFIG)
    yield settings
    if settings.model.initial is not None:
        yield from _origins(settings.model.initial, depth + 1)


def initial_words(settings: Settings) -> str | None:
    """What the guarantees leave out; None where training begins with random weights."""
    if settings.model.initial is None:
        return None
    known = "procedural images, nobody's data" if settings.model.initial == "textures" else "taken as public"
    return f"begins with the body of {settings.model.initial} ({known}); no guarantee covers what it learned from"
