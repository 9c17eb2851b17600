"""A client keeps its own promise, whatever the server says, and says nothing but what it was asked for."""

import errno
import json
import math
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.events.record_layer import RecordLayer, default_relation, holding
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.client import client, client_budget
from dpfedmeta.federation.client.client_budget import (
    Floors,
    Promise,
    counted,
    epsilon_after,
    left,
    most_participations,
    participation,
    run_cost,
)
from dpfedmeta.federation.client.client_state import kept_offer
from dpfedmeta.federation.client.secagg_session import round_of
from dpfedmeta.federation.offers.signed_plan import opened_plan, sign_plan
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.wire_format import Attempt, Offer, QuestionKind, Said, Start, opened_answer
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.payloads import Survivors
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.protocol_server import Server
from tests.federation.sessions import FREE, RUN, open_session, phase_of, same
from tests.federation.silos import CLIENTS, MICRO, SECURE, private_key

DECLINED = 103  # bytes: header and signature, and nothing between


def opened(home, silos, algo="dp-agrlr-micro", promise=None, **given):
    session = open_session(silos, home, algo, promise, **(MICRO if algo == "dp-agrlr-micro" else SECURE) | given)
    offer(session, 0)
    return session


def offer(session, number, signed=None):
    signed = signed or session.signed
    body = Offer(number=number, signature=signed.signature, text=signed.text).encode()
    question = session.question(number, asked=QuestionKind.PLAN, body=body, plan=signed.digest)
    return session.parties[session.silos.roster[number]].answer(question)


def ask(session, question, number=0):
    """The vector, or None for a decline that says no more than that."""
    came = session.parties[session.silos.roster[number]].answer(question)
    assert came[6] in (Said.DECLINED, Said.VECTOR)
    assert came[6] == Said.VECTOR or len(came) == DECLINED
    return opened_answer(came, Said.VECTOR, question, session.silos.roster[number])


def log_of(home, number=0):
    return (home / f"client{number}" / "log.txt").read_text()


def test_a_silent_client_is_offered_the_plan_once_for_each_question(silos, tmp_path):
    session = opened(tmp_path, silos)
    silent = silos.roster[2]
    offers = []

    def lost(who, question):
        if who == silent and question[6] == QuestionKind.PLAN:
            offers.append(question)
        return who == silent

    session.asked(lost=lost)
    # The same one again while there is time, since it may have been lost.
    assert len(set(offers)) == 1 < len(offers)


