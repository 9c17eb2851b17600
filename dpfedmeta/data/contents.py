"""What a source holds before it is decoded: classes, their splits, and a way to decode them in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dpfedmeta.data.pool import ImageArray
from dpfedmeta.errors import InputError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class ClassEntry:
    """One class of a source.

    Attributes:
        name: Its name.
        split: The split that it belongs to.
        images: How many images it has.
    """

    name: str
    split: Split
    images: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """A source whose classes are known and whose images are not yet decoded.

    Attributes:
        classes: The classes, in the order in which their images are decoded.
        decode: Yields uint8 blocks [images, channels, height, width] of any length; all blocks together are the images
            class by class. Only a few of them are in memory at a time.
    """

    classes: tuple[ClassEntry, ...]
    decode: Callable[[], Iterator[ImageArray]]

    @property
    def images(self) -> int:
        """Number of images of all classes."""
        return sum(entry.images for entry in self.classes)


def check_classes(where: str, classes: tuple[ClassEntry, ...]) -> None:
    """Refuse what no episode could be drawn from.

    Raises:
        InputError: No classes, a class in two splits, a split without classes, or a class without images.
    """
    if not classes:
        raise InputError(f"{where}: no class with images in it")
    twice = [name for name, count in Counter(entry.name for entry in classes).items() if count > 1]
    if twice:
        splits = " and ".join(entry.split for entry in classes if entry.name == twice[0])
        raise InputError(
            f"{where}: the splits overlap: {len(twice)} class(es) stand in two of them (first: {twice[0]}, in {splits})"
        )
    empty = [entry.name for entry in classes if entry.images == 0]
    if empty:
        raise InputError(f"{where}: {len(empty)} class(es) without an image (first: {empty[0]})")
    for split in SPLITS:
        if all(entry.split != split for entry in classes):
            raise InputError(f"{where}: no class in the {split} split")
