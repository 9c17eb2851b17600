"""CIFAR-100 in the forms in which it is published: the CIFAR-FS archive, the Python version, the binary version."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents, Split
from dpfedmeta.data.storage.image_codecs import in_order_of_content, member_image, open_zip, resized
from dpfedmeta.data.storage.safe_pickle import load_pickle

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_PYTHON = ("meta", "train", "test")
_BINARY = ("fine_label_names.txt", "train.bin", "test.bin")
FOLDERS: tuple[tuple[str, tuple[str, ...]], ...] = (("cifar-100-python", _PYTHON), ("cifar-100-binary", _BINARY))


def source_files(path: Path) -> list[Path]:
    """The files of a source: an archive itself, or what is read of an extracted folder."""
    if not path.is_dir():
        return [path]
    return [path / name for known, names in FOLDERS if path.name == known for name in names if (path / name).is_file()]


def contents(path: Path, splits: Mapping[str, Split], size: int, images_per_class: int) -> Contents:
    """The classes of `splits`, each with its images in the order of their content, which is the same for every form.

    Args:
        path: cifar100.zip; or cifar-100-python or cifar-100-binary, as .tar.gz or extracted.
        splits: From class name to split.
        size: Height and width to resize to.
        images_per_class: Images that every class must have.

    Raises:
        InputError: The source is damaged or incomplete; says which and what is missing.
    """
    if path.suffix == ".zip":
        counts, read = _zip_reader(path)
    else:
        counts, read = _official_reader(path)
    short = [name for name in splits if counts.get(name, 0) != images_per_class]
    if short:
        raise InputError(
            f"{path}: {len(short)} of {len(splits)} classes do not have {images_per_class} images (first: {short[0]}, "
            f"{counts.get(short[0], 0)} found); the source is incomplete, fetch it again"
        )
    entries = tuple(ClassEntry(name=name, split=split, images=counts[name]) for name, split in splits.items())

    def decode() -> Iterator[ImageArray]:
        for images in read(list(splits)):
            yield resized(in_order_of_content(images), size)

    return Contents(classes=entries, decode=decode)


_Reader = Callable[[Sequence[str]], Iterator[ImageArray]]


def _zip_reader(path: Path) -> tuple[dict[str, int], _Reader]:
    members: dict[str, list[str]] = {}
    with open_zip(path) as archive:
        for member in archive.namelist():
            if member.endswith(".png"):
                members.setdefault(PurePosixPath(member).parent.name, []).append(member)

    def read(names: Sequence[str]) -> Iterator[ImageArray]:
        with open_zip(path) as archive:
            for name in names:
                yield np.stack([member_image(archive, path, member, 3, _SIDE) for member in members[name]])

    return {name: len(found) for name, found in members.items()}, read


def _official_reader(path: Path) -> tuple[dict[str, int], _Reader]:
    files = _official_files(path)
    names, images, labels = _python_version(path, files) if "meta" in files else _binary_version(path, files)
    counts = np.bincount(labels, minlength=len(names))
    if len(counts) > len(names):
        raise InputError(f"{path}: label {len(counts) - 1}, but only {len(names)} names of classes")

    def read(wanted: Sequence[str]) -> Iterator[ImageArray]:
        for name in wanted:
            rows = np.flatnonzero(labels == names.index(name))
            yield images[rows].reshape(-1, 3, _SIDE, _SIDE)

    return dict(zip(names, counts.tolist(), strict=True)), read


def _official_files(path: Path) -> dict[str, Path | bytes]:
    """The three files of the Python or of the binary version, by name."""
    if path.is_dir():
        found: dict[str, Path | bytes] = {file.name: file for file in source_files(path)}
    else:
        found = {}
        try:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    opened = archive.extractfile(member) if name in _PYTHON + _BINARY and member.isfile() else None
                    if opened is not None:
                        found[name] = opened.read()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise InputError(f"{path}: not a readable tar archive ({error}); fetch it again") from error
    for names in (_PYTHON, _BINARY):
        if all(name in found for name in names):
            return {name: found[name] for name in names}
    raise InputError(
        f"{path}: holds {', '.join(sorted(found)) or 'none of the files'}; expected {', '.join(_PYTHON)} (Python "
        f"version) or {', '.join(_BINARY)} (binary version)"
    )


def _python_version(path: Path, files: Mapping[str, Path | bytes]) -> tuple[list[str], ImageArray, IntArray]:
    parts = {name: load_pickle(content, f"{path}: {name}") for name, content in files.items()}
    try:
        names = [str(name) for name in parts["meta"]["fine_label_names"]]
        images = [np.asarray(parts[name]["data"]) for name in ("train", "test")]
        labels = [np.asarray(parts[name]["fine_labels"], dtype=np.int64) for name in ("train", "test")]
        if any(part.dtype != np.uint8 or part.shape != (len(found), _PIXELS) for part, found in _pairs(images, labels)):
            raise ValueError("data and fine_labels do not fit together")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the Python version of CIFAR-100 ({error!r}); fetch it again") from error
    return names, np.concatenate(images), np.concatenate(labels)


def _pairs(images: Sequence[Any], labels: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(images, labels, strict=True)


def _binary_version(path: Path, files: Mapping[str, Path | bytes]) -> tuple[list[str], ImageArray, IntArray]:
    def content(name: str) -> bytes:
        found = files[name]
        return found if isinstance(found, bytes) else found.read_bytes()

    names = content("fine_label_names.txt").decode("ascii", errors="replace").split()
    joined = np.concatenate([np.frombuffer(content(name), dtype=np.uint8) for name in ("train.bin", "test.bin")])
    if len(joined) % (2 + _PIXELS):
        raise InputError(f"{path}: train.bin or test.bin is cut off, fetch it again")
    rows = joined.reshape(-1, 2 + _PIXELS)
    # Each record: coarse label, fine label, pixels.
    return names, rows[:, 2:], rows[:, 1].astype(np.int64)
