"""Flower's SuperLink in the server's own process, with the roster's nodes and nobody else; no code travels over it.

`flower-superlink` serves on one port what lets nodes in and what starts apps (any code) on the server, and its nodes
run the app that the server sends them. Here only the part for nodes is served, and a client runs its own program.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from ssl import SSLError, TLSVersion

import uvicorn
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.flower.fleet_calls import FleetCalls
from dpfedmeta.federation.flower.fleet_gateway import Gate
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES
from dpfedmeta.federation.flower.node_messages import NodeMessages
from dpfedmeta.federation.identity.credentials import Card

# Flower ends a run whose app is silent for 60 s.
_ALIVE_SECONDS = 15.0
# Seconds from the opening of a connection, or the end of its last request, to the last line of the next one's headers.
HEAD_SECONDS = 10.0
# Connections that are taken before the event loop looks after the others; those that wait to be taken.
_AT_ONCE, _WAITING = 16, 1024
# Connections that no client of the roster has signed a request on: of one address, and of all addresses.
MOST_OF_ADDRESS, MOST_OF_ALL = 100, 400

Address = tuple[str, int]


class Link:
    """A SuperLink that serves from now on.

    Args:
        cards: The roster.
        host: To listen on.
        port: To listen on; 0: any.
        certificate: PEM file of the server's TLS certificate.
        key: PEM file of its private key.
        most_bytes: The longest message of a client.

    Raises:
        InputError: The address cannot be listened on, or the certificate and key are none.

    Attributes:
        port: That is listened on.
        nodes: Number of Flower's node of each identity.
        state: Flower's state, in memory.
        run: Number of the one run of it.
        task: Number of its task, which this process is.
    """

    def __init__(
        self, cards: Sequence[Card], *, host: str, port: int, certificate: Path, key: Path, most_bytes: int = MOST_BYTES
    ) -> None:
        self.state = NodeMessages()
        self.nodes = {card.identity: self._node(card.wire_pem) for card in cards}
        self.run, self.task = self._begun()
        numbers = {card.wire_pem: self.nodes[card.identity] for card in cards}
        # After a start of the server all come back at once, each with two connections.
        strangers = Strangers(of_all=max(MOST_OF_ALL, 2 * len(cards)))
        self.gate = Gate(
            FleetCalls(self.state).answer,
            numbers,
            self.state.deactivate_node,
            most_bytes,
            signed=strangers.signed,
            heard=lambda node: self.state.acknowledge_node_heartbeat(node, HEARTBEAT_MIN_INTERVAL),
        )
        config = uvicorn.Config(
            self.gate,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http=Connection,
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            backlog=_AT_ONCE,
        )
        _load(config, certificate, key)
        listening = _listening(host, port, strangers)
        self.port: int = listening.getsockname()[1]
        self._server = uvicorn.Server(config)
        self._closed = threading.Event()
        self._threads = (
            threading.Thread(target=self._server.run, args=([listening],), name="flower superlink", daemon=True),
            threading.Thread(target=self._stay_alive, name="flower run", daemon=True),
        )
        for thread in self._threads:
            thread.start()
        while not self._server.started and self._threads[0].is_alive():
            self._closed.wait(0.02)

    def close(self) -> None:
        """Serve no more."""
        self._closed.set()
        self._server.should_exit = True
        self.gate.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _node(self, public_key: bytes) -> int:
        return self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0)

    def _begun(self) -> tuple[int, int]:
        """A run of Flower without an app, and the number of its task."""
        run = self.state.create_run(
            *(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        )
        task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        if task is None or self.state.claim_task(task) is None or not self.state.activate_task(task):
            raise RuntimeError("Flower did not start a run")
        return run, task

    def _stay_alive(self) -> None:
        while not self._closed.wait(_ALIVE_SECONDS):
            self.state.acknowledge_task_heartbeat(self.task)


def _load(config: uvicorn.Config, certificate: Path, key: Path) -> None:
    try:
        config.load()
    except (OSError, SSLError) as error:
        raise InputError(f"{certificate}, {key}: are not a TLS certificate and its key ({error})") from None
    if config.ssl is not None:
        config.ssl.minimum_version = TLSVersion.TLSv1_3


def _listening(host: str, port: int, strangers: Strangers) -> Listening:
    """A socket that is listened on already: a port in use is known before anything is promised."""
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = Listening(family, kind, protocol)
        listening.strangers = strangers
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except (OSError, UnicodeError) as error:  # a name with an empty label, or one that is too long
        if listening is not None:
            listening.close()
        raise InputError(
            f"{host}:{port}: cannot listen there ({getattr(error, 'strerror', error)}); choose another "
            "--port or --listen"
        ) from None
    return listening


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

    def listen(self, at_once: int = _AT_ONCE) -> None:
        """Listen: asyncio takes as many connections in one go as it lets wait, and handshakes would wait for them."""
        super().listen(_WAITING)

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
