"""Reads the two Omniglot archives as published."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.sources import ArchiveSource, Located, PublishedReader, entries_of, images_of_a_class
from dpfedmeta.data.storage.decoded_cache import Contents, Split, cache_folder, source_key
from dpfedmeta.data.storage.downloads import find, warn_if_unknown
from dpfedmeta.data.storage.image_codecs import UNREADABLE

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


def decode(paths: Sequence[Path], names: Sequence[str], size: int, images_per_class: int) -> ImageArray:
    """All images of the named characters, in the order of `names`.

    Args:
        paths: images_background.zip and images_evaluation.zip.
        names: "Alphabet/characterNN" for each class.
        size: Height and width to resize to.
        images_per_class: Drawings that every character must have.

    Returns:
        uint8 [len(names) * images_per_class, 1, size, size]; strokes are white on black.

    Raises:
        InputError: An archive is damaged or incomplete; says which and what is missing.
    """
    where = " and ".join(path.name for path in paths)
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in paths:
        for member in _members(path):
            parts = member.split("/")
            found.setdefault("/".join(parts[-3:-1]), []).append((path, member))
    short = [name for name in names if len(found.get(name, ())) != images_per_class]
    if short:
        raise InputError(
            f"{where} in {paths[0].parent}: {len(short)} of {len(names)} characters do not have "
            f"{images_per_class} drawings (first: {short[0]}, {len(found.get(short[0], ()))} found); "
            "the archives are incomplete, fetch them again"
        )
    images = np.empty((len(names) * images_per_class, 1, size, size), dtype=np.uint8)
    archives = {path: zipfile.ZipFile(path) for path in paths}
    try:
        row = 0
        for name in names:
            for path, member in sorted(found[name], key=lambda item: item[1]):
                images[row, 0] = _image(archives[path], path, member, size)
                row += 1
    finally:
        for archive in archives.values():
            archive.close()
    return images


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [member for member in archive.namelist() if member.endswith(".png")]
    except UNREADABLE as error:
        raise InputError(f"{path}: not a readable zip archive ({error}); fetch it again") from error


def _image(archive: zipfile.ZipFile, path: Path, member: str, size: int) -> ImageArray:
    try:
        with Image.open(io.BytesIO(archive.read(member))) as image:
            grey = image.convert("L").resize((size, size), Image.Resampling.LANCZOS)
    except UNREADABLE as error:
        raise InputError(f"{path}: {member} does not decode ({error}); fetch the archive again") from error
    return 255 - np.asarray(grey, dtype=np.uint8)


class Omniglot(PublishedReader):
    """Reader `omniglot`: the drawers of an alphabet drew all of its characters, number k of each."""

    channels: ClassVar[tuple[int, ...]] = (1,)
    grouped: ClassVar[bool] = True

    @classmethod
    def locate(cls, task: Task, splits: Mapping[str, Split], folder: Path) -> Located:
        """Both archives."""
        assert isinstance(task.source, ArchiveSource)
        archives, size, drawings = task.source.archives, task.form.shape[-1], images_of_a_class(task)
        paths = [find(archive, folder / task.source.folder) for archive in archives]
        cache = cache_folder(folder)

        def decoded() -> Iterator[ImageArray]:
            yield decode(paths, tuple(splits), size, drawings)
            for path, archive in zip(paths, archives, strict=True):
                warn_if_unknown(path, archive)

        def contents() -> Contents:
            return Contents(classes=entries_of(splits, drawings), decode=decoded)

        key = [*(source_key(path, cache) for path in paths), dict(splits), size, drawings]
        return Located(key=key, contents=contents)


MEMBER = Omniglot
