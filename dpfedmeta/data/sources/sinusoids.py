"""Sinusoids of Finn et al. 2017 (https://arxiv.org/abs/1703.03400, section 5.1): numbers to predict without any file.

Every client holds points of one curve of its own, y = a sin(x - p), with an amplitude a in [0.1, 5], a phase p in
[0, pi] and x in [-5, 5], all uniform.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.columns import TARGET
from dpfedmeta.data.episodes.class_pool import FloatRecords
from dpfedmeta.data.sources import DrawnSource, Located, PublishedReader, Source, images_of_a_class
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents
from dpfedmeta.data.user_sources.labels import labelled

if TYPE_CHECKING:
    from dpfedmeta.data.storage.decoded_cache import Split
    from dpfedmeta.data.task import Task


def draw_curve(seed: int, number: int, points: int) -> FloatRecords:
    """Points (x, y) of one curve, [points, 2]; a function of the arguments."""
    generator = public_generator(seed, Purpose.TASK_DATA, number)
    amplitude, phase = generator.uniform(0.1, 5.0), generator.uniform(0.0, np.pi)
    x = generator.uniform(-5.0, 5.0, points)
    return np.stack([x, amplitude * np.sin(x - phase)], axis=1).astype(np.float32)


class Sinusoids(PublishedReader):
    """Reader `sinusoids`; the task's images_per_class are the points of a curve."""

    form: ClassVar[type[Source]] = DrawnSource
    numbers: ClassVar[bool] = True

    @classmethod
    def locate(cls, task: Task, splits: Mapping[str, Split], folder: Path) -> Located:
        """Nothing is looked for: curves are drawn."""
        assert isinstance(task.split, dict)
        assert isinstance(task.source, DrawnSource)
        seed, points = task.source.seed, images_of_a_class(task)
        parts = [split for split in SPLITS for _ in range(task.split[split])]
        entries = tuple(
            ClassEntry(name=TARGET, split=split, images=points, client=f"curve{number:06d}")
            for number, split in enumerate(parts)
        )

        def decode() -> Iterator[FloatRecords]:
            return (draw_curve(seed, number, points) for number in range(len(parts)))

        def contents() -> Contents:
            return labelled(task.name, Contents(classes=entries, decode=decode), (), task.targets)

        return Located(key=[seed, points, dict(task.split), repr(task.targets)], contents=contents)


MEMBER = Sinusoids
