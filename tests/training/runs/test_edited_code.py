"""A learner of one's own that was edited after its run: whatever computes with it again says so."""

import importlib
import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.cli.sweeps import runner
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.state.resume import code_of, edited_since

OWN = """
from dataclasses import dataclass
from dpfedmeta.learning.algorithms.maml import Maml
from scale_of_edited import SCALE


@dataclass(frozen=True, kw_only=True)
class Mine(Maml):
    def gradient(self, context, episode):
        return {name: SCALE * value for name, value in super().gradient(context, episode).items()}
"""
TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "4", "population.clients": "500",
    "task.ways": "3", "task.shots": "2", "task.queries": "2", "evaluation.every": "2",
    "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "run.workers": "1",
    "meta.method": "method_of_edited:Mine",
}  # fmt: skip
IMAGES = np.zeros((6, 1, 28, 28), dtype=np.float32), np.array([0, 0, 1, 1, 2, 2])


def swept(run):
    trial = SimpleNamespace(name=run.name, options={"algo": "dp-agr"})
    settings = resolve(None, None, run / "config.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "settings_of", lambda trial: settings)
        why = runner.why_not_finished(SimpleNamespace(run=lambda trial: RunDirectory(run)), trial)
    if why:
        warnings.warn(why, stacklevel=1)


# Everything that computes with the learner of a run, or takes its result for one of today's.
DOORS = {
    "evaluate": lambda run: dp.evaluate(run, episodes=2, fine_tuning=False, workers=1),
    "adapt": lambda run: dp.load(run).adapt(*IMAGES),
    "audit": lambda run: dp.audit(run, expected=True),
    "a sweep that goes on": swept,
}


@pytest.fixture(scope="module")
def made(tiny_task_file, tmp_path_factory, own_cache):
    folder = tmp_path_factory.mktemp("edited")
    (folder / "method_of_edited.py").write_text(OWN)
    (folder / "scale_of_edited.py").write_text("SCALE = 1.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("DPFEDMETA_STATE", str(folder / "state"))
        settings = resolve("dp-agr", str(tiny_task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r"})
        run_training(settings)
        yield folder
    for name in ("method_of_edited", "scale_of_edited"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_whatever_computes_with_an_edited_learner_says_so(made, door, edited):
    (made / "scale_of_edited.py").write_text("SCALE = 0.5\n" if edited else "SCALE = 1.0\n")
    for name in ("method_of_edited", "scale_of_edited"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        DOORS[door](made / "r")
    found = [str(each.message) for each in said if "not the code" in str(each.message)]
    assert len(found) == edited
    assert all(re.search(r"scale_of_edited: not the code that this run was computed by", each) for each in found)


def test_a_run_without_code_of_its_owner_is_compared_with_nothing(tmp_path):
    run = RunDirectory(tmp_path)
    assert code_of(run) == {}
    run.write_json("plan.json", {})
    assert edited_since(run, resolve("dp-agr", "strokes", None, {})) is None
