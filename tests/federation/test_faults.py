"""Clients and wires that fail: the sum is that of the simulation in which the same clients are missing, bit for bit."""

import itertools
from typing import Any

import numpy as np
import pytest

from dpfedmeta.federation.server.client_requests import Told
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.wire_format import MOST_BYTES, Said, answer
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.payloads import Ciphertexts
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from tests.federation.sessions import cohort, open_session, phase_of, same
from tests.federation.silos import CLIENTS, MICRO, SECURE


@pytest.fixture
def plain(silos, tmp_path):
    return open_session(silos, tmp_path / "plain", "dp-agrlr-micro", **MICRO)


@pytest.fixture
def masked(silos, tmp_path):
    return open_session(silos, tmp_path / "masked", "dp-agrlr-secure", **SECURE)


class Huge(bytes):
    """An answer that says of itself that it has ten billion bytes."""

    def __len__(self):
        return 10**10


def test_everybody_answers(plain, masked):
    for session in (plain, masked):
        assert same(session.asked(), session.simulated(range(CLIENTS)))
        # A further attempt has noise of its own.
        again = session.asked(again=(1, 7))
        assert same(again, session.simulated(range(CLIENTS), again=(1, 7)))
        assert not same(again, session.simulated(range(CLIENTS)))
        assert {heard.answered for heard in session.heard} == {CLIENTS}


