import importlib.util
import sys
from pathlib import Path

import pytest

from dpfedmeta.run_directory import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "model.width": 4, "meta.steps": 1, "population.cohort": 6, "server.rounds": 3, "run.workers": 1,
    "evaluation.every": 3, "evaluation.validation_episodes": 2, "evaluation.episodes": 2,
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    window = {"clip.window": 2} if path.stem == "train_in_python" else {}
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    run = module.main({**TINY, **window, "run.dir": tmp_path, "run.name": "r"})
    assert run.status == "completed"
    assert len(RunDirectory(run.path).rounds()) == 3
    assert len(capsys.readouterr().out.splitlines()) > 10