def test_a_client_declines_one_participation_too_many(silos, tmp_path):
    session = opened(tmp_path, silos, promise=Promise(participations=2))
    assert [ask(session, session.question(0, round_)) is None for round_ in range(4)] == [False, False, True, True]
    assert "would be participation 3" in log_of(tmp_path)
    lines = (tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 3


def mu_of(spending):
    """Of the client, or of a record by the relation that is counted where the client names none."""
    return spending.mus["client"] if "client" in spending.mus else spending.mus[spending.relation]


def test_a_client_counts_epsilon_as_the_accountant_does(silos, tmp_path):
    """The cell after three participations is met by the third one, and exceeded by the fourth."""
    plan = open_session(silos, tmp_path / "any", "dp-agrlr-micro", **MICRO).plan.privacy
    cell = guarantees(replace(plan, sampler="poisson", max_participations=3))[2]
    promise = Promise(epsilon=cell.epsilon, delta=cell.delta)
    assert epsilon_after(plan, promise, 3) == pytest.approx(cell.epsilon, rel=1e-9)
    assert most_participations(plan, promise) == 3
    assert most_participations(plan, replace(promise, epsilon=0.999 * cell.epsilon)) == 2
    mu = mu_of(participation(plan, promise, 0))
    assert gaussian_epsilon(math.sqrt(3) * mu, cell.delta) == pytest.approx(cell.epsilon, rel=1e-9)
    session = opened(tmp_path, silos, promise=promise)
    assert [ask(session, session.question(0, round_)) is None for round_ in range(5)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr-secure"])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_promises_are_the_cells_of_the_plan(silos, tmp_path, algo, unit):
    plan = open_session(silos, tmp_path, algo, **(MICRO if algo == "dp-agrlr-micro" else SECURE)).plan.privacy
    (cell,) = (cell for cell in guarantees(plan) if (cell.unit, cell.observer) == (unit, "server"))
    promise = Promise(unit=unit, epsilon=cell.epsilon, delta=cell.delta)
    assert epsilon_after(plan, promise, plan.rounds) == pytest.approx(cell.epsilon, rel=1e-9)
    assert most_participations(plan, promise) == plan.rounds
    assert most_participations(plan, replace(promise, epsilon=cell.epsilon / 2)) < plan.rounds
    # What a ledger adds up is the same, but for what discrete noise costs more.
    mu = mu_of(participation(plan, promise, 0))
    assert gaussian_epsilon(math.sqrt(plan.rounds) * mu, cell.delta) == pytest.approx(cell.epsilon, rel=0.02)


def test_a_promise_that_no_round_fits_is_declined_with_the_plan(silos, tmp_path):
    session = opened(tmp_path, silos, promise=Promise(epsilon=0.1))
    assert ask(session, session.question(0)) is None
    assert "a single round would cost epsilon" in log_of(tmp_path)
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 1


def test_what_other_runs_spent_counts(silos, tmp_path):
    session = opened(tmp_path, silos, promise=Promise(participations=3))
    assert ask(session, session.question(0)) is not None
    other = sign_plan(
        session.plan, session.signed.task, run=bytes(32), server=Identity(silos.server), roster=silos.roster
    )
    at = Attempt(run=bytes(32), round=0)
    body = Offer(number=0, signature=other.signature, text=other.text).encode()
    joined = session.parties[silos.roster[0]].answer(
        session.question(0, asked=QuestionKind.PLAN, body=body, plan=other.digest, attempt=at)
    )
    assert joined[6] == Said.ACCEPTED
    answers = [ask(session, session.question(0, plan=other.digest, attempt=replace(at, round=r))) for r in range(3)]
    assert [answer is None for answer in answers] == [False, False, True]


def test_the_same_question_gets_the_same_bytes_and_another_one_nothing(silos, tmp_path):
    session = opened(tmp_path, silos)
    first = ask(session, session.question(0))
    before = (tmp_path / "client0" / "ledger.jsonl").read_text()
    assert ask(session, session.question(0)) == first
    assert ask(session, session.question(0, bound=0.6)) is None
    assert "the question differs from the one before" in log_of(tmp_path)
    # Started again, on the same disk.
    session.parties[silos.roster[0]] = silos.client(0, tmp_path)
    assert ask(session, session.question(0)) == first
    assert (tmp_path / "client0" / "ledger.jsonl").read_text() == before


@pytest.mark.parametrize("lost", [True, False])
def test_an_older_copy_of_the_ledger_is_noticed(silos, tmp_path, lost):
    """It would let the same noise answer another question."""
    session, ledger = opened(tmp_path, silos), tmp_path / "client0" / "ledger.jsonl"
    older = ledger.read_text()
    assert ask(session, session.question(0)) is not None
    ledger.unlink() if lost else ledger.write_text(older)
    session.parties[silos.roster[0]] = silos.client(0, tmp_path)
    assert ask(session, session.question(0, bound=0.25)) is None
    assert ask(session, session.question(0, 1)) is None
    assert "is an older copy" in log_of(tmp_path)


@pytest.mark.parametrize("lost", [True, False])
def test_a_round_is_not_answered_again_from_another_folder_than_it_was_charged_with(silos, tmp_path, lost):
    """With a noise key of its own it would be a second answer for one charge, and to other survivors, too."""
    session, home = opened(tmp_path, silos), tmp_path / "client0"
    assert ask(session, session.question(0)) is not None
    shutil.copytree(home / "runs", tmp_path / "older")
    assert ask(session, session.question(0, 1)) is not None
    shutil.rmtree(home / "runs")
    if not lost:
        shutil.copytree(tmp_path / "older", home / "runs")
    session.parties[silos.roster[0]] = silos.client(0, tmp_path, noise_seed=None)
    assert offer(session, 0)[6] == Said.ACCEPTED
    before = (home / "ledger.jsonl").read_text()
    assert ask(session, session.question(0, 1)) is None
    assert "a second answer for one charge" in log_of(tmp_path)
    assert (home / "ledger.jsonl").read_text() == before
    # What was not charged yet has the new key from the beginning.
    assert ask(session, session.question(0, 2)) is not None


@pytest.mark.parametrize("before", [True, False])
def test_a_client_that_was_killed_at_its_charge_answers_when_it_is_asked_again(silos, tmp_path, monkeypatch, before):
    session, charge = opened(tmp_path, silos), ClientLedger.charge

    def killed(self, *given, **named):
        if not before:
            charge(self, *given, **named)
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ClientLedger, "charge", killed)
        assert ask(session, session.question(0)) is None
    session.parties[silos.roster[0]] = silos.client(0, tmp_path)
    assert ask(session, session.question(0)) is not None
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("value", [0.1, 1e30])
def test_a_client_whose_disk_is_full_does_not_say_that_it_has_the_model(silos, tmp_path, monkeypatch, value):
    """Whatever its images make of it: otherwise the server would hand it to nobody again."""
    session = opened(tmp_path, silos)
    weights = sum(each.numel() for each in session.signed.initial.values())
    body = np.full(weights, value, dtype=np.float32).tobytes()
    question = session.question(0, asked=QuestionKind.MODEL, body=body)
    party = session.parties[silos.roster[0]]

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert party.answer(question)[6] == Said.DECLINED
        assert not party.handed_out
    assert party.answer(question)[6] == Said.ADAPTED
    assert party.handed_out


def test_whether_the_model_can_be_adapted_is_not_said(silos, tmp_path):
    """It depends on the images, and a server could ask for it as often as it likes."""
    session = opened(tmp_path, silos)
    weights = sum(value.numel() for value in session.signed.initial.values())
    for value, said in ((0.1, Said.ADAPTED), (1e30, Said.ADAPTED), (math.nan, Said.DECLINED)):
        body = np.full(weights, value, dtype=np.float32).tobytes()
        question = session.question(0, asked=QuestionKind.MODEL, body=body)
        assert session.parties[silos.roster[0]].answer(question)[6] == said
    assert "could not be adapted" in log_of(tmp_path)
    kept = [path for path in (tmp_path / "client0").rglob("*") if path.is_file()]
    assert {"log.txt", "ledger.jsonl", "personal.safetensors"} <= {path.name for path in kept}
    assert [path for path in kept if path.stat().st_size and path.stat().st_mode & 0o077] == []


def test_two_processes_with_one_ledger_keep_one_promise(silos, tmp_path):
    session = opened(tmp_path, silos, promise=Promise(participations=3))
    twice = [session.parties[silos.roster[0]], silos.client(0, tmp_path, Promise(participations=3))]
    answers = []
    for round_ in range(4):
        session.parties[silos.roster[0]] = twice[round_ % 2]
        answers.append(ask(session, session.question(0, round_)))
    assert [answer is None for answer in answers] == [False, False, False, True]
    assert (
        len(ClientLedger(tmp_path / "client0" / "ledger.jsonl", Promise(participations=3).budget()).keys(RUN.hex()))
        == 3
    )


def killed(*given):
    raise KeyboardInterrupt


def test_a_client_that_died_before_it_answered_answers_once_it_is_back(silos, tmp_path, monkeypatch):
    session = opened(tmp_path, silos)
    expected = ask(opened(tmp_path / "other", silos), session.question(0))
    with monkeypatch.context() as patch:
        patch.setattr("dpfedmeta.federation.client.training_participation.Joined.vector", killed)
        with pytest.raises(KeyboardInterrupt):
            session.parties[silos.roster[0]].answer(session.question(0))
    # It was charged before it was computed.
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 2
    session.parties[silos.roster[0]] = silos.client(0, tmp_path)
    assert ask(session, session.question(0)) == expected
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 2


def test_an_old_round_is_declined(silos, tmp_path):
    session = opened(tmp_path, silos)
    assert ask(session, session.question(0, 3)) is not None
    assert ask(session, session.question(0, 2)) is None
    assert "round 2 is over" in log_of(tmp_path)
    assert ask(session, session.question(0, 3, again=(1, 7))) is not None
    assert ask(session, session.question(0, 6)) is None
    assert "round 6: the plan has only 6 rounds" in log_of(tmp_path)


def test_what_is_not_from_the_server_or_not_for_this_client_is_declined(silos, tmp_path):
    session = opened(tmp_path, silos)
    good = session.question(0)
    wrong = {
        "not signed by the server": session.question(0, server=private_key("another")),
        "has version 1 of": good[:4] + b"\0\1" + good[6:],
        "the question is for another client": session.question(1),
        "not a question": b"GET / HTTP/1.1" + bytes(300),
        "the question has a wrong length, 20 bytes": bytes(20),
        "the question is for another plan": session.question(0, plan=bytes(32)),
        "for another plan than the one that this client joined": session.question(
            0, attempt=Attempt(run=bytes(32), round=0)
        ),
        "never joined": session.question(0, plan=bytes(32), attempt=Attempt(run=bytes(32), round=0)),
        "expected 412 numbers": session.question(0, body=session.question(0)[119:-65]),
        "the clip bound nan is out of range": session.question(0, bound=math.nan),
        "the clip bound 0.0 is out of range": session.question(0, bound=0.0),
        "the clip bound 1e-44 is out of range": session.question(0, bound=1e-44),
        "a step of the protocol is cut short": session.question(0, asked=QuestionKind.PHASE, body=b"1"),
        "the plan does not use it": session.question(0, asked=QuestionKind.PHASE, body=bytes(4) + b"\1" + bytes(9)),
    }
    for words, question in wrong.items():
        came = session.parties[silos.roster[0]].answer(question)
        assert came[6] == Said.DECLINED
        assert len(came) == DECLINED
        assert words in log_of(tmp_path).splitlines()[-1], words
    flipped = bytearray(good)
    flipped[200] ^= 1
    assert ask(session, bytes(flipped)) is None
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 1
    assert ask(session, good) is not None


def changed(session, **given):
    """The plan with another word in it, signed by the server all the same."""
    content = {**json.loads(session.signed.text), **given}
    text = json.dumps(content, sort_keys=True).encode()
    server = Identity(session.silos.server)
    return replace(session.signed, text=text, signature=server.sign(b"dpfedmeta federation plan" + text))


def test_a_plan_is_believed_in_nothing(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    content = json.loads(session.signed.text)
    weaker = {**content["privacy"], "record": {**content["privacy"]["record"], "query_noise": 4.0}}
    wrong = {
        "other numbers than this client computes from its settings": changed(session, privacy=weaker),
        "the server's plan has format 'plan 9'": changed(session, format="plan 9"),
        "not the plan of a federation": changed(session, more=1),
        "the plan has server.optimizer = os:_exit": changed(
            session, settings=content["settings"].replace("optimizer: adam", "optimizer: os:_exit")
        ),
        "states two different numbers of clients": changed(session, clients=content["clients"] + 1),
        "the plan has clip.policy = os:system": changed(
            session, settings=content["settings"].replace("policy: window", "policy: os:system")
        ),
        "not signed": replace(session.signed, signature=bytes(64)),
        "model.initial = /etc/passwd": changed(
            session, settings=content["settings"].replace("initial: null", "initial: /etc/passwd")
        ),
    }
    for words, plan in wrong.items():
        with pytest.raises((Refused, InputError), match=words):
            opened_plan(plan.text, plan.signature, Identity(silos.server).public)
        plan = replace(plan)  # its digest is of the new text
        assert offer(session, 0, plan)[6] == Said.DECLINED
    assert offer(session, 0)[6] == Said.ACCEPTED
    assert offer(session, 0, changed(session, promised=[]))[6] == Said.DECLINED
    assert "is not the one that this client joined" in log_of(tmp_path)


def test_what_only_this_machine_can_mend_is_known(silos, tmp_path):
    """Another form of plans; not what a server does wrong, and no images: the server would see who leaves."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party = session.parties[silos.roster[0]]
    for plan, words in (
        (changed(session, privacy={}), None),
        (changed(session, format="plan 9", more=1), "plan has format 'plan 9', but this client has '"),
        (session.signed, None),
        (changed(session, format="dpfedmeta federation plan 9"), "format 'dpfedmeta federation plan 9'"),
    ):
        came = offer(session, 0, plan)
        assert came[6] == (Said.ACCEPTED if plan is session.signed else Said.DECLINED)
        assert party.unfit is None if words is None else words in party.unfit


def test_the_plan_holds_no_secret_of_the_server(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO, **{"run.noise_seed": "123456789123"})
    assert b"123456789123" not in session.signed.text
    assert str(silos.root).encode() not in session.signed.text


def test_shares_are_revealed_for_one_set_of_survivors(silos, tmp_path):
    """Two sums of the same vectors over two sets of clients would give a client away."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE)
    first, gone = session.asked(), silos.roster[2]
    with pytest.raises(TooFew, match="has no sum"):
        session.asked(lost=lambda who, question: who == gone and phase_of(question) == ProtocolPhase.MASKED)
    assert same(session.asked(), first)
    assert "would give a client away" in log_of(tmp_path)
    # Another run has rounds of its own, whatever its name.
    session.signed = sign_plan(
        session.plan, session.signed.task, run=bytes(32), server=Identity(silos.server), roster=silos.roster
    )
    assert session.asked().value["rotated"].any()


def test_what_follows_a_round_without_a_sum_has_numbers_of_its_own(silos, tmp_path, monkeypatch):
    """A client takes none twice, and no clock tells them."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE)
    monkeypatch.setattr("time.time", lambda: 0.0)
    first, gone = session.asked(), silos.roster[2]
    with pytest.raises(TooFew, match="has no sum"):
        session.asked(lost=lambda who, question: who == gone and phase_of(question) == ProtocolPhase.MASKED)
    assert same(session.asked(), first)


def test_a_kept_vector_leaves_again_among_the_same_identities_alone(silos, tmp_path):
    """Where somebody is missing whose survival was signed, nothing is masked; a further attempt is charged."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE)
    session.asked()
    gone, left = silos.roster[2], []

    def watched(who, question, sent):
        left.extend(
            [who] if phase_of(question) in (ProtocolPhase.AGREE, ProtocolPhase.MASKED) and sent[6] == Said.PHASE else []
        )
        return sent

    lost = {
        "lost": lambda who, question: who == gone and phase_of(question) == ProtocolPhase.SHARES,
        "tampered": watched,
    }
    with pytest.raises(TooFew, match="has no sum"):
        session.asked(**lost)
    assert not left
    kept = tmp_path / "client0" / "runs" / RUN.hex()[:32] / "revealed.json"
    assert json.loads(kept.read_text())["survivors"] == sorted(key.hex() for key in silos.roster)
    assert same(session.asked(again=(1, 7), **lost), session.simulated([0, 1, 3, 4], again=(1, 7)))
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 3


def test_all_parties_of_a_sum_were_asked_the_same(silos, tmp_path):
    """Change anything that one of them is told of the round, and it understands nothing of the others."""
    session = open_session(
        silos, tmp_path, "dp-agrlr-secure", **SECURE | {"population.cohort": "4", "aggregation.dropout": "0"}
    )
    common: dict[str, Any] = {
        "signed": session.signed,
        "attempt": Attempt(run=RUN, round=1, again=(1, 7)),
        "protocol": 5,
    }
    common["start"] = Start(invited=(0, 1, 2, 3), task=b"one")
    others: dict[str, list[Any]] = {
        "attempt": [Attempt(run=RUN, round=2, again=(1, 7)), Attempt(run=RUN, round=1, again=(1, 8))],
        "protocol": [6],
        "start": [replace(common["start"], task=b"two"), replace(common["start"], invited=(0, 1, 2, 4))],
        "signed": [replace(session.signed, text=session.signed.text + b" ")],
    }
    changed = [round_of(**{**common, name: value}).digest for name, values in others.items() for value in values]
    assert len({round_of(**common).digest, *changed}) == 7


def test_clients_that_are_told_different_survivors_reveal_nothing(silos, tmp_path, monkeypatch):
    """A seed from those who are told that client 0 is there, its mask key from the others: its vector, alone."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE)
    honest, revealed = Server._close_masked, []

    def two_lists(server):
        answer = honest(server)
        fewer = Survivors(frozenset(range(1, CLIENTS)), frozenset({0})).encode(server._agreement)
        return answer | server._to_all(ProtocolPhase.SURVIVORS, dict.fromkeys((3, 4), fewer))

    def watched(who, question, sent):
        revealed.extend([who] if phase_of(question) == ProtocolPhase.REVEAL and sent[6] == Said.PHASE else [])
        return sent

    monkeypatch.setattr(Server, "_close_masked", two_lists)
    with pytest.raises(TooFew, match="has no sum"):
        session.asked(tampered=watched)
    assert not revealed


@pytest.mark.parametrize(
    ("floors", "given", "why"),
    [
        (Floors(adversarial=0.1), {}, "masks withstand 0.05 of a cohort colluding, but this client demands 0.1"),
        (Floors(colluding=2), {}, "1 colluding clients, who know their own noise, but this client demands 2"),
        (Floors(), {"aggregation.rough": "true"}, "rounding costs a lot"),
        (Floors(adversarial=0.05, colluding=1), {}, None),
    ],
)
def test_a_plan_below_a_clients_floors_is_declined(silos, tmp_path, floors, given, why):
    session = open_session(silos, tmp_path, "dp-agrlr-secure", Promise(epsilon=8.0, floors=floors), **SECURE, **given)
    offer = Offer(number=0, signature=session.signed.signature, text=session.signed.text).encode()
    party = session.parties[silos.roster[0]]
    came = party.answer(session.question(0, asked=QuestionKind.PLAN, body=offer))
    assert (came[6] == Said.DECLINED) == (why is not None)
    assert why is None or why in log_of(tmp_path)


def test_a_company_that_the_server_picks_is_counted_by_the_client_too(silos, tmp_path):
    """A server that leaves its own check out: ten percent of five clients are one, of whom none is counted twice."""
    given = SECURE | {"population.cohort": "4", "aggregation.dropout": "0", "aggregation.adversarial": "0.4"}
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **given)
    with pytest.raises(Refused, match="can place 2 colluding ones in the cohort of any client"):
        opened_plan(session.signed.text, session.signed.signature, Identity(silos.server).public)
    drawn = open_session(silos, tmp_path, "dp-agrlr-secure", **given, **{"aggregation.company": "drawn"})
    opened = opened_plan(drawn.signed.text, drawn.signed.signature, Identity(silos.server).public)
    assert "assumes that the server draws cohorts at random" in " ".join(opened.words())


def test_a_dry_run_says_what_would_be_promised_and_sends_nothing(silos, tmp_path):
    said = []
    party = silos.client(0, tmp_path, Promise(epsilon=3.0), say=said.append, dry_run=True)
    session = open_session(silos, tmp_path / "others", "dp-agrlr-micro", **MICRO)
    session.parties[silos.roster[0]] = party
    assert offer(session, 0)[6] == Said.DECLINED
    assert ask(session, session.question(0)) is None
    text = "\n".join(said)
    # For the relation that is counted in this plan.
    stated = f"a record ({default_relation(session.plan.privacy.record)}): epsilon <= 3"
    for words in (stated, "allows", "what would leave this machine", "412 coordinates", "dry run"):
        assert words in text
    # Nor is the plan kept, which a later start without --dry-run would take for one that was joined.
    assert kept_offer(tmp_path / "client0", session.signed.run) is None
    assert not (tmp_path / "client0").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "epsilon and participations are both missing"),
        ({"epsilon": -1.0}, "finite number above 0"),
        ({"epsilon": math.nan}, "finite number above 0"),
        ({"participations": 0}, "at least 1"),
        ({"epsilon": 1.0, "delta": 1.0}, "below 1"),
        ({"unit": "image", "epsilon": 1.0}, "record or client"),
    ],
)
def test_a_promise_has_to_be_one(given, words):
    with pytest.raises(InputError, match=words):
        Promise(**given)


def test_exact_messages_need_a_trusted_server(silos, tmp_path):
    """dp-agr sends exact messages: no epsilon towards the server is possible, participations are."""
    plan = open_session(silos, tmp_path, "dp-agr").plan.privacy
    assert most_participations(plan, Promise(epsilon=100.0, unit="client")) == 0
    assert most_participations(plan, Promise(participations=4, unit="client")) == 4


@pytest.mark.slow
def test_vectors_carry_the_noise_that_is_counted(silos, tmp_path):
    """Through the real client: over many attempts, each with streams of its own, the deviation is z_q C_q / parts."""
    session = opened(tmp_path, silos, promise=Promise(participations=1000), **{"server.rounds": "300"})
    vectors = np.stack(
        [
            np.frombuffer(ask(session, session.question(0, 0, again=(n, 5) if n else ())), dtype="<f4")
            for n in range(200)
        ]
    ).astype(float)
    layer = session.plan.privacy.record
    expected = layer.query_noise * 0.5 / layer.query_records
    assert vectors.std(axis=0, ddof=1).mean() == pytest.approx(expected, rel=0.02)
    lagged = np.mean((vectors[1:] - vectors.mean(0)) * (vectors[:-1] - vectors.mean(0))) / expected**2
    assert abs(lagged) < 0.02


def other_run(session, name):
    """The same plan as another run."""
    return sign_plan(
        session.plan,
        session.signed.task,
        run=bytes([name]) * 32,
        server=Identity(session.silos.server),
        roster=session.silos.roster,
    )


def ask_in(session, signed, round_):
    at = Attempt(run=signed.run, round=round_)
    return ask(session, session.question(0, plan=signed.digest, attempt=at))


def offered_in(session, signed):
    at = Attempt(run=signed.run, round=0)
    body = Offer(number=0, signature=signed.signature, text=signed.text).encode()
    question = session.question(0, asked=QuestionKind.PLAN, body=body, plan=signed.digest, attempt=at)
    return session.parties[session.silos.roster[0]].answer(question)[6]


@pytest.mark.parametrize("promise", [Promise(participations=8), Promise(epsilon=9.4)], ids=["often", "epsilon"])
def test_a_dry_run_an_offer_an_answer_and_the_log_say_the_same(silos, tmp_path, promise):
    """Six rounds were spent in another run, so two of the six are left, whoever asks."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", promise, **MICRO)
    first, second, third = (other_run(session, name) for name in (1, 2, 3))
    assert offered_in(session, first) == Said.ACCEPTED
    assert all(ask_in(session, first, round_) for round_ in range(6))
    said = []
    dry = silos.client(0, tmp_path, promise, say=said.append, dry_run=True)
    kept, session.parties[silos.roster[0]] = session.parties[silos.roster[0]], dry
    assert offered_in(session, second) == Said.DECLINED
    assert "promise allows 2 of the 6 rounds" in "\n".join(said)
    session.parties[silos.roster[0]] = kept
    assert offered_in(session, second) == Said.ACCEPTED
    assert "promise allows 2 of the 6 rounds" in log_of(tmp_path)
    assert [ask_in(session, second, round_) is None for round_ in range(3)] == [False, False, True]
    assert "participation 1 of 2 allowed" in log_of(tmp_path)
    assert "participation 2 of 2 allowed" in log_of(tmp_path)
    assert "would be participation 3 in this run and 9 in all" in log_of(tmp_path)
    # Nothing is left: that is said before anybody is charged for a round.
    assert offered_in(session, third) == Said.DECLINED
    assert "the promise is used up" in log_of(tmp_path).splitlines()[-1]
    # A server that was started again finds it in the run that it joined.
    session.parties[silos.roster[0]] = silos.client(0, tmp_path, promise)
    assert offered_in(session, second) == Said.ACCEPTED


def test_nobody_is_charged_for_a_round_that_has_no_sum(silos, tmp_path):
    """Two of five cannot go on: the others learn it before they send a vector, and keep their participation."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", Promise(participations=1), **SECURE)
    spent = {silos.roster[number] for number in (0, 1)}
    with pytest.raises(TooFew):
        session.asked(lost=lambda who, question: who in spent and phase_of(question) == ProtocolPhase.KEYS)
    for number in range(CLIENTS):
        assert len((tmp_path / f"client{number}" / "ledger.jsonl").read_text().splitlines()) == 1
    assert session.asked().value["rotated"].any()
    for number in range(CLIENTS):
        assert len((tmp_path / f"client{number}" / "ledger.jsonl").read_text().splitlines()) == 2
    # Whose promise is spent says so at the first question, too.
    with pytest.raises(TooFew):
        session.asked(1)


# Cohorts so large, or so few bits, that rounding costs something.
ROUGH = [(500, 9, 512), (1000, 11, 512), (1000, 12, 512), (2000, 14, 512), (200, 16, 32768)]


@pytest.mark.parametrize(("cohort", "bits", "dimension"), ROUGH)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_ledger_counts_what_the_cell_counts(tmp_path, unit, cohort, bits, dimension):
    """Of one run it is the cell, but where that has a better bound for noise that is too rough; of two runs more."""
    secure = SecureRounds(bits=bits, dimension=dimension, dropout=0.1, adversarial=0.05)
    plan = PrivacyPlan(
        clients=2 * cohort, cohort=cohort, rounds=50, noise_multiplier=2.0, sampler="fixed", server_sees="sum",
        secure=secure, colluding=1,
    )  # fmt: skip
    promise = Promise(epsilon=1e9, unit=unit)
    ledger = ClientLedger(tmp_path / "ledger.jsonl", promise.budget())
    found = []
    for round_ in range(3):
        one = participation(plan, promise, round_)
        ledger.charge(round_, one, run="a", question="q", cost=run_cost(plan))
        found.append(ledger.epsilon)
        cell = epsilon_after(plan, promise, round_ + 1)
        assert ledger.epsilon >= cell * (1 - 1e-9)
        smooth = gaussian_epsilon(mu_of(one) * math.sqrt(round_ + 1), 1e-5)
        assert ledger.epsilon == pytest.approx(cell) or cell > smooth
    again = ClientLedger(tmp_path / "ledger.jsonl", promise.budget())
    assert again.epsilon == ledger.epsilon
    # Of another run the rounding counts once more.
    again.charge(0, participation(plan, promise, 0), run="b", question="q", cost=run_cost(plan))
    assert again.epsilon > epsilon_after(plan, promise, 4)
    tight = ClientLedger(tmp_path / "tight.jsonl", replace(promise, epsilon=found[1]).budget())
    costs = [participation(plan, promise, round_) for round_ in range(5)]
    assert tight.further(costs, run="a", cost=run_cost(plan)) == 2
    assert left(plan, replace(promise, epsilon=found[1]), tight, "a", range(5), FREE) == 2
    # Without what rounding costs, it would be more than the cell allows.
    if found[1] > 2.0 * gaussian_epsilon(math.sqrt(2) * mu_of(costs[0]), 1e-5):
        assert tight.further(costs, run="a") > 2


@pytest.mark.parametrize("epsilon", [None, 1e6])
def test_a_promise_of_more_rounds_than_a_plan_has_allows_them_all_and_no_more(epsilon):
    layer = RecordLayer(support_noise=None, query_noise=3.0, support_steps=1, support_records=1, query_records=4)
    plan = PrivacyPlan(clients=10, cohort=10, rounds=3, noise_multiplier=2.0, sampler="fixed", record=layer)
    promised = {n: most_participations(plan, Promise(unit="record", epsilon=epsilon, participations=n)) for n in (2, 9)}
    assert promised == {2: 2, 9: 3}


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize(("delta", "hostile"), [(1e-5, 0.0), (1e-3, 0.0), (1e-7, 0.0), (1e-5, 0.1)])
def test_a_promise_counts_at_its_own_delta_less_what_is_rare(tmp_path, unit, delta, hostile):
    """Whatever delta the plan has for either unit; ledger, offer and cell alike."""
    secure = SecureRounds(bits=16, dimension=512, dropout=0.1, adversarial=0.05)
    plan = PrivacyPlan(
        clients=2000, cohort=1000, rounds=50, noise_multiplier=2.0, sampler="fixed", server_sees="sum", secure=secure,
        hostile=hostile,
    )  # fmt: skip
    rare = surplus(plan.phases)
    assert (rare > 0) == (hostile > 0)
    assert run_cost(plan).rare == rare
    promise = Promise(epsilon=1e9, delta=delta, unit=unit)
    ledger = ClientLedger(tmp_path / "ledger.jsonl", promise.budget())
    for round_ in range(3):
        ledger.charge(round_, participation(plan, promise, round_), run="a", question="q", cost=run_cost(plan))
    terms = replace(Terms.of(plan), max_participations=3, client_delta=delta, record_delta=delta)
    cell = (record_server if unit == "record" else client_server)(plan.phases, terms).epsilon
    assert epsilon_after(plan, promise, 3) == cell
    assert ledger.epsilon == pytest.approx(cell)
    mu = mu_of(participation(plan, promise, 0)) * math.sqrt(3)
    assert gaussian_epsilon(mu, delta - rare) <= cell <= 1.02 * gaussian_epsilon(mu, delta - rare)
    least = 0.999 * gaussian_epsilon(mu, delta - rare)
    assert most_participations(plan, replace(promise, epsilon=least)) == 2


@pytest.mark.parametrize("number", [1, 4, CLIENTS, 2**32 - 1])
def test_a_client_takes_no_number_but_its_own(silos, tmp_path, number):
    """Where clients know each other its number says which key is its, and which seat."""
    session = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE)
    body = Offer(number=number, signature=session.signed.signature, text=session.signed.text).encode()
    question = session.question(0, asked=QuestionKind.PLAN, body=body, plan=session.signed.digest)
    assert session.parties[silos.roster[0]].answer(question)[6] == Said.DECLINED
    why = "lists another client at this client's number" if number < CLIENTS else "this client's number is"
    assert why in log_of(tmp_path)
    assert not (tmp_path / "client0" / "runs").exists()
    assert offer(session, 0)[6] == Said.ACCEPTED


def test_cohorts_that_no_plan_counts_with_have_no_agreement(silos, tmp_path):
    """A larger one would share the noise among more than are counted, a smaller one hides fewer."""
    signed = open_session(silos, tmp_path, "dp-agrlr-secure", **SECURE).signed
    whole = signed.privacy.at(0).whole
    assert (whole.least, whole.most) == (CLIENTS, CLIENTS)
    assert signed.agreement(0, CLIENTS).clients == CLIENTS
    for invited in (2, CLIENTS - 1, CLIENTS + 1, 100):
        with pytest.raises(Refused, match=f"{invited} clients are invited, but the plan allows 5 to 5"):
            signed.agreement(0, invited)


def test_a_plan_is_joined_under_the_name_of_its_own_run_alone(silos, tmp_path):
    """Under another one a client that has joined would know nothing of it, and take another number."""
    session = opened(tmp_path, silos)
    body = Offer(number=3, signature=session.signed.signature, text=session.signed.text).encode()
    attempt = Attempt(run=bytes(32), round=0)
    question = session.question(0, asked=QuestionKind.PLAN, body=body, plan=session.signed.digest, attempt=attempt)
    assert session.parties[silos.roster[0]].answer(question)[6] == Said.DECLINED
    assert "this plan is not the one that the question names" in log_of(tmp_path)
    assert kept_offer(tmp_path / "client0", bytes(32)) is None


@pytest.mark.parametrize(("allowed", "answered", "left_over"), [(3, 2, 1), (3, 0, 3), (2, 2, 0), (1, 2, 0)])
def test_rounds_that_were_answered_are_no_longer_left(monkeypatch, allowed, answered, left_over):
    plan = PrivacyPlan(clients=9, cohort=9, rounds=9, noise_multiplier=1.0)
    monkeypatch.setattr(client_budget, "most_participations", lambda plan, promise: allowed)
    monkeypatch.setattr(client_budget, "participation", lambda plan, promise, round_: None)
    monkeypatch.setattr(client_budget, "counted", lambda plan, promise, ledger: promise)
    ledger = SimpleNamespace(
        keys=lambda run: [(round_,) for round_ in range(answered)], further=lambda costs, run, cost: len(costs)
    )
    assert client_budget.left(plan, None, ledger, "run", range(answered, 9), FREE) == left_over


def test_a_charge_holds_what_the_run_costs_besides(monkeypatch):
    secure = SecureRounds(bits=16, dimension=512, dropout=0.1, adversarial=0.05)
    plan = PrivacyPlan(
        clients=400, cohort=200, rounds=5, noise_multiplier=2.0, sampler="fixed", server_sees="sum", secure=secure
    )
    written = []
    own = SimpleNamespace(
        _chargeable=lambda *given: True,
        _promise=None,
        _ledger=SimpleNamespace(charge=lambda *given, **words: written.append(words)),
    )
    kept = SimpleNamespace(begin=lambda attempt: None)
    joined = SimpleNamespace(signed=SimpleNamespace(run=b"r", privacy=plan), kept=kept, limits=FREE)
    monkeypatch.setattr(client, "participation", lambda *given: None)
    assert client.RealClient._charged(own, joined, Attempt(run=b"r", round=0, again=()), "asked")
    assert written[0]["cost"].rare == surplus(plan.phases)
    assert written[0]["cost"].coordinates


MICRO_PARTS = RecordLayer(support_noise=None, query_noise=3.0, support_steps=1, support_records=1, query_records=4)


@pytest.mark.parametrize("relation", [None, *RELATIONS])
@pytest.mark.parametrize("rows", [False, True])
def test_what_is_counted_is_the_clients_relation_or_that_of_the_plan_and_declined_where_it_does_not_hold(
    tmp_path, rows, relation
):
    plan = PrivacyPlan(clients=10, cohort=10, rounds=3, noise_multiplier=2.0, sampler="fixed",
                       record=replace(MICRO_PARTS, rows=rows))  # fmt: skip
    promise = Promise(epsilon=50.0, relation=relation)
    ledger = ClientLedger(tmp_path / "ledger.jsonl", promise.budget())
    due = relation or ("row-deleted" if rows else "zero-out")
    if due not in holding(plan.record):
        with pytest.raises(Refused, match=f"{due}.*states nothing; give --relation zero-out"):
            left(plan, promise, ledger, "a", range(3), FREE)
        # Who trusts the server counts participations alone.
        trusted = Promise(participations=2, relation=relation)
        assert counted(plan, trusted).relation == default_relation(plan.record)
        return
    assert counted(plan, promise, ledger).relation == due
    for round_ in range(2):
        ledger.charge(round_, participation(plan, promise, round_), run="a", question="q")
        terms = replace(Terms.of(plan), max_participations=round_ + 1, relation=due)
        cell = record_server(plan.phases, terms).epsilon
        assert ledger.epsilon == pytest.approx(cell) == epsilon_after(plan, promise, round_ + 1)
    assert set(ledger.epsilons) == set(holding(plan.record))


def test_a_plan_without_rows_is_declined_where_rows_were_promised_before(tmp_path):
    """Counted as something weaker, the promise would be another one without a word."""
    rows = PrivacyPlan(clients=10, cohort=10, rounds=3, noise_multiplier=2.0, sampler="fixed",
                       record=replace(MICRO_PARTS, rows=True))  # fmt: skip
    slots = replace(rows, record=MICRO_PARTS)
    promise = Promise(epsilon=50.0)
    ledger = ClientLedger(tmp_path / "ledger.jsonl", promise.budget())
    ledger.charge(0, participation(rows, promise, 0), run="a", question="q")
    with pytest.raises(Refused, match="row-deleted"):
        left(slots, promise, ledger, "b", range(3), FREE)
    weaker = replace(promise, relation="zero-out")
    changed = ClientLedger(tmp_path / "ledger.jsonl", weaker.budget(), change=True)
    assert left(slots, weaker, changed, "b", range(3), FREE) == 3


def test_a_relation_of_a_promise_is_known_and_of_a_record():
    for given, words in (({"relation": "removed"}, "expected one of zero-out"),
                         ({"relation": "zero-out", "unit": "client"}, "says how a record differs")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            Promise(epsilon=1.0, **given)


@pytest.mark.parametrize("limit", ["used up", "too small"])
def test_a_limit_that_allows_nothing_ends_the_client_as_what_only_its_owner_can_mend(silos, tmp_path, limit):
    """It waited 600 s for a server that had ended for want of it. Its ledger and the plan alone decide."""
    promise = Promise(participations=1) if limit == "used up" else Promise(epsilon=0.1)
    session = open_session(silos, tmp_path, "dp-agrlr-micro", promise, **MICRO)
    party, run = session.parties[silos.roster[0]], other_run(session, 1)
    if limit == "used up":
        assert offered_in(session, run) == Said.ACCEPTED
        assert ask_in(session, run, 0) is not None
        # In the run that it took part in it waits for the model.
        assert ask_in(session, run, 1) is None
        assert offered_in(session, run) == Said.ACCEPTED
        assert party.unfit is None
    assert offered_in(session, other_run(session, 2)) == Said.DECLINED
    assert ("the promise is used up" if limit == "used up" else "a single round would cost") in party.unfit
