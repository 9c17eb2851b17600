"""Deaths at random instants: every run ends, its ledger is whole, nothing is charged twice, no promise is broken."""

import numpy as np
import pytest

from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.server.quorum import TooFew
from tests.federation.in_process import InProcessChannel
from tests.federation.sessions import FailingWire
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE
from tests.federation.test_serving import Killed, check_charged_once, lines_of

ALGOS = {"dp-agrlr-micro": MICRO, "dp-agrlr-secure": SECURE}
TIMES = 25


class Deaths(FailingWire):
    """The server, or a client, dies at some of the questions, before or after these are answered."""

    def ask(self, questions, seconds):
        coins, share = self.tampered
        after = coins.random() < 0.5
        if self.late and coins.random() < share:
            if after:
                InProcessChannel.ask(self, questions, seconds)
            raise Killed
        answers = {}
        for who, question in questions.items():
            if not self.late and coins.random() < share:
                if after:
                    self.parties[who].answer(question)
                # Another process takes its place, with the same disk.
                self.parties[who] = self.lost(who)
                continue
            answers[who] = self.parties[who].answer(question)
        return answers


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_a_server_killed_at_random_instants_ends_with_the_weights_of_the_simulation(silos, tmp_path, algo):
    settings = silos.settings(algo, **ALGOS[algo], **{"run.noise_seed": str(NOISE)})
    expected = silos.simulated(algo, tmp_path, **ALGOS[algo]).weights.read_bytes()
    deaths = 0
    for number in range(TIMES):
        coins, home = np.random.default_rng(number), tmp_path / f"home{number}"
        home.mkdir()
        while True:
            wire = Deaths(parties=silos.parties(home), late=True, tampered=(coins, 0.15))
            try:
                run, status = silos.serve(settings, home, wire)
                break
            except Killed:
                deaths += 1
        assert status == "completed"
        assert run.weights.read_bytes() == expected
        check_charged_once(silos, run, home, 2)
    assert deaths > TIMES // 4


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_clients_killed_at_random_instants_stay_within_their_promises(silos, tmp_path, algo):
    settings = silos.settings(algo, **ALGOS[algo], **{"run.noise_seed": str(NOISE), "server.rounds": "3"})
    for number in range(TIMES):
        coins, home = np.random.default_rng(1000 + number), tmp_path / f"home{number}"
        home.mkdir()

        def again(who, home=home):
            return silos.client(silos.roster.index(who), home, Promise(participations=2))

        wire = Deaths(
            parties=silos.parties(home, promise=Promise(participations=2)),
            lost=again,
            late=False,
            tampered=(coins, 0.1),
        )
        try:
            run, status = silos.serve(settings, home, wire)
            assert status == "completed"
            assert [line["round"] for line in lines_of(run.ledger)[1:-1]] == [0, 1, 2]
        except TooFew:
            # Of so few clients a sum may be out of reach, and of nobody in the third round.
            assert algo == "dp-agrlr-secure" or all(
                len(lines_of(home / f"client{client}" / "ledger.jsonl")) == 1 + 2 for client in range(CLIENTS)
            )
        for client in range(CLIENTS):
            charged = lines_of(home / f"client{client}" / "ledger.jsonl")[1:]
            rounds = [line["round"] for line in charged]
            assert rounds == sorted(set(rounds))
            assert len(rounds) <= 2
