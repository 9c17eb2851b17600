"""Published archives and their folder: found, or downloaded with checksum, or an error that says where to put them."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_dir

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import digest_of

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 20.0
_DOWNLOADS: ContextVar[bool] = ContextVar("downloads", default=True)


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Inside, archives that are not there are not fetched either."""
    token = _DOWNLOADS.set(False)
    try:
        yield
    finally:
        _DOWNLOADS.reset(token)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """File of a published data set, with its address and the digests that are accepted.

    Attributes:
        file: Name in the data set's folder.
        url: Download address at the publisher; None if there is no stable one.
        digests: Accepted digests, "algorithm:hex"; publishers and mirrors re-pack the same content.
        size: Size of the publisher's file in bytes; None if unknown.
    """

    file: str
    digests: tuple[str, ...]
    url: str | None = None
    size: int | None = None


def known(path: Path, archive: Archive) -> bool:
    """Return whether the file has one of the accepted digests."""
    return any(
        digest_of(path, algorithm) == expected
        for algorithm, _, expected in (entry.partition(":") for entry in archive.digests)
    )


def find(archive: Archive, folder: Path) -> Path:
    """The archive's path, downloading it when it is absent.

    Raises:
        InputError: Absent and not to be downloaded; says which file to put where.
    """
    path = folder / archive.file
    if path.is_file():
        return path
    where = f"put {archive.file} into {folder} (--data-dir or DPFEDMETA_DATA names the folder above it)"
    if archive.url is None:
        raise InputError(f"{path}: not found, and there is no address to download it from; {where}")
    if not _DOWNLOADS.get():
        raise InputError(f"{path}: not found; {where}")
    _download(archive, archive.url, path, where)
    return path


def find_any(
    archives: Sequence[Archive], extracted: Sequence[str], folders: Sequence[Path]
) -> tuple[Path, Archive | None]:
    """The first of several forms of one data set that is there, else the first that can be downloaded.

    Args:
        archives: The forms, best first.
        extracted: Names of folders that an archive may have been extracted to.
        folders: Where to look; a download goes to the first.

    Returns:
        Its path, and which archive it is (None: an extracted folder).

    Raises:
        InputError: None is there and none to be downloaded; says which file to put where.
    """
    for folder in folders:
        for archive in archives:
            if (folder / archive.file).is_file():
                return folder / archive.file, archive
        for name in extracted:
            if (folder / name).is_dir():
                return folder / name, None
    for archive in archives:
        if archive.url is not None:
            return find(archive, folders[0]), archive
    names = " or ".join([*(archive.file for archive in archives), *(f"{name}/" for name in extracted)])
    raise InputError(
        f"{folders[0]}: not found, and there is no address to download it from; put {names} into it (--data-dir or "
        "DPFEDMETA_DATA names the folder above it)"
    )


def warn_if_unknown(path: Path, archive: Archive) -> None:
    """Call when the content turned out complete: an unknown digest is then a warning, not an error."""
    if not known(path, archive):
        warnings.warn(f"{path}: its checksum is not known, but its content is complete, so it is used", stacklevel=2)


def _download(archive: Archive, url: str, path: Path, where: str) -> None:
    """Download beside the target, check, then move into place: never a half-written file."""
    import requests
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{archive.file}.")
        temporary = Path(name)
        with (
            os.fdopen(handle, "wb") as file,
            requests.get(url, stream=True, timeout=_TIMEOUT_SECONDS) as answer,
        ):
            answer.raise_for_status()
            size = int(answer.headers.get("content-length", 0)) or None
            columns = (TextColumn(archive.file), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            with Progress(*columns) as progress:
                task = progress.add_task("download", total=size)
                for block in answer.iter_content(_BLOCK):
                    file.write(block)
                    progress.advance(task, len(block))
        if not known(temporary, archive):
            raise InputError(f"{url}: the download has a wrong checksum, so it was deleted; {where}")
        temporary.replace(path)
    except requests.RequestException as error:
        reason = type(error).__name__
        raise InputError(f"{path}: not found, and downloading {url} failed ({reason}); {where}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot write the download ({error.strerror}); {where}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def default_data_folder() -> Path:
    """DPFEDMETA_DATA, else the user's data folder."""
    named = os.environ.get("DPFEDMETA_DATA")
    return Path(named) if named else Path(user_data_dir("dpfedmeta"))


def check_data_folder(named: Path | None) -> None:
    """Refuse a folder that was named and is not there: a download would make it at a mistyped place.

    Raises:
        InputError: There is no such folder.
    """
    if named is not None and not named.is_dir():
        raise InputError(
            f"--data-dir {named}: there is no such folder; make it first, or name the folder that holds the archives"
        )
