"""Checks, before a round is charged, that enough clients are connected and take part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.server.client_requests import ClientRequests
from dpfedmeta.training.terminal.progress_bar import Heartbeat
from dpfedmeta.training.tracking.callbacks import Callback, Row

_LOOK_SECONDS = 0.2


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
        """Before the next one."""
        asking = self.federation.asking
        if asking is not None and all_are_asked(asking):
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
        if time.monotonic() > until:
            raise TooFew(
                f"{there} of {len(named)} clients are connected after {seconds:g} s, {fewest} are needed; no round was "
                "begun without them"
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
        if time.monotonic() > until:
            raise TooFew(
                f"{asking.answering} of {len(asking.roster)} clients answered the plan within {seconds:g} s, {fewest} "
                "are needed; no round was begun without them"
            )
        heart.beat(
            f"{asking.answering} of {len(asking.roster)} clients answered the plan; waiting for {fewest}, "
            f"{seconds:g} s at most"
        )
        time.sleep(_LOOK_SECONDS)


def all_are_asked(asking: ClientRequests) -> bool:
    """Return whether every client is asked in every round; otherwise who declined is as secret as the cohort."""
    plan = asking.signed.privacy
    return plan.sampler == "fixed" and plan.cohort == plan.clients


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
            f"{declined} of {clients} clients declined, and a round needs {needed}; why, stands in their logs alone "
            "(another version, less promised than the plan takes); no further round was begun"
        )
