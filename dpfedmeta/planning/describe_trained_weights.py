"""Description of what will be trained, printed before the first round."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.user_sources.image_files import form_of_images
from dpfedmeta.data.user_sources.readers import READERS, public_image_files_of
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.models.spec import HEAD, NetworkSpec
from dpfedmeta.planning.client_spec import algorithm_of, network_spec
from dpfedmeta.planning.privacy.message_length import countable_weights

_MOST_NAMES = 3


def trained_lines(settings: Settings, task: Task) -> tuple[str, ...]:
    """Describe the network's input and output, its learned weights, and the size that images are brought to."""
    algorithm, spec = algorithm_of(settings, task), network_spec(settings, task)
    return (
        f"network {spec.name}: {spec.form.words}, {spec.ways} outputs; {_learned_words(algorithm, spec, settings)}",
        *_image_words(settings.dataset, task),
        *_read_words(task),
    )


def _learned_words(algorithm: ClientAlgorithm, spec: NetworkSpec, settings: Settings) -> str:
    weights: Any = countable_weights(algorithm, spec, settings.run.seed)
    learned, frozen = algorithm.learned(spec, weights), _frozen(spec)
    kept = [name for name in weights if name not in learned and name not in frozen]
    said = [f"learns {_words(weights, learned)}"]
    if kept:
        said.append(
            f"leaves {_words(weights, kept)} " + ("at zero" if _begin_at_zero(spec, weights, kept) else "as they begin")
        )
    if frozen:
        said.append(f"keeps {_words(weights, sorted(frozen))} frozen (requires_grad_(False))")
    return ", ".join(said)


def _frozen(spec: NetworkSpec) -> frozenset[str]:
    if ":" not in spec.name:
        return frozenset()
    from dpfedmeta.learning.models.registry import build_network
    from dpfedmeta.learning.models.trainable import frozen_names

    return frozen_names(build_network(spec))


def _begin_at_zero(spec: NetworkSpec, weights: Mapping[str, Any], kept: Collection[str]) -> bool:
    if ":" not in spec.name:
        # As `initial_weights` makes them: a linear head that is not learned begins at zero, and nothing else.
        return all(name.startswith(HEAD) for name in kept)
    return not any(bool(weights[name].any()) for name in kept)


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
    return (f"images of {task.name} are resized to {form_of_images(files).words}; give a task file for another size",)


def _words(weights: Mapping[str, Any], names: Collection[str]) -> str:
    """Describe a set of weights by their number and place: parts of the network, or the first few tensors."""
    count = sum(math.prod(weights[name].shape) for name in names)
    parts = {name.partition(".")[0] for name in names}
    whole = {name for name in weights if name.partition(".")[0] in parts}
    told = sorted(parts) if whole == {*names} and len(parts) <= _MOST_NAMES else sorted(names)
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"{count:,} weights ({', '.join(told[:_MOST_NAMES])}{more})"
