"""One silo does what it likes under secure aggregation: the others get their sums, in this round and in the next."""

import secrets
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.federation.server import training_server
from dpfedmeta.federation.server.client_requests import Blame, Told
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.server.training_server import left_out
from dpfedmeta.secure_aggregation.crypto import shamir
from dpfedmeta.secure_aggregation.payloads import Agree, Ciphertexts, Reveal
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.simulation.backend import AttemptUsedUp
from dpfedmeta.training.tracking.callbacks import Callback
from dpfedmeta.training.verification.verify import audit
from tests.federation.sessions import open_session, phase_of, same
from tests.federation.silos import CLIENTS, NOISE, SECURE
from tests.federation.test_serving import Killed, killing, lines_of

BAD, OTHERS = 2, [0, 1, 3, 4]


@pytest.fixture
def masked(silos, tmp_path):
    return open_session(silos, tmp_path / "masked", "dp-agrlr-secure", **SECURE)


def acts(monkeypatch, silos, method, change):
    """`change(client, honest, *given)` in place of a method, at the dishonest silo alone."""
    honest, bad = getattr(Client, method), silos.roster[BAD]

    def instead(self, *given):
        return change(self, honest, *given) if self._identity.public == bad else honest(self, *given)

    monkeypatch.setattr(Client, method, instead)


def misdealing(*kinds):
    """Shares that are what is committed to, and belong to no secret: of the seed (0), of the mask key (1)."""

    def dealing(client, honest, own):
        split, calls = shamir.split, []

        def random(value, points, threshold, randomness):
            calls.append(value)
            wrong = len(calls) - 1 in kinds
            return [secrets.randbelow(2**256) for _ in points] if wrong else split(value, points, threshold, randomness)

        shamir.split = random
        try:
            return honest(client, own)
        finally:
            shamir.split = split

    return dealing


def uncommitted(client, honest, own):
    return Ciphertexts(tuple(entry._replace(key=bytes(32)) for entry in honest(client, own).entries))


def changed_shares(client, honest, message):
    client._secrets.shares = {seat: (one ^ 1, other ^ 1) for seat, (one, other) in client._secrets.shares.items()}
    return honest(client, message)


def keeps_back(client, honest, message):
    client._secrets.shares = {}
    return honest(client, message)


def rejects_all(client, honest, message):
    honest(client, message)
    signature = client._signed(ProtocolPhase.AGREE, b"", 2**32 - 2)[-64:]
    return client._signed(ProtocolPhase.AGREE, Agree(signature, tuple(sorted(client._secrets.shares))).encode())


def silent_from(phase):
    return lambda silos: lambda who, question: who == silos.roster[BAD] and (phase_of(question) or 0) >= phase


# What it does: (method, change, from which phase on it is silent, whether its vector would be missing anyway).
ACTS = {
    "no seed": ("_ciphertexts", misdealing(0), None),
    "no mask key": ("_ciphertexts", misdealing(1), None),
    "neither": ("_ciphertexts", misdealing(0, 1), None),
    "no mask key, then silent": ("_ciphertexts", misdealing(1), ProtocolPhase.MASKED),
    "neither, then silent": ("_ciphertexts", misdealing(0, 1), ProtocolPhase.MASKED),
    "no seed, and reveals nothing": ("_ciphertexts", misdealing(0), ProtocolPhase.REVEAL),
    "uncommitted": ("_ciphertexts", uncommitted, None),
    "changed shares": ("unmask", changed_shares, None),
    "keeps back": ("unmask", keeps_back, None),
    "rejects all": ("agree", rejects_all, None),
    "empty reveal": ("unmask", lambda client, honest, message: Reveal(()).encode(), None),
}


@pytest.mark.parametrize("act", ACTS)
def test_whatever_one_silo_does_the_others_have_their_sums(masked, monkeypatch, act):
    method, change, phase = ACTS[act]
    acts(monkeypatch, masked.silos, method, change)
    blamed = []
    asking = masked.asking(**({} if phase is None else {"lost": silent_from(phase)(masked.silos)}))
    asking.blamed = blamed.append
    for round_ in (0, 1):
        again = ()
        try:
            found = masked.asked(round_, asking=asking)
        except AttemptUsedUp:
            # Survivors were told of: a further attempt, with vectors of its own. Once: from then on it is left out.
            assert (round_, asking.left_out) == (0, {BAD})
            again = (1, 7)
            found = masked.asked(round_, again=again, asking=asking)
        whole, without = (masked.simulated(who, round_, again=again) for who in (range(CLIENTS), OTHERS))
        assert same(found, without) or (BAD not in asking.left_out and same(found, whole))
        assert not again or same(found, without)
    misdealt = "no seed" in act or "neither" in act or "mask key, then" in act or act == "uncommitted"
    assert ({BAD} == asking.left_out) == misdealt
    assert {number for blame in blamed for number in blame.clients} <= {BAD, *OTHERS}
    assert all(BAD in blame.clients for blame in blamed)  # nobody else is ever named alone


