"""A task with its images: decoded at the first use, mapped afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedmeta.data.data_dirs import check_data_folder, default_data_folder
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.sources import cifar100, mini_imagenet, mnist, omniglot, strokes, textures
from dpfedmeta.data.storage.decoded_cache import (
    SPLITS,
    Cached,
    ClassEntry,
    Contents,
    Split,
    cache_folder,
    cached,
    source_key,
)
from dpfedmeta.data.storage.downloads import find, find_any, warn_if_unknown
from dpfedmeta.data.task import ArchiveSource, DrawnSource, MnistSource, OwnSource, Task, load_task
from dpfedmeta.data.user_sources.image_folder import content_digest
from dpfedmeta.data.user_sources.readers import IMAGE_READERS, READERS, not_there
from dpfedmeta.data.user_sources.vectors import check_scale

# Part of what decoded images of the user's own are known by: raise it when pixels are read in another way.
_PIXELS = 2


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A task with its images: one class pool per split, of disjoint classes or images."""

    task: Task
    train: ClassPool
    val: ClassPool
    test: ClassPool


def open_dataset(name: str, data_folder: Path | None = None, ways: int | None = None) -> Dataset:
    """Load a task and its images, decoding or making them at the first use.

    Args:
        name: A built-in task, or the path of a task file or of data of the user's own.
        data_folder: --data-dir; None takes DPFEDMETA_DATA, else the user's data folder.
        ways: How many classes each part needs, where a hash of their names decides; None: as the hash says.

    Raises:
        InputError: The task is wrong, or its images are absent, damaged or incomplete.
    """
    check_data_folder(data_folder)
    task, splits = load_task(name, data_folder)
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
    if isinstance(task.source, MnistSource):
        pools = {
            split: replace(pool, mean=task.mean, deviation=task.deviation)
            for split, pool in mnist.three_ways(mnist.open_mnist(folder)).items()
        }
    else:
        decoded = _decoded(task, task.source, splits, folder, ways)
        pools = {split: _pool(task, decoded, split) for split in SPLITS}
    return Dataset(task=task, train=pools["train"], val=pools["val"], test=pools["test"])


def _pool(task: Task, decoded: Cached, split: Split) -> ClassPool:
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
        mean=task.mean,
        deviation=task.deviation,
        # The drawers of an alphabet drew all of its characters, number k of each.
        groups=tuple(name.split("/")[0] for name in names) if task.source.reader == "omniglot" else (),
        clients=tuple(filter(None, (decoded.classes[index].client for index in chosen))),
    )


def _decoded(
    task: Task,
    source: ArchiveSource | OwnSource | DrawnSource,
    splits: Mapping[str, Split],
    folder: Path,
    ways: int | None,
) -> Cached:
    if isinstance(source, OwnSource):
        return _own(task, source, splits, ways)
    if isinstance(source, DrawnSource):
        return _drawn(task, source)
    if source.reader == "omniglot":
        return _omniglot(task, source, splits, folder)
    if source.reader == "cifar100":
        return _cifar100(task, source, splits, folder)
    return _mini_imagenet(task, source, splits, folder)


def _shape(task: Task) -> tuple[int, ...]:
    return task.form.shape


def _size(task: Task) -> int:
    return task.form.shape[-1]


def _omniglot(task: Task, source: ArchiveSource, splits: Mapping[str, Split], folder: Path) -> Cached:
    paths = [find(archive, folder / source.folder) for archive in source.archives]
    cache, drawings = cache_folder(folder), _images_per_class(task)

    def decode() -> Iterator[ImageArray]:
        yield omniglot.decode(paths, tuple(splits), _size(task), drawings)
        for path, archive in zip(paths, source.archives, strict=True):
            warn_if_unknown(path, archive)

    def contents() -> Contents:
        return Contents(classes=_entries(splits, drawings), decode=decode)

    key = [*(source_key(path, cache) for path in paths), dict(splits), _size(task), drawings]
    return cached(cache, f"{task.name}-{_size(task)}", key, _shape(task), contents)


def _cifar100(task: Task, source: ArchiveSource, splits: Mapping[str, Split], folder: Path) -> Cached:
    extracted = tuple(name for name, _ in cifar100.FOLDERS)
    path, archive = find_any(source.archives, extracted, (folder / source.folder, folder))
    cache, images = cache_folder(folder), _images_per_class(task)

    def contents() -> Contents:
        found = cifar100.contents(path, splits, _size(task), images)
        if archive is not None:
            warn_if_unknown(path, archive)
        return found

    sources = [source_key(file, cache) for file in cifar100.source_files(path)]
    key = ["cifar100", *sources, dict(splits), _size(task), images]
    return cached(cache, f"{task.name}-{_size(task)}", key, _shape(task), contents)


def _mini_imagenet(task: Task, source: ArchiveSource, splits: Mapping[str, Split], folder: Path) -> Cached:
    inside = folder / source.folder
    form = mini_imagenet.find_form(inside)
    cache = cache_folder(folder)

    def contents() -> Contents:
        return mini_imagenet.contents(form, splits, _size(task))

    key = ["mini-imagenet", *(source_key(file, cache) for file in form.files), dict(splits), _size(task)]
    return cached(cache, f"{task.name}-{_size(task)}", key, _shape(task), contents)


def _own(task: Task, source: OwnSource, splits: Mapping[str, Split], ways: int | None) -> Cached:
    path, reader, cache, form = Path(source.path), READERS[source.reader], cache_folder(None), task.form
    if not path.exists():
        raise not_there(source.path)

    def contents() -> Contents:
        if source.reader in IMAGE_READERS:
            return IMAGE_READERS[source.reader].contents(path, form, splits, ways, task.pixel_range)
        found = reader.contents(path, form, splits, ways)
        if form.kind == "vectors":
            check_scale(str(path), found, task.mean, task.deviation)
        return found

    file = [str(path.resolve()), content_digest(path)] if path.is_file() else []
    # Only those of vectors decide over anything here; bytes are standardised when they are drawn.
    constants = [task.mean, task.deviation] if form.kind == "vectors" else [_PIXELS, task.pixel_range]
    key = [source.reader, file, reader.key(path), dict(splits), ways, *form.shape, form.vocabulary, *constants]
    return cached(cache, f"{path.resolve().stem}-{form.shape[-1]}", key, form.shape, contents)


def _drawn(task: Task, source: DrawnSource) -> Cached:
    assert isinstance(task.split, dict)
    counts, images, size = task.split, _images_per_class(task), _size(task)
    draw, name = (
        (strokes.draw_character, "character") if source.reader == "strokes" else (textures.draw_texture, "texture")
    )
    splits: list[Split] = [split for split in SPLITS for _ in range(counts[split])]
    named = {f"{name}{number:04d}": split for number, split in enumerate(splits)}

    def decode() -> Iterator[ImageArray]:
        for number in range(len(named)):
            yield draw(source.seed, number, images, size, source.variation)

    def contents() -> Contents:
        return Contents(classes=_entries(named, images), decode=decode)

    key = [source.seed, source.variation, named, images, size]
    return cached(cache_folder(None), f"{task.name}-{size}", key, _shape(task), contents)


def _entries(splits: Mapping[str, Split], images: int) -> tuple[ClassEntry, ...]:
    return tuple(ClassEntry(name=name, split=split, images=images) for name, split in splits.items())


def _images_per_class(task: Task) -> int:
    assert task.images_per_class is not None  # the task file was checked
    return task.images_per_class
