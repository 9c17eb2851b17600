"""What a data set holds: counts, sizes, modes, files that do not decode, images that occur twice, a contact sheet."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dpfedmeta.data.contents import SPLITS, Split
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.pixels import UNREADABLE
from dpfedmeta.data.pool import ClassPool
from dpfedmeta.data.sources.image_folder import class_folders, image_files, read_image
from dpfedmeta.data.task import FolderSource, Task, load_task
from dpfedmeta.errors import InputError

_SHEET_CLASSES, _SHEET_IMAGES = 8, 10
_TILE, _GAP = 42, 2


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """One split.

    Attributes:
        classes: How many.
        images: Of all of them.
        fewest: Images of the smallest class.
        most: Images of the largest class.
        smallest: Name of the smallest class.
    """

    classes: int
    images: int
    fewest: int
    most: int
    smallest: str


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """What check_task.py found.

    Attributes:
        name: Of the task.
        image_size: Height and width after decoding.
        channels: 1 or 3.
        splits: By name; empty where the task could not be opened.
        sizes: Of a folder's files, "width x height" to how many.
        modes: Of a folder's files, Pillow's mode to how many.
        unreadable: A folder's files that do not decode, with the reason.
        repeated: Images that occur more than once, by content after decoding (the copies, not the first).
        across_splits: Contents that occur in two splits, as "split/class, split/class".
        problem: Why the task cannot be opened; None: it can.
    """

    name: str
    image_size: int
    channels: int
    splits: dict[Split, SplitReport]
    sizes: dict[str, int]
    modes: dict[str, int]
    unreadable: tuple[str, ...]
    repeated: int
    across_splits: tuple[str, ...]
    problem: str | None

    @property
    def sound(self) -> bool:
        """Whether it can be trained on, and no image of a held-out class is also a training image."""
        return self.problem is None and not self.unreadable and not self.across_splits


def inspect_task(name: str, data_folder: Path | None) -> tuple[TaskReport, Dataset | None]:
    """Open a task and look at everything in it.

    Returns:
        What was found, and the data set where it could be opened.

    Raises:
        InputError: There is no such task, or nothing of it can be looked at.
    """
    task, _ = load_task(name)
    folder = task.source if isinstance(task.source, FolderSource) else None
    sizes, modes, unreadable = _files(Path(folder.path), task) if folder else ({}, {}, ())
    dataset, problem = None, None
    try:
        dataset = open_dataset(name, data_folder)
    except InputError as error:
        if folder is None:
            raise
        problem = str(error)
    pools: dict[Split, ClassPool] = {split: getattr(dataset, split) for split in SPLITS} if dataset else {}
    repeated, across = _repeats(pools)
    report = TaskReport(
        name=task.name,
        image_size=task.image_size,
        channels=task.channels,
        splits={split: _split(pool) for split, pool in pools.items()},
        sizes=sizes,
        modes=modes,
        unreadable=unreadable,
        repeated=repeated,
        across_splits=across,
        problem=problem,
    )
    return report, dataset


def _split(pool: ClassPool) -> SplitReport:
    fewest = min(pool.counts)
    return SplitReport(
        classes=pool.classes,
        images=pool.size,
        fewest=fewest,
        most=max(pool.counts),
        smallest=pool.names[pool.counts.index(fewest)],
    )


def _files(path: Path, task: Task) -> tuple[dict[str, int], dict[str, int], tuple[str, ...]]:
    """Sizes, modes and unreadable files of a folder."""
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    unreadable: list[str] = []
    for file in (f for folders in class_folders(path).values() for folder in folders for f in image_files(folder)):
        try:
            with Image.open(io.BytesIO(file.read_bytes())) as image:
                sizes[f"{image.width} x {image.height}"] += 1
                modes[image.mode] += 1
            read_image(file, task.channels, task.image_size)
        except (*UNREADABLE, InputError) as error:
            unreadable.append(f"{file}: {error}" if str(file) not in str(error) else str(error))
    return dict(sizes.most_common()), dict(modes.most_common()), tuple(unreadable)


def _repeats(pools: dict[Split, ClassPool]) -> tuple[int, tuple[str, ...]]:
    """How many images repeat another one, and which contents stand in two splits."""
    seen: dict[bytes, tuple[Split, str]] = {}
    repeated, across = 0, []
    for split, pool in pools.items():
        for name, digest in _digests(pool):
            if digest not in seen:
                seen[digest] = (split, name)
                continue
            repeated += 1
            first = seen[digest]
            if first[0] != split:
                across.append(f"{first[0]}/{first[1]}, {split}/{name}")
    return repeated, tuple(across)


def _digests(pool: ClassPool) -> Iterator[tuple[str, bytes]]:
    for name, first, count in zip(pool.names, pool.first, pool.counts, strict=True):
        for image in np.asarray(pool.images[first : first + count]):
            yield name, hashlib.sha256(image.tobytes()).digest()


def contact_sheet(dataset: Dataset) -> Image.Image:
    """Images of some classes of each split, a row per class, as decoded and before standardisation."""
    rows = [
        np.asarray(pool.images[pool.first[index] : pool.first[index] + min(pool.counts[index], _SHEET_IMAGES)])
        for pool in (dataset.train, dataset.val, dataset.test)
        for index in np.unique(np.linspace(0, pool.classes - 1, _SHEET_CLASSES).astype(int)).tolist()
    ]
    step = _TILE + _GAP
    sheet = Image.new("RGB", (_SHEET_IMAGES * step + _GAP, len(rows) * step + _GAP), "white")
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).convert("RGB")
            place = (_GAP + column * step, _GAP + row * step)
            sheet.paste(picture.resize((_TILE, _TILE), Image.Resampling.LANCZOS), place)
    return sheet
