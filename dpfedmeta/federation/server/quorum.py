"""Checks, before a round is charged, that enough clients are connected and take part; a watch over who is."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.server.client_requests import ClientRequests
from dpfedmeta.training.terminal.progress_bar import Heartbeat
from dpfedmeta.training.tracking.callbacks import Callback, Row

_LOOK_SECONDS = 0.2
_WATCH_SECONDS = 1.0
_MOST_NAMES = 5


class TooFew(InputError):
    """Too few clients are connected, or take part."""


class ConnectedClients(Protocol):
    """The clients of one server, as far as it matters here."""

    @property
    def channel(self) -> Channel:
        """The wire."""
        ...

    @property
    def roster(self) -> Sequence[bytes]:
        """Identities of all clients."""
        ...

    @property
    def asking(self) -> ClientRequests | None:
        """The questions to them; None before there is a plan."""
        ...


@dataclass(kw_only=True, eq=False)
class Presence(Callback):
    """Waits, before a round is charged, until enough clients are connected; ends the run where too many decline.

    Attributes:
        federation: The clients.
        fewest: How many of them.
        seconds: How long; then the run ends cleanly, and the same call goes on with it later.
        waiting: Told now and then for whom it waits.
    """

    federation: ConnectedClients
    fewest: int
    seconds: float
    waiting: Callable[[str], object] = lambda line: None

    def on_start(self, path: Path) -> None:
        """Before the first round."""
        self._wait()

    def on_round(self, row: Row) -> None:
        """Before the next one; after the last one nobody is needed."""
        asking = self.federation.asking
        if asking is not None:
            if row["round"] + 1 >= asking.signed.privacy.rounds:
                return
            if all_are_asked(asking):
                check_willing(asking)
        self._wait()

    def _wait(self) -> None:
        wait_for(self.federation.channel, self.federation.roster, self.fewest, self.seconds, self.waiting)


def wait_for(
    channel: Channel,
    roster: Sequence[bytes],
    fewest: int,
    seconds: float,
    waiting: Callable[[str], object] = lambda line: None,
) -> None:
    """Until so many of the clients are connected; `waiting` is told every ten seconds how many are.

    Raises:
        TooFew: Fewer are, after so many seconds.
    """
    until, named = time.monotonic() + seconds, {*roster}
    heart = Heartbeat(say=waiting)
    while (there := len(named & {*channel.present()})) < fewest:
        if time.monotonic() >= until:
            raise TooFew(
                f"only {there} of {len(named)} clients are connected after {seconds:g} s, and {fewest} are needed; "
                "nothing was started"
            )
        heart.beat(f"{there} of {len(named)} clients are connected; waiting for {fewest}, {seconds:g} s at most")
        time.sleep(_LOOK_SECONDS)


def offer_until_answered(
    asking: ClientRequests, fewest: int, seconds: float, waiting: Callable[[str], object] = lambda line: None
) -> None:
    """The plan, until so many clients accepted or declined it: whoever makes it slowly is offered it again.

    Raises:
        TooFew: Fewer did, after so many seconds; or so many declined that no round can have a sum.
    """
    until, heart = time.monotonic() + seconds, Heartbeat(say=waiting)
    while True:
        asking.offer(asking.channel.present())
        check_willing(asking)
        if asking.answering >= fewest:
            return
        if time.monotonic() >= until:
            raise TooFew(
                f"only {asking.answering} of {len(asking.roster)} clients answered the plan within {seconds:g} s, and "
                f"{fewest} are needed; no round was started"
            )
        heart.beat(
            f"{asking.answering} of {len(asking.roster)} clients answered the plan; waiting for {fewest}, "
            f"{seconds:g} s at most"
        )
        time.sleep(_LOOK_SECONDS)


def all_are_asked(asking: ClientRequests) -> bool:
    """Return whether every client is asked in every round; otherwise who declined is as secret as the cohort."""
    plan = asking.signed.privacy
    return plan.sampling.fixed_size and plan.cohort == plan.clients


def check_willing(asking: ClientRequests) -> None:
    """Check that a round can have a sum, given who declined the plan or the last round.

    Raises:
        TooFew: So many declined that no round can.
    """
    plan, declined, clients = asking.signed.privacy, len(asking.declining), len(asking.roster)
    whole = plan.at(0).whole
    needed = 1 if whole is None else whole.fewest(round(plan.cohort))
    if clients - declined < needed:
        raise TooFew(
            f"{declined} of {clients} clients declined, and a round needs {needed}; no further round was started. "
            "The reasons are only in the clients' logs (another version, or a promise smaller than the plan's cost)"
        )


@contextmanager
def attendance(
    names: Mapping[bytes, str],
    present: Callable[[], Sequence[bytes]],
    say: Callable[[str], object],
    seconds: float = _WATCH_SECONDS,
) -> Iterator[None]:
    """Say every change, in a line for all clients that came or left within so many seconds.

    Args:
        names: Names of the clients, by identity.
        present: Returns the identities of the connected clients.
        say: Told each change: the operator, who may know who is connected.
        seconds: Between two looks.
    """
    over = threading.Event()

    def watch() -> None:
        there: frozenset[bytes] = frozenset()
        known: frozenset[bytes] = frozenset()
        while not over.wait(seconds):
            before, there = there, frozenset(present()) & names.keys()
            for line in _changes(names, before, there, known):
                say(line)
            known |= there

    thread = threading.Thread(target=watch, name="attendance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _changes(
    names: Mapping[bytes, str], before: frozenset[bytes], there: frozenset[bytes], known: frozenset[bytes]
) -> Iterator[str]:
    count = f"{len(there)} of {len(names)} clients are connected"
    groups = {"left": before - there, "back": (there - before) & known, "connected": there - before - known}
    for word, group in groups.items():
        if group:
            # In the order of the roster.
            said = [name for identity, name in names.items() if identity in group]
            more = f" and {len(said) - _MOST_NAMES} more" if len(said) > _MOST_NAMES else ""
            yield f"{word}: {', '.join(said[:_MOST_NAMES])}{more}; {count}"
