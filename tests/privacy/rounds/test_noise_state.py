"""States of the noise: which are kept and which go, whatever stands beside them."""

import itertools

import numpy as np
import pytest

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.noise_state import drop_noise_states, keep_noise_state, kept_noise_state

HEADS = ("ab" * 32, "cd" * 32)
INITIAL = {"vectors": np.zeros((2, 3)), "round": np.zeros(1, dtype=np.int64)}


def state(number):
    return {"vectors": np.arange(6.0).reshape(2, 3) + number, "round": np.full(1, number)}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    return RunDirectory(tmp_path)


def there(run):
    folder = run.secret / "noise"
    return {(int(path.name[6:12]), path.name[13:15]) for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize("rounds", [*itertools.combinations((2, 3, 4), 1), *itertools.combinations((2, 3, 4), 2), ()])
def test_states_of_the_rounds_that_are_named_stay_and_all_others_go(run, rounds):
    for number, head in itertools.product((1, 2, 3, 4, 5), HEADS):
        keep_noise_state(run, number, state(number), head)
    drop_noise_states(run, set(rounds))
    # Both attempts at each.
    assert there(run) == {(number, head[:2]) for number in rounds for head in HEADS}


def test_other_files_stay(run):
    keep_noise_state(run, 1, state(1), HEADS[0])
    other = run.secret / "noise" / "round-000001.txt"
    other.touch()
    drop_noise_states(run, {7})
    assert list((run.secret / "noise").iterdir()) == [other]


def test_each_round_and_attempt_has_a_state_of_its_own(run):
    places = list(itertools.product((1, 2), HEADS))
    for value, (number, head) in enumerate(places):
        keep_noise_state(run, number, state(value), head)
    for value, (number, head) in enumerate(places):
        found = kept_noise_state(run, number, INITIAL, head)
        assert all(np.array_equal(found[name], own) for name, own in state(value).items())


def test_a_mechanism_that_remembers_nothing_leaves_no_file(run):
    keep_noise_state(run, 1, {}, HEADS[0])
    drop_noise_states(run, {1})
    assert not (run.secret / "noise").exists()


def test_states_are_for_the_server_alone(run):
    keep_noise_state(run, 1, state(1), HEADS[0])
    (path,) = (run.secret / "noise").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
