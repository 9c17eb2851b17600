"""Files that survive: replaced whole, or appended to and on disk when the call returns; and a check of their folder."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from dpfedmeta.core.errors import InputError

PUBLIC, SECRET = 0o644, 0o600


def replace_file(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Write beside the target, flush, and rename: after a crash the file is the old one or the new one.

    A link stays a link to what is replaced, and a file that was there keeps its permissions where it is not secret.
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as file:
            if mode == PUBLIC and path.exists():
                os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def append_text(path: Path, text: str, mode: int = PUBLIC, *, flag: int = 0, after: int | None = None) -> None:
    """Append and flush to disk; if that fails, take back what was written of it.

    Args:
        path: The file; made if it is absent.
        text: Whole lines.
        mode: Permissions of a new file.
        flag: More flags for `os.open`, such as O_EXCL.
        after: Size to cut the file to before; None: as it is.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flag, mode)
    try:
        size = os.fstat(handle).st_size
        if after is not None and after < size:
            os.ftruncate(handle, after)
            size = after
        try:
            _write(handle, text.encode())
            os.fsync(handle)
        except OSError:
            # A full disk may have taken half a line.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
    if not size:
        sync_folder(path.parent)


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder: a new or renamed file is found again after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def whole_lines(path: Path) -> tuple[int, bytes]:
    """(size of the lines that were finished, what follows them): a power cut may tear the last line of a file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0, b""
    end = end_of_whole_lines(content)
    return end, content[end:]


def end_of_whole_lines(content: bytes) -> int:
    """Size of the lines that were finished.

    A last line that holds zero bytes is torn too: the file had grown, but its content never reached the disk.
    """
    end = content.rfind(b"\n") + 1
    last = content[: max(end - 1, 0)].rfind(b"\n") + 1
    if b"\0" in content[last:end]:
        end = last
    return end


def cut_torn_line(path: Path) -> bool:
    """Remove a torn last line; whether there was one."""
    end, torn = whole_lines(path)
    if torn:
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return bool(torn)


def mend_last_line(path: Path) -> None:
    """Remove a torn last line before something is appended to it; where it is whole, a look at its end is enough."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
        tail = file.read()
        if tail and (not tail.endswith(b"\n") or b"\0" in tail):
            cut_torn_line(path)


def check_output_folder(name: str, path: Path) -> None:
    """Refuse a folder that can neither be written nor made: of a path only the last part is made. Nothing is left.

    Args:
        name: The option, as it is typed.
        path: The folder.

    Raises:
        InputError: Says what is in the way.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{name} {path}: is a file; name a folder")
    if not path.is_dir() and not path.parent.is_dir():
        raise InputError(f"{name} {path}: there is no folder {path.parent} to make it in; make that one first")
    there = path if path.is_dir() else path.parent
    try:
        # The mode bits do not say everything.
        Path(tempfile.mkdtemp(dir=there, prefix=".dpfedmeta-")).rmdir()
    except OSError as error:
        raise InputError(f"{name} {path}: cannot be written ({there}: {error.strerror}); name another one") from error
