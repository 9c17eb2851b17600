"""A notebook's cell that makes `PrivateRounds` and is run again: it goes on, or says how this process lets go."""

import shutil

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.lock import being_written
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

ROUNDS = 3


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def private(folder="nb"):
        return dp.PrivateRounds(
            clients=400, cohort=40, rounds=ROUNDS, like={"w": np.zeros(3)}, clip=dp.clip.Constant(initial=1.0),
            promise=dp.Promise(epsilon=6.0, delta=1e-4), run_dir=tmp_path / folder,
        )  # fmt: skip

    return private


def cell(private):
    releases = []
    for round_ in private:
        round_.map(lambda client: {"w": np.full(3, 0.1)})
        releases.append(round_.release()["w"])
    return releases


def interrupted(private):
    with pytest.raises(KeyboardInterrupt):
        for round_ in private:
            round_.map(lambda client: {"w": np.full(3, 0.1)})
            raise KeyboardInterrupt


def left_by_break(private):
    for round_ in private:
        round_.map(lambda client: {"w": np.full(3, 0.1)})
        round_.release()
        break


def not_begun(private):
    pass


@pytest.mark.parametrize("left", [interrupted, left_by_break, not_begun])
@pytest.mark.parametrize("folder", ["nb", "copy"])
def test_a_cell_that_was_left_says_what_to_type_and_that_works(made, tmp_path, left, folder):
    private = made()
    left(private)
    if folder == "copy":
        shutil.copytree(tmp_path / "nb", tmp_path / folder)
    with pytest.raises(dp.InputError, match=r"this process itself holds .* run private\.close\(\)"):
        made(folder)
    private.close()
    with made() as again:
        assert len(cell(again)) == ROUNDS
    assert [charge.round for charge in read_content(again.run.ledger).charges] == [*range(ROUNDS)]


def test_a_cell_that_is_done_holds_nothing_and_keeps_what_it_says(made, tmp_path):
    private = made()
    releases = cell(private)
    assert private.ended == "completed"
    assert not being_written(tmp_path / "nb")
    ledger = private.run.ledger.read_bytes()
    again = made()
    for each in (private, again):
        assert np.array_equal(cell(each), releases)
        assert each.spent == private.spent
    assert list(private.after(ROUNDS)) == []
    for each in (private, again):
        each.close()
    assert private.run.ledger.read_bytes() == ledger
    assert verify_rounds(RunDirectory(private.run.path)).rounds == ROUNDS
