"""What will be trained, in words, before the first round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from dpfedmeta.data.sources.image_form import form_of_images
from dpfedmeta.data.sources.own import READERS, public_image_files_of
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.models.registry import build_network
from dpfedmeta.models.trainable import frozen_names
from dpfedmeta.parameters import dimension
from dpfedmeta.planning.plan import Plan

_MOST_NAMES = 3


def trained_lines(plan: Plan, task: Task) -> tuple[str, ...]:
    """What goes in and out of the network, which of its weights are learned, and what images were brought to."""
    spec = plan.network
    weights = plan.algorithm.initial(spec, plan.settings.run.seed)
    learned, frozen = plan.algorithm.learned(spec, weights), frozen_names(build_network(spec))
    kept = [name for name in weights if name not in learned and name not in frozen]
    said = [f"learns {_words(weights, learned)}"]
    if kept:
        zero = not any(bool(weights[name].any()) for name in kept)
        said.append(f"leaves {_words(weights, kept)} " + ("at zero" if zero else "as they begin"))
    if frozen:
        said.append(f"keeps {_words(weights, sorted(frozen))} frozen (requires_grad_(False))")
    form = f"{spec.form.words}, {spec.ways} outputs"
    return (
        f"network {spec.name}: {form}; {', '.join(said)}",
        *_image_words(plan.settings.dataset, task),
        *_read_words(task),
    )


def _read_words(task: Task) -> tuple[str, ...]:
    """How data of the user's own were read: by names and public records alone, since it is printed for anybody."""
    source = task.source
    if not isinstance(source, OwnSource) or not Path(source.path).exists():
        return ()
    return tuple(f"{task.name}: {said}" for said in READERS[source.reader].remarks(Path(source.path), public=True))


def _image_words(dataset: str, task: Task) -> tuple[str, ...]:
    """Where no task file says the size of images, the headers of public files decide."""
    source = task.source
    if not isinstance(source, OwnSource) or Path(source.path) != Path(dataset):
        return ()
    files = public_image_files_of(source.reader, Path(source.path))
    if not files:
        return ()
    return (f"images of {task.name} are brought to {form_of_images(files).words}; a task file may say otherwise",)


def _words(weights: Mapping[str, Tensor], names: Collection[str]) -> str:
    """How many weights these are, and where they stand: a part of the network, or the first few tensors."""
    count = dimension({name: weights[name] for name in names})
    parts = {name.partition(".")[0] for name in names}
    whole = {name for name in weights if name.partition(".")[0] in parts}
    told = sorted(parts) if whole == {*names} and len(parts) <= _MOST_NAMES else sorted(names)
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"{count:,} weights ({', '.join(told[:_MOST_NAMES])}{more})"