# What goes wrong on the wire, by the name of acting on it.
FAULTS: dict[str, Any] = {
    "lost": lambda who, gone: who == gone,
    "late": lambda who, gone: who == gone,
    "tampered": lambda who, gone, came: b"no answer" if who == gone else came,
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_whoever_fails_however_is_missing_in_the_sum_and_ends_no_round(plain, fault):
    """That a round ends would tell everybody in which rounds a client that fails was drawn."""
    gone, faults = plain.silos.roster[2], {}
    if fault is not None:
        faults = {fault: lambda who, question, *came: FAULTS[fault](who, gone, *came)}
    there = [number for number in range(CLIENTS) if fault is None or number != 2]
    found = plain.sums(plain.asking(**faults)).cohort_sum(plain.model, 0.5, cohort(range(CLIENTS)))
    assert same(found, plain.simulated(there))


@pytest.mark.parametrize(
    "phase",
    [ProtocolPhase.KEYS, ProtocolPhase.SHARES, ProtocolPhase.MASKED, ProtocolPhase.CONSENT, ProtocolPhase.REVEAL],
)
def test_one_falls_silent_in_a_phase(masked, phase):
    """Who is silent before its vector arrives is missing in the sum; who is silent later is in it."""
    gone = masked.silos.roster[2]
    found = masked.asked(lost=lambda who, question: who == gone and (phase_of(question) or 0) >= phase)
    missing = phase <= ProtocolPhase.MASKED
    assert same(found, masked.simulated([0, 1, 3, 4] if missing else range(CLIENTS)))


def test_too_few_survivors_are_never_unmasked(masked):
    gone = masked.silos.roster[:2]
    with pytest.raises(TooFew, match=r"round 0 has no sum \(3 survivors, at least 4 are needed\)"):
        masked.asked(lost=lambda who, question: who in gone and phase_of(question) == ProtocolPhase.MASKED)
    # Once they are back the same round has its sum, for the same charge.
    assert same(masked.asked(), masked.simulated(range(CLIENTS)))


def test_where_not_all_are_asked_a_round_without_a_sum_is_one_of_noise(silos, tmp_path):
    """That it was lost is as secret as the cohort."""
    few = {"population.cohort": "4", "aggregation.dropout": "0"}
    session = open_session(silos, tmp_path / "few", "dp-agrlr-secure", **SECURE | few)
    gone, asking = silos.roster[1], session.asking(lost=lambda who, question: who == silos.roster[1])
    found = session.sums(asking).cohort_sum(session.model, 0.5, cohort(range(4)))
    assert gone in silos.roster[:4]
    assert not found.value["rotated"].any()
    assert found.noise_variance == 0.0


def wrong_reveals(number, monkeypatch, silos, change):
    """A client whose shares are others than it was dealt."""
    real, bad = Client.unmask, silos.roster[number]

    def unmask(self, message):
        if self._identity.public == bad:
            self._secrets.shares = {seat: change(shares) for seat, shares in self._secrets.shares.items()}
        return real(self, message)

    monkeypatch.setattr(Client, "unmask", unmask)


def test_a_wrong_share_is_left_out_and_its_holder_named(masked, monkeypatch):
    """One of them turned every round into noise, and nobody was told."""
    blamed, asking = [], masked.asking()
    asking.blamed = blamed.append
    wrong_reveals(2, monkeypatch, masked.silos, lambda shares: (shares[0] ^ 1, shares[1] ^ 1))
    assert same(masked.asked(asking=asking), masked.simulated(range(CLIENTS)))
    assert {blame.clients for blame in blamed} == {(2,)}
    assert blamed[0].text("silo {}".format) == "silo 2 revealed another number than its share of the seed of silo 0"
    assert not asking.left_out


def test_who_deals_no_shares_is_named_and_left_out_before_anybody_masks(masked, monkeypatch):
    bad, dealt, blamed, asking = masked.silos.roster[2], Client._ciphertexts, [], masked.asking()
    asking.blamed = blamed.append

    def dealing(self, secrets):
        made = dealt(self, secrets)
        if self._identity.public != bad:
            return made
        return Ciphertexts(tuple(entry._replace(seed=bytes(32)) for entry in made.entries))

    monkeypatch.setattr(Client, "_ciphertexts", dealing)
    assert same(masked.asked(asking=asking), masked.simulated([0, 1, 3, 4]))
    assert asking.left_out == {2}
    assert [blame.clients for blame in blamed] == [(2,)]


def test_a_sum_that_failed_is_tried_again_of_the_same_survivors(masked, tmp_path):
    """Clients were told of four when the server was killed; with the fifth back no other sum than of the four comes."""
    gone, told = masked.silos.roster[4], tmp_path / "told.json"
    asking = masked.asking(
        lost=lambda who, question: (
            (who == gone and phase_of(question) == ProtocolPhase.MASKED)
            or (phase_of(question) or 0) > ProtocolPhase.CONSENT
        )
    )
    asking.told = Told(path=told)
    with pytest.raises(TooFew, match="round 0 has no sum"):
        masked.asked(asking=asking)
    later = masked.asking()
    later.told = Told(path=told)
    assert same(masked.asked(asking=later), masked.simulated(range(4)))
    # The owner reads that it is one vector, however often it was asked for.
    log = (tmp_path / "masked" / "client0" / "log.txt").read_text()
    first, *more = [line for line in log.splitlines() if "left this machine" in line]
    assert "round 0: one vector under masks" in first
    assert more
    assert all("round 0: the same vector as before under other masks (asked again)" in line for line in more)
    # Without it the server would ask all five, and nobody would agree.
    with pytest.raises(TooFew, match="round 0 has no sum"):
        masked.asked()


def test_a_lost_question_and_a_late_answer_are_messages_of_zero(plain):
    lost, late = plain.silos.roster[0], plain.silos.roster[3]
    found = plain.asked(lost=lambda who, _: who == lost, late=lambda who, _: who == late)
    assert same(found, plain.simulated([1, 2, 4]))
    # They are back in the next round.
    assert same(plain.asked(1), plain.simulated(range(CLIENTS), 1))


def unsound(session, number, body):
    who, key = session.silos.roster[number], Identity(session.silos.keys[number])
    return lambda asked, question, sent: (
        sent if asked != who or question[6] != 2 else answer(Said.VECTOR, question, body(sent), key)
    )


@pytest.mark.parametrize(
    "body",
    [
        lambda sent: np.full(412, np.nan, dtype=np.float32).tobytes(),
        lambda sent: np.full(412, 1e30, dtype=np.float32).tobytes(),
        lambda sent: sent[39:-64][:-1],
        lambda sent: b"",
    ],
    ids=["NaN", "too long a vector", "a byte too few", "nothing"],
)
def test_an_unsound_message_is_one_of_zero(plain, body):
    assert same(plain.asked(tampered=unsound(plain, 1, body)), plain.simulated([0, 2, 3, 4]))


@pytest.mark.parametrize(
    "tampered",
    [
        lambda sent, other: Huge(sent),
        lambda sent, other: sent[:-1] + bytes([sent[-1] ^ 1]),
        lambda sent, other: b"",
        lambda sent, other: other,
    ],
    ids=["10 GB", "a bit of the signature", "empty", "an answer to another question"],
)
def test_bytes_that_are_no_answer_are_absent(plain, tampered):
    who, before = plain.silos.roster[1], []

    def wire(asked, question, sent):
        if asked != who or question[6] != 2:
            return sent
        before.append(sent)
        return tampered(sent, before[0])

    asking = plain.asking(tampered=wire)
    plain.asked(asking=asking)
    assert same(plain.asked(1, asking=asking), plain.simulated([0, 2, 3, 4], 1))
    assert plain.heard[-1].answered == 4


def test_a_question_of_ten_gigabytes_is_declined_unread(plain):
    party = plain.parties[plain.silos.roster[0]]
    declined = party.answer(Huge(plain.question(0)))
    assert declined[6] == Said.DECLINED
    assert len(declined) < MOST_BYTES


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_a_message_that_is_lost_once_costs_nobody_the_round(masked, fault):
    """The question is asked again while there is time; whoever answered it sends the same bytes."""
    seen = set()

    def once(who, question):
        step = who == masked.silos.roster[2] and (question[6], phase_of(question))
        new = bool(step) and step not in seen
        seen.add(step)
        return new

    assert same(masked.asked(**{fault: once}), masked.simulated(range(CLIENTS)))
    assert len(seen) > 6
    assert all(heard.answered == CLIENTS for heard in masked.heard)


@pytest.mark.slow
def test_five_percent_of_messages_are_lost(plain, masked):
    """Whatever is lost, the sum is that of some clients, or of nobody."""
    coins, lost = np.random.default_rng(5), []

    def loses(who, question):
        lost.append(bool(coins.random() < 0.05))
        return lost[-1]

    of_some = [numbers for size in (5, 4, 3, 2, 1) for numbers in itertools.combinations(range(CLIENTS), size)]
    for session, rounds in ((plain, 6), (masked, 6)):
        asking = session.asking(lost=loses, late=loses)
        for round_ in range(rounds):
            found = session.asked(round_, asking=asking)
            nobody = found.noise_variance == 0
            assert nobody or any(same(found, session.simulated(numbers, round_)) for numbers in of_some)
    assert sum(lost) >= 3
