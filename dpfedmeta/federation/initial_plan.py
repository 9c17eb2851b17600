"""What `model.initial` may name, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpfedmeta.config import resolve
from dpfedmeta.data.task import Task, load_task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.models import BUILT_IN, NetworkSpec, initial_weights
from dpfedmeta.settings import Settings
from dpfedmeta.tracking.run_directory import CONFIG, LEDGER


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


def _origins(initial: str | None) -> Iterator[Settings]:
    """Settings of the run that left these weights, of the one that it began with, and so on."""
    seen: set[Path] = set()
    while initial is not None and initial != BUILT_IN:
        path = Path(initial).resolve()
        run = next((folder for folder in (path, path.parent, path.parent.parent) if _is_run(folder)), None)
        if run is None or run in seen:
            return
        seen.add(run)
        settings = resolve(None, None, run / CONFIG)
        yield settings
        initial = settings.model.initial


def _is_run(folder: Path) -> bool:
    # A config.yaml alone may be the user's own, beside a file of weights.
    return (folder / CONFIG).is_file() and (folder / LEDGER).is_file()


def initial_words(settings: Settings) -> str | None:
    """What the guarantees leave out; None where training begins with random weights."""
    if settings.model.initial is None:
        return None
    known = "procedural images, nobody's data" if settings.model.initial == BUILT_IN else "taken as public"
    return f"begins with the body of {settings.model.initial} ({known}); no guarantee covers what it learned from"
