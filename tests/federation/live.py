"""A federation of real processes over Flower and TLS, from the folders and keys of `silos`."""

import multiprocessing
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.federation_demo import _free_port
from dpfedmeta.federation.identity.credentials import card_line, write_identity
from dpfedmeta.federation.identity.invitation import (
    CERTIFICATE,
    CERTIFICATE_KEY,
    INVITATION,
    ROSTER,
    make_certificates,
    make_operator,
)
from tests.federation import acting
from tests.federation.silos import CLIENTS, NOISE, SMALL

# On a machine that others use, too.
SECONDS = 400.0


@dataclass(kw_only=True)
class Started:
    """A process and what it says."""

    process: Any
    output: Path

    @property
    def text(self):
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def code(self, seconds=SECONDS):
        self.process.join(seconds)
        assert self.process.exitcode is not None, self.text
        assert "Traceback" not in self.text
        return self.process.exitcode

    @property
    def error(self):
        """The one line that says what is wrong."""
        (line,) = (line for line in self.text.splitlines() if line.startswith("error: "))
        return line

    def says(self, words, seconds=SECONDS):
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, self.text
            assert self.process.exitcode is None or words in self.text, self.text
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.join()


@dataclass(kw_only=True)
class Live:
    """One federation on disk, and its processes; `noise` is what acting.py does with that of the clients."""

    folder: Path
    silos: Any
    algo: str = "dp-agrlr-micro"
    given: dict = field(default_factory=dict)
    clients: int = CLIENTS
    noise: tuple = ("known_noise",)
    running: list = field(default_factory=list)

    def __post_init__(self):
        self.port = _free_port()
        self.operator = self.folder / "operator"
        make_operator(self.operator, ["127.0.0.1", "localhost"], self.port, self.silos.server)
        cards = [card_line(self.silos.keys[number], f"client-{number}") for number in range(self.clients)]
        (self.operator / ROSTER).write_text("".join(f"{card}\n" for card in cards))
        for number in range(self.clients):
            self.home(number).mkdir()
            write_identity(self.home(number) / "identity.pem", self.silos.keys[number])

    def home(self, number):
        return self.folder / f"client{number}"

    @property
    def run(self):
        return self.folder / "run"

    def server(self, *how, seconds=60, wait=120, fewest=None, **given):
        settings = SMALL | {"run.noise_seed": str(NOISE)} | self.given | given
        settings |= {"population.clients": str(self.clients), "population.cohort": str(self.clients)}
        words = ["server", "--keys", self.operator, "--roster", self.operator / ROSTER, "--algo", self.algo]
        words += ["--dataset", self.silos.public, "--run.dir", self.folder, "--run.name", "run", "--no-page"]
        words += ["--seconds", seconds, "--wait", wait]
        words += [] if fewest is None else ["--fewest", fewest]
        words += [word for name, value in settings.items() for word in (f"--{name}", value)]
        return self._started("server", how, words)

    def client(self, number, *how, **given):
        words = {
            "data": self.silos.folders[number],
            "invitation": self.operator / INVITATION,
            "identity": self.home(number) / "identity.pem",
            "home": self.home(number),
            "participations": 10,
            "patience": 200,
        } | given
        options = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
        return self._started(f"client{number}", (*how, *self.noise), ["client", *options])

    def everybody(self, *, but=()):
        return {number: self.client(number) for number in range(self.clients) if number not in but}

    def other_certificate(self):
        """The server shows a certificate of another authority from now on."""
        made = make_certificates(["127.0.0.1"])
        (self.operator / CERTIFICATE).write_bytes(made.certificate)
        (self.operator / CERTIFICATE_KEY).write_bytes(made.key)

    def _started(self, name, how, words):
        output = self.folder / f"{name}-{len(self.running)}.txt"
        # The process that all are forked from keeps the state folder of the session's first test.
        how = (f"machine:{os.environ['DPFEDMETA_STATE']}", *how)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([acting.__name__])
        process = context.Process(target=acting.act, args=(how, [str(word) for word in words], output), daemon=True)
        process.start()
        found = Started(process=process, output=output)
        self.running.append(found)
        return found


@contextmanager
def live(folder, silos, **given):
    """Processes that do not outlive the test."""
    found = Live(folder=folder, silos=silos, **given)
    try:
        yield found
    finally:
        for each in found.running:
            if each.process.exitcode is None:
                each.kill()
