"""A client of the masking protocol over the wire: after a refused agreement nothing of the step that follows leaves."""

import hashlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.federation.client.client_state import asked_digest
from dpfedmeta.federation.client.secagg_session import MaskedRound, round_of
from dpfedmeta.federation.wire_format import Attempt, Start
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.round_parameters import agreed

KEYS = {seat: bytes([seat]) * 32 for seat in range(4)}
NOW = frozenset({KEYS[0], KEYS[1]})


class Anything:
    """A client of secure_aggregation that does whatever it is asked; the session alone has to hold it back."""

    def __init__(self):
        self.did = []
        self.sharers = self.survivors = frozenset({0, 1})

    def __getattr__(self, step):
        return lambda *given: self.did.append(step) or step.encode()


def session(before=None, may=True):
    """One whose vector is kept for these survivors, and whose survivors of now may be agreed to or not."""
    found, asked = MaskedRound.__new__(MaskedRound), []
    kept = SimpleNamespace(
        survivors=lambda attempt: before,
        may_reveal=lambda attempt, survivors: asked.append((attempt, survivors)) or may,
        once=lambda attempt, asked, made: np.arange(3, dtype="<u4").tobytes(),
    )
    found._joined, found._attempt = SimpleNamespace(kept=kept), SimpleNamespace(round=3)
    found._round = SimpleNamespace(identities=SimpleNamespace(keys=KEYS))
    found._client, found._invited, found.task, found.asked = Anything(), (0, 1, 2, 3), None, b""
    found.agreed = found._consented = False
    return found, asked


PHASES = (ProtocolPhase.MASKED, ProtocolPhase.REVEAL)


@pytest.mark.parametrize("phase", PHASES)
def test_a_step_whose_agreement_is_missing_is_not_due(phase):
    found, _ = session()
    other = ProtocolPhase.CONSENT if phase is ProtocolPhase.MASKED else ProtocolPhase.AGREE
    for earlier in ((), (ProtocolPhase.KEYS, ProtocolPhase.SHARES), (other,)):
        for step in earlier:
            found.answer(step, b"")
        found._client.did.clear()
        with pytest.raises(Refused, match="not due now"):
            found.answer(phase, b"")
        assert found._client.did == []


@pytest.mark.parametrize(
    ("before", "allowed"),
    [
        (None, True), (frozenset(), True), (NOW, True), (frozenset({KEYS[1]}), True),
        (frozenset({KEYS[2]}), False), (NOW | {KEYS[2]}, False), (frozenset({b"of nobody"}), False),
    ],
)  # fmt: skip
def test_a_kept_vector_is_masked_where_all_whose_survival_was_signed_share_again(before, allowed):
    found, _ = session(before)
    if allowed:
        assert found.answer(ProtocolPhase.AGREE, b"") == b"agree"
        assert found.answer(ProtocolPhase.MASKED, b"") == b"mask"
        return
    with pytest.raises(Refused, match="would give a client away"):
        found.answer(ProtocolPhase.AGREE, b"")
    with pytest.raises(Refused, match="not due now"):
        found.answer(ProtocolPhase.MASKED, b"")
    assert "mask" not in found._client.did


@pytest.mark.parametrize("may", [False, True])
def test_shares_are_revealed_where_the_survivors_were_agreed_to(may):
    found, asked = session(may=may)
    found.answer(ProtocolPhase.AGREE, b"")
    if may:
        assert found.answer(ProtocolPhase.CONSENT, b"") == b"consent"
        assert found.answer(ProtocolPhase.REVEAL, b"") == b"unmask"
    else:
        with pytest.raises(Refused, match="would give a client away"):
            found.answer(ProtocolPhase.CONSENT, b"")
        with pytest.raises(Refused, match="not due now"):
            found.answer(ProtocolPhase.REVEAL, b"")
        assert "unmask" not in found._client.did
    # By identities, not by seats: these are numbered anew in each attempt at the protocol.
    assert asked == [(found._attempt, NOW)]


