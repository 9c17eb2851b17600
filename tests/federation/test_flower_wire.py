"""Questions and answers over Flower on loopback, with TLS: opaque bytes both ways, and nobody else's."""

import asyncio
import base64
import contextlib
import gzip
import select
import socket
import ssl
import struct
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.flower import fleet_gateway
from dpfedmeta.federation.flower.fleet_calls import NAMES, PULL
from dpfedmeta.federation.flower.fleet_gateway import FLEET, Gate
from dpfedmeta.federation.flower.flower_channel import LinkGrid, content_of, record_of
from dpfedmeta.federation.flower.flower_client import attend
from dpfedmeta.federation.flower.http_client import (
    ConnectionRefused,
    IdentityTaken,
    Requests,
    TooLong,
    _Bounded,
    _context,
    wrong_certificate,
)
from dpfedmeta.federation.flower.superlink import Link, _listening
from dpfedmeta.federation.identity.credentials import wire_key
from dpfedmeta.federation.identity.invitation import make_certificates
from tests.federation.wires import MOST, Echo, card, loopback, private_key, until


@pytest.fixture(scope="module")
def wire(tmp_path_factory):
    found = loopback(tmp_path_factory.mktemp("wire"))
    yield found
    found.channel.close()


def identity(name):
    return card(name).identity


def nothing_is_kept(wire):
    until(lambda: not len(wire.link.state.object_store))
    return wire.link.state.num_message_ins() == 0 == wire.link.state.num_message_res()


class Slow(Echo):
    def __init__(self):
        self.asked, self.released = threading.Event(), threading.Event()

    def answer(self, question):
        self.asked.set()
        self.released.wait(20)
        return super().answer(question)


class Long(Echo):
    def answer(self, question):
        return bytes(MOST + 10_000)


