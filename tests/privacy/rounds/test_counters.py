"""Whole numbers, such as a counter of batches, never become part of the form of an update: at every door of a loop."""

import json

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT

COUNTED = "num_batches_tracked: holds whole numbers, such as a counter of batches"
KINDS = {
    "numpy": np.int64(12), "unsigned": np.array([12], np.uint8), "torch": torch.tensor(12), "Python": 12,
}  # fmt: skip


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def private(**changes):
        given = {
            "clients": 400, "cohort": 40, "rounds": 2, "run_dir": tmp_path / "mine",
            "clip": dp.clip.Constant(initial=1.0), "promise": dp.Promise(epsilon=6.0, delta=1e-4),
        }  # fmt: skip
        return dp.PrivateRounds(**given | changes)

    return private


def counted(counter):
    return lambda client: {"w": np.full(3, 0.1), "num_batches_tracked": counter}


def sound(client):
    return {"w": np.full(3, 0.1)}


def by_like(made, update):
    made(like=update(0))


def by_check(made, update):
    with made() as private:
        private.check_update(update(0))


def by_map(made, update):
    with made() as private:
        for round_ in private:
            round_.map(update)
            round_.release()


def by_rehearsal(made, update):
    with made() as private:
        next(iter(private)).map(update, rehearse=0)


DOORS = {"like": by_like, "check_update": by_check, "map": by_map, "rehearse": by_rehearsal}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_a_counter_is_refused_before_round_0_is_charged(made, tmp_path, door, kind):
    with pytest.raises(dp.InputError, match=COUNTED):
        DOORS[door](made, counted(KINDS[kind]))
    if (ledger := tmp_path / "mine" / "ledger.jsonl").exists():
        assert not read_content(ledger).charges


def add_all(private, update):
    for round_ in private:
        for client in round_.cohort:
            round_.add(client, update(client))
        yield round_.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_adds_counters_alone_releases_nothing_and_is_not_charged_twice(made, kind):
    with made() as private, pytest.raises(dp.InputError, match=r"says the form of a release.*holds whole numbers"):
        next(add_all(private, counted(KINDS[kind])))
    with made() as private:
        releases = list(add_all(private, sound))
    assert [charge.round for charge in read_content(private.run.ledger).charges] == [0, 1]
    assert all(set(each) == {"w"} for each in releases)


def test_clients_with_a_counter_say_no_form_and_stop_no_round(made):
    """One client's update is its own affair: no error tells of it."""
    with made(clients=40, sampler="fixed", promise=dp.Promise(epsilon=50.0, delta=1e-4)) as private:
        found = list(add_all(private, lambda client: (counted(7) if client < 39 else sound)(client)))
    assert all(set(each) == {"w"} for each in found)
    lines = (private.run.secret / LEFT_OUT).read_text().splitlines()
    assert [json.loads(line)["messages"] for line in lines] == [39, 39]


@pytest.mark.parametrize("like", [None, {"w": np.zeros(3)}])
def test_whole_numbers_under_a_name_of_the_model_are_an_update(made, like):
    """A sign, say: the model has floats there, so no counter does."""
    with made(like=like) as private:
        rounds = iter(private)
        first = next(rounds)
        first.map(sound)
        first.release()
        next(rounds).map(lambda client: {"w": np.array([1, -1, 0])})
    private.check_update({"w": np.array([1, -1, 0])})
