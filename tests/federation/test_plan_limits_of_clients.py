"""A plan's cap, spacing and turns, as a real client keeps them against a server that asks in every round."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.offers.plan_limits import most_counted
from dpfedmeta.federation.offers.signed_plan import sign_plan
from dpfedmeta.federation.wire_format import Attempt, Offer, QuestionKind, Said
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from tests.federation.sessions import open_session
from tests.federation.silos import MICRO

MANY = Promise(participations=50)
SPACED = {
    "population.sampler": "poisson", "population.cohort": "1", "population.separation": "3",
    "population.max_participations": "2", "server.noise": "blt", "server.buffers": "1", "server.rounds": "8",
}  # fmt: skip
TURNS = {
    "population.sampler": "cyclic", "population.cohort": "1", "population.separation": "3", "server.noise": "banded",
    "server.rounds": "9", "population.max_participations": "null",
}  # fmt: skip
CAPPED = {"population.sampler": "poisson", "population.cohort": "2", "population.max_participations": "2"}
# (algorithm, settings, rounds that client 1 answers, asked in each)
PLANS = {
    "correlated": ("dp-agr-correlated", SPACED, [0, 3]),
    "turns": ("dp-agr-correlated", TURNS, [1, 4, 7]),
    "a cap": ("dp-agr", CAPPED, [0, 1]),
    "a cap, records": ("dp-agrlr-micro", MICRO | CAPPED, [0, 1]),
    "all rounds": ("dp-agr", {"server.rounds": "4"}, [0, 1, 2, 3]),
}


def joined(session, number, run=None):
    """The client, once it was offered the plan; of another run, the plan signed again."""
    signed, silos = session.signed, session.silos
    if run is not None:
        task = open_dataset(session.plan.settings.dataset, None, 2).task
        signed = sign_plan(session.plan, task, run=run, server=Identity(silos.server), roster=silos.roster)
    client = session.parties[silos.roster[number]]
    body = Offer(number=number, signature=signed.signature, text=signed.text).encode()
    attempt = Attempt(run=signed.run, round=0)
    asked = session.question(number, asked=QuestionKind.PLAN, body=body, plan=signed.digest, attempt=attempt)

    def ask(round_, again=()):
        attempt = Attempt(run=signed.run, round=round_, again=again)
        return Said(client.answer(session.question(number, round_, plan=signed.digest, attempt=attempt))[6])

    return Said(client.answer(asked)[6]), ask


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("case", PLANS)
def test_a_server_that_asks_in_every_round_gets_what_the_plan_allows(silos, tmp_path, case, restarted):
    """Whether it was started again meanwhile: the client's ledger remembers, and no server has to."""
    algo, given, due = PLANS[case]
    session = open_session(silos, tmp_path, algo, MANY, **given)
    said, ask = joined(session, 1)
    assert said is Said.ACCEPTED
    answered = []
    for round_ in range(session.plan.privacy.rounds):
        if restarted:
            session.parties = silos.parties(tmp_path, promise=MANY)
            _, ask = joined(session, 1)
        if ask(round_) is Said.VECTOR:
            answered.append(round_)
    assert answered == due
    log = (tmp_path / "client1" / "log.txt").read_text()
    assert f"the promise allows {len(due)} of the" in log
    assert len((tmp_path / "client1" / "ledger.jsonl").read_text().splitlines()) == 1 + len(due)


def test_what_a_client_answers_of_correlated_rounds_costs_no_more_than_was_planned(silos, tmp_path):
    """Asked in every round, all six answers would have cost three times as much."""
    session = open_session(silos, tmp_path, "dp-agr-correlated", MANY, **SPACED)
    _, ask = joined(session, 0)
    rounds = session.plan.privacy.rounds
    there = np.array([ask(round_) is Said.VECTOR for round_ in range(rounds)])
    noise = session.plan.privacy.at(0).noise
    coefficients = noise.coefficients(rounds)
    lower = np.array([[coefficients[t - s] if t >= s else 0.0 for s in range(rounds)] for t in range(rounds)])
    moved = float(np.linalg.norm(lower @ there))
    planned = session.plan.planned[0]
    assert gaussian_epsilon(moved / noise.multiplier, planned.delta) <= planned.epsilon * (1 + 1e-9)
    assert gaussian_epsilon(float(np.linalg.norm(lower.sum(1))) / noise.multiplier, planned.delta) > planned.epsilon


def test_further_attempts_count_for_the_cap_and_come_too_soon_for_correlated_noise(silos, tmp_path):
    _, ask = joined(open_session(silos, tmp_path / "a", "dp-agr", MANY, **CAPPED), 0)
    assert [ask(0), ask(0, (1, 7)), ask(1)] == [Said.VECTOR, Said.VECTOR, Said.DECLINED]
    _, ask = joined(open_session(silos, tmp_path / "b", "dp-agr-correlated", MANY, **SPACED), 0)
    assert [ask(0), ask(0, (1, 7)), ask(3)] == [Said.VECTOR, Said.DECLINED, Said.VECTOR]


