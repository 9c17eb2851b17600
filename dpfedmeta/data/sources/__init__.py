"""Published data sets: one file for each, by the reader that a task file names; or package.module:name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import ConfigDict, Field

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.plugin_registry import find
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents, Split
from dpfedmeta.data.storage.downloads import Archive

if TYPE_CHECKING:
    from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
    from dpfedmeta.data.task import Task

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Section `source` of a task file: the reader, and in subclasses what it needs to know besides."""

    __pydantic_config__ = _STRICT
    reader: str

    @property
    def name(self) -> str:
        """Name of the data: the same for all paths to them and all subsets of published images."""
        return self.reader


@dataclass(frozen=True, kw_only=True)
class ArchiveSource(Source):
    """Published archives: all of Omniglot's, or the first that is there of several forms of the others."""

    folder: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True, kw_only=True)
class DrawnSource(Source):
    """Images made from a seed; `variation` is how much those of a class differ."""

    seed: Annotated[int, Field(ge=0)]
    variation: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]

    @property
    def name(self) -> str:
        """Reader, seed and variation: another seed makes other images."""
        return f"{self.reader} {self.seed} {self.variation}"


@dataclass(frozen=True, kw_only=True)
class Located:
    """Data of a task as they were found: what they are known by, and how they are read.

    Attributes:
        key: Everything that the decoded images depend on.
        contents: Looks at the classes; called where nothing decoded is kept under that key.
    """

    key: list[object]
    contents: Callable[[], Contents]


class PublishedReader:
    """Base of the readers; a member is its file's `MEMBER`.

    Attributes:
        form: Its section `source` in a task file.
        channels: Channels of its images.
        counted: Whether a task file says images_per_class.
        grouped: Whether names of classes begin with that of their group, and a slash.
        numbers: Whether its records are vectors with numbers to predict.
        shared: Whether all splits share the classes, and `pools` opens them.
    """

    form: ClassVar[type[Source]] = ArchiveSource
    channels: ClassVar[tuple[int, ...]] = (1, 3)
    counted: ClassVar[bool] = True
    grouped: ClassVar[bool] = False
    numbers: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    @classmethod
    def locate(cls, task: Task, splits: Mapping[str, Split], folder: Path) -> Located:
        """Find the data of a task.

        Args:
            task: The task, with a source of this reader's `form`.
            splits: Of its classes; empty where its images are drawn.
            folder: Where data are looked for.

        Raises:
            InputError: They are absent, damaged or incomplete.
        """
        raise NotImplementedError

    @classmethod
    def pools(cls, folder: Path) -> Mapping[Split, ClassPool]:
        """The images of each split, of readers whose splits share their classes."""
        raise NotImplementedError


def published_reader(name: str) -> type[PublishedReader]:
    """The reader of this name.

    Raises:
        InputError: There is none.
    """
    member = find("source.reader", name, __name__)
    if not (isinstance(member, type) and issubclass(member, PublishedReader)):
        raise InputError(f"source.reader = {name}: is no PublishedReader; derive it from {__name__}.PublishedReader")
    return member


def images_of_a_class(task: Task) -> int:
    """Images of every class, of a task whose reader counts them."""
    assert task.images_per_class is not None  # the task file was checked
    return task.images_per_class


def entries_of(splits: Mapping[str, Split], images: int) -> tuple[ClassEntry, ...]:
    """Classes of so many images each."""
    return tuple(ClassEntry(name=name, split=split, images=images) for name, split in splits.items())


def drawn(task: Task, noun: str, draw: Callable[[int, int, int, int, float], ImageArray]) -> Located:
    """Images that are made from a seed, class by class.

    Args:
        task: With a drawn source, and numbers of classes as its split.
        noun: Name of a class, before its number.
        draw: Images of one class, by seed, number of the class, images, size and variation.
    """
    assert isinstance(task.split, dict)
    assert isinstance(task.source, DrawnSource)
    counts, source, images, size = task.split, task.source, images_of_a_class(task), task.form.shape[-1]
    splits: list[Split] = [split for split in SPLITS for _ in range(counts[split])]
    named = {f"{noun}{number:04d}": split for number, split in enumerate(splits)}

    def contents() -> Contents:
        classes = range(len(named))
        return Contents(
            classes=entries_of(named, images),
            decode=lambda: (draw(source.seed, number, images, size, source.variation) for number in classes),
        )

    return Located(key=[source.seed, source.variation, named, images, size], contents=contents)