class TestQuestions:
    def test_each_gets_its_own_and_answers_in_its_own_name(self, wire):
        with wire.attending("anna", "ben"):
            questions = {identity(name): f"to {name} \0\xff".encode() for name in ("anna", "ben", "cleo")}
            answers = wire.channel.ask(questions, 3)
            expected = {identity(name): questions[identity(name)][::-1] for name in ("anna", "ben")}
            assert answers == expected
            assert set(wire.channel.present()) == set(expected)
            assert wire.channel.ask({b"nobody": b"?"}, 5) == {}
        assert nothing_is_kept(wire)

    def test_who_is_late_is_absent_and_answers_nothing_else_later(self, wire):
        slow = Slow()
        with wire.attending("anna") as anna, wire.attending("ben", party=slow) as ben:
            both = (identity("anna"), identity("ben"))
            began = time.monotonic()
            assert wire.channel.ask(dict.fromkeys(both, b"abc"), 2) == {identity("anna"): b"cba"}
            assert 1.5 < time.monotonic() - began < 4
            slow.released.set()
            assert wire.channel.ask(dict.fromkeys(both, b"xyz"), 20) == dict.fromkeys(both, b"zyx")
            # Its owner is told, once; nobody else is told anything.
            assert [line for line in ben["ben"].said if "came too late" in line] == [
                "the server did not accept an answer: it came too late; its charge, if any, stays"
            ]
            assert not any("too late" in line for line in anna["anna"].said)
        assert nothing_is_kept(wire)

    def test_what_is_too_long_is_absent_and_the_others_are_not(self, wire):
        with wire.attending("anna") as anna, wire.attending("ben", party=Long()) as ben:
            both = (identity("anna"), identity("ben"))
            assert wire.channel.ask(dict.fromkeys(both, b"abc"), 4) == {identity("anna"): b"cba"}
            until(lambda: "413" in " ".join(ben["ben"].said))
            ben["ben"].party.answer = lambda question: bytes(MOST + 1)
            until(lambda: identity("ben") in wire.channel.present())
            assert wire.channel.ask({identity("ben"): b"abc"}, 3) == {}
            ben["ben"].party.answer = bytes
            assert wire.channel.ask({identity("ben"): b"abc"}, 20) == {identity("ben"): b"abc"}
            assert wire.channel.ask({identity("anna"): bytes(MOST + 5000)}, 1) == {}
            assert "more than" in " ".join(anna["anna"].said)
            assert wire.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}
        assert nothing_is_kept(wire)

    def test_who_was_thought_gone_and_answers_after_all_leaves_nothing_here(self, wire):
        """A heartbeat that comes late: Flower answers in that client's place, and then its own answer arrives."""
        anna, ben = Slow(), Slow()
        with wire.attending("anna", party=anna), wire.attending("ben", party=ben), ThreadPoolExecutor() as others:
            both = dict.fromkeys((identity("anna"), identity("ben")), b"abc")
            answers = others.submit(wire.channel.ask, both, 20)
            until(lambda: anna.asked.is_set() and ben.asked.is_set())
            state, kept = wire.link.state, len(wire.link.state.object_store)

            def thought_gone():
                state.deactivate_node(wire.link.nodes[identity("ben")])
                return len(state.object_store) > kept  # what Flower answers instead

            until(thought_gone)
            ben.released.set()
            until(lambda: state.num_message_res() == 1)
            anna.released.set()
            assert answers.result() == {identity("anna"): b"cba"}
        assert nothing_is_kept(wire)

    def test_nothing_arrives_between_the_last_look_at_answers_and_their_end(self, wire, monkeypatch):
        state, held = wire.link.state, []
        honest = state.delete_messages

        def is_free():
            free = state.lock.acquire(timeout=0.05)
            if free:
                state.lock.release()
            return free

        def watched(names):
            # Another thread, which hands over an answer, would have to wait.
            with ThreadPoolExecutor() as others:
                held.append(not others.submit(is_free).result())
            return honest(names)

        monkeypatch.setattr(state, "delete_messages", watched)
        with wire.attending("anna"):
            assert wire.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}
        assert held
        assert all(held)

    def test_who_leaves_closes_each_connection_where_it_is_used(self, wire, monkeypatch):
        """One that another thread closes while it connects stays open."""
        made, closed, make, close = [], [], Requests.__init__, Requests.close

        def making(client, *given):
            make(client, *given)
            made.append(client)

        def closing(client):
            if client in made:  # and not the heartbeat of who left before
                closed.append(threading.current_thread().name)
            close(client)

        monkeypatch.setattr(Requests, "__init__", making)
        monkeypatch.setattr(Requests, "close", closing)
        with wire.attending("anna") as clients:
            pass
        until(lambda: len(closed) == 2)
        assert sorted(closed) == sorted(["heartbeat", clients["anna"].thread.name])

    def test_a_server_that_has_gone_before_the_handshake_leaves_no_socket_open(self, wire):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            made = socket.create_connection(listening.getsockname())
            there, _ = listening.accept()
            # Closed with a reset.
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()
        with made, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            until(lambda: select.select([made], [], [], 0)[0])
            with pytest.raises(ConnectionResetError):
                _context(wire.certificates.authority).wrap_socket(made, server_hostname="127.0.0.1")
            assert said == []  # what is dropped open says so

    def test_a_server_that_comes_back_is_found_again(self, tmp_path):
        own = loopback(tmp_path, names=("anna",))
        with own.attending("anna") as anna:
            port = own.link.port
            own.channel.close()
            own.begin(port)
            until(lambda: own.channel.present() == (identity("anna"),))
            assert own.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}
        own.channel.close()
        assert anna["anna"].error is None

    @pytest.mark.parametrize("seconds", [400, pytest.param(-400, marks=pytest.mark.slow)])
    def test_a_server_whose_clock_jumps_is_waited_for_and_says_so(self, tmp_path, monkeypatch, seconds):
        """A virtual machine that was resumed, for the time until its clock is set: nobody's patience is over."""
        own = loopback(tmp_path, names=("anna",))
        # Longer than her node of before counts as present, some 20 s: until then her identity is taken.
        with own.attending("anna", patience=60) as clients:
            anna = clients["anna"]
            off = timedelta(seconds=seconds)
            with monkeypatch.context() as patch:
                patch.setattr(fleet_gateway, "now", lambda: now() + off)
                until(lambda: any("trying again" in line for line in anna.said), 60)
                assert anna.thread.is_alive()
            assert any("(401): this machine's clock differs from the server's by" in line for line in anna.said)
            # She comes back as another node; who counted as present may still be the one before.
            until(lambda: own.channel.ask({identity("anna"): b"abc"}, 5) == {identity("anna"): b"cba"}, 90)
        own.channel.close()
        assert anna.error is None


