"""Classes of records in one memory-mapped array."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.core.random.random_sources import IntArray

ImageArray = npt.NDArray[np.uint8]
FloatImages = npt.NDArray[np.float32]
FloatRecords = npt.NDArray[np.float32]


@lru_cache(maxsize=8)
def _open(path: Path) -> ImageArray:
    images: ImageArray = np.load(path, mmap_mode="r", allow_pickle=False)
    return images


@dataclass(frozen=True, kw_only=True)
class ClassPool:
    """The classes of one split. Cheap to pickle: a worker process maps the same file again.

    Attributes:
        path: A .npy file of uint8 images, [images, channels, height, width], or of float32 vectors or sequences,
            [records, numbers]; the records of a class together.
        names: Names of the classes.
        first: Index of each class's first image.
        counts: Images of each class.
        rotations: 4 where every rotation by 90 degrees is a class of its own, else 1.
        flip: Whether an image is mirrored with probability 1/2 when it is drawn.
        mean: Per channel, of pixels in [0, 1], taken off a drawn image; empty: nothing is.
        deviation: Per channel, what a drawn image is then divided by; empty: 1.
        groups: Where image number k of every class of a group has the same author: each class's group
            (alphabets of Omniglot); else empty.
        clients: Where the data say who holds what: whose each class is, so that a class of two clients stands here
            twice; else empty.
        shift: An image is moved by up to so many pixels, down or up and to either side, when it is drawn.
        turned: Of features: how many places further each rotation's features lie; 0: there are no rotations.
        made_from: Of features: digest of the images and the encoder that they were computed from, since their last bits
            depend on the processor; else empty.
        labels: Public list of labels that all clients share, which holds all names; empty: clients number their own
            classes.
        targets: Whether the last number of each record is what is predicted, scaled, rather than a feature.
        plain: Of features: the array and the first places of the images that they were computed from.
        own_test: Share of each client's rows that never train, each by its own hash (row_layout.HashedRows).
    """

    path: Path
    names: tuple[str, ...]
    first: tuple[int, ...]
    counts: tuple[int, ...]
    rotations: int = 1
    flip: bool = False
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    groups: tuple[str, ...] = ()
    # Digests of what has none are those of before there were any.
    clients: tuple[str, ...] = field(default=(), repr=False)
    shift: int = field(default=0, repr=False)
    turned: int = field(default=0, repr=False)
    made_from: str = field(default="", repr=False)
    labels: tuple[str, ...] = field(default=(), repr=False)
    targets: bool = field(default=False, repr=False)
    plain: tuple[Path, tuple[int, ...]] | None = field(default=None, repr=False)
    own_test: float = field(default=0.0, repr=False)

    @property
    def images(self) -> ImageArray:
        """The memory-mapped images of all splits."""
        return _open(self.path)

    def plain_images(self) -> tuple[ImageArray, tuple[int, ...]]:
        """(the records as they were decoded, index of each class's first one), before any encoder."""
        path, first = self.plain or (self.path, self.first)
        return _open(path), first

    @property
    def shared(self) -> bool:
        """True if outputs mean the same for all clients: one public list of labels, or numbers to predict."""
        return bool(self.labels) or self.targets

    @property
    def classes(self) -> int:
        """Number of classes, rotations not counted."""
        return len(self.first)

    @property
    def size(self) -> int:
        """Number of images of these classes."""
        return sum(self.counts)

    def decoded_digest(self) -> str:
        """SECRET where the images are: digest of the decoded images of all splits."""
        return self.made_from or digest_of(self.path)

    def digest(self, decoded: str | None = None) -> str:
        """SECRET where the images are: digest of the images and of what is made of them, wherever they lie.

        Args:
            decoded: What `decoded_digest` says, where it is known.
        """
        text = f"{decoded or self.decoded_digest()} {replace(self, path=Path())!r}"
        if self.clients:
            text += f" {self.clients!r}"
        if self.shift:
            text += f" shift {self.shift}"
        if self.labels or self.targets:
            text += f" labels {self.labels!r} targets {self.targets}"
        if self.own_test:
            text += f" own test {self.own_test!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    def standardised(self, pixels: FloatImages) -> FloatImages:
        """Pixels in [0, 255] as a network takes them: [..., channels, height, width], in place."""
        return _standardised(pixels, self.mean, self.deviation)

    def byte_values(self) -> FloatImages:
        """Return the network's input for each byte value: float32 [channels, 256]."""
        return _byte_values(self.images.shape[1], self.mean, self.deviation)

    def numbers(self, places: IntArray) -> FloatRecords:
        """Vectors or sequences by their places in the array, float32 [places, numbers]: standardised, not divided.

        A number to predict, behind them, is scaled already.
        """
        # A memory map's own indexing costs more than the copy.
        records = np.asarray(self.images)[places].astype(np.float32, copy=False)
        features = records[..., :-1] if self.targets else records
        if self.mean:
            features -= np.asarray(self.mean, dtype=np.float32)
        if self.deviation:
            features /= np.asarray(self.deviation, dtype=np.float32)
        return records

    def listed(self, places: IntArray) -> IntArray:
        """Return the place in the public list of labels of each record, by its place in the array."""
        order = {name: number for number, name in enumerate(self.labels)}
        classes = np.searchsorted(np.asarray(self.first), places, side="right") - 1
        return np.asarray([order[self.names[index]] for index in classes.tolist()], dtype=np.int64)

    def records_at(self, rows: IntArray) -> tuple[FloatImages, IntArray]:
        """Images by their place in the pool sorted by class.

        Returns:
            float32 images [rows, channels, height, width] and labels [rows]; a label is its class's place in the pool.
        """
        ends = np.cumsum(self.counts)
        labels = np.searchsorted(ends, rows, side="right")
        inside = rows - (ends - self.counts)[labels]
        images = self.images[np.asarray(self.first)[labels] + inside]
        return self.standardised(images.astype(np.float32)), labels


def _standardised(pixels: FloatImages, mean: tuple[float, ...], deviation: tuple[float, ...]) -> FloatImages:
    pixels /= 255.0
    if mean:
        pixels -= np.asarray(mean, dtype=np.float32)[:, None, None]
    if deviation:
        pixels /= np.asarray(deviation, dtype=np.float32)[:, None, None]
    return pixels


@lru_cache(maxsize=8)
def _byte_values(channels: int, mean: tuple[float, ...], deviation: tuple[float, ...]) -> FloatImages:
    every = np.tile(np.arange(256, dtype=np.float32), (channels, 1, 1))
    values = _standardised(every, mean, deviation)[:, 0]
    values.setflags(write=False)  # all clients share it
    return values
