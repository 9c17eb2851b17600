"""Test for images that two data sets share, regardless of their paths and names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_task
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.storage.decoded_cache import Split
from dpfedmeta.data.storage.downloads import without_downloads
from dpfedmeta.data.task import OwnSource, Task

_BLOCK = 1024


# A task and the splits of its classes, as `load_task` gives them.
Described = tuple[Task, dict[str, Split]]


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
                raise InputError(f"{task.form.words} are not compared with {other_task.form.words}")
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
