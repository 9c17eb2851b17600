"""A dry run changes nothing: not the limit, not a log, no file of the home, whatever the home is."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import note_answered, open_home
from dpfedmeta.federation.entry_points import ClientOptions, run_client
from dpfedmeta.federation.flower import flower_client, http_client
from dpfedmeta.federation.identity.credentials import write_identity
from dpfedmeta.federation.identity.invitation import Invitation, write_invitation
from dpfedmeta.federation.wire_format import Said
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from tests.federation.sessions import open_session
from tests.federation.silos import MICRO
from tests.federation.test_client import ask, offer

LIMIT = Promise(epsilon=9.0)


def everything(folder):
    """Each name below, with bytes and permissions."""
    found = [folder, *sorted(folder.rglob("*"))] if folder.exists() else []
    return {
        str(each.relative_to(folder)): (each.stat().st_mode, each.read_bytes() if each.is_file() else b"")
        for each in found
    }


@pytest.fixture
def looks(silos, tmp_path, monkeypatch):
    """`federate client --dry-run` on client 0's home, which the offer of one plan reaches; what it says."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", LIMIT, **MICRO)
    home, copies = tmp_path / "client0", tmp_path / "temporary"
    copies.mkdir()
    # The clients of the session have made their homes.
    others = {who: party for who, party in session.parties.items() if who != silos.roster[0]}
    shutil.rmtree(home)
    write_identity(tmp_path / "own.pem", silos.keys[0])
    invitation = Invitation(server="fed.example:1", identity=Identity(silos.server).public, authority=b"none")
    write_invitation(tmp_path / "invitation.yaml", invitation)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    monkeypatch.setattr(http_client, "Wire", lambda **named: None)

    def notes():
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != ".lock"]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files}

    def look(promise=LIMIT, **given):
        said, answers = [], []

        def attend(counted, wire, *, over, say):
            session.parties = {**others, silos.roster[0]: counted}
            answers.append(offer(session, 0)[6])
            assert over()

        monkeypatch.setattr(flower_client, "attend", attend)
        register = notes()
        before = everything(home)
        options = ClientOptions(
            data=silos.folders[0], invitation=tmp_path / "invitation.yaml", identity=tmp_path / "own.pem", home=home,
            promise=promise, dry_run=True, **given,
        )  # fmt: skip
        try:
            assert run_client(options, said.append) is None
            assert answers == [Said.DECLINED]
            assert "this is a dry run; nothing is sent" in said[-1]
        finally:
            session.parties = {**others, silos.roster[0]: None}
            assert everything(home) == before
            # Nor what this machine notes of homes.
            assert notes() == register
            # Flower keeps its files there.
            assert os.environ["FLWR_HOME"] == str(tmp_path / "elsewhere")
        return "\n".join(said)

    vars(look).update(session=session, home=home, silos=silos, tmp=tmp_path)
    yield look
    # Nor does the copy stay, which holds what was decoded.
    gc.collect()
    assert not list(copies.iterdir())


def takes_part(looks, rounds, promise=LIMIT):
    """Client 0 joins for good and answers these rounds."""
    party = looks.silos.client(0, looks.tmp, promise)
    open_home(looks.home, looks.silos.folders[0], looks.silos.keys[0])
    looks.session.parties[looks.silos.roster[0]] = party
    offer(looks.session, 0)
    for round_ in rounds:
        assert ask(looks.session, looks.session.question(0, round_)) is not None
    note_answered(looks.home)


def test_a_new_home_is_not_made_and_no_limit_is_set(looks):
    assert "promise allows" in looks(Promise(epsilon=4.0))
    assert not looks.home.exists()
    takes_part(looks, [0])


def test_a_home_in_use_stays_as_it_is(looks):
    takes_part(looks, range(2))
    assert "so far 2 participations in all runs" in looks()
    takes_part(looks, [2])


def test_a_line_that_a_crash_tore_is_left_for_the_next_start(looks):
    takes_part(looks, [0])
    ledger = looks.home / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"round": 1, "mu"')
    looks()


def test_another_limit_is_refused_by_a_dry_run_as_by_a_start_and_named_with_its_own_file(looks):
    takes_part(looks, [0])
    with pytest.raises(InputError) as found:
        looks(Promise(epsilon=2.5))
    assert str(found.value).startswith(f"{looks.home / 'ledger.jsonl'}: has the limit epsilon 9")


def test_a_limit_is_not_changed_from_python_either(looks):
    takes_part(looks, [0])
    assert "epsilon <= 20" in looks(Promise(epsilon=20.0), change_limit=True)
    # The old one holds.
    takes_part(looks, [1])


def test_a_restored_older_home_stays_as_it_is(looks):
    takes_part(looks, [0])
    shutil.copytree(looks.home, looks.tmp / "backup")
    takes_part(looks, [1])
    shutil.rmtree(looks.home)
    shutil.copytree(looks.tmp / "backup", looks.home)
    with pytest.raises(InputError, match="is an older copy"):
        looks()
    # Taken all the same, for a look: the next start refuses it as before.
    assert "it is taken all the same" in looks(change_limit=True)
    with pytest.raises(InputError, match="is an older copy"):
        looks()


def test_damage_is_told_by_the_place_of_the_file_itself(looks):
    takes_part(looks, [0])
    (noise,) = looks.home.glob("runs/*/noise.json")
    (looks.home / "runs" / noise.parent.name / "plan.bin").unlink()
    noise.write_text("none")
    with pytest.raises(InputError) as found:
        looks()
    assert str(found.value) == f"{noise}: the noise key of this run is damaged; restore it from a backup"
    assert Path(noise).read_text() == "none"
