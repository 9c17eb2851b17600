"""Allowed values of `model.initial`, and the note that a plan makes of them."""

from __future__ import annotations

from pathlib import Path

from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task import Task, load_task
from dpfedmeta.learning.models.spec import BUILT_IN, NetworkSpec, built_in_body
from dpfedmeta.planning.network_trial.pretraining_overlap import origins, same_images


def check_initial(settings: Settings, spec: NetworkSpec, task: Task) -> None:
    """Check that the initial weights exist and can count as public, as far as that shows without the images.

    Raises:
        InputError: They cannot be read, or belong to another network.
        RefusedPlan: They learned from the images that this run wants to protect.
    """
    if spec.initial is None:
        return
    check_built_in(spec, task)
    from dpfedmeta.learning.models.initial_weights import initial_weights

    initial_weights(spec, settings.run.seed)
    for number, origin in enumerate(origins(spec.initial)):
        other = origin.settings
        if other is None:
            continue
        # What the first of them trained is what this run takes over.
        for key, own, its in (("name", spec.name, other.model.name), ("norm", spec.norm, other.model.norm)):
            if number == 0 and own != its:
                raise InputError(
                    f"model.initial = {spec.initial}: was trained with model.{key} = {its}; give that, not {own}"
                )
        if _source_of(other) == task.source.name:
            raise same_images(spec.initial, task)


def check_built_in(spec: NetworkSpec, task: Task) -> None:
    """The same for a built-in body, without PyTorch; others are not looked at.

    Raises:
        InputError: There is none for this network.
        RefusedPlan: It learned from the images that this run wants to protect.
    """
    if spec.initial not in BUILT_IN:
        return
    built_in_body(spec)
    if load_task(spec.initial)[0].source.name == task.source.name:
        raise same_images(spec.initial, task)


def _source_of(settings: Settings) -> str | None:
    """None: it cannot be found here; `check_origins` says so where it matters."""
    try:
        return load_task(settings.dataset)[0].source.name
    except InputError:
        return None


def initial_words(settings: Settings) -> str | None:
    """Note on the encoder or the initial weights, which no guarantee covers; None where all begins at random."""
    encoding, initial = encoding_of_run(settings), settings.model.initial
    said = [] if encoding is None else [encoding.words(Path(settings.dataset).stem)]
    if initial is not None:
        known = "generated images, not personal data" if initial in BUILT_IN else "taken as public"
        said.append(f"begins with the body of {initial} ({known})")
    return "; ".join([*said, "no guarantee covers the data it was learned from"]) if said else None
