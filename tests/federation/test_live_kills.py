"""Processes that are killed (SIGKILL) in every phase and at random instants, over Flower and TLS.

DPFEDMETA_KILLS says how many there are in all (100).
"""

import json
import os
import time

import numpy as np
import pytest

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from tests.federation.live import live
from tests.federation.sessions import FailingWire, phase_of
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE

ALGOS = {"dp-agrlr-micro": MICRO, "dp-agrlr-secure": SECURE}
ROUNDS, SECONDS = 5, 900.0
# Where single messages are seen, clients keep their promise to its end before the last round; under secure aggregation
# too few would be left for it.
PROMISED = {"dp-agrlr-micro": 4, "dp-agrlr-secure": 5}
PHASES = {
    "dp-agrlr-micro": ("PLAN", "VECTOR", "MODEL"),
    "dp-agrlr-secure": ("PLAN", "KEYS", "SHARES", "AGREE", "MASKED", "CONSENT", "REVEAL", "MODEL"),
}
KILLS = int(os.environ.get("DPFEDMETA_KILLS", "100"))
NOTES, INSTANTS = 7, 3
RUNS = [(algo, number) for number in range(-(-KILLS // (2 * (NOTES + INSTANTS)))) for algo in ALGOS]


def notes(coins, algo, folder):
    """Where somebody dies: a phase of a round, before or after it speaks; the server in one of three."""
    while len(list(folder.glob("*-*"))) < NOTES:
        phase, round_ = coins.choice(PHASES[algo]), int(coins.integers(ROUNDS))
        who = "server" if coins.random() < 0.3 else f"client{coins.integers(CLIENTS)}"
        if phase in ("PLAN", "MODEL"):
            round_ = 0
        (folder / f"{who}-{phase}-{round_}-{coins.choice(['before', 'after'])}").touch()


class Federation:
    """Whoever dies is started again; some are killed from outside, at random instants."""

    def __init__(self, federation, coins, folder, promised):
        self.live, self.coins, self.folder, self.promised = federation, coins, folder, promised
        self.server, self.clients = self._server(), {number: self._client(number) for number in range(CLIENTS)}
        self.deaths = 0

    def _server(self):
        return self.live.server(f"mortal_server:{self.folder}", fewest=4, wait=300, seconds=60)

    def _client(self, number):
        return self.live.client(
            number, f"mortal_client:{self.folder}:{number}", participations=self.promised, patience=900
        )

    def run(self):
        instants = [time.monotonic() + wait for wait in np.cumsum(self.coins.exponential(12.0, INSTANTS))]
        end = time.monotonic() + SECONDS
        while self.server.process.exitcode != 0:
            assert time.monotonic() < end, self.server.text
            if self.server.process.exitcode is not None:
                # Where too few were there for a sum the run ends, and goes on with the same round.
                ended = self.server.process.exitcode == 2 and "has no sum" in self.server.text
                assert self.server.process.exitcode == -9 or ended, self.server.text
                self.deaths, self.server = self.deaths + 1, self._server()
            for number, client in self.clients.items():
                if client.process.exitcode is not None and client.process.exitcode != 0:
                    assert client.process.exitcode == -9, client.text
                    self.deaths, self.clients[number] = self.deaths + 1, self._client(number)
            if instants and time.monotonic() > instants[0]:
                instants.pop(0)
                victims = [each for each in (self.server, *self.clients.values()) if each.process.exitcode is None]
                victims[self.coins.integers(len(victims))].process.kill()
            time.sleep(0.1)


def replayed(silos, folder, algo, entered):
    """The weights of the same clients in one process, where just those answered."""

    def lost(who, question):
        number, round_ = silos.roster.index(who), int.from_bytes(question[103:107], "big")
        phase = phase_of(question)
        speaks = question[6] == 2 or (phase is not None and phase >= ProtocolPhase.MASKED)
        return speaks and number not in entered.get(round_, range(CLIENTS))

    folder.mkdir()
    settings = {**ALGOS[algo], "server.rounds": str(ROUNDS), "run.noise_seed": str(NOISE)}
    wire = FailingWire(parties=silos.parties(folder, promise=Promise(participations=ROUNDS)), lost=lost)
    return silos.serve(silos.settings(algo, **settings), folder, wire)[0].weights.read_bytes()


def check(federation, silos, algo, folder):
    """Ledgers whole, nothing charged twice, promises kept, and the weights those of who answered."""
    run = RunDirectory(federation.live.run)
    assert json.loads((run.path / "summary.json").read_text())["status"] == "completed"
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    charges = [line["round"] for line in lines if "round" in line]
    assert charges == list(range(ROUNDS))
    assert len(read_content(run.ledger).charges) == ROUNDS
    promise = Promise(participations=PROMISED[algo])
    for number in range(CLIENTS):
        ledger = ClientLedger(federation.live.home(number) / "ledger.jsonl", promise.budget())
        rounds = [key[0] for _, key, _ in ledger.charged()]
        assert rounds == sorted(set(rounds))
        assert len(rounds) <= PROMISED[algo]
    lines = [json.loads(line) for line in (folder / "entered.jsonl").read_text().splitlines()]
    assert run.weights.read_bytes() == replayed(silos, federation.live.folder / "replayed", algo, dict(lines))


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "number"), RUNS)
def test_killed_processes_leave_everything_whole(silos, tmp_path, algo, number):
    coins, folder = np.random.default_rng([number, len(algo)]), tmp_path / "notes"
    folder.mkdir()
    notes(coins, algo, folder)
    with live(tmp_path, silos, algo=algo, given=ALGOS[algo] | {"server.rounds": str(ROUNDS)}) as each:
        federation = Federation(each, coins, folder, PROMISED[algo])
        federation.run()
        print(f"{algo} {number}: {federation.deaths} killed: {sorted(x.name for x in folder.glob('done-*'))}")
        check(federation, silos, algo, folder)
    assert federation.deaths >= 3
