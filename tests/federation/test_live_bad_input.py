"""What is wrong, tried with real processes over Flower and TLS: one line where it is mended, and others go on."""

import json
import socket
import ssl
import threading
from pathlib import Path

import httpx
import pytest
import yaml

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, prepare_flower
from dpfedmeta.federation.identity.credentials import wire_key, write_identity
from dpfedmeta.federation.identity.invitation import (
    CERTIFICATE,
    CERTIFICATE_KEY,
    INVITATION,
    make_operator,
    read_invitation,
)
from dpfedmeta.federation.wire_format import VERSION
from tests.federation.live import live
from tests.federation.sessions import FailingWire
from tests.federation.silos import MICRO, NOISE, private_key, write_classes

prepare_flower()

from flwr.supercore.date import now  # noqa: E402

from dpfedmeta.federation.flower.http_client import ConnectionRefused, Requests, Wire  # noqa: E402
from tests.federation.test_flower_wire import signed_by_key  # noqa: E402

pytestmark = pytest.mark.slow
TEN_GIGABYTES = 10**10


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def charged(federation, number):
    return [line["round"] for line in lines_of(federation.home(number) / "ledger.jsonl")[1:]]


def status(federation):
    return json.loads((federation.run / "summary.json").read_text())["status"]


def memory(process):
    """The most that a process ever held, in bytes."""
    text = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def refused(client, words):
    assert client.code() == 2
    assert words in client.error
    assert client.text.count("error: ") == 1


def test_clients_that_cannot_take_part(silos, tmp_path):
    """Each of them ends with one line and code 2; the four others train, one of them with too few images."""
    with live(tmp_path, silos, given=MICRO) as federation:
        server = federation.server(fewest=3)
        server.says("listening on")
        (tmp_path / "empty").mkdir()
        write_classes(tmp_path / "small", range(50, 51), images=1)
        # Images belong to one home, so who comes with another one brings its own.
        for number, name in enumerate(("of eve", "twice")):
            write_classes(tmp_path / name, range(60 + 3 * number, 63 + 3 * number))
        eve = tmp_path / "eve.pem"
        write_identity(eve, private_key("eve"))
        other = tmp_path / "other"
        make_operator(other, ["127.0.0.1"], federation.port, private_key("another server"))
        refused(federation.client(3, data=tmp_path / "empty"), "a folder without classes")
        assert "connected" not in federation.running[-1].text
        refused(
            federation.client(3, identity=eve, home=tmp_path / "eve", data=tmp_path / "of eve"),
            "not in the server's roster",
        )
        refused(federation.client(3, invitation=other / INVITATION), "not the server of this federation: ")
        sound = {0: federation.client(0)}
        sound[0].says("connected to")
        twice = federation.client(0, home=tmp_path / "its other home", data=tmp_path / "twice")
        # What images there are decides over what is sent, and the server sees no difference.
        sound[4] = federation.client(4, data=tmp_path / "small")
        sound[4].says("connected to")
        refused(twice, "a client of this identity is connected already; stop that one")
        sound[1] = federation.client(1)
        sound[2] = federation.client(2)
        assert server.code() == 0
        assert status(federation) == "completed"
        for number, client in sound.items():
            assert client.code() == 0
            assert charged(federation, number)[-1:] == [1]
        assert "not what the plan counts with: no rows that could be taken together" in sound[4].text
        assert not charged(federation, 3)


def test_clients_that_answer_what_is_none(silos, tmp_path):
    """NaN, more than a message may have, and one participation too many: absent in those rounds, and nobody else is."""
    given = MICRO | {"server.rounds": "3"}
    with live(tmp_path, silos, given=given) as federation:
        server = federation.server(seconds=90)
        clients = [
            federation.client(0),
            federation.client(1, "not_a_number"),
            federation.client(2, "long_answers"),
            federation.client(3, participations=1),
            federation.client(4),
        ]
        assert server.code() == 0
        assert [client.code() for client in clients] == [0] * 5
        assert status(federation) == "completed"
        # Asked, and asked again after half and three quarters of the time.
        assert clients[2].text.count("(413): a client may send at most 67,108,864 bytes in all") == 3
        assert clients[3].text.count("more than is promised (at most 1 participations") == 2
        assert [charged(federation, number) for number in (0, 3, 4)] == [[0, 1, 2], [0], [0, 1, 2]]
        found = RunDirectory(federation.run).weights.read_bytes()

    def absent(who, question):
        number, round_ = silos.roster.index(who), int.from_bytes(question[103:107], "big")
        return question[6] == 2 and (number == 1 or (number == 2 and round_ == 2) or (number == 3 and round_ > 0))

    parties = silos.parties(tmp_path / "again")
    settings = silos.settings("dp-agrlr-micro", **given, **{"run.noise_seed": str(NOISE)})
    (tmp_path / "again").mkdir(exist_ok=True)
    run, _ = silos.serve(settings, tmp_path / "again", FailingWire(parties=parties, lost=absent))
    assert run.weights.read_bytes() == found


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("changed_plan", "the plan is not signed by the server"),
        ("better_numbers", "the plan states other numbers than this client computes from its settings"),
        ("other_layout", f"the question has version 99 of the wire format; this client uses {VERSION}"),
    ],
)
def test_a_server_that_is_wrong(silos, tmp_path, how, words):
    """No round is charged at either side; clients wait, and the right server finds them."""
    with live(tmp_path, silos, given=MICRO, clients=3) as federation:
        clients = federation.everybody()
        wrong = federation.server(how, fewest=3)
        assert wrong.code() == 2
        assert "3 of 3 clients declined, and a round needs 1" in wrong.error
        for client in clients.values():
            assert words in client.text
        assert len(lines_of(federation.run / "ledger.jsonl")) == 1
        assert federation.server().code() == 0
        assert {client.code() for client in clients.values()} == {0}
        assert all(charged(federation, number) == [0, 1] for number in range(3))


