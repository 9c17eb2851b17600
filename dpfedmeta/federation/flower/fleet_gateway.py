"""Gate before Flower's server: it checks who speaks, limits the length of messages, and lets nodes wait for news.

Flower reads a whole request before it asks who sent it, and lets a node answer in another's name. The gate does
neither. Nodes wait without polling. Flower 1.42 needs it still: without it, a client's answer in another's name gets
code 200, and 300 MB that nobody signed are read to their end (`TestGate` of tests/federation/test_flower_wire.py).
One request costs the server a quarter of a millisecond: a signature is checked once while a node repeats it.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from threading import Event
from typing import Any, TypeAlias

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from dpfedmeta.federation.flower.fleet_calls import ACTIVATE, HEARTBEAT, NAMES, OBJECT, PULL, PUSH, Answer, refusal
from dpfedmeta.federation.flower.flower_environment import CLOCK, MOST_BYTES, PATIENT, ROOM_BYTES

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Name of the request, number of the node, its key, the body.
Application: TypeAlias = Callable[[str, int, bytes, bytes], Answer]

FLEET = "/v1/fleet/"
_COMING_AND_GOING = (ACTIVATE, "deactivate-node")
# A question that waits is fetched at once; a client gives up after 30 s.
_PULL_SECONDS = 20.0
# Flower's own heartbeat gives up after 5 s; a client that says that it is patient waits longer.
_HEARTBEAT_SECONDS, _PATIENT_SECONDS = 3.0, 8.0
# A connection may break and come back: whoever is not heard of for so long after is gone.
_GRACE_SECONDS = 2.0
# Refusals after which a connection ends: not all of the request may have been read.
_LAST = (401, 404, 408, 413, 503)
# Signatures of one node that are remembered: its two connections sign for themselves.
_MOST_PROOFS = 4
# Bodies from this length on are taken apart in a thread of their own, so that nobody else waits meanwhile.
_LONG_BYTES = 2**20
# A body ends so many seconds after its headers, and later by the time that a slow line takes for its bytes.
_BODY_SECONDS, _SLOWEST_BYTES = 30.0, 20_000.0


class Gate:
    """An ASGI application before another one.

    Args:
        application: Flower's answer to a request (fleet_calls.FleetCalls.answer).
        nodes: Number of the node by its public key (PEM).
        gone: Called with the number of a node whose connections broke.
        most_bytes: The longest message; a longer one is not read, nor are several of one client that are together.
        signed: Called with the address of a connection on which a client of the roster speaks.
        heard: Called with the number of a node at each of its requests: it is there.
    """

    def __init__(
        self,
        application: Application,
        nodes: Mapping[bytes, int],
        gone: Callable[[int], object],
        most_bytes: int = MOST_BYTES,
        signed: Callable[[tuple[str, int]], object] = lambda address: None,
        heard: Callable[[int], object] = lambda node: None,
    ) -> None:
        self.arrived = Event()
        self._application, self._nodes, self._gone, self._signed = application, dict(nodes), gone, signed
        self._most, self._there = most_bytes + ROOM_BYTES, heard
        self._proofs: dict[bytes, dict[tuple[str, bytes], None]] = {key: {} for key in self._nodes}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = {node: asyncio.Event() for node in self._nodes.values()}
        # Requests so far and at the moment, and bytes of bodies that are read or wait for a thread, of each node.
        self._heard, self._open, self._reading = (dict.fromkeys(self._nodes.values(), 0) for _ in range(3))
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed, self._closing = False, asyncio.Event()

    def wake(self, node: int) -> None:
        """Something waits for this node; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news[node].set)

    def close(self) -> None:
        """Let go of everybody who waits."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        self._loop = asyncio.get_running_loop()
        name = scope["path"].removeprefix(FLEET)
        if scope["method"] != "POST" or scope["path"] != FLEET + name or name not in NAMES:
            return await _sent(send, refusal(404, "this address serves only the clients of a federation"))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            key = self._authenticated(headers)
        except ValueError as error:
            return await _sent(send, refusal(401, str(error)))
        node = self._nodes[key]
        if scope.get("client"):
            self._signed(scope["client"])
        if name not in _COMING_AND_GOING:
            self._there(node)
        self._heard[node] += 1
        self._open[node] += 1
        try:
            answer = await self._answered(name, node, key, headers, receive)
        finally:
            self._open[node] -= 1
        if answer is not None:
            await _sent(send, answer)

    async def _answered(
        self, name: str, node: int, key: bytes, headers: Mapping[str, str], receive: Receive
    ) -> Answer | None:
        """The answer to a request of a node of the roster; None: it has gone meanwhile."""
        try:
            body = await self._body(name, node, headers, receive)
        except TimeoutError:
            return refusal(408, "the body of this request did not come in time")
        if body is None:
            return refusal(413, f"a client may send at most {self._most - ROOM_BYTES:,} bytes in all")
        if name == HEARTBEAT:
            # It counts from its arrival: one that is answered late must not bring back who has said goodbye.
            answer = self._application(name, node, key, body)
            seconds = _PATIENT_SECONDS if PATIENT in headers else _HEARTBEAT_SECONDS
            return answer if await self._waited(seconds, asyncio.Event(), node, receive) else None
        if name == PULL:
            if not await self._waited(_PULL_SECONDS, self._news[node], node, receive):
                return None
            self._news[node].clear()
        if self._closed:
            return refusal(503, "the server is stopping")
        if len(body) < _LONG_BYTES:
            answer = self._application(name, node, key, body)
        else:
            # It counts until it is answered: bodies may wait for a thread.
            self._reading[node] += len(body)
            try:
                answer = await asyncio.to_thread(self._application, name, node, key, body)
            finally:
                self._reading[node] -= len(body)
        if name in (PUSH, OBJECT):
            self.arrived.set()
        return answer

    async def _body(self, name: str, node: int, headers: Mapping[str, str], receive: Receive) -> bytes | None:
        """Read a whole body; None where those of this node would be too long together, and then no more is read.

        Raises:
            TimeoutError: It did not end in time.
        """
        try:
            stated = int(headers.get("content-length", 0))
        except ValueError:
            return None
        parts, size, counted = list[bytes](), 0, 0
        # Only answers are long; what waits for news is held as long as it waits.
        longest = self._most if name in (PUSH, OBJECT) else ROOM_BYTES

        def kept_free() -> bool:
            """Reserve room for the body, and return whether it fits.

            The announced length counts from the start, so that a node cannot begin many slow bodies at once.
            """
            nonlocal counted
            more = max(stated, size) - counted
            fits = counted + more <= longest and self._reading[node] + more <= self._most
            if fits:
                self._reading[node] += more
                counted += more
            return fits

        try:
            async with asyncio.timeout(_BODY_SECONDS + max(stated, 0) / _SLOWEST_BYTES):
                more = stated >= 0
                while more and kept_free():
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                return b"".join(parts) if stated >= 0 and not more and kept_free() else None
        finally:
            self._reading[node] -= counted

    def _authenticated(self, headers: Mapping[str, str]) -> bytes:
        """The key of the node that speaks.

        A signature says when it was made and no more, and may be repeated until it is old. So one that was right is
        right, and is not checked again.

        Raises:
            ValueError: None of the roster, in words that may be sent back.
        """
        try:
            key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
            signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
            stamp = headers[TIMESTAMP_HEADER.lower()]
            age = (now() - datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise ValueError("the request does not carry a client's key") from None
        if key not in self._nodes:
            raise ValueError("this key is not in the server's roster")
        proofs, proof = self._proofs[key], (stamp, signature)
        if proof not in proofs:
            if not verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature):
                raise ValueError("the signature does not fit the key")
            proofs[proof] = None
            if len(proofs) > _MOST_PROOFS:
                del proofs[next(iter(proofs))]
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE:
            raise ValueError(f"{CLOCK} differs from the server's by {abs(age):.0f} s; set the wrong one")
        return key

    async def _waited(self, seconds: float, news: asyncio.Event, node: int, receive: Receive) -> bool:
        """Hold a request until there are news; whether there is still somebody to tell."""
        ends = (_disconnected(receive), self._closing.wait(), news.wait())
        waiting = [asyncio.ensure_future(end) for end in ends]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        left = waiting[0].done()
        for task in waiting:
            task.cancel()
        if left:
            leaving = asyncio.ensure_future(self._leave(node, self._heard[node]))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return not left

    async def _leave(self, node: int, heard: int) -> None:
        await asyncio.sleep(_GRACE_SECONDS)
        if self._heard[node] == heard and not self._open[node] and not self._closed:
            self._gone(node)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _sent(send: Send, answer: Answer) -> None:
    status, content = answer
    kind = PROTOBUF_MEDIA_TYPE.encode() if status == 200 else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
    if status in _LAST:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