class TestRefusals:
    def test_a_clock_that_differs_is_waited_for_as_long_as_a_server(self, wire, monkeypatch):
        monkeypatch.setattr(fleet_gateway, "now", lambda: now() + timedelta(seconds=400))
        with pytest.raises(InputError, match="clock differs from the server's by 400 s; set the wrong one"):
            attend(Echo(), wire.wire("anna", patience=0.5), say=(said := []).append)
        assert any("trying again for 0 s" in line or "trying again for 1 s" in line for line in said)

    def test_neither_end_speaks_older_tls(self, wire):
        def handshake(client, most):
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.maximum_version = most
            server.load_cert_chain(wire.folder / "tls.pem", wire.folder / "tls.key")
            there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
            ends = [
                client.wrap_bio(here, there, server_hostname="127.0.0.1"),
                server.wrap_bio(there, here, server_side=True),
            ]
            for end in 3 * ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
            return ends[0].version()

        ours = _context(wire.certificates.authority)
        assert handshake(ours, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            handshake(ours, ssl.TLSVersion.TLSv1_2)
        older = ssl.create_default_context(cadata=wire.certificates.authority.decode())
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", wire.link.port)) as made, pytest.raises(ssl.SSLError):
            older.wrap_socket(made, server_hostname="127.0.0.1")

    def test_a_key_that_is_not_in_the_roster(self, wire):
        with pytest.raises(InputError, match="not in the server's roster"):
            attend(Echo(), wire.wire("eve", patience=1))

    def test_another_authority_s_certificate(self, wire):
        other = make_certificates(["127.0.0.1"]).authority
        # Of a client that is let in nothing would come back, if no certificate was looked at.
        with pytest.raises(InputError, match="not the server of this federation: "):
            attend(Echo(), wire.wire("eve", authority=other, patience=1))

    def test_no_server(self, wire):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
            with pytest.raises(RuntimeError, match=f"{address}: the server did not answer for 0 s"):
                attend(Echo(), wire.wire("anna", server=address, patience=0.1))

    def test_a_server_that_ends_handshakes_is_waited_for_and_an_older_one_is_not(self, wire):
        """As one does where too many connections of one address wait: it is no wrong server."""

        def talks(listening, older):
            while True:
                try:
                    made, _ = listening.accept()
                except OSError:
                    return
                with made, contextlib.suppress(OSError):
                    if older is None:
                        made.recv(4096)
                    else:
                        older.wrap_socket(made, server_side=True)

        older = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        older.load_cert_chain(wire.folder / "tls.pem", wire.folder / "tls.key")
        for context, error, said in (
            (None, RuntimeError, "did not answer for 0 s"),
            (older, InputError, "does not support TLS 1.3"),
        ):
            with socket.create_server(("127.0.0.1", 0)) as listening:
                thread = threading.Thread(target=talks, args=(listening, context), daemon=True)
                thread.start()
                with pytest.raises(error, match=said):
                    attend(Echo(), wire.wire("anna", server=f"127.0.0.1:{listening.getsockname()[1]}", patience=0.3))
                listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)

    def test_an_identity_that_is_connected_already(self, wire):
        with wire.attending("anna"):
            with pytest.raises(InputError, match="a client of this identity is connected already"):
                attend(Echo(), wire.wire("anna", patience=0.1))
            assert wire.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}

    def test_a_port_in_use(self, wire):
        files = {"certificate": wire.folder / "tls.pem", "key": wire.folder / "tls.key"}
        with pytest.raises(InputError, match=f"127.0.0.1:{wire.link.port}: cannot listen there"):
            Link([card("anna")], host="127.0.0.1", port=wire.link.port, **files)

    @pytest.mark.parametrize("host", ["a..b", "a" * 64, "nowhere.invalid"])
    def test_a_name_that_nobody_can_have(self, host):
        with pytest.raises(InputError, match=f"^{host}:0: cannot listen there .*choose another --port or --listen"):
            _listening(host, 0, None)

    def test_a_certificate_without_its_key(self, wire, tmp_path):
        (tmp_path / "other.key").write_bytes(make_certificates(["127.0.0.1"]).key)
        with pytest.raises(InputError, match="are not a TLS certificate and its key"):
            Link(
                [card("anna")],
                host="127.0.0.1",
                port=0,
                certificate=wire.folder / "tls.pem",
                key=tmp_path / "other.key",
            )


def signed(name, stamp=None):
    return signed_by_key(wire_key(private_key(name)), stamp or now().isoformat())


def signed_by_key(key, stamp):
    encoded = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: public_key_to_bytes(key.public_key()),
        FLEET_HTTP_SIGNATURE_HEADER: sign_message(key, stamp.encode()),
    }
    headers = {header: base64.b64encode(value).decode() for header, value in encoded.items()}
    return headers | {TIMESTAMP_HEADER: stamp, "content-type": PROTOBUF_MEDIA_TYPE}


