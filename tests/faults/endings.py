"""What ends a process at the n-th change that it makes to the files of a folder, and how it is started and told on.

A forked process is watched by Python's audit events (files that are opened for writing, renamed, removed; folders that
are made) and at `os.write`, `os.pwrite` and `os.fsync`: a place. At one of them a fault happens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from types import FrameType
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OPENED, RENAMED, MADE, REMOVED, WRITTEN, FLUSHED = "open", "os.rename", "os.mkdir", "os.remove", "write", "fsync"
# Without room nothing grows; whatever else is done needs none.
GROWS = (OPENED, MADE, WRITTEN, FLUSHED)
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
FAULTS = (*SIGNALS, "group-SIGINT", "group-SIGTERM", "ENOSPC", "EIO", "clock")
# At each so-manieth place that differs a clock begins to jump; odd, so that a place sees it jump back and forth.
CLOCKS = 41
# Seconds by which a clock jumps.
JUMP = 3600.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens at one place: a signal, a disk that is full from then on (ENOSPC) or fails once (EIO), or a clock.

    A clock that jumps does so at each further place, back and forth, and ends nothing.
    """

    kind: str
    place: int


@dataclass(kw_only=True)
class Watch:
    """In the child: counts places, notes them, and lets the fault happen."""

    folder: str
    fault: Fault | None
    notes: int
    count: int = 0
    full: bool = False
    within: bool = False
    ahead: float = 0.0

    def begin(self) -> None:
        """From now on, for good: an audit hook stays."""
        honest = time.time
        time.time = lambda: honest() + self.ahead
        for name in (WRITTEN, "pwrite", FLUSHED):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        sys.addaudithook(self._heard)

    def _wrapped(self, name: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, *given: Any) -> Any:
            if not self.within and (path := self._of(handle)) is not None:
                # What is written in place (`pwrite`) is shorter than a sector of a disk, which is written whole.
                half = partial(honest, handle, given[0][: len(given[0]) // 2]) if name == WRITTEN else lambda: None
                self._at(FLUSHED if name == FLUSHED else WRITTEN, path, half)
            return honest(handle, *given)

        return call

    def _of(self, handle: int) -> str | None:
        try:
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
        except OSError:
            return None
        return path if path.startswith(self.folder) else None

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if self.within or event not in (OPENED, RENAMED, MADE, REMOVED):
            return
        if event == OPENED and not (isinstance(given[2], int) and given[2] & WRITES):
            return
        if not isinstance(given[0], (str, bytes, os.PathLike)):
            return
        path = str(Path.cwd() / os.fsdecode(given[1] if event == RENAMED else given[0]))
        if path.startswith(self.folder) and not path.endswith(("/output.txt", "/places.txt")):
            self._at(event, path, lambda: None)

    def _at(self, event: str, path: str, half: Callable[[], object]) -> None:
        self.within = True
        try:
            number, self.count = self.count, self.count + 1
            name = path.removeprefix(self.folder)
            os.write(self.notes, f"{number} {event} {name} {_callers(sys._getframe(2))}\n".encode())
            if self.fault is not None and number >= self.fault.place:
                self._happens(number == self.fault.place, event, path, half)
        finally:
            self.within = False

    def _happens(self, now: bool, event: str, path: str, half: Callable[[], object]) -> None:
        assert self.fault is not None
        kind = self.fault.kind
        if now and kind == "SIGKILL":
            half()  # of a line
            os.kill(os.getpid(), signal.SIGKILL)
        elif now and kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[kind])
        elif now and kind.startswith("group-"):
            os.killpg(0, SIGNALS[kind.removeprefix("group-")])
        elif kind == "clock":
            self.ahead = JUMP if self.ahead <= 0 else -JUMP
        elif kind == "EIO" and now:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        elif kind == "ENOSPC" and event in GROWS:
            if event == WRITTEN:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _callers(frame: FrameType | None) -> str:
    """A digest of the functions and lines of this repository that led here."""
    lines = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ROOT) and code.co_filename not in _HARNESS and code.co_qualname != "<lambda>":
            lines.append(f"{code.co_filename}:{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


_ROOT = f"{Path(__file__).parents[2]}/"
_HARNESS = (__file__, str(Path(__file__).with_name("ended.py")))
_VARIES = re.compile(r"[0-9a-f]{8,}|[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process changed a file: the n-th place, and its class.

    Places of one event, of files whose names differ in digits alone, reached by the same calls, are of one class.
    """

    number: int
    event: str
    of: tuple[str, str, str]

    @classmethod
    def read(cls, line: str) -> Place:
        """From places.txt."""
        number, event, rest = line.split(" ", 2)
        path, callers = rest.rsplit(" ", 1)
        return cls(number=int(number), event=event, of=(event, _VARIES.sub("#", path), callers))


def distinct(places: Sequence[Place]) -> list[tuple[Place, bool]]:
    """The first of each class, the last and one between, in their order; and which are the first of theirs."""
    classes: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        classes.setdefault(place.of, []).append(place)
    taken = {each[at].number: each[at] for each in classes.values() for at in (0, len(each) // 2, -1)}
    first = {each[0].number for each in classes.values()}
    return [(taken[number], number in first) for number in sorted(taken)]


def chosen(
    places: Sequence[Place], known: Sequence[Place] = (), *, children: bool = False, share: int = 1
) -> list[Fault]:
    """What happens where, so that the first of all places that differ is ended by each sort of fault.

    SIGKILL is one sort. A disk that is full and one that fails take turns, since at one place the same call fails; so
    do signals that Python hears, which raise at the same place. Those to a group differ where there are `children`. A
    clock jumps at all further places, so few starts are enough. Later places of a class, and those that another kind
    has (`known`), are ended by one sort in turn; of the latter a kind that is slow takes every so-manieth (`share`).
    """
    elsewhere = {place.of for place in known}
    disk, signals, groups = cycle(("ENOSPC", "EIO")), cycle(("SIGINT", "SIGTERM")), cycle(FAULTS[3:5])
    taken, turns, seen = list[Fault](), count(), 0
    for place, first in distinct(places):
        sorts = [cycle(["SIGKILL"]), disk if place.event in GROWS else cycle(["EIO"]), signals]
        sorts += [groups] if children else []
        if place.of in elsewhere:
            seen += 1
            if seen % share:
                continue
        if place.of in elsewhere or not first:
            sorts = [sorts[next(turns) % len(sorts)]]
        taken += [Fault(kind=next(sort), place=place.number) for sort in sorts]
    starts = [place.number for place, _ in distinct(places)][:: CLOCKS * share]
    return taken + [Fault(kind="clock", place=number) for number in starts]


def started(
    call: Callable[[], object], folder: Path, environment: Mapping[str, str], fault: Fault | None, *, noted: bool = True
) -> int:
    """Fork a process that calls something in a folder, with these variables besides; its number.

    Its output goes to output.txt; its places, where they are `noted`, to places.txt.
    """
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setsid()
        # A background shell starts its children deaf to SIGINT; a user's shell does not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a command that this process has called changed it
        os.environ |= environment
        os.chdir(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not closed: what ends the process is written to it too.
        output = os.fdopen(os.open("output.txt", flags, 0o644), "w", buffering=1)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = sys.stderr = output  # in a test they are pytest's own
        if noted:
            Watch(folder=f"{folder}/", fault=fault, notes=os.open("places.txt", flags, 0o644)).begin()
        call()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 98
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(child: int, seconds: float | None) -> int | None:
    """The exit code within `seconds`, or minus the signal that ended it; None: it still runs."""
    limit = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, 0 if limit is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if limit is not None and time.monotonic() >= limit:
            return None
        time.sleep(0.002)


_COMMAND = re.compile(r"(?:go on with|type): (dpfedmeta (?:train|analyse) --resume .*)|\((--resume [^)]*)\)")


def printed(text: str, words: Sequence[str]) -> list[str]:
    """The words that go on, as the program printed them last; without any, the same ones again."""
    found = [match for line in text.splitlines() for match in _COMMAND.finditer(line)]
    if not found:
        return [*words]
    command, option = found[-1].groups()
    return shlex.split(command)[1:] if command else [words[0], *shlex.split(option)]
