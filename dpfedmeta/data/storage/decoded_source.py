"""Contents of a data source before decoding: classes, their splits, and a way to decode them in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import FloatRecords, ImageArray

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class ClassEntry:
    """Class of a data source, with its split and number of records.

    Attributes:
        name: Name of the class.
        split: Split that the class belongs to.
        images: Number of records.
        client: Client that owns the records; empty if the data name no clients.
    """

    name: str
    split: Split
    images: int
    client: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """A source whose classes are known and whose images are not yet decoded.

    Attributes:
        classes: The classes, in the order in which their images are decoded.
        decode: Yields blocks of any length, uint8 [images, channels, height, width] or float32 [records, numbers]; all
            blocks together are the records class by class. Only a few of them are in memory at a time.
    """

    classes: tuple[ClassEntry, ...]
    decode: Callable[[], Iterator[ImageArray] | Iterator[FloatRecords]]

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
    _check_clients(where, classes)
    twice = [name for (name, _), count in Counter((e.name, e.client) for e in classes).items() if count > 1]
    if twice:
        splits = " and ".join(entry.split for entry in classes if entry.name == twice[0])
        raise InputError(
            f"{where}: the splits overlap: {len(twice)} class(es) stand in two of them (first: {twice[0]}, in "
            f"{splits}); a model is judged on classes that it has never seen: put all of a class into one part"
        )
    empty = [entry.name for entry in classes if entry.images == 0]
    if empty:
        raise InputError(f"{where}: {len(empty)} class(es) without an image (first: {empty[0]})")
    what, plural = ("client", "clients") if classes[0].client else ("class", "classes")
    parts = Counter({entry.client or entry.name: entry.split for entry in classes}.values())
    for split in SPLITS:
        if not parts[split]:
            held = ", ".join(f"{parts[each]} in {each}" for each in SPLITS)
            enough = "3 times task.ways" if what == "class" else "3"
            raise InputError(
                f"{where}: no {what} in the {split} split ({held}); every part needs {plural} of its own: with "
                f"{enough} {plural} or more each gets enough by itself, with fewer say which are train, val and test"
            )


def _check_clients(where: str, classes: tuple[ClassEntry, ...]) -> None:
    """Check that no client is in two splits: held-out data must come from clients that did not train."""
    splits: dict[str, Split] = {}
    for entry in classes:
        if entry.client and splits.setdefault(entry.client, entry.split) != entry.split:
            raise InputError(
                f"{where}: client {entry.client} is in {splits[entry.client]} and in {entry.split}; a client belongs "
                "to one part, with all its records"
            )
