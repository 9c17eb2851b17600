"""What strangers and clients that send halves of requests can hold of a server: little, and not for long."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time

import pytest

from dpfedmeta.federation.flower import fleet_gateway as flower_gate
from dpfedmeta.federation.flower import superlink as flower_limits
from dpfedmeta.federation.flower.fleet_calls import ACTIVATE, HEARTBEAT, OBJECT, PULL
from dpfedmeta.federation.flower.fleet_gateway import FLEET, Gate
from dpfedmeta.federation.flower.superlink import Strangers
from tests.federation.test_flower_wire import identity, signed
from tests.federation.wires import card, loopback

FEW = 5


@pytest.fixture
def wire(tmp_path, monkeypatch):
    monkeypatch.setattr(flower_limits, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(flower_limits, "Strangers", lambda **given: Strangers(of_address=FEW, **given))
    found = loopback(tmp_path)
    yield found
    found.channel.close()


def closed(connection, seconds=5.0):
    """Whether the server ends a connection within some seconds."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def opened(wire, count):
    return [socket.create_connection(("127.0.0.1", wire.link.port)) for _ in range(count)]


def over_tls(wire, connection):
    context = ssl.create_default_context(cadata=wire.certificates.authority.decode())
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def test_connections_that_nobody_signs_for_are_few_and_clients_get_in_beside_them(wire):
    """However many a stranger opens, from the same address: the oldest end, and a client that comes last is served."""
    strangers = opened(wire, FEW + 7)
    with wire.attending("anna"):
        assert wire.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}
        assert all(closed(each, 0.5) for each in strangers[:7])
        assert wire.channel.ask({identity("anna"): b"xyz"}, 20) == {identity("anna"): b"zyx"}
    for each in strangers:
        each.close()


def test_as_many_strangers_are_heard_as_the_roster_can_come_back_with(tmp_path, monkeypatch):
    """Each client has two connections; where the newest ended the oldest all along, nobody got in."""
    made = []
    monkeypatch.setattr(flower_limits, "Strangers", lambda **given: made.append(Strangers(**given)) or made[-1])
    monkeypatch.setattr(flower_limits, "MOST_OF_ALL", 5)
    found = loopback(tmp_path)
    found.channel.close()
    assert made[0]._of_all == 6


def test_many_that_wait_to_be_taken_are_taken_few_at_a_time():
    with flower_limits.Listening() as listening:
        listening.strangers = Strangers()
        listening.bind(("127.0.0.1", 0))
        listening.listen(2)  # asyncio's word for how many it takes at once
        waiting = [socket.create_connection(listening.getsockname(), timeout=5) for _ in range(50)]
    for each in waiting:
        each.close()


def test_headers_that_do_not_end_close_the_connection_at_the_deadline(wire):
    slow, idle = (over_tls(wire, each) for each in opened(wire, 2))
    slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nX-A: ")
    began = time.monotonic()
    with slow, idle:
        assert closed(slow)
        assert closed(idle)
    assert 0.3 < time.monotonic() - began < 4.0


def test_headers_without_end_are_not_kept(wire):
    (endless,) = (over_tls(wire, each) for each in opened(wire, 1))
    with endless, pytest.raises(OSError):
        for _ in range(2**10):
            endless.sendall(b"X-A: " + bytes(2**12).replace(b"\0", b"a"))


def test_the_oldest_of_the_address_with_the_most_connections_ends():
    found, ends = Strangers(of_address=3, of_all=4), [socket.socketpair() for _ in range(7)]

    def add(number, host):
        found.add(ends[number][0], (host, number))

    def left():
        return [not closed(far, 0.01) for _, far in ends]

    for number in range(3):
        add(number, "a")
    add(3, "b")
    assert left() == [True] * 7
    add(4, "a")  # the fourth of one address
    assert left() == [False] + [True] * 6
    add(5, "c")  # the fifth of all
    assert left() == [False, False] + [True] * 5
    found.signed(("a", 2))  # a client's: it neither counts nor ends
    add(6, "c")
    assert left() == [False, False] + [True] * 5
    for each in ends:
        for end in each:
            end.close()


def test_a_connection_that_broke_meanwhile_is_ended_without_an_error():
    """It would end the loop that accepts all others."""
    found = Strangers(of_address=1)
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as ends:
        for number in range(3):
            far = socket.create_connection(listening.getsockname())
            near = ends.enter_context(listening.accept()[0])
            found.add(near, ("a", number))
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.close()  # with a reset
            with pytest.raises(ConnectionResetError):
                near.recv(1)
            assert near.fileno() != -1
    assert [*found._waiting] == [("a", 2)]


def gate():
    """A gate with one node, whose application keeps what reaches it."""
    reached = []

    def application(name, node, key, body):
        reached.append(body)
        return 200, b""

    return Gate(application, {card("anna").wire_pem: 7}, lambda node: None, most_bytes=1000), reached


