"""The decoded cache: one memory-mapped array per data set, complete or absent."""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from platformdirs import user_cache_dir
from pydantic import TypeAdapter, ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.core.still_working import told_while
from dpfedmeta.data.episodes.class_pool import FloatRecords, ImageArray

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
# Part of every key: raise it when decoding changes, so that old caches are not read.
FORMAT = 2

# A temporary file that nobody has written to for so long belongs to a process that was killed.
_ABANDONED_SECONDS = 3600.0


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


_CLASSES = TypeAdapter(tuple[ClassEntry, ...])


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """A source whose classes are known and whose images are not yet decoded.

    Attributes:
        classes: The classes, in the order in which their images are decoded.
        decode: Yields blocks of any length, uint8 [images, channels, height, width] or float32 [records, numbers]
            (float64 before numbers to predict are scaled); all blocks together are the records class by class. Only a
            few of them are in memory at a time.
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
            f"{where}: the splits overlap: {len(twice)} class(es) are in two of them (first: {twice[0]}, in "
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
                f"{where}: no {what} in the {split} split ({held}); each split needs {plural} of its own: "
                f"give {enough} {plural} or more, or say yourself which are train, val and test"
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


@dataclass(frozen=True, kw_only=True)
class Cached:
    """A decoded data set.

    Attributes:
        path: A .npy file, uint8 [images, channels, height, width] or float32 [records, numbers], class by class.
        classes: The classes in the order of their images.
    """

    path: Path
    classes: tuple[ClassEntry, ...]


def cached(
    folder: Path,
    name: str,
    key: Sequence[object],
    shape: tuple[int, ...],
    open_contents: Callable[[], Contents],
) -> Cached:
    """The decoded data set for `key`, decoding once, block by block.

    The array appears by an atomic rename after its list of classes, so two processes that start at once, or a crash
    half-way, leave a whole cache or none.

    Args:
        folder: Where caches lie.
        name: Start of the file name.
        key: Everything that the content depends on.
        shape: Of a record: (channels, height, width) of images, which are bytes; else what has float32 numbers.
        open_contents: Called where there is no cache yet.

    Raises:
        InputError: The cache folder cannot be written.
    """
    text = json.dumps([FORMAT, *key])
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npy"
    listed = path.with_suffix(".json")
    if path.is_file() and (classes := _read_classes(listed)) is not None:
        return Cached(path=path, classes=classes)
    with told_while(f"reading the images or records of {name}, once (later runs take them from {folder})"):
        return _decoded(path, listed, name, shape, open_contents)


def _decoded(
    path: Path, listed: Path, name: str, shape: tuple[int, ...], open_contents: Callable[[], Contents]
) -> Cached:
    contents, folder = open_contents(), path.parent
    content = json.dumps([asdict(entry) for entry in contents.classes])
    try:
        if folder.exists() and not _writable(folder):
            raise PermissionError(13, "read-only")
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder, name)
        _write_whole(path, lambda file: _write_images(file, contents, shape), before=(listed, content))
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write the decoded cache ({error.strerror}); free some space, or set "
            "DPFEDMETA_CACHE to a folder that can be written"
        ) from error
    return Cached(path=path, classes=contents.classes)


def _write_images(file: BinaryIO, contents: Contents, shape: tuple[int, ...]) -> None:
    """The .npy form, appended block by block: nothing but the block is in memory, and a full disk is an error.

    (A memory-mapped file would count as this process's memory, and a full disk would kill it by a signal.)
    """
    kind = np.dtype(np.uint8 if len(shape) == 3 else np.float32)
    header = {"descr": kind.str, "fortran_order": False, "shape": (contents.images, *shape)}
    np.lib.format.write_array_header_1_0(file, header)
    written = 0
    for block in contents.decode():
        assert block.dtype == kind
        assert block.shape[1:] == shape
        file.write(np.ascontiguousarray(block).data)
        written += len(block)
    assert written == contents.images


def _write_whole(path: Path, write: Callable[[BinaryIO], None], before: tuple[Path, str] | None = None) -> None:
    """A file that is complete or absent; `before` is another one that appears whole before it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            other, text = before
            _write_whole(other, lambda target: _write_text(target, text))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_text(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def _read_classes(path: Path) -> tuple[ClassEntry, ...] | None:
    try:
        return _CLASSES.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _remove_abandoned(folder: Path, name: str) -> None:
    for path in folder.glob(f".{name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def cache_folder(data_folder: Path | None) -> Path:
    """DPFEDMETA_CACHE, else the data folder when it can be written, else the user's cache folder."""
    chosen = os.environ.get("DPFEDMETA_CACHE")
    if chosen:
        check_outside_runs("DPFEDMETA_CACHE", Path(chosen))  # records of people are decoded there
        return Path(chosen)
    if data_folder is not None and _writable(data_folder):
        return data_folder / ".dpfedmeta-cache"
    return Path(user_cache_dir("dpfedmeta"))


def _writable(folder: Path) -> bool:
    """By the mode bits too: the superuser may write anywhere, but a read-only folder is meant to stay so."""
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def source_key(path: Path, folder: Path) -> tuple[str, int, int, str]:
    """(path, size, modification time, SHA-256) of a published archive; data of people are known by content alone.

    The digest is computed once and remembered in the cache folder by the other three, so a warm start reads nothing.
    """
    status = path.stat()
    known = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    remembered = folder / "digests" / hashlib.sha256(json.dumps(known).encode()).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest = remembered.read_text(encoding="ascii")
        if len(digest) == 64:
            return *known, digest
    digest = digest_of(path)
    # A folder that cannot be written is complained about where the images go.
    with contextlib.suppress(OSError):
        if not folder.exists() or _writable(folder):
            remembered.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(remembered, lambda file: _write_text(file, digest))
    return *known, digest
