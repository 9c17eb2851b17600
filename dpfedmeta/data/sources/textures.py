"""The built-in colour benchmark: things of random outline, pattern and palette before random backgrounds.

Nobody's images, so a network that begins with what they teach has spent no privacy. That drawn images teach filters
which serve photographs was observed by Baradad et al. 2021 (https://arxiv.org/abs/2106.05963).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.core.random.random_sources import FloatArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.sources import DrawnSource, Located, PublishedReader, Source, drawn
from dpfedmeta.data.storage.decoded_cache import Split

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task

# Fourier terms of an outline.
_TERMS = 7


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """Random properties shared by all images of a made class.

    Attributes:
        scene: Only a background of its own, without an object.
        size: Radius of the object, as a share of half the image.
        stretch: Factor of the object's width; its height is divided by it.
        turning: Standard deviation of the angle.
        palette: Three colours of the object, [3, 3].
        fading: Standard deviation of these colours from image to image.
        outline: Amplitudes and phases of the outline, [2, _TERMS].
        pattern: Stripes, checks or cloud.
        frequency: Frequency of stripes and checks.
        roughness: Spectral exponent of the cloud.
        contrast: Contrast of the cloud.
        shade: Strength of the light from one side.
        offsets: Centres of the parts, in radii, [parts, 2]; the first is 0.
        sizes: Radii of the parts, [parts]; the first is 1.
        stretches: Further stretch of each part, on top of `stretch`.
        tints: Colours of the parts, [parts, 3].
        ground: Three colours of the background, [3, 3].
        changing: Standard deviation of these from image to image.
        ground_roughness: Spectral exponent of the background.
        ground_stretch: Factor of the width of the background's pattern; its height is divided by it.
        horizon: Height of the horizon; None if there is none.
    """

    scene: bool
    size: float
    stretch: float
    turning: float
    palette: FloatArray
    fading: float
    outline: FloatArray
    pattern: str
    frequency: float
    roughness: float
    contrast: float
    shade: float
    offsets: FloatArray
    sizes: FloatArray
    stretches: FloatArray
    tints: FloatArray
    ground: FloatArray
    changing: float
    ground_roughness: float
    ground_stretch: float
    horizon: float | None


def draw_texture(seed: int, number: int, images: int, size: int, variation: float) -> ImageArray:
    """All images of one class, uint8 [images, 3, size, size]; a function of the arguments.

    Args:
        seed: Of the public generator.
        number: The class.
        images: How many.
        size: Height and width.
        variation: How much the images of a class differ; 1 is what the benchmark has.
    """
    generator = public_generator(seed, Purpose.TASK_DATA, number)
    look = _look(generator, variation)
    return np.stack([_draw(look, generator, size, variation) for _ in range(images)])


def _look(generator: np.random.Generator, variation: float) -> _Look:
    scene = bool(generator.random() < 0.2)
    parts = int(generator.integers(1, 5))
    amplitudes = generator.normal(size=_TERMS) * np.exp(generator.normal(-1.5, 0.6)) / np.arange(1, _TERMS + 1) ** 0.6
    offsets, sizes = generator.normal(0.0, 0.45, (parts, 2)), generator.uniform(0.2, 0.8, parts)
    offsets[0], sizes[0] = 0.0, 1.0
    return _Look(
        scene=scene,
        size=float(generator.uniform(0.4, 0.85)),
        stretch=float(np.exp(generator.normal(0.0, 0.45))),
        turning=variation * float(generator.choice([0.1, 0.4, 1.5])),
        palette=_colours(generator, 3),
        fading=variation * float(generator.choice([0.05, 0.15, 0.4])),
        outline=np.stack([amplitudes, generator.uniform(0.0, 2 * np.pi, _TERMS)]),
        pattern=str(generator.choice(["stripes", "checks", "cloud", "cloud"])),
        frequency=float(generator.uniform(3.0, 16.0)),
        roughness=float(generator.uniform(0.7, 2.4)),
        contrast=float(generator.uniform(0.3, 2.5)),
        shade=float(generator.uniform(0.0, 0.5)),
        offsets=offsets,
        sizes=sizes,
        stretches=np.exp(generator.normal(0.0, 0.5, parts)) ** (np.arange(parts) > 0),
        tints=_colours(generator, parts),
        ground=_colours(generator, 3),
        changing=variation * float(generator.uniform(0.05, 0.2) if scene else generator.choice([0.1, 0.3, 0.6])),
        ground_roughness=float(generator.uniform(0.8, 2.4)),
        ground_stretch=float(np.exp(generator.normal(0.0, 0.6))),
        horizon=float(generator.uniform(-0.5, 0.5)) if generator.random() < 0.35 else None,
    )


def _draw(look: _Look, generator: np.random.Generator, size: int, variation: float) -> ImageArray:
    grid = (np.arange(size) + 0.5) / size * 2.0 - 1.0
    y, x = np.meshgrid(grid, grid, indexing="ij")
    image = _background(look, generator, y, variation)
    if not look.scene:
        image = _with_thing(image, look, generator, x, y, variation)
    slope = generator.normal(0.0, 0.12 * variation, 2)
    image = image * np.exp(generator.normal(0.0, 0.25 * variation)) + (slope[0] * x + slope[1] * y)[..., None]
    image = _blurred(image) + generator.normal(0.0, 0.015, image.shape)
    drawn: ImageArray = np.rint(255.0 * np.clip(image, 0.0, 1.0)).astype(np.uint8).transpose(2, 0, 1)
    return drawn


def _background(look: _Look, generator: np.random.Generator, y: FloatArray, variation: float) -> FloatArray:
    first, second, below = np.clip(look.ground + generator.normal(0.0, look.changing, (3, 3)), 0.0, 1.0)
    image = _mixed(first, second, 1.6 * _cloud(generator, len(y), look.ground_roughness, look.ground_stretch))
    if look.horizon is None:
        return image
    height = look.horizon + generator.normal(0.0, 0.15 * variation) - 0.15 * _cloud(generator, len(y), 2.2)
    return _over(below, image, 12.0 * (y - height))


def _with_thing(
    image: FloatArray, look: _Look, generator: np.random.Generator, x: FloatArray, y: FloatArray, variation: float
) -> FloatArray:
    angle, radius = generator.normal(0.0, look.turning), look.size * np.exp(generator.normal(0.0, 0.22 * variation))
    x, y = x - generator.normal(0.0, 0.18 * variation), y - generator.normal(0.0, 0.18 * variation)
    u, v = (np.cos(angle) * x + np.sin(angle) * y) / radius, (np.cos(angle) * y - np.sin(angle) * x) / radius
    first, second, _ = np.clip(look.palette + generator.normal(0.0, look.fading, (3, 3)), 0.0, 1.0)
    light = generator.uniform(0.0, 2 * np.pi)
    lit = 1.0 + look.shade * (np.cos(light) * x + np.sin(light) * y) / radius
    surface = np.clip(_mixed(first, second, 2.0 * _pattern(look, generator, u, v)) * lit[..., None], 0.0, 1.0)
    for part in reversed(range(len(look.sizes))):
        offset = look.offsets[part] + generator.normal(0.0, 0.06 * variation, 2) * (part > 0)
        stretch = look.stretch * look.stretches[part]
        across, along = (u - offset[0]) / stretch, (v - offset[1]) * stretch
        terms = look.outline[0] * (1.0 + 0.3 * variation * generator.normal(size=_TERMS))
        turns = np.arange(1, _TERMS + 1) * np.arctan2(along, across)[..., None] + look.outline[1] + part
        inside = look.sizes[part] * (1.0 + np.cos(turns) @ terms) - np.hypot(across, along)
        share = np.clip(inside * radius * len(x) / 2.0 + 0.5, 0.0, 1.0)[..., None]
        tint = np.clip(look.tints[part] + generator.normal(0.0, look.fading, 3), 0.0, 1.0)
        image = image * (1.0 - share) + (surface if part == 0 else 0.4 * surface + 0.6 * tint) * share
    return image


def _pattern(look: _Look, generator: np.random.Generator, u: FloatArray, v: FloatArray) -> FloatArray:
    first, second = generator.uniform(0.0, 2 * np.pi, 2)
    cloud = _cloud(generator, len(u), look.roughness)
    if look.pattern == "stripes":
        stripes: FloatArray = 1.5 * np.sin(look.frequency * u + first) + 0.4 * cloud
        return stripes
    if look.pattern == "checks":
        checks: FloatArray = 3.0 * np.sin(look.frequency * u + first) * np.sin(look.frequency * v + second)
        return checks
    return look.contrast * cloud


def _colours(generator: np.random.Generator, count: int) -> FloatArray:
    """[count, 3]; more of them pale or dark than glaring."""
    hue, saturation, value = (
        generator.uniform(size=count),
        generator.beta(1.3, 2.0, count),
        generator.beta(2.0, 1.6, count),
    )
    away = np.abs((6.0 * hue[:, None] + np.array([0.0, 4.0, 2.0])) % 6.0 - 3.0) - 1.0
    colours: FloatArray = value[:, None] * (1.0 - saturation[:, None] * (1.0 - np.clip(away, 0.0, 1.0)))
    return colours


def _cloud(generator: np.random.Generator, size: int, roughness: float, stretch: float = 1.0) -> FloatArray:
    """Noise of spectrum 1/f^roughness, [size, size], of deviation 1."""
    frequency = np.fft.fftfreq(size) * size
    down, across = np.meshgrid(frequency, frequency, indexing="ij")
    length = np.hypot(across * stretch, down / stretch)
    length[0, 0] = np.inf
    noise = np.fft.fft2(generator.normal(size=(size, size))) / length**roughness
    cloud = np.real(np.fft.ifft2(noise))
    standard: FloatArray = cloud / (cloud.std() + 1e-9)
    return standard


def _mixed(first: FloatArray, second: FloatArray, level: FloatArray) -> FloatArray:
    return _over(second, np.broadcast_to(first, (*level.shape, 3)), level)


def _over(ground: FloatArray, image: FloatArray, level: FloatArray) -> FloatArray:
    """`image` where `level` is high, `ground` where it is low."""
    share = (1.0 / (1.0 + np.exp(-level)))[..., None]
    blend: FloatArray = image * share + ground * (1.0 - share)
    return blend


def _blurred(image: FloatArray) -> FloatArray:
    """A binomial kernel of three pixels, as a camera's optics blur."""
    for axis in (0, 1):
        padded = np.pad(image, [(1, 1) if a == axis else (0, 0) for a in range(3)], mode="edge")
        low, middle, high = (np.take(padded, np.arange(i, i + image.shape[axis]), axis) for i in range(3))
        image = 0.25 * low + 0.5 * middle + 0.25 * high
    return image


class Textures(PublishedReader):
    """Reader `textures`."""

    form: ClassVar[type[Source]] = DrawnSource
    channels: ClassVar[tuple[int, ...]] = (3,)

    @classmethod
    def locate(cls, task: Task, splits: Mapping[str, Split], folder: Path) -> Located:
        """Nothing is looked for: things are drawn."""
        return drawn(task, "texture", draw_texture)


MEMBER = Textures