async def pushed(gate, parts, stated=None, before=None, name=OBJECT):
    """Status of one request; a part of None waits for `before`."""
    headers = [(name.encode(), value.encode()) for name, value in signed("anna").items()]
    if stated is not None:
        headers.append((b"content-length", str(stated).encode()))
    left, said = list(parts), []

    async def receive():
        part = left.pop(0)
        if part is None:
            await before.wait()
            part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message):
        said.append(message)

    await gate({"type": "http", "method": "POST", "path": FLEET + name, "headers": headers}, receive, send)
    return said[0]["status"]


@pytest.mark.parametrize("stated", [4000, None])
def test_bodies_of_one_client_are_no_longer_together_than_one_message(stated):
    """The second is refused while the first is on its way, and taken afterwards."""

    async def both():
        own, reached = gate()
        go = asyncio.Event()
        size = 4000
        first = asyncio.ensure_future(pushed(own, [bytes(size - 1), None, b"x"], stated, go))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = await pushed(own, [bytes(size)], stated)
        go.set()
        return await first, second, await pushed(own, [bytes(size)], stated), [len(body) for body in reached]

    assert asyncio.run(both()) == (200, 413, 200, [4000, 4000])


def test_a_body_that_waits_for_a_thread_counts_until_it_is_answered(monkeypatch):
    """Threads are few: what is read meanwhile would lie in memory, as much as a client sends."""
    monkeypatch.setattr(flower_gate, "_LONG_BYTES", 100)
    answered = threading.Event()

    async def both():
        own, reached = gate()
        own._application = lambda *given: (answered.wait(20) and reached.append(given)) or (200, b"")
        first = asyncio.ensure_future(pushed(own, [bytes(4000)]))
        while not own._reading[7]:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        second = await pushed(own, [bytes(4000)])
        answered.set()
        return await first, second, await pushed(own, [bytes(4000)]), len(reached), own._reading

    assert asyncio.run(both()) == (200, 413, 200, 2, {7: 0})


@pytest.mark.parametrize("name", [PULL, HEARTBEAT, ACTIVATE, "confirm-message-received"])
def test_what_waits_for_news_is_short(name, monkeypatch):
    """A body is held as long as its request is."""
    monkeypatch.setattr(flower_gate, "ROOM_BYTES", 500)
    own, reached = gate()
    assert asyncio.run(pushed(own, [bytes(501)], name=name)) == 413
    assert not reached


@pytest.mark.parametrize("stated", ["-5", "many", "10000000000"])
def test_a_stated_length_that_is_none_is_refused(stated):
    own, reached = gate()
    assert asyncio.run(pushed(own, [b"x"], stated)) == 413
    assert not reached


def test_a_body_that_does_not_end_is_refused_at_its_deadline_and_its_room_is_free(monkeypatch):
    monkeypatch.setattr(flower_gate, "_BODY_SECONDS", 0.05)

    async def both():
        own, _ = gate()
        late = await pushed(own, [bytes(100), None, b"x"], 101, asyncio.Event())
        return late, await pushed(own, [bytes(5000)], 5000), dict(own._reading)

    assert asyncio.run(both()) == (408, 200, {7: 0})


def test_connections_that_have_ended_do_not_count():
    found, ends = Strangers(of_address=2, of_all=3), [socket.socketpair() for _ in range(4)]
    for number in range(2):
        found.add(ends[number][0], ("a", number))
    ends[1][0].close()  # not the oldest
    found.add(ends[2][0], ("a", 2))
    assert not closed(ends[0][1], 0.01)
    found.add(ends[3][0], ("a", 3))
    assert closed(ends[0][1], 0.01)
    for near, far in ends:
        near.close()
        far.close()


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 408, 409, 412, 413, 429, 500, 502, 503])
def test_a_connection_ends_after_a_refusal_of_which_not_all_may_have_been_read(status):
    said = []

    async def send(message):
        said.append(message)

    asyncio.run(flower_gate._sent(send, (status, b"four")))
    start, body = said
    headers = dict(start["headers"])
    assert (start["status"], body["body"], headers[b"content-length"]) == (status, b"four", b"4")
    assert (headers.get(b"connection") == b"close") == (status in (401, 404, 408, 413, 503))
    assert (headers[b"content-type"] == b"application/json") == (status != 200)


@pytest.mark.parametrize(
    ("stated", "seconds", "status"), [(None, 30.0, 200), ("0", 30.0, 200), ("40000", 32.0, 413), ("-40000", 30.0, 413)]
)
def test_a_long_body_has_the_time_of_a_slow_line(monkeypatch, stated, seconds, status):
    given, timeout = [], asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda delay: given.append(delay) or timeout(delay))
    own, _ = gate()
    assert asyncio.run(pushed(own, [b"x"], stated)) == status
    assert given == [seconds]
