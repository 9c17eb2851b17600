"""The built-in benchmark: random pen strokes per character, many drawers per character."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.core.random.random_sources import FloatArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.sources import DrawnSource, Located, PublishedReader, Source, drawn
from dpfedmeta.data.storage.decoded_cache import Split

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

# Dense enough that neighbouring points lie closer than a pen's width.
_POINTS_PER_STROKE = 32
_LARGEST_STROKES = 4


def draw_character(seed: int, character: int, drawers: int, size: int, variation: float) -> ImageArray:
    """All drawings of one character, [drawers, 1, size, size], white on black; a function of the arguments.

    A character is 2 to 4 cubic Bezier strokes with random control points. A drawer moves the control points,
    turns, shears, scales and shifts the whole, and picks a pen width.
    """
    generator = public_generator(seed, Purpose.TASK_DATA, character)
    strokes = int(generator.integers(2, _LARGEST_STROKES + 1))
    controls = generator.uniform(-0.75, 0.75, size=(strokes, 4, 2))
    return np.stack([_draw(controls, generator, size, variation) for _ in range(drawers)])[:, None]


def _draw(controls: FloatArray, generator: np.random.Generator, size: int, variation: float) -> ImageArray:
    moved = controls + generator.normal(0.0, 0.13 * variation, size=controls.shape)
    angle = generator.normal(0.0, 0.25 * variation)
    shear = generator.normal(0.0, 0.2 * variation)
    scale = np.exp(generator.normal(0.0, 0.15 * variation, size=2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    bent = turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag(scale)
    points = _curve(moved) @ bent.T + generator.normal(0.0, 0.1 * variation, size=2)
    width = 0.075 * np.exp(generator.normal(0.0, 0.25 * variation))
    return _render(points, width, size)


def _curve(controls: FloatArray) -> FloatArray:
    """Points along each cubic Bezier curve, [strokes, points, 2]."""
    t = np.linspace(0.0, 1.0, _POINTS_PER_STROKE)[None, :, None]
    a, b, c, d = (controls[:, i : i + 1] for i in range(4))
    curve: FloatArray = (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t**2 * c + t**3 * d
    return curve


def _render(points: FloatArray, width: float, size: int) -> ImageArray:
    """Distance of every pixel to the nearest point of the strokes, as ink with a soft edge of one pixel."""
    grid = (np.arange(size) + 0.5) / size * 2.0 - 1.0
    x, y = points.reshape(-1, 2).T
    down, across = (grid - y[:, None]) ** 2, (grid - x[:, None]) ** 2
    distance = np.sqrt((down[:, :, None] + across[:, None, :]).min(0))
    ink = np.clip((width - distance) * size / 2.0 + 0.5, 0.0, 1.0)
    image: ImageArray = np.rint(255.0 * ink).astype(np.uint8)
    return image


class Strokes(PublishedReader):
    """Reader `strokes`."""

    form: ClassVar[type[Source]] = DrawnSource
    channels: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def locate(cls, task: Task, splits: Mapping[str, Split], folder: Path) -> Located:
        """Nothing is looked for: characters are drawn."""
        return drawn(task, "character", draw_character)


MEMBER = Strokes