@pytest.mark.parametrize("claimed", [True, False])
def test_a_client_that_sends_ten_gigabytes(silos, tmp_path, claimed):
    """They are never held; the clients beside it train."""
    sent = 0

    def stream():
        nonlocal sent
        while sent < TEN_GIGABYTES:
            sent += 2**20
            yield bytes(2**20)

    with live(tmp_path, silos, given=MICRO) as federation:
        server = federation.server(fewest=4)
        server.says("listening on")
        before = memory(server)
        invitation = read_invitation(federation.operator / INVITATION)
        wire = Wire(server=invitation.server, authority=invitation.authority, private=silos.keys[4])
        size = {"content-length": str(TEN_GIGABYTES)} if claimed else {}
        url = f"https://{invitation.server}/v1/fleet/push-object"
        headers = signed_by_key(wire_key(silos.keys[4]), now().isoformat()) | size
        with Requests(wire)._client as client, pytest.raises((ConnectionRefused, httpx.HTTPError)):
            client.post(url, content=stream(), headers=headers)
        assert sent < 4 * MOST_BYTES
        assert memory(server) < before + 4 * MOST_BYTES
        clients = federation.everybody(but=(4,))
        assert server.code() == 0
        assert {client.code() for client in clients.values()} == {0}


class Flood(threading.Thread):
    """A server with the right certificate that answers everything with ten gigabytes."""

    def __init__(self, federation, claimed):
        super().__init__(daemon=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(federation.operator / CERTIFICATE, federation.operator / CERTIFICATE_KEY)
        self.listening = socket.create_server(("127.0.0.1", federation.port))
        self.claimed, self.sent, self.over = claimed, [], False
        self.start()

    def run(self):
        while not self.over:
            try:
                raw, _ = self.listening.accept()
                with self.context.wrap_socket(raw, server_side=True) as each:
                    self._answer(each)
            except OSError:
                continue

    def _answer(self, each):
        while b"\r\n\r\n" not in each.recv(2**16):
            pass
        long = f"content-length: {TEN_GIGABYTES}" if self.claimed else "transfer-encoding: chunked"
        each.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n{long}\r\n\r\n".encode())
        part = bytes(2**20)
        framed = part if self.claimed else b"100000\r\n" + part + b"\r\n"
        self.sent.append(0)
        while self.sent[-1] < TEN_GIGABYTES:
            each.sendall(framed)
            self.sent[-1] += len(part)

    def close(self):
        self.over = True
        self.listening.close()
        with socket.socket() as last:
            last.connect_ex(self.listening.getsockname() if self.listening.fileno() >= 0 else ("127.0.0.1", 9))


@pytest.mark.parametrize("claimed", [True, False])
def test_a_server_that_sends_ten_gigabytes(silos, tmp_path, claimed):
    """A client drops them unread beyond its limit, says so in a line, and finds the right server later."""
    with live(tmp_path, silos, given=MICRO, clients=3) as federation:
        flood = Flood(federation, claimed)
        clients = federation.everybody()
        for client in clients.values():
            client.says(f"a message of more than {MOST_BYTES + 4096:,} bytes; trying again for 200 s")
            assert memory(client) < 2**30
        flood.close()
        assert flood.sent
        assert max(flood.sent) < 3 * MOST_BYTES
        assert federation.server().code() == 0
        assert {client.code() for client in clients.values()} == {0}


def test_the_invitation_of_another_federation_is_not_believed(silos, tmp_path):
    """The right certificate with another server's identity: its questions are declined, and nothing is charged."""
    with live(tmp_path, silos, given=MICRO, clients=3) as federation:
        content = yaml.safe_load((federation.operator / INVITATION).read_text())
        changed = tmp_path / "changed.yaml"
        changed.write_text(yaml.safe_dump(content | {"identity": "11" * 32}))
        deceived = federation.client(0, invitation=changed)
        sound = [federation.client(number) for number in (1, 2)]
        assert federation.server().code() == 0
        assert [client.code() for client in sound] == [0, 0]
        assert "the question is not signed by the server whose key this client holds" in deceived.text
        assert not charged(federation, 0)
