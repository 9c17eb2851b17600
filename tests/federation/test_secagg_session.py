"""A client of the masking protocol over the wire: after a refused agreement nothing of the step that follows leaves."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.federation.client.secagg_session import MaskedRound
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase

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
    found._agreed = found._consented = False
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
    found._agreed = found._consented = True
    speaking = {"KEYS", "SHARES", "AGREE", "MASKED", "CONSENT", "REVEAL"}
    for phase in ProtocolPhase:
        if phase.name not in speaking:
            with pytest.raises(Refused, match=f"phase {phase.name}, which is not due now"):
                found.answer(phase, b"")
    assert found._client.did == []
