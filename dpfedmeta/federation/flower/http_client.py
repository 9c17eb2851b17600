"""A client's requests over Flower: to the server of one authority, and no answer is read further than stated."""

import errno
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.federation.flower.flower_environment import CLOCK, MOST_BYTES, PATIENT, ROOM_BYTES
from dpfedmeta.federation.identity.credentials import wire_key
from dpfedmeta.secure_aggregation.crypto.protocol_errors import plain_line

_SECONDS = 30.0
# A signature of the time is used for so long; a clock that is set meanwhile is followed after that.
_SIGNATURE_SECONDS = 60.0
_SIGNED = (TIMESTAMP_HEADER, FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)


class ConnectionRefused(Exception):
    """The server does not take this client; in its words, or in ours where it showed another certificate."""


class IdentityTaken(ConnectionRefused):
    """A client of this identity is connected."""


class ClockDiffers(ConnectionRefused):
    """The server reads this client's requests as too old or too new."""


class TooLong(Exception):
    """A message that is longer than the stated most, or compressed: it was not read to its end."""


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Address of the server, and the keys by which server and client know each other.

    Attributes:
        server: HOST:PORT.
        authority: PEM text of the certificate authority; no other authority's certificates are trusted.
        private: The client's identity, 32 bytes.
        most_bytes: Length of the longest question; a longer one is not read.
        patience: Seconds without a server before the client gives up.
    """

    server: str
    authority: bytes
    private: bytes
    most_bytes: int = MOST_BYTES
    patience: float = 600.0


class Requests(FleetHttpClient):
    """Flower's client of a SuperLink, which reads no answer that is too long and trusts one authority."""

    def __init__(self, wire: Wire) -> None:
        key = wire_key(wire.private)
        signs = _SignsNowAndThen(key, key.public_key())
        super().__init__(
            f"https://{wire.server}", interceptors=[RuntimeVersionHttpInterceptor("SuperNode"), signs], verify=False
        )
        self._client.close()
        transport = _Bounded(httpx.HTTPTransport(verify=_context(wire.authority)), wire.most_bytes + ROOM_BYTES)
        # Neither proxies nor authorities of this machine: the federation has its own.
        self._client = httpx.Client(transport=transport, timeout=_SECONDS, trust_env=False, follow_redirects=False)

    def SendNodeHeartbeat(self, request: SendNodeHeartbeatRequest) -> SendNodeHeartbeatResponse:
        """Flower's, which gives up after 5 s: a busy server then has to shake hands with everybody anew."""
        return self._unary_unary(
            path="/v1/fleet/send-node-heartbeat",
            rpc_method="/flwr.proto.Fleet/SendNodeHeartbeat",
            request=request,
            response_type=SendNodeHeartbeatResponse,
        )


class _SignsNowAndThen(NodeAuthHttpInterceptor):
    """Flower's signature of the time, which a server takes for 300 s: signed once a minute instead of each time."""

    _headers: Mapping[str, str] = {}
    _made = -float("inf")

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send one request, signed."""
        context.request.headers[PATIENT] = "1"
        if time.monotonic() - self._made < _SIGNATURE_SECONDS:
            context.request.headers.update(self._headers)
            return call_next(context)
        return super().intercept(context, lambda signed: self._kept(signed, call_next))

    def _kept(self, signed: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        self._headers = {name: signed.request.headers[name] for name in _SIGNED}
        self._made = time.monotonic()
        return call_next(signed)


class _Socket(ssl.SSLSocket):
    """Closed where the server has gone before the handshake: Python's ssl (3.11) sees that, and drops it open."""

    def getpeername(self) -> Any:
        """The server's address."""
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection") from error


def _context(authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _Socket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError):  # a text that is empty, or no ASCII
        raise InputError(
            "the invitation's certificate is not PEM text; ask the server's operator for the invitation again"
        ) from None
    return context


class _Bounded(httpx.BaseTransport):
    """Refusals as such, and no more bytes than stated."""

    def __init__(self, inner: httpx.BaseTransport, most: int) -> None:
        self._inner, self._most = inner, most

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; a refusal raises, and the response is read only up to the stated length."""
        request.headers["accept-encoding"] = "identity"
        response = self._inner.handle_request(request)
        if "content-encoding" in response.headers:
            response.close()
            raise TooLong("the server sent a compressed message")
        stream = response.stream
        assert isinstance(stream, httpx.SyncByteStream)
        response = httpx.Response(
            response.status_code, headers=response.headers, stream=_Counted(stream, self._most), request=request
        )
        if response.status_code in (401, 403, 412, 413):
            reason = _reason(response)
            # Whoever set a clock may set it back; another key does not become one of the roster's.
            of_clock = ClockDiffers if CLOCK in reason else ConnectionRefused
            raise (IdentityTaken if response.status_code == 412 else of_clock)(reason)
        return response

    def close(self) -> None:
        """Close what is inside."""
        self._inner.close()


class _Counted(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, most: int) -> None:
        self._inner, self._most = inner, most

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for part in self._inner:
            left -= len(part)
            if left < 0:
                raise TooLong(f"a message of more than {self._most:,} bytes")
            yield part

    def close(self) -> None:
        self._inner.close()


def _reason(response: httpx.Response) -> str:
    """Why the server says no, in one short line."""
    try:
        content = (response.read() or b"{}")[:2000]
        found = httpx.Response(200, content=content).json()
        words = str(found.get("detail") or found.get("message") or found)
    except (*DAMAGED_JSON, TooLong):
        words = "no reason given"
    return f"the server refuses this client ({response.status_code}): {plain_line(words)[:200]}"


def wrong_certificate(error: BaseException | None) -> str | None:
    """Return why the server's certificate or TLS version was rejected; None if something else failed."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        if isinstance(error, ssl.SSLEOFError):
            return None  # the server ended the handshake: it goes away, or too many of this address wait
        if isinstance(error, ssl.SSLError):
            return "it does not support TLS 1.3" if error.reason else None
        error = error.__cause__ or error.__context__
    return None
