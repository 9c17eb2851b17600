"""Records that stand in the data twice: no test at all in two parts, nor in the support and the query of one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.storage.decoded_cache import SPLITS, Split
from dpfedmeta.data.task import OwnSource

# Of all records: people may have the same few numbers by chance.
_FEWEST_COPIES = 0.02


def repeats(pools: Mapping[Split, ClassPool], *, blank: bool = True) -> tuple[int, tuple[str, ...]]:
    """Count images that repeat an earlier one, and list the contents that occur in two splits.

    Args:
        pools: Of each split.
        blank: Whether images of one colour count.
    """
    seen: dict[bytes, tuple[Split, str]] = {}
    repeated, across = 0, []
    for split, pool in pools.items():
        for name, digest in _digests(pool, blank):
            if digest not in seen:
                seen[digest] = (split, name)
                continue
            repeated += 1
            first = seen[digest]
            if first[0] != split:
                across.append(f"{first[0]}/{first[1]}, {split}/{name}")
    return repeated, tuple(across)


def check_parts_apart(dataset: Dataset) -> None:
    """Check that no image of somebody's own data is both trained on and tested on.

    Vectors are not compared: two people may have the same few numbers. Nor are images of one colour, and benchmarks,
    whose parts are given.

    Raises:
        InputError: One is; names its classes.
    """
    if not isinstance(dataset.task.source, OwnSource) or dataset.task.form.kind != "images":
        return
    _, across = repeats({split: getattr(dataset, split) for split in SPLITS}, blank=False)
    trained = [pair for pair in across if pair.startswith("train/")]
    if trained:
        raise InputError(
            f"{dataset.task.name}: {len(trained)} image(s) stand in two parts, first {trained[0]}: accuracy would be "
            "that of images that clients trained on; keep each in one part (dpfedmeta check-task names them all)"
        )


def copies_words(dataset: Dataset, *splits: Split) -> tuple[str, ...]:
    """Say of each public split how many of its records are copies of others of their class, if one in fifty is.

    A copy in the support set and one in the query set are no test of what was learned: noise is known again. Of the
    train part nothing is said, since that is private.
    """
    found = []
    for split in splits if isinstance(dataset.task.source, OwnSource) else ():
        pool: ClassPool = getattr(dataset, split)
        records, first = pool.plain_images()
        blocks = [np.asarray(records[start : start + n]) for start, n in zip(first, pool.counts, strict=True)]
        if words := words_of_copies(sum(map(len, blocks)), sum(map(different, blocks))):
            found.append(f"{dataset.task.name}: {split}: {words}")
    return tuple(found)


def words_of_copies(records: int, distinct: int) -> str | None:
    """Say how many records are copies; None: fewer than one in fifty."""
    copies = records - distinct
    if copies < _FEWEST_COPIES * records:
        return None
    return (
        f"{copies:,} of {records:,} records are copies of others of their class ({distinct:,} are different), so a "
        "copy may adapt and another one judge: accuracy is then memory; keep one of each"
    )


def different(records: np.ndarray[Any, Any]) -> int:
    """Number of different records."""
    return len({record.tobytes() for record in records})


def _digests(pool: ClassPool, blank: bool) -> Iterator[tuple[str, bytes]]:
    for name, first, count in zip(pool.names, pool.first, pool.counts, strict=True):
        for image in np.asarray(pool.images[first : first + count]):
            if blank or image.min() != image.max():
                yield name, hashlib.sha256(image.tobytes()).digest()