class Remarks(Callback):
    def __init__(self):
        self.said = []

    def on_remark(self, text):
        self.said.append(text)


@pytest.mark.parametrize("killed", [None, 8, 12])
def test_a_run_goes_on_without_a_silo_that_misdealt(silos, tmp_path, monkeypatch, killed):
    """Charged once more at the server and at each client; also where the server is killed in between."""
    acts(monkeypatch, silos, "_ciphertexts", misdealing(0))
    given = SECURE | {"server.rounds": "3", "run.noise_seed": str(NOISE)}
    settings, parties = silos.settings("dp-agrlr-secure", **given), silos.parties(tmp_path)
    names, told, remarks = ["first", "second", "third", "fourth", "fifth"], [], Remarks()
    options = {"blamed": told.append, "names": names, "callbacks": (remarks,)}
    if killed is not None:
        with pytest.raises(Killed):
            silos.serve(settings, tmp_path, killing(killed)(parties=parties), **options)
    run, status = silos.serve(settings, tmp_path, killing(0)(parties=parties), **options)
    # The plan's budget is three charges: one was for an attempt that never had a sum.
    assert status == "budget"
    *charges, end = lines_of(run.ledger)[1:]
    assert "closed" in end
    assert [(line["round"], line["attempt"]) for line in charges] == [(0, 0), (0, 1), (1, 0)]
    counts = [len(lines_of(tmp_path / f"client{number}" / "ledger.jsonl")) - 1 for number in range(CLIENTS)]
    assert counts == [3, 3, 1, 3, 3]
    assert left_out(run) == {BAD}
    assert any(line.startswith("round 0: third dealt shares of its seed") and "left out" in line for line in told)
    assert sum("a further attempt is made and charged" in line for line in remarks.said) == 1
    audit(run)


def test_one_that_stays_away_after_others_were_told_of_it_ends_no_run(masked, tmp_path):
    """The same question is tried first; a server that was started again may go on without it, as a further attempt."""
    gone, told = masked.silos.roster[BAD], tmp_path / "told.json"
    asking = masked.asking(lost=lambda who, question: (phase_of(question) or 0) > ProtocolPhase.CONSENT)
    asking.told = Told(path=told)
    with pytest.raises(TooFew, match="smaller --fewest"):
        masked.asked(asking=asking)

    def later(*away):
        asking = masked.asking()
        there = {who: party for who, party in masked.parties.items() if who not in away}
        asking.channel = replace(asking.channel, parties=there)
        asking.told = Told(path=told)
        return asking

    # Two away: nobody could have a sum, and nothing more is charged.
    with pytest.raises(TooFew):
        masked.asked(asking=later(gone, masked.silos.roster[0]))
    with pytest.raises(AttemptUsedUp, match="no longer all there"):
        masked.asked(asking=later(gone))
    assert same(masked.asked(again=(1, 7), asking=later(gone)), masked.simulated(OTHERS, again=(1, 7)))


@pytest.mark.parametrize(("out", "excluded"), [({BAD}, False), ({BAD, 3}, True), (set(), False)])
def test_of_two_suspects_neither_is_left_out_until_both_are(tmp_path, out, excluded):
    """A server that was started again leaves out whoever is noted; one of the two is honest."""
    run, told = RunDirectory(tmp_path), []
    run.secret.mkdir()
    server: Any = SimpleNamespace(_name=str, blamed=told.append)
    asking: Any = SimpleNamespace(left_out=out, signed=None)
    blame = Blame(round=1, clients=(BAD, 3), text=lambda name: f"{name(BAD)} or {name(3)} is at fault")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_server, "all_are_asked", lambda asking: True)
        training_server.Federation._blame(server, run, asking, blame)
    assert left_out(run) == ({BAD, 3} if excluded else frozenset())
    assert ("left out from now on" in told[0]) is excluded