class TestGate:
    @pytest.fixture
    def post(self, wire):
        client = Requests(wire.wire("anna"))._client
        client._transport = client._transport._inner  # type: ignore[attr-defined]
        with client:
            yield lambda path, **given: client.post(f"https://127.0.0.1:{wire.link.port}/v1/{path}", **given)

    def test_nothing_but_the_part_for_nodes_is_served(self, post):
        for path in ("control/start-run", "control/list-nodes", "runtime/acquire-task", "fleet/register-node"):
            assert post(path, headers=signed("anna")).status_code == 404

    def test_nobody_speaks_without_a_key(self, post):
        assert post("fleet/pull-messages").status_code == 401
        stranger = signed("anna") | {FLEET_HTTP_SIGNATURE_HEADER: signed("ben")[FLEET_HTTP_SIGNATURE_HEADER]}
        assert post("fleet/pull-messages", headers=stranger).status_code == 401

    def test_nothing_is_read_before_it_is_known_who_speaks(self):
        gate = Gate(None, {card("anna").wire_pem: 7}, lambda node: None)
        stranger = signed("anna") | {FLEET_HTTP_SIGNATURE_HEADER: signed("ben")[FLEET_HTTP_SIGNATURE_HEADER]}
        headers = [(name.encode(), value.encode()) for name, value in stranger.items()]
        said = []

        async def receive():
            raise AssertionError("it was read")

        async def send(message):
            said.append(message)

        asyncio.run(gate({"type": "http", "method": "POST", "path": FLEET + PULL, "headers": headers}, receive, send))
        assert said[0]["status"] == 401

    @pytest.mark.parametrize("name", sorted(NAMES))
    def test_each_request_of_a_node_has_the_answer_of_what_is_behind_and_its_own_body(self, monkeypatch, name):
        """Also those that wait for a while; nobody who is there is left without an answer."""
        for seconds in ("_PULL_SECONDS", "_HEARTBEAT_SECONDS", "_PATIENT_SECONDS"):
            monkeypatch.setattr(fleet_gateway, seconds, 0.05)
        heard, said, waits = [], [], asyncio.Event()

        def behind(*request):
            heard.append(request)
            return 200, b"answer"

        async def receive():
            if waits.is_set():
                await asyncio.sleep(10)  # it stays connected
            waits.set()
            return {"type": "http.request", "body": b"abc", "more_body": False}

        async def send(message):
            said.append(message)

        gate = Gate(behind, {card("anna").wire_pem: 7}, lambda node: None)
        headers = [(key.encode(), value.encode()) for key, value in signed("anna").items()]
        asyncio.run(gate({"type": "http", "method": "POST", "path": FLEET + name, "headers": headers}, receive, send))
        assert heard == [(name, 7, card("anna").wire_pem, b"abc")]
        assert [message.get("status", message.get("body")) for message in said] == [200, b"answer"]

    def test_a_clock_that_differs_is_named(self, post):
        found = post("fleet/pull-messages", headers=signed("anna", "2026-01-01T00:00:00+00:00"))
        assert (found.status_code, "clock differs" in found.text) == (401, True)

    @pytest.mark.parametrize("known", [True, False])
    def test_ten_gigabytes_are_not_read(self, wire, known):
        sent = 0

        def endless():
            nonlocal sent
            while sent < 10**10:
                sent += 2**16
                yield bytes(2**16)

        size = {"content-length": str(10**10)} if known else {}
        url = f"https://127.0.0.1:{wire.link.port}/v1/fleet/push-object"
        refused = pytest.raises((ConnectionRefused, httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError))
        with Requests(wire.wire("anna"))._client as client, refused:
            client.post(url, content=endless(), headers=signed("anna") | size)
        assert sent < 2**26

    def test_nobody_answers_in_another_s_name(self, wire, post):
        def pushed(source, parts=3):
            head = Message(RecordDict(), wire.link.nodes[identity("anna")], "query")
            head.metadata.__dict__["_src_node_id"] = wire.link.nodes[identity(source)]
            tree = ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id="1" * 64)] * (parts - 1))
            content = PushMessagesRequest(
                node=Node(node_id=wire.link.nodes[identity("anna")]),
                messages_list=[message_to_proto(head)],
                message_object_trees=[tree],
            ).SerializeToString()
            return post("fleet/push-messages", content=content, headers=signed("anna")).status_code

        assert pushed("ben") == 403
        assert pushed("anna", parts=9) == 403
        assert pushed("anna") not in (401, 403)  # it is an answer to nothing, so nothing is kept of it
        assert nothing_is_kept(wire)

    def test_the_sender_of_an_answer_is_who_was_let_in(self, wire):
        """And not whom the answer names inside, where the gate does not look."""
        answer = Message(record_of(b"mine"), wire.link.nodes[identity("anna")], "query")
        answer.metadata.__dict__["_src_node_id"] = wire.link.nodes[identity("ben")]
        answer.metadata.__dict__["_message_id"] = answer.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}

        class Store:
            def get_object_tree(self, name):
                return get_object_tree(answer)

            def get(self, name):
                return parts[name]

            def delete(self, name):
                pass

        grid = LinkGrid(wire.link)
        grid._objects = Store()
        pushed = Message(RecordDict(), 1, "query")
        pushed.metadata.__dict__.update(_message_id=answer.object_id, _src_node_id=wire.link.nodes[identity("anna")])
        found = grid._inflated(pushed)
        assert content_of(found) == b"mine"
        assert found.metadata.src_node_id == wire.link.nodes[identity("anna")]


