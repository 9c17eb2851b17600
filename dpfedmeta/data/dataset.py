"""A task with its images: decoded at the first use, mapped afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import own_sources
from dpfedmeta.data.encoders.encoding import Encoding
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.sources import DrawnSource, published_reader
from dpfedmeta.data.storage.decoded_cache import SPLITS, Cached, Contents, Split, cache_folder, cached
from dpfedmeta.data.storage.downloads import check_data_folder, default_data_folder
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.image_folder import content_digest
from dpfedmeta.data.user_sources.labels import check_several_labels, labelled
from dpfedmeta.data.user_sources.readers import IMAGE_READERS, READERS, not_there
from dpfedmeta.data.user_sources.vectors import check_scale

# Part of what decoded data of the user's own are known by: raise it when they are read, or refused, in another way.
_READING = 5


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A task with its images: one class pool per split, of disjoint classes or images."""

    task: Task
    train: ClassPool
    val: ClassPool
    test: ClassPool


def open_dataset(
    name: str, data_folder: Path | None = None, ways: int | None = None, encoding: Encoding | None = None
) -> Dataset:
    """Load a task and its images, decoding or making them at the first use.

    Args:
        name: A built-in task, or the path of a task file or of data of the user's own.
        data_folder: --data-dir; None takes DPFEDMETA_DATA, else the user's data folder.
        ways: How many classes each part needs, where a hash of their names decides; None: as the hash says.
        encoding: Public encoder whose features take the place of the images; None: none.

    Raises:
        InputError: The task is wrong, or its images are absent, damaged or incomplete.
    """
    check_data_folder(data_folder)
    task, splits = load_task(name, data_folder, encoding)
    return open_task(task, splits, data_folder, ways)


def open_task(
    task: Task, splits: Mapping[str, Split], data_folder: Path | None = None, ways: int | None = None
) -> Dataset:
    """The images of a task.

    Args:
        task: As `load_task` gives it.
        splits: Of its classes, likewise.
        data_folder: As in `open_dataset`.
        ways: Likewise.

    Raises:
        InputError: The images are absent, damaged or incomplete.
    """
    folder = data_folder or default_data_folder()
    if task.encoding is not None:
        from dpfedmeta.data.encoders.features import encoded_pools  # brings PyTorch

        plain = open_task(replace(task, encoding=None), splits, data_folder, ways)
        kept = cache_folder(None if isinstance(task.source, OwnSource | DrawnSource) else folder)
        found = encoded_pools({"train": plain.train, "val": plain.val, "test": plain.test}, task.encoding, kept)
        return Dataset(task=task, train=found["train"], val=found["val"], test=found["test"])
    source, reader = task.source, None
    if isinstance(source, OwnSource):
        decoded = _own(task, source, splits, ways)
    else:
        reader = published_reader(source.reader)
        if reader.shared:
            shared = reader.pools(folder)
            of = {split: replace(pool, mean=task.mean, deviation=task.deviation) for split, pool in shared.items()}
            return Dataset(task=task, train=of["train"], val=of["val"], test=of["test"])
        located = reader.locate(task, splits, folder)
        kept, size = cache_folder(None if isinstance(source, DrawnSource) else folder), task.form.shape[-1]
        key = [*located.key, *_own_code(source.reader)]
        decoded = cached(kept, f"{task.name}-{size}", key, task.form.stored, located.contents)
    pools = {split: _pool(task, decoded, split, grouped=reader is not None and reader.grouped) for split in SPLITS}
    return Dataset(task=task, train=pools["train"], val=pools["val"], test=pools["test"])


def _own_code(reader: str) -> list[object]:
    """Code of a reader of the user's own: another one reads the data anew."""
    return [*sorted(own_sources([reader.partition(":")[0]]).items())] if ":" in reader else []


def _pool(task: Task, decoded: Cached, split: Split, *, grouped: bool) -> ClassPool:
    first = np.cumsum([0, *(entry.images for entry in decoded.classes)]).tolist()
    chosen = [index for index, entry in enumerate(decoded.classes) if entry.split == split]
    names = tuple(decoded.classes[index].name for index in chosen)
    return ClassPool(
        path=decoded.path,
        names=names,
        first=tuple(first[index] for index in chosen),
        counts=tuple(decoded.classes[index].images for index in chosen),
        rotations=task.train_rotations if split == "train" else 1,
        flip=task.train_flip and split == "train",
        mean=task.constants[0],
        deviation=task.constants[1],
        groups=tuple(name.split("/")[0] for name in names) if grouped else (),
        clients=tuple(filter(None, (decoded.classes[index].client for index in chosen))),
        labels=task.labels,
        targets=task.form.targets,
    )


def _own(task: Task, source: OwnSource, splits: Mapping[str, Split], ways: int | None) -> Cached:
    path, reader, cache, form = Path(source.path), READERS[source.reader], cache_folder(None), task.form
    if not path.exists():
        raise not_there(source.path)

    def contents() -> Contents:
        if source.reader in IMAGE_READERS:
            found = IMAGE_READERS[source.reader].contents(path, form, splits, ways, task.pixel_range)
        else:
            found = reader.contents(path, form, splits, ways)
        if form.kind == "vectors":
            check_scale(str(path), found, *task.constants, targets=form.targets)
        check_names_clients(str(path), task, found)
        check_several_labels(str(path), found, task.labels)
        return labelled(str(path), found, task.labels, task.targets)

    file = [str(path.resolve()), content_digest(path)] if path.is_file() else []
    # Only those of vectors decide over anything here; bytes are standardised when they are drawn.
    constants = [task.mean, task.deviation] if form.kind == "vectors" else [task.pixel_range]
    read = [source.reader, _READING, file, reader.key(path)]
    key = [*read, dict(splits), ways, *form.shape, form.vocabulary, *constants]
    if task.labels or task.targets is not None:
        key += [list(task.labels), repr(task.targets)]
    if task.missing is not None:
        key.append(repr(task.missing))
    return cached(cache, f"{path.resolve().stem}-{form.shape[-1]}", key, form.stored, contents)


def check_names_clients(where: str, task: Task, found: Contents) -> None:
    """Refuse labels that all clients share in data that do not say who holds what.

    Raises:
        InputError: The data name no clients, so each label would be in one part only.
    """
    if (task.labels or task.targets is not None) and not found.classes[0].client:
        raise InputError(
            f"{where}: names no clients, but labels that all clients share need them: parts are made of clients, not "
            "of classes; add a column client (an array clients), or folders CLIENT/CLASS/IMAGE"
        )
