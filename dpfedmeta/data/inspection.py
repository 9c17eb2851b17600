"""Inspection of a data set: counts, sizes, modes, unreadable files, repeated images and a contact sheet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.client_inspection import lone_classes
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape, Kind, WholeShape
from dpfedmeta.data.missing import names_of
from dpfedmeta.data.populations.capacity_checks import able_clients, check_shape
from dpfedmeta.data.populations.whole_population import able_numbers, check_whole, everybody
from dpfedmeta.data.repeated_images import repeats
from dpfedmeta.data.storage.decoded_cache import SPLITS, Split
from dpfedmeta.data.storage.image_codecs import UNREADABLE, WIDE, changes, open_image
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.image_folder import read_image
from dpfedmeta.data.user_sources.readers import READERS, columns_in, image_files_of

_SHEET_CLASSES, _SHEET_IMAGES = 8, 10
_TILE, _GAP = 42, 2


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """Counts and sizes of one split of a data set.

    Attributes:
        classes: Number of classes.
        images: Number of images in all classes.
        fewest: Images of the smallest class.
        most: Images of the largest class.
        smallest: Name of the smallest class.
        clients: Number of clients that the data name; 0 if they name none.
        able: SECRET for training clients: number of clients with enough records for an episode; None: not asked.
        numbers: Vectors: the smallest, mean and largest number that was measured. Tokens: the shortest and longest
            sequence and the number of different ids. Images: empty.
    """

    classes: int
    images: int
    fewest: int
    most: int
    smallest: str
    clients: int = 0
    able: int | None = None
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Shape of the episodes that training and evaluation would draw from a data set.

    Attributes:
        shape: Episode shape of a training client.
        evaluation_queries: Query records per class in validation and test episodes.
        whole: Public limits of clients that use all their records; None: episodes have a fixed size.
        ways_given: Whether the number of classes was asked for, and is not the default.
    """

    shape: EpisodeShape
    evaluation_queries: int
    whole: WholeShape | None = None
    ways_given: bool = False

    def of_task(self, task: Task) -> Episodes:
        """For a task: numbers to predict have no classes, so `ways` is 1 by itself, as in training.

        Raises:
            InputError: Another number was asked for.
        """
        if task.targets is None or self.shape.ways == 1:
            return self
        if self.ways_given:
            raise InputError(
                f"task.ways = {self.shape.ways}: {task.name} has numbers to predict and no classes; leave --ways out"
            )
        return replace(self, shape=replace(self.shape, ways=1))

    def of(self, split: Split) -> EpisodeShape:
        """In one split."""
        return self.shape if split == "train" else replace(self.shape, queries=self.evaluation_queries)

    def check(self, dataset: Dataset) -> None:
        """By the checks that training makes.

        Raises:
            InputError: Training would refuse it, with these words.
        """
        for split in SPLITS if dataset.task.shared_classes is None else ():
            if self.whole is None:
                check_shape(getattr(dataset, split), self.of(split), split)
            else:
                check_whole(getattr(dataset, split), self.whole, split, self._authors)

    def able(self, pool: ClassPool, split: Split) -> int | None:
        """SECRET for training clients: how many of a pool's clients have enough records; None: it names none."""
        if self.whole is not None and (pool.clients or pool.groups):
            return len(able_numbers(everybody(pool, self.whole, 0, self._authors)))
        return len(able_clients(pool, self.of(split))) if pool.clients else None

    @property
    def _authors(self) -> int:
        return self.shape.shots + self.shape.queries


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """Report of check_task.py on a task.

    Attributes:
        name: Name of the task.
        records: Form of a record, in words.
        kind: Kind of the records.
        image_size: Height and width after decoding; None if records are not images.
        channels: 1 or 3; None if records are not images.
        splits: Report of each split by its name; empty if the task could not be opened.
        sizes: Number of a folder's files by "width x height".
        modes: Number of a folder's files by Pillow's mode.
        unreadable: Files of a folder that do not decode, with the reason.
        repeated: Number of copies of images that came before, by content after decoding; None: not counted, since the
            task could not be opened.
        across_splits: Contents that occur in two splits, as "split/class, split/class".
        problem: Reason for which training would refuse the task; None if it would not.
        remarks: SECRET like the data: how they were read, likely mistakes, and files that were left out.
        predicts_numbers: Whether records come with numbers to predict, in the place of classes.
    """

    name: str
    records: str
    kind: Kind
    image_size: int | None
    channels: int | None
    splits: dict[Split, SplitReport]
    sizes: dict[str, int]
    modes: dict[str, int]
    unreadable: tuple[str, ...]
    repeated: int | None
    across_splits: tuple[str, ...]
    problem: str | None
    remarks: tuple[str, ...] = ()
    predicts_numbers: bool = False

    @property
    def sound(self) -> bool:
        """True if the task can be trained on, all files decode, and no image occurs in two splits."""
        return self.problem is None and not self.unreadable and not self.across_splits


