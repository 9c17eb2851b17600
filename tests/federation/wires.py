"""A SuperLink of this process and clients in threads, each with a Party of the test's own."""

import hashlib
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfedmeta.federation.flower.flower_environment import prepare_flower
from dpfedmeta.federation.identity.credentials import card_line, read_card
from dpfedmeta.federation.identity.invitation import Certificates, make_certificates

prepare_flower()

from dpfedmeta.federation.flower.flower_channel import link_channel  # noqa: E402
from dpfedmeta.federation.flower.flower_client import attend  # noqa: E402
from dpfedmeta.federation.flower.http_client import Wire  # noqa: E402
from dpfedmeta.federation.flower.superlink import Link  # noqa: E402

MOST = 200_000


def private_key(name):
    return hashlib.sha256(f"wire {name}".encode()).digest()


def card(name):
    return read_card(card_line(private_key(name), name))


class Echo:
    """Answers with the question, turned around; what a test sets `answer` to otherwise."""

    def answer(self, question):
        return question[::-1]


@dataclass
class Attending:
    """A client in a thread."""

    party: object
    said: list = field(default_factory=list)
    error: Exception | None = None
    over: bool = False
    thread: threading.Thread | None = None


@dataclass
class Loopback:
    """What tests speak through."""

    folder: Path
    certificates: Certificates
    names: tuple
    link: Any = None
    channel: Any = None

    def begin(self, port=0):
        files = {"certificate": self.folder / "tls.pem", "key": self.folder / "tls.key"}
        self.link = Link([card(name) for name in self.names], host="127.0.0.1", port=port, most_bytes=MOST, **files)
        self.channel = link_channel(self.link, most_bytes=MOST)

    def wire(self, name, **given):
        known = {"authority": self.certificates.authority, "private": private_key(name), "most_bytes": MOST}
        wire = Wire(server=f"127.0.0.1:{self.link.port}", **known)
        return replace(wire, **given)

    @contextmanager
    def attending(self, *names, party=None, wait=True, patience=8):
        clients = {name: Attending(party or Echo()) for name in names}
        for name, client in clients.items():
            client.thread = threading.Thread(target=self._attend, args=(name, client, patience), daemon=True)
            client.thread.start()
        try:
            if wait:
                identities = {card(name).identity for name in names}
                until(lambda: identities <= {*self.channel.present()})
            yield clients
        finally:
            for client in clients.values():
                client.over = True
            for name in names:
                self.link.gate.wake(self.link.nodes[card(name).identity])
            for client in clients.values():
                client.thread.join(10)

    def _attend(self, name, client, patience):
        try:
            attend(client.party, self.wire(name, patience=patience), over=lambda: client.over, say=client.said.append)
        except Exception as error:
            client.error = error


def until(reached, seconds=20.0):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def loopback(folder, names=("anna", "ben", "cleo")):
    made = make_certificates(["127.0.0.1"])
    (folder / "tls.pem").write_bytes(made.certificate)
    (folder / "tls.key").write_bytes(made.key)
    found = Loopback(folder, made, names)
    found.begin()
    return found
