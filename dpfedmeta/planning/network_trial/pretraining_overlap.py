"""Allowed values of `model.initial`: initial weights that did not learn from what the run wants to protect."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedmeta.config.dataset_names import encoding_of_run, shipped_task
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_checks import is_run
from dpfedmeta.core.files.run_directory import CONFIG, RunDirectory
from dpfedmeta.data.dataset import Dataset, open_task
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.sources import DrawnSource
from dpfedmeta.data.storage.decoded_cache import Split
from dpfedmeta.data.storage.downloads import without_downloads
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.models.spec import BUILT_IN, NetworkSpec, beginning_words, built_in_body
from dpfedmeta.planning.data_digests import HeldData, kept_data

_BLOCK = 1024


# A task and the splits of its classes, as `load_task` gives them.
Described = tuple[Task, dict[str, Split]]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A run behind the weights that another one begins with.

    Attributes:
        path: Its directory.
        settings: Its settings; None: nothing is there any more, neither a run nor a file of weights.
    """

    path: Path
    settings: Settings | None


def origins(initial: str | None) -> Iterator[Origin]:
    """The run that left these weights, the one that it began with, and so on."""
    seen: set[Path] = set()
    while initial is not None and initial not in BUILT_IN:
        path = Path(initial).resolve()
        run = next((folder for folder in (path, path.parent, path.parent.parent) if is_run(folder)), None)
        if run is None and not path.exists():
            yield Origin(path=path, settings=None)
        if run is None or run in seen:
            return
        seen.add(run)
        settings = resolve(None, None, run / CONFIG)
        yield Origin(path=run, settings=settings)
        initial = settings.model.initial


def check_origins(settings: Settings, dataset: Dataset, held: HeldData, data_folder: Path | None) -> None:
    """Refuse weights that learned from the training images of this run, wherever a copy of the images lies.

    Compared are where the images come from, what the runs kept of them, and the decoded images themselves. Where that
    is impossible the weights are refused too.

    Args:
        settings: Of this run; model.initial says what it begins with.
        dataset: What it is about to learn from.
        held: SECRET: its digests.
        data_folder: --data-dir; None as in `open_dataset`.

    Raises:
        RefusedPlan: They did, or it cannot be found out.
    """
    initial = settings.model.initial
    for origin in origins(initial):
        try:
            same = _learned_from(origin, settings, dataset, held, data_folder)
        except InputError as error:
            raise RefusedPlan(
                f"model.initial = {initial}: it cannot be checked whether {origin.path} learned from the data of this "
                f"run ({error}); if its weights are public, copy them out of that run and give the copy"
            ) from error
        if same:
            raise same_images(initial, dataset.task)


def same_images(initial: str | None, task: Task) -> RefusedPlan:
    """The refusal of weights that are not public towards these images."""
    return RefusedPlan(
        f"model.initial = {initial}: these weights were learned from the images of {task.name} too, and the epsilon "
        "that this cost is not in this run's ledger; begin with weights from public data, or continue that run with "
        "--resume"
    )


def _learned_from(
    origin: Origin, settings: Settings, dataset: Dataset, held: HeldData, data_folder: Path | None
) -> bool:
    if origin.settings is None:
        raise InputError("it is gone")
    kept = _kept(origin)
    if kept is not None and kept.own:
        if kept.clients is None or kept.clients != held.clients:
            raise InputError("it learned from clients that were handed over in Python")
        return True
    if kept is not None and kept.decoded == held.decoded:
        return True
    other = load_task(origin.settings.dataset)
    mine, its = dataset.task.source, other[0].source
    then = None if kept is None else kept.source
    if mine.name in (its.name, then):
        return True
    if isinstance(its, DrawnSource):
        return False  # nobody's data
    if held.own:
        raise InputError("clients that are handed over in Python cannot be compared with its images")
    if not isinstance(mine, OwnSource) and not isinstance(its, OwnSource):
        return False  # different published images
    if then not in (None, its.name):
        raise InputError(f"its images came from {then}, but {origin.settings.dataset} names another place here")
    return shares_images(dataset.train, load_task(settings.dataset), other, data_folder)


def _kept(origin: Origin) -> HeldData | None:
    """Return the data digests of an earlier run; None if they are gone, as in a published run, which has no secrets."""
    try:
        return kept_data(RunDirectory(origin.path))
    except InputError:
        return None


def shares_images(pool: ClassPool, mine: Described, other: Described, data_folder: Path | None) -> bool:
    """SECRET where the images are: whether an image of some classes is also an image of another task.

    Images are compared as they are decoded, so names, paths, splits and image sizes do not hide them; those that were
    cropped or compressed again are others. Nothing is downloaded, and images of one colour say nothing.

    Args:
        pool: The training classes of `mine`, whose images are looked for.
        mine: Their task.
        other: The task in which they are looked for, in all splits.
        data_folder: As in `open_dataset`.

    Raises:
        InputError: The images of the other task cannot be opened here, or are of another kind of records.
    """
    (task, splits), (other_task, other_splits) = mine, other
    with without_downloads():
        if task.form != other_task.form:
            if task.form.kind != "images" or other_task.form.kind != "images":
                raise InputError(f"{task.form.words} cannot be compared with {other_task.form.words}")
            # A folder can be decoded to any form, and the other images may come from it.
            if isinstance(task.source, OwnSource):
                pool = open_task(_in_form_of(task, other_task), splits, data_folder).train
            else:
                other_task = _in_form_of(other_task, task)
        opened = open_task(other_task, other_splits, data_folder)
    wanted = {
        digest
        for first, count in zip(pool.first, pool.counts, strict=True)
        for digest in _digests(pool.images[first : first + count])
    }
    parts = {each.path: each.images for each in (opened.train, opened.val, opened.test)}
    return any(digest in wanted for images in parts.values() for digest in _digests(images))


def _in_form_of(task: Task, other: Task) -> Task:
    return replace(task, channels=other.channels, image_size=other.image_size)


def _digests(images: ImageArray) -> Iterator[bytes]:
    for start in range(0, len(images), _BLOCK):
        block = np.ascontiguousarray(images[start : start + _BLOCK]).reshape(-1, int(np.prod(images.shape[1:])))
        for row in block[block.min(axis=1) != block.max(axis=1)]:
            yield hashlib.blake2b(row.data, digest_size=16).digest()


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
    encoding = encoding_of_run(settings)
    encoder = None if encoding is None else encoding.facts(shipped_task(settings.dataset))
    return beginning_words(settings.model.initial, encoder)
