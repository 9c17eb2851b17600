"""MNIST from the four IDX files as published: training and test halves, each sorted by digit."""

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.sources import PublishedReader, Source
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents, Split, cache_folder, cached, source_key
from dpfedmeta.data.storage.downloads import Archive, default_data_folder, find, known

FOLDER = "mnist"
SIDE = 28
DIGITS = 10
CLIENTS_IMAGES_PER_DIGIT = 5000
_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_IMAGES_MAGIC, _LABELS_MAGIC = 2051, 2049


def _published(file: str, size: int, md5: str) -> Archive:
    return Archive(file=file, url=_ADDRESS + file, size=size, digests=(f"md5:{md5}",))


@dataclass(frozen=True, kw_only=True)
class _Half:
    split: Split
    images: Archive
    labels: Archive
    count: int


TRAIN = _Half(
    split="train",
    images=_published("train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    labels=_published("train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
    count=60_000,
)
TEST = _Half(
    split="test",
    images=_published("t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
    labels=_published("t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
    count=10_000,
)


@dataclass(frozen=True, kw_only=True)
class MnistHalf:
    """The training or the test images, sorted by digit, inside a digit in the published order.

    Attributes:
        pool: The 10 classes, named 0 to 9; pool.images is uint8 [60000 or 10000, 1, 28, 28], memory-mapped, white on
            black.
    """

    pool: ClassPool

    @property
    def images(self) -> ImageArray:
        """Images, uint8 [images, 1, 28, 28], memory-mapped."""
        return self.pool.images

    @property
    def labels(self) -> IntArray:
        """Digits, int64 [images], ascending."""
        return np.repeat(np.arange(DIGITS), self.pool.counts)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """Both halves."""

    train: MnistHalf
    test: MnistHalf


def open_mnist(data_folder: Path | None = None) -> Mnist:
    """MNIST, decoded at the first use.

    Args:
        data_folder: --data-dir, with mnist/ in it; None takes DPFEDMETA_DATA, else the user's data folder.

    Raises:
        InputError: A file is absent and cannot be downloaded, has a wrong size or checksum, or is damaged.
    """
    folder = data_folder or default_data_folder()
    return Mnist(train=_open(TRAIN, folder), test=_open(TEST, folder))


def three_ways(both: Mnist) -> dict[Split, ClassPool]:
    """5,000 training images of each digit for the clients, the others public for validation, and the test half."""
    train = both.train.pool
    held = (CLIENTS_IMAGES_PER_DIGIT,) * DIGITS
    rest = tuple(count - CLIENTS_IMAGES_PER_DIGIT for count in train.counts)
    after = tuple(first + CLIENTS_IMAGES_PER_DIGIT for first in train.first)
    return {
        "train": replace(train, counts=held),
        "val": replace(train, first=after, counts=rest),
        "test": both.test.pool,
    }


def _open(half: _Half, folder: Path) -> MnistHalf:
    paths = [find(archive, folder / FOLDER) for archive in (half.images, half.labels)]
    cache = cache_folder(folder)

    def contents() -> Contents:
        for path, archive in zip(paths, (half.images, half.labels), strict=True):
            _check(path, archive)
        images, labels = read_idx(paths[0], _IMAGES_MAGIC), read_idx(paths[1], _LABELS_MAGIC)
        if images.shape != (half.count, SIDE, SIDE) or labels.shape != (half.count,) or labels.max() >= DIGITS:
            raise InputError(f"{paths[0]}: not MNIST: {images.shape} images, {labels.shape} labels")
        order = np.argsort(labels, kind="stable")
        counts = np.bincount(labels, minlength=DIGITS).tolist()

        def decode() -> Iterator[ImageArray]:
            yield images[order][:, None]

        entries = (ClassEntry(name=str(digit), split=half.split, images=count) for digit, count in enumerate(counts))
        return Contents(classes=tuple(entries), decode=decode)

    key = ["mnist", *(source_key(path, cache) for path in paths)]
    done = cached(cache, f"mnist-{half.split}", key, (1, SIDE, SIDE), contents)
    counts = [entry.images for entry in done.classes]
    return MnistHalf(
        pool=ClassPool(
            path=done.path,
            names=tuple(entry.name for entry in done.classes),
            first=tuple(np.cumsum([0, *counts[:-1]]).tolist()),
            counts=tuple(counts),
        )
    )


def _check(path: Path, archive: Archive) -> None:
    """These files are passed on byte for byte, so here an unknown digest is an error."""
    size = path.stat().st_size
    if size != archive.size:
        raise InputError(f"{path}: {size} bytes, the published file has {archive.size}; fetch it again: {archive.url}")
    if not known(path, archive):
        raise InputError(f"{path}: its checksum is not that of the published file; fetch it again: {archive.url}")


def read_idx(path: Path, magic: int) -> ImageArray:
    """An IDX file of unsigned bytes, packed by gzip.

    Args:
        path: The file.
        magic: Its first number: 2049 for one dimension, 2051 for three.

    Returns:
        uint8, of the shape that the header says.

    Raises:
        InputError: It is damaged or of another kind.
    """
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
        (found,) = struct.unpack_from(">I", content)
        if found != magic:
            raise InputError(f"{path}: an IDX file that starts with {magic} is expected, this one starts with {found}")
        shape = struct.unpack_from(f">{magic & 0xFF}I", content, 4)
        return np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + len(shape))).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise InputError(f"{path}: not a readable IDX file ({error}); fetch it again") from error


class MnistReader(PublishedReader):
    """Reader `mnist`: the four published files; the split is one of images, not of classes."""

    form: ClassVar[type[Source]] = Source
    channels: ClassVar[tuple[int, ...]] = (1,)
    counted: ClassVar[bool] = False
    shared: ClassVar[bool] = True

    @classmethod
    def pools(cls, folder: Path) -> Mapping[Split, ClassPool]:
        """Of each split."""
        return three_ways(open_mnist(folder))


MEMBER = MnistReader
