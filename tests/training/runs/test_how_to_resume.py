import json

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import asked_statement, population_statement
from dpfedmeta.training.state.how_to_resume import check_simulated, how_to_go_on, repeated
from dpfedmeta.training.state.resume import begun_by, keep_launch

SHAPE = EpisodeShape(ways=2, shots=1, queries=1)
COMMAND = "dpfedmeta train --algo maml --dataset strokes"


def run_of(folder, kind):
    path = folder / "heart"
    path.mkdir()
    if kind is not None:
        (path / "plan.json").write_text(json.dumps({"population": {"kind": kind}}))
    return RunDirectory(path)


def test_a_federation_goes_on_by_its_server(tmp_path):
    run = run_of(tmp_path, asked_statement(8).kind)
    assert "federate server ... --run.name heart" in how_to_go_on(run)
    assert "--resume" not in how_to_go_on(run)
    with pytest.raises(InputError, match=r"belongs to a federation.*federate server"):
        check_simulated(run)
    words, left_open = repeated(run, COMMAND)
    assert words.startswith("dpfedmeta federate server --keys KEYS --roster ROSTER --algo maml")
    assert "KEYS" in left_open


def test_clients_of_the_callers_own_are_handed_over_again(tmp_path):
    run = run_of(tmp_path, population_statement(from_pairs([], SHAPE)).kind)
    check_simulated(run)
    assert "population=..." in how_to_go_on(run)
    assert repeated(run, COMMAND)[0] == COMMAND
    assert "population=..." in repeated(run, COMMAND)[1]


@pytest.mark.parametrize("kind", ["virtual", "shards", None])
def test_simulated_clients_go_on_by_train(tmp_path, kind):
    run = run_of(tmp_path, kind)
    check_simulated(run)
    assert how_to_go_on(run) == f"dpfedmeta train --resume {run.path}"
    assert repeated(run, COMMAND) == (COMMAND, "")


def test_no_statement_says_which_unit_is_protected():
    """That is what the cells are for; a plan of silos protects records, and said that the unit is the client."""
    for statement in (asked_statement(8), population_statement(from_pairs([], SHAPE))):
        assert "unit" not in statement.text


def test_a_run_is_found_again_by_the_launch_that_began_it_and_by_no_other(tmp_path):
    run, mark = run_of(tmp_path, None), {"launch": "a", "words": ["--algo", "maml"]}
    assert not begun_by(run.path, mark)
    keep_launch(run, None)
    assert not begun_by(run.path, mark)
    keep_launch(run, mark)
    assert begun_by(run.path, mark)
    for name, other in (("launch", "b"), ("words", ["--algo", "dp-agr"])):
        assert not begun_by(run.path, mark | {name: other})