def test_a_phase_in_which_clients_do_not_speak_is_refused():
    found, _ = session()
    found.agreed = found._consented = True
    speaking = {"KEYS", "SHARES", "AGREE", "MASKED", "CONSENT", "REVEAL"}
    for phase in ProtocolPhase:
        if phase.name not in speaking:
            with pytest.raises(Refused, match=f"phase {phase.name}, which is not due now"):
                found.answer(phase, b"")
    assert found._client.did == []


class Signed:
    """An offer to four clients, as far as the protocol's parameters go."""

    digest, roster, server = b"d" * 32, tuple(KEYS[seat] for seat in range(4)), b"s" * 32

    def __init__(self, **other):
        self.__dict__.update(other)

    def agreement(self, round_, invited):
        return agreed(clients=invited, dimension=1, bits=16, adversarial=0.0, dropout=0.0, malicious=False)


ATTEMPT = Attempt(run=b"r" * 32, round=2, again=(1, 7))
ANOTHER = {
    "usual": {},
    "offer": {"signed": Signed(digest=b"e" * 32)},
    "server": {"signed": Signed(server=b"t" * 32)},
    "roster": {"signed": Signed(roster=Signed.roster[::-1])},
    "round": {"attempt": replace(ATTEMPT, round=3)},
    "first attempt": {"attempt": replace(ATTEMPT, again=())},
    "another attempt": {"attempt": replace(ATTEMPT, again=(2, 7))},
    "another mark": {"attempt": replace(ATTEMPT, again=(1, 8))},
    "protocol": {"protocol": 6},
    "task": {"start": Start(invited=(0, 2, 3), task=b"u")},
    "invited": {"start": Start(invited=(0, 1, 3), task=b"t")},
    "more invited": {"start": Start(invited=(0, 1, 2, 3), task=b"t")},
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ANOTHER, 2)))
def test_whatever_an_attempt_is_of_makes_another_protocol_of_it(one, other):
    """Clients that are told of two of them cannot read each other's messages."""
    usual = {"signed": Signed(), "attempt": ATTEMPT, "protocol": 5, "start": Start(invited=(0, 2, 3), task=b"t")}
    assert round_of(**usual | ANOTHER[one]) == round_of(**usual | ANOTHER[one])
    assert round_of(**usual | ANOTHER[one]) != round_of(**usual | ANOTHER[other])


def test_a_seat_has_the_identity_of_the_client_that_is_invited_to_it():
    found = round_of(Signed(), ATTEMPT, 5, Start(invited=(0, 2, 3), task=b"t"))
    assert dict(found.identities.keys) == {0: KEYS[0], 1: KEYS[2], 2: KEYS[3]}
    assert (found.round, found.attempt, found.server, found.agreement.clients) == (2, 5, b"s" * 32, 3)


@pytest.mark.parametrize("number", range(4))
def test_a_client_takes_the_seat_of_its_number_and_no_other(number):
    joined = SimpleNamespace(signed=Signed(run=b"r" * 32), number=number)
    start = Start(invited=(0, 2, 3), task=b"t")
    if number not in start.invited:
        with pytest.raises(Refused, match="round 2: this client was asked, but it is not on the list of invited"):
            MaskedRound(joined, ATTEMPT, 5, start, bytes([number]) * 32)
        return
    private = hashlib.sha256(bytes([number])).digest()
    roster = tuple(Identity(private).public if place == number else KEYS[place] for place in range(4))
    joined.signed = Signed(run=b"r" * 32, roster=roster)
    found = MaskedRound(joined, ATTEMPT, 5, start, private)
    assert found._seat == start.invited.index(number)
    assert found.place == (b"r" * 32, (2, 1, 7), 5)
    assert (found.task, found.asked) == (b"t", asked_digest(b"t", (0, 2, 3)))