def test_a_cap_holds_over_all_runs_of_one_plan_and_not_over_another_plan(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agr", MANY, **CAPPED)
    _, first = joined(session, 0)
    assert first(0) is Said.VECTOR
    said, second = joined(session, 0, run=b"2" * 32)
    assert said is Said.ACCEPTED
    assert [second(0), second(1)] == [Said.VECTOR, Said.DECLINED]
    assert first(1) is Said.DECLINED
    said, _ = joined(session, 0, run=b"3" * 32)
    assert said is Said.DECLINED
    assert (
        "took part 2 times in runs of this plan, which has at most 2" in (tmp_path / "client0" / "log.txt").read_text()
    )
    # Learned with another step, it is another plan, with a promise of its own.
    other = open_session(silos, tmp_path, "dp-agr", MANY, **CAPPED, **{"server.lr": "0.5"})
    said, third = joined(other, 0, run=b"4" * 32)
    assert (said, third(0)) == (Said.ACCEPTED, Said.VECTOR)


def test_how_a_server_writes_a_plan_down_does_not_make_it_another_one(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agr", MANY, **CAPPED)
    task = open_dataset(session.plan.settings.dataset, None, 2).task
    server = Identity(silos.server)
    again = sign_plan(session.plan, task, run=bytes(32), server=server, roster=silos.roster[::-1])
    assert again.name == session.signed.name != session.signed.digest.hex()
    assert replace(again, text=again.text + b" ").name == again.name


def test_without_a_cap_a_client_joins_no_more_rounds_than_the_servers_cells_count_with(silos, tmp_path):
    """Of 12 rounds with one of five clients in each, a client is in more than R with a chance of delta/100."""
    given = {"population.sampler": "poisson", "population.cohort": "1", "server.rounds": "12"}
    session = open_session(silos, tmp_path, "dp-agr", MANY, **given, **{"population.max_participations": "null"})
    most = most_counted(session.plan.privacy)
    chance = sum(math.comb(12, k) * 0.2**k * 0.8 ** (12 - k) for k in range(most + 1, 13))
    assert chance <= 1e-3 / 100 < chance + math.comb(12, most) * 0.2**most * 0.8 ** (12 - most)
    _, ask = joined(session, 0)
    said = [ask(round_) for round_ in range(12)]
    assert said == [Said.VECTOR] * most + [Said.DECLINED] * (12 - most)
    log = (tmp_path / "client0" / "log.txt").read_text()
    assert f"this client joined {most} rounds, and the plan's guarantees towards the server count with no more" in log


def test_a_further_attempt_at_a_round_is_no_further_round(silos, tmp_path):
    """Which rounds it is in is what the cells count with; an attempt is charged by itself."""
    given = {"population.sampler": "poisson", "population.cohort": "1", "server.rounds": "12"}
    session = open_session(silos, tmp_path, "dp-agr", MANY, **given, **{"population.max_participations": "null"})
    _, ask = joined(session, 0)
    last = most_counted(session.plan.privacy) - 1
    assert [ask(round_) for round_ in range(last + 1)] == [Said.VECTOR] * (last + 1)
    assert [ask(last, (1, 7)), ask(last + 1)] == [Said.VECTOR, Said.DECLINED]


def test_a_declined_round_says_no_reason_to_the_server(silos, tmp_path):
    """A round too soon, one out of turn and one beyond the promise look alike."""
    session = open_session(silos, tmp_path, "dp-agr-correlated", MANY, **SPACED)
    _, ask = joined(session, 0)
    ask(0)
    client = session.parties[silos.roster[0]]
    bodies = {client.answer(session.question(0, round_))[7:-64][-8:] for round_ in (1, 2)}
    lengths = {len(client.answer(session.question(0, round_))) for round_ in (1, 2, 99)}
    assert len(lengths) == 1
    assert not any(b"turn" in body or b"soon" in body for body in bodies)


@pytest.fixture
def loop(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def offered(name, **given):
        asked = {"clients": 200, "cohort": 20, "rounds": 9, "promise": dp.Promise(epsilon=6.0, delta=1e-3)} | given
        model = {"w": np.zeros(3)}
        clip = dp.clip.Constant(initial=2.0)
        with dp.PrivateRounds(**asked, like=model, clip=clip, run_dir=tmp_path / name) as private:
            return dp.sign_rounds(private)

    return offered


LOOPS = {
    "a cap": ({"max_participations": 2}, [0, 1]),
    "correlated": ({"noise": "blt", "separation": 4, "max_participations": 2}, [0, 4]),
    "all rounds": ({"cohort": 200, "sampler": "fixed"}, [*range(9)]),
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_client_of_a_loop_keeps_them_too(loop, tmp_path, case):
    given, due = LOOPS[case]
    offer, key = loop("server", **given)
    answered, declined = [], []
    for round_ in range(9):
        mine = dp.ClientRounds(offer, tmp_path / "client", server=key, participations=50)
        try:
            mine.message(round_, 2.0, {"w": np.ones(3)})
            answered.append(round_)
        except InputError as error:
            declined.append(str(error).partition(":")[2])
    assert answered == due
    assert all("is declined" in words for words in declined)
    if case == "a cap":
        # The same rounds in another run.
        offer, key = loop("again", **given)
        mine = dp.ClientRounds(offer, tmp_path / "client", server=key, participations=50)
        with pytest.raises(InputError, match="took part 2 times in runs of this plan"):
            mine.message(0, 2.0, {"w": np.ones(3)})


@pytest.mark.parametrize(
    "given", [{"sampler": "check-ins", "cohort": 60}, {"sampler": "cyclic", "noise": "banded", "separation": 3}]
)
def test_a_loop_whose_clients_cannot_keep_their_rounds_is_not_signed(loop, given):
    with pytest.raises(InputError, match=r"^sign_rounds: sampler = .*: a client of a loop knows no round of its own"):
        loop("server", **given)


def test_a_ledger_keeps_the_plan_of_each_line(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agr", MANY, **CAPPED)
    _, ask = joined(session, 0)
    ask(0)
    line = json.loads((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()[1])
    assert line["plan"] == session.signed.name
