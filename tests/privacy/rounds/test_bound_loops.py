"""Stored releases of a loop are those that its ledger holds, whatever the number of rounds and however it ended."""

from dataclasses import replace

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.charges import Closing
from dpfedmeta.accounting.ledger.ledger import held_releases, read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.privacy.rounds.stored_release import keep_release, load_release
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from tests.privacy.rounds.test_private_rounds import MODEL, made, update

NOT_CLOSED = "the last release (it was stopped, or goes on"
INDEPENDENT = {"noise": "independent"}


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def looped(folder, released, **changes):
    with made(folder, **{**INDEPENDENT, **changes}) as private:
        for round_ in private.after(private.released):
            round_.map(update, MODEL)
            round_.release()
            if private.released == released:
                break
    return RunDirectory(folder / "mine")


def exact(run, round_, policy):
    """The mean without noise, with every digest of the file computed anew."""
    stored = load_release(run, round_, policy)
    values = {name: np.full_like(value, 0.5) for name, value in stored.values.items()}
    keep_release(run, replace(stored, values=values))


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_release_that_is_exchanged_is_found_and_not_gone_on_with(tmp_path, rounds):
    run = looped(tmp_path, rounds, rounds=rounds)
    assert f"{rounds} of them are those whose digests" in verify_rounds(run).remarks[2]
    assert NOT_CLOSED not in verify_rounds(run).unverified
    policy = dp.clip.Constant(initial=1.0)
    with made(tmp_path, **INDEPENDENT, rounds=rounds) as private:
        policy = private._rounds._state
    for round_ in range(rounds):
        path = run.path / "releases" / f"round-{round_:06d}.safetensors"
        before = path.read_bytes()
        exact(run, round_, policy)
        with pytest.raises(dp.InputError, match=f"the release of round {round_} has the digest"):
            verify_rounds(run)
        # Nor is a model made of it again.
        with pytest.raises(dp.InputError, match=f"the stored release of round {round_} is not the one"):
            looped_again(tmp_path, rounds)
        path.write_bytes(before)
    path.unlink()
    with pytest.raises(dp.InputError, match=f"lacks the release of round {rounds - 1}, which the ledger holds"):
        verify_rounds(run)


def looped_again(folder, rounds):
    with made(folder, **INDEPENDENT, rounds=rounds) as private:
        return [round_.release() for round_ in private]


@pytest.mark.parametrize("part", ["bound", "following", "deviation", "sensitivity"])
def test_what_a_release_states_of_itself_is_held_too(tmp_path, part):
    run = looped(tmp_path, 3)
    with made(tmp_path, **INDEPENDENT) as private:
        stored = load_release(run, 1, private._rounds._state)
    keep_release(run, replace(stored, **{part: 2 * getattr(stored, part)}))
    with pytest.raises(dp.InputError, match=r"round 1|deviation"):
        verify_rounds(run)


@pytest.mark.parametrize("closed", [True, False])
def test_a_loop_that_stops_early_says_whether_its_last_release_is_held(tmp_path, closed, monkeypatch):
    if not closed:
        monkeypatch.setattr(Journal, "close", lambda self, rounds, weights: None)
    run = looped(tmp_path, 2)
    found = verify_rounds(run)
    assert (NOT_CLOSED in found.unverified) is not closed
    assert f"{1 + closed} of them are those whose digests" in found.remarks[2]
    monkeypatch.undo()
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    run = looped(tmp_path, 3)
    lines = read_content(run.ledger).lines
    assert [line.rounds for line in lines if isinstance(line, Closing)] == ([2, 3] if closed else [3])
    assert NOT_CLOSED not in verify_rounds(run).unverified


def test_a_loop_that_was_killed_before_its_ledger_was_closed_closes_it_when_it_is_read_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "close", lambda self, rounds, weights: None)
        run = looped(tmp_path, 3)
    assert read_content(run.ledger).closing is None
    for _ in range(2):
        looped_again(tmp_path, 3)
        assert [isinstance(line, Closing) for line in read_content(run.ledger).lines].count(True) == 1
    assert NOT_CLOSED not in verify_rounds(run).unverified


def test_a_prefix_of_a_ledger_does_not_pass_beside_the_releases_of_all_rounds(tmp_path):
    run = looped(tmp_path, 3)
    lines = run.ledger.read_text().splitlines(keepends=True)
    for left in range(1, len(lines) - 1):
        run.ledger.write_text("".join(lines[:left]))
        with pytest.raises(dp.InputError, match="has no charge in the ledger"):
            verify_rounds(run)
    run.ledger.write_text("".join(lines[:-1]))
    assert NOT_CLOSED in verify_rounds(run).unverified


def test_a_loop_that_goes_on_holds_the_release_before_it(tmp_path):
    """Its first charge after a restart names the last release, as every other charge does."""
    run = looped(tmp_path, 1, rounds=3)
    run = looped(tmp_path, 3, rounds=3)
    held = held_releases(run.ledger, read_content(run.ledger))
    assert held == {round_ + 1: load_release(run, round_).digest for round_ in range(3)}
    charged = read_content(run.ledger).charges
    assert [charge.release for charge in charged] == ["", held[1], held[2]]


def test_a_release_under_a_line_of_another_chain_is_refused(tmp_path):
    run = looped(tmp_path, 1, rounds=1)
    with made(tmp_path, **INDEPENDENT, rounds=1) as private:
        policy = private._rounds._state
    keep_release(run, replace(load_release(run, 0, policy), head="0" * 64))
    with pytest.raises(dp.InputError, match="has no charge in the ledger"):
        verify_rounds(run)


def test_a_loops_own_model_is_said_to_be_verified_by_nobody(tmp_path, dpfedmeta):
    run = looped(tmp_path, 3)
    last = dpfedmeta("account", "--verify", run.path).out.splitlines()[-1]
    assert last == verify_rounds(run).unverified
    assert "the model of the loop, which is no file of these rounds" in last
    assert dpfedmeta("account", "--statement", run.path).out.splitlines()[-1] == last
