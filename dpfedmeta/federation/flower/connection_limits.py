"""Limits on connections to a federation's server: a deadline for each request, and few connections of strangers."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds from the opening of a connection, or the end of its last request, to the last line of the next one's headers.
HEAD_SECONDS = 10.0
# Connections that no client of the roster has signed a request on: of one address, and of all addresses.
MOST_OF_ADDRESS, MOST_OF_ALL = 100, 400

Address = tuple[str, int]


class Strangers:
    """The open connections that nobody of the roster has signed a request on; beyond a number the oldest ends.

    A connection counts from the moment it is accepted, so one that never ends its TLS handshake counts as well. A
    client signs its first request at once, so it gets in however many strangers hold connections open.

    Args:
        of_address: How many one address may have.
        of_all: How many there may be.
    """

    def __init__(self, of_address: int = MOST_OF_ADDRESS, of_all: int = MOST_OF_ALL) -> None:
        self._of_address, self._of_all = of_address, of_all
        # The oldest first.
        self._waiting: dict[Address, socket.socket] = {}

    def add(self, connection: socket.socket, address: Address) -> None:
        """Count a new connection; where there are too many, end the oldest of the address that has the most."""
        self._waiting = {peer: each for peer, each in self._waiting.items() if each.fileno() != -1}
        hosts = Counter(host for host, _ in self._waiting)
        if hosts[address[0]] >= self._of_address:
            self._end_oldest(address[0])
        elif hosts.total() >= self._of_all:
            self._end_oldest(hosts.most_common(1)[0][0])
        self._waiting[address] = connection

    def signed(self, address: Address) -> None:
        """Count this connection no longer: a client of the roster speaks."""
        self._waiting.pop(address, None)

    def _end_oldest(self, host: str) -> None:
        oldest = next(peer for peer in self._waiting if peer[0] == host)
        # The event loop owns it, and closes it when it reads the end.
        with suppress(OSError):
            self._waiting.pop(oldest).shutdown(socket.SHUT_RDWR)


class Listening(socket.socket):
    """A listening socket that tells of every connection it accepts."""

    strangers: Strangers

    def accept(self) -> tuple[socket.socket, Address]:
        """Accept a connection, and count it."""
        connection, address = super().accept()
        self.strangers.add(connection, address[:2])
        return connection, address


class Connection(H11Protocol):
    """uvicorn's connection, closed where the headers of a request do not come in time.

    h11 ends a request whose headers have more than 64 KiB; httptools, which uvicorn prefers, knows no limit.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop waiting where a request has begun."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
