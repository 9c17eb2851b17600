"""The latest line of every run's ledger that this machine wrote, kept outside the run directories.

A run directory that was copied cannot be told from its original by its content. This register can: a copy that lacks
lines which were written here is stale, and continuing it could spend a budget twice.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_state_path

from dpfedmeta.accounting.ledger.ledger import LedgerContent, read_content
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.lock import THREAD, holding, let_go_of
from dpfedmeta.core.files.run_directory import RunDirectory

_ENTRY = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_NAME = re.compile(r"[0-9a-f]{32}")


def lineage_folder() -> Path:
    """DPFEDMETA_STATE, else the user's state folder.

    Raises:
        InputError: It is relative: each folder would have a register of its own.
    """
    chosen = os.environ.get("DPFEDMETA_STATE")
    found = Path(chosen) if chosen else user_state_path("dpfedmeta")
    if not found.is_absolute():
        raise InputError(
            f"DPFEDMETA_STATE = {chosen}: is relative, so each folder would have a register of its own, and a budget "
            f"could be spent once in each; give a path from the root: DPFEDMETA_STATE={found.absolute()}"
        )
    return found / "lineage"


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The last line that was written: its number from 1, and its hash."""

    lines: int
    head: str


class Lineage:
    """Entry of one run, locked while a process of this machine writes the run or any copy of it.

    Guarantee:
        On this machine, for this user, no two processes charge copies of one ledger at a time, and a copy without the
        latest line is noticed. It says nothing of copies on other machines: `account.py --verify A B` composes those.
    """

    def __init__(self, run: str) -> None:
        """Open and lock.

        Raises:
            InputError: Another process writes this run, or a copy of it.
            OSError: The folder cannot be written.
        """
        if not _NAME.fullmatch(run):
            raise InputError(
                f"the run's ledger names its run {run!r}, a name that dpfedmeta never gives, so the ledger was edited; "
                "restore it from a backup"
            )
        folder = lineage_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / run
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, SECRET)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            own = let_go_of(self.handle)
            os.close(self.handle)
            who = "another process is writing this run, or a copy of it, right now"
            own_words = f"this process itself holds this run, or a copy of it; {own}"
            raise InputError(who if own is None else own_words) from error

    @property
    def latest(self) -> Latest | None:
        """Last line that was written; None: there is none, or the entry is unreadable."""
        entry = _ENTRY.fullmatch(os.pread(self.handle, 128, 0))
        return Latest(lines=int(entry[1]), head=entry[2].decode()) if entry else None

    def follow(self, lines: int, head: str) -> None:
        """Note the ledger's last line, after it is on disk.

        Not flushed: an entry that a power cut sets back notices less, and never refuses what is right.
        """
        os.pwrite(self.handle, f"{lines:012d} {head}\n".encode(), 0)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self.handle)


@contextmanager
def registered(run: RunDirectory, let_go: str = THREAD) -> Iterator[tuple[Lineage | None, str | None]]:
    """(this machine's register of the run, locked; why there is none).

    Args:
        run: The run.
        let_go: As `only_writer` takes it.

    Raises:
        InputError: Another process writes this run or a copy of it.
    """
    name = read_content(run.ledger, torn=True).identity.run
    try:
        lineage = Lineage(name)
    except OSError as error:
        yield None, f"{error.filename}: cannot be written, so a copy of this run could be resumed unnoticed"
        return
    try:
        with holding(lineage.handle, let_go):
            yield lineage, None
    finally:
        lineage.close()


def check_lineage(run: RunDirectory, content: LedgerContent, lineage: Lineage, *, mended: bool = False) -> None:
    """Refuse a copy that lacks lines which this machine wrote."""
    latest = lineage.latest
    if latest is None or holds(content, latest.lines, latest.head):
        return
    # Done again identically, the torn line comes out as the one that was noted.
    if mended and latest.lines == len(content.heads) + 1:
        return
    raise InputError(
        f"{run.ledger}: ends with line {len(content.heads)}, but on this machine the run went on to line "
        f"{latest.lines}: a stale copy, or lines are lost; going on would spend a budget twice. Resume the newest "
        "copy, or restore its ledger"
    )


def holds(content: LedgerContent, lines: int, head: str) -> bool:
    """Return whether a ledger has a line of this number and hash."""
    return 0 < lines <= len(content.heads) and content.heads[lines - 1] == head
