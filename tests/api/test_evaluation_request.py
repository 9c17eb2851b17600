"""What an evaluation is asked for: each number exactly at its boundary, and where its files go."""

from pathlib import Path

import pytest

from dpfedmeta.api.evaluation_request import COMPARISON, EvaluationRequest
from dpfedmeta.core.errors import InputError

ONE, TWO = Path("a"), Path("b")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"episodes": 2}, None), ({"episodes": 1}, "episodes = 1: an interval needs at least 2"),
        ({"shots": (1, 5)}, None), ({"shots": (5, 0)}, "shots = 0: a support set needs"),
        ({"ways": (2, 5)}, None), ({"ways": (5, 1)}, "ways = 1: an episode needs"),
        ({"steps": (0, 3)}, None), ({"steps": (3, -1)}, "steps = -1: a number of gradient steps"),
        ({"seeds": (0, 1)}, None), ({"seeds": (1, -1)}, "seeds: expected whole numbers from 0 on"),
        ({"seeds": (3, 4, 3)}, "each at most once"), ({"workers": 1}, None), ({"workers": 0}, "workers = 0: must be"),
        ({"shots": (1.0,)}, "shots = 1.0: expected whole"), ({"episodes": True}, "episodes = True: expected whole"),
        ({"runs": (ONE, TWO)}, None), ({"runs": (ONE, TWO, Path("b/../a"))}, "the same run is given twice"),
    ],
)  # fmt: skip
def test_every_number_is_taken_exactly_in_its_range(given, said):
    usual = {"runs": (ONE,)} | given
    if said is None:
        EvaluationRequest(**usual)
        return
    with pytest.raises(InputError, match=said):
        EvaluationRequest(**usual)


@pytest.mark.parametrize(
    ("name", "folder", "picture", "said"),
    [
        (None, None, None, None), ("there", "there", f"there/{COMPARISON}", None),
        ("new", "new", f"new/{COMPARISON}", None),
        ("new/deep", "new/deep", f"new/deep/{COMPARISON}", None), ("x.png", None, "x.png", None),
        ("there/x.png", None, "there/x.png", None), ("new/x.png", None, None, "there is no folder"),
        ("folder.png", "folder.png", f"folder.png/{COMPARISON}", None), ("file", None, None, "expected a folder, or a"),
        ("new.pdf", None, None, "expected a folder, or a .png"),
        ("folder.pdf", "folder.pdf", f"folder.pdf/{COMPARISON}", None),
    ],
)  # fmt: skip
def test_files_go_into_a_folder_that_is_there_or_new_or_into_one_picture(tmp_path, name, folder, picture, said):
    for each in ("there", "folder.png", "folder.pdf"):
        (tmp_path / each).mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    out = None if name is None else tmp_path / name
    if said is not None:
        with pytest.raises(InputError, match=said):
            EvaluationRequest(runs=(ONE,), out=out)
        return
    found = EvaluationRequest(runs=(ONE,), out=out)
    assert (found.folder, found.picture) == tuple(each and tmp_path / each for each in (folder, picture))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("steps", "trained", "due"),
    [((), 3, (0, 1, 2, 3)), ((), 0, (0,)), ((7, 2), 3, (0, 2, 3, 7)), ((0,), 3, (0, 3)), ((3,), 3, (0, 3))],
)
def test_steps_are_those_asked_for_with_the_first_and_the_run_s_own(steps, trained, due):
    assert EvaluationRequest(runs=(ONE,), steps=steps).at(trained) == due


@pytest.mark.parametrize(
    ("episodes", "seeds", "count"),
    [(600, (), None), (599, (), 599), (300, (1, 2), None), (299, (1, 2), 598), (2, (), 2)],
)
def test_fewer_episodes_than_usual_are_said_over_all_seeds(episodes, seeds, count):
    said = EvaluationRequest(runs=(ONE,), episodes=episodes, seeds=seeds).note()
    assert said == (None if count is None else f"only {count} episodes, not the usual 600")