class TestWhatAClientReads:
    def client(self, response):
        return httpx.Client(transport=_Bounded(httpx.MockTransport(lambda request: response), 100))

    def test_no_more_than_stated(self):
        assert self.client(httpx.Response(200, content=bytes(100))).get("https://x/").content == bytes(100)
        with pytest.raises(TooLong):
            self.client(httpx.Response(200, content=bytes(101))).get("https://x/")

    def test_nothing_that_grows(self):
        small = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(gzip.compress(b"0")))
        with pytest.raises(TooLong, match="compressed"):
            self.client(small).get("https://x/")

    def test_a_refusal_is_one_printable_line(self):
        refusal = httpx.Response(401, json={"detail": "\x1b[2J" + "no\n" * 300})
        with pytest.raises(ConnectionRefused) as found:
            self.client(refusal).get("https://x/")
        assert str(found.value).isprintable()
        assert len(str(found.value)) < 300

    @pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 408, 412, 413, 500, 503])
    def test_what_refuses_a_client_is_told_from_what_may_pass(self, status):
        """An identity that is taken is waited for; other refusals end a client; all else is an answer."""
        client = self.client(httpx.Response(status, json={"detail": "why"}))
        if status not in (401, 403, 412, 413):
            assert client.get("https://x/").status_code == status
            return
        with pytest.raises(ConnectionRefused, match=rf"the server refuses this client \({status}\): why") as found:
            client.get("https://x/")
        assert isinstance(found.value, IdentityTaken) == (status == 412)

    @pytest.mark.parametrize(("content", "words"), [
        (b'{"detail": "one", "message": "two"}', "one"), (b'{"message": "two"}', "two"), (b'{"x": 1}', "{'x': 1}"),
        (b"[]", "no reason given"), (b"{", "no reason given"), (b"", "{}"), (b" " * 101, "no reason given"),
    ])  # fmt: skip
    def test_a_reason_is_what_the_server_says_if_it_says_one(self, content, words):
        with pytest.raises(ConnectionRefused) as found:
            self.client(httpx.Response(403, content=content)).get("https://x/")
        assert str(found.value) == f"the server refuses this client (403): {words}"

    def test_a_reason_that_is_nested_very_deep_is_none(self):
        client = httpx.Client(
            transport=_Bounded(httpx.MockTransport(lambda request: httpx.Response(401, content=b"[" * 2000)), 9_000)
        )
        with pytest.raises(ConnectionRefused, match=r"\(401\): no reason given"):
            client.get("https://x/")

    @pytest.mark.parametrize("authority", [b"", b"x", "ü".encode(), b"-----BEGIN CERTIFICATE-----\n"])
    def test_an_authority_that_is_none_is_the_invitation_s(self, authority):
        with pytest.raises(InputError, match="the invitation's certificate is not PEM text"):
            _context(authority)

    @pytest.mark.parametrize(("made", "why"), [
        (lambda: ssl.SSLCertVerificationError("x"), "verified"), (lambda: ssl.SSLEOFError("x"), None),
        (lambda: ssl.SSLError("x"), None), (lambda: OSError("x"), None), (lambda: None, None),
        (lambda: ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert"), "TLS 1.3"),
    ])  # fmt: skip
    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_a_wrong_certificate_is_found_however_deep_it_was_caught(self, made, why, depth):
        error = made()
        if isinstance(error, ssl.SSLCertVerificationError):
            error.verify_message = "verified by nobody"
        if type(error) is ssl.SSLError:
            error.reason = "TLSV1_ALERT_PROTOCOL_VERSION" if why else None
        for number in range(depth):
            outer = httpx.ConnectError("x")
            outer.__cause__, outer.__context__ = (error, None) if number else (None, error)
            error = outer
        found = wrong_certificate(error)
        assert found is None if why is None else why in found
