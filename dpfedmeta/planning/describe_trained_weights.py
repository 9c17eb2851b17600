"""Description of what will be trained, printed before the first round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from dpfedmeta.core.params import dimension
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.user_sources.image_files import form_of_images
from dpfedmeta.data.user_sources.readers import READERS, public_image_files_of
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.trainable import frozen_names
from dpfedmeta.planning.run_plan import Plan

_MOST_NAMES = 3


def trained_lines(plan: Plan, task: Task) -> tuple[str, ...]:
    """Describe the network's input and output, its learned weights, and the size that images are brought to."""
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
    """Describe how the user's own data were read.

    The text is printed for anybody, so it is made of names and public records alone.
    """
    source = task.source
    if not isinstance(source, OwnSource) or not Path(source.path).exists():
        return ()
    return tuple(f"{task.name}: {said}" for said in READERS[source.reader].remarks(Path(source.path), public=True))


def _image_words(dataset: str, task: Task) -> tuple[str, ...]:
    """Describe the size of images where no task file gives it; it then comes from the headers of public files."""
    source = task.source
    if not isinstance(source, OwnSource) or Path(source.path) != Path(dataset):
        return ()
    files = public_image_files_of(source.reader, Path(source.path))
    if not files:
        return ()
    return (f"images of {task.name} are brought to {form_of_images(files).words}; a task file may say otherwise",)


def _words(weights: Mapping[str, Tensor], names: Collection[str]) -> str:
    """Describe a set of weights by their number and place: parts of the network, or the first few tensors."""
    count = dimension({name: weights[name] for name in names})
    parts = {name.partition(".")[0] for name in names}
    whole = {name for name in weights if name.partition(".")[0] in parts}
    told = sorted(parts) if whole == {*names} and len(parts) <= _MOST_NAMES else sorted(names)
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"{count:,} weights ({', '.join(told[:_MOST_NAMES])}{more})"