def inspect_task(
    name: str, data_folder: Path | None, episodes: Episodes | None = None
) -> tuple[TaskReport, Dataset | None]:
    """Open a task and look at everything in it.

    Args:
        name: As --dataset.
        data_folder: As in `open_dataset`.
        episodes: What would be drawn from it; None: that is not looked at.

    Returns:
        What was found, and the data set where it could be opened.

    Raises:
        InputError: There is no such task, or nothing of it can be looked at.
    """
    task, _ = load_task(name, data_folder)
    episodes = episodes.of_task(task) if episodes else None
    own = task.source if isinstance(task.source, OwnSource) else None
    files = image_files_of(own.reader, Path(own.path)) if own else ()
    sizes, modes, unreadable, changed = _files(files, task)
    dataset, problem = None, None
    try:
        dataset = open_dataset(name, data_folder, episodes.shape.ways if episodes else None)
        if episodes is not None:
            episodes.check(dataset)
    except InputError as error:
        if own is None and dataset is None:
            raise
        problem = str(error)
    pools: dict[Split, ClassPool] = {split: getattr(dataset, split) for split in SPLITS} if dataset else {}
    repeated, across = repeats(pools) if pools else (None, ())
    report = TaskReport(
        name=task.name,
        records=task.form.words,
        kind=task.form.kind,
        image_size=task.image_size,
        channels=task.channels,
        splits={
            split: _split(pool, task, episodes.able(pool, split) if episodes else None) for split, pool in pools.items()
        },
        sizes=sizes,
        modes=modes,
        unreadable=unreadable,
        repeated=repeated,
        across_splits=across,
        problem=problem,
        remarks=(*_remarks(task), *changed, *_of_range(task, modes), *(_lone(pools["train"], task) if pools else ())),
        predicts_numbers=task.targets is not None,
    )
    return report, dataset


def _remarks(task: Task) -> tuple[str, ...]:
    """Return remarks on how the user's own data were read; errors are left to `problem`."""
    own = task.source
    try:
        return READERS[own.reader].remarks(Path(own.path), task, public=False) if isinstance(own, OwnSource) else ()
    except InputError:
        return ()


def _lone(pool: ClassPool, task: Task) -> tuple[str, ...]:
    """SECRET: those of a training client's own classes that have a single record."""
    return lone_classes((name for name, count in zip(pool.names, pool.counts, strict=True) for _ in range(count)), task)


def _split(pool: ClassPool, task: Task, able: int | None) -> SplitReport:
    fewest = min(pool.counts)
    return SplitReport(
        classes=pool.classes,
        images=pool.size,
        fewest=fewest,
        most=max(pool.counts),
        smallest=pool.names[pool.counts.index(fewest)],
        clients=len(set(pool.clients)),
        able=able,
        numbers=_numbers(pool, task),
    )


def _numbers(pool: ClassPool, task: Task) -> tuple[float, ...]:
    kind = task.form.kind
    if kind == "images":
        return ()
    records = np.concatenate([pool.images[first : first + n] for first, n in zip(pool.first, pool.counts, strict=True)])
    if task.form.targets:
        records = records[:, :-1]
    if kind == "vectors":
        if (missing := task.form.missing) is not None:
            records = missing.measured(records, _columns(task))
        if not records.size:
            return ()
        return float(records.min()), float(records.mean(dtype=np.float64)), float(records.max())
    lengths = np.count_nonzero(records, axis=1)
    return float(lengths.min()), float(lengths.max()), float(len(np.unique(records[records > 0])))


def _columns(task: Task) -> list[str]:
    own = task.source
    columns = columns_in(own.reader, Path(own.path)) if isinstance(own, OwnSource) else ()
    return names_of(columns, task.features or 0)


def _of_range(task: Task, modes: Mapping[str, int]) -> tuple[str, ...]:
    if task.pixel_range is None or not modes or WIDE.intersection(modes):
        return ()
    return ("pixel_range has no effect: no file is wider than 8 bits per colour; leave it out",)


def _files(
    files: Sequence[Path], task: Task
) -> tuple[dict[str, int], dict[str, int], tuple[str, ...], tuple[str, ...]]:
    """Sizes, modes and unreadable ones among image files, and what becomes of the others, counted."""
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    unreadable: list[str] = []
    changed: dict[str, list[Path]] = {}
    for file in files:
        try:
            with open_image(file.read_bytes()) as image:
                sizes[f"{image.width} x {image.height}"] += 1
                modes[image.mode] += 1
                for words in changes(image, task.form.shape[0], task.form.shape[1], task.pixel_range):
                    changed.setdefault(words, []).append(file)
            read_image(file, task.form.shape[0], task.form.shape[1], task.pixel_range)
        except (*UNREADABLE, InputError) as error:
            unreadable.append(f"{file}: {error}" if str(file) not in str(error) else str(error))
    return dict(sizes.most_common()), dict(modes.most_common()), tuple(unreadable), _counted(changed)


def _counted(changed: Mapping[str, Sequence[Path]]) -> tuple[str, ...]:
    return tuple(f"{len(files):,} files {words} (first: {files[0]})" for words, files in changed.items())


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
