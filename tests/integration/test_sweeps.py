"""A shipped sweep as W&B's agent runs it (offline), and as `dpfedmeta sweep` does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

ROOT = Path(__file__).parents[2]
TINY = [
    "--model.width=4", "--rounds=4", "--cohort=6", "--clients=2000", "--delta=1e-4", "--ways=3", "--shots=2",
    "--task.queries=2", "--evaluation.every=2", "--evaluation.validation_episodes=4", "--evaluation.episodes=8",
]  # fmt: skip


class Call:
    """What an agent of W&B types for the first combination of a shipped sweep, and what is in its run then."""

    def __init__(self, task_file):
        self.content = yaml.safe_load((ROOT / "configs/sweeps/window.yaml").read_text())
        parameters = self.content["parameters"].items()
        self.chosen = {name: entry.get("value", entry.get("values", [None])[0]) for name, entry in parameters}
        self.chosen["dataset"] = str(task_file)
        self.values = {name: {"value": value} for name, value in self.chosen.items()}
        self.filled = {
            "${env}": ["/usr/bin/env"],
            "${interpreter}": [sys.executable],
            "${program}": [str(ROOT / self.content["program"])],
            "${args}": create_sweep_command_args({"args": self.values})["args"],
        }
        self.words = []
        for word in create_sweep_command(self.content["command"]):
            self.words += self.filled.get(word, [word])

    def check(self, run):
        written = yaml.safe_load((run / "config.yaml").read_text())
        assert written["clip"]["window"] == self.chosen["clip.window"]
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        metric, part = self.content["metric"]["name"].split("/")
        assert 0 < rows[-1][metric][part] <= 1


def test_what_an_agent_types_trains(dpfedmeta, tiny_task_file, tmp_path):
    call = Call(tiny_task_file)
    assert call.words[:3] == ["/usr/bin/env", sys.executable, str(ROOT / "scripts/train.py")]
    # Without W&B itself, which takes most of the time.
    words = [word for word in call.words[3:] if not word.startswith("--track.wandb")]
    dpfedmeta("train", *words, *TINY, "--run.workers=1", "--run.name=r", folder=tmp_path)
    call.check(tmp_path / "runs/r")


@pytest.mark.slow
def test_an_agents_call(tiny_task_file, tmp_path):
    call = Call(tiny_task_file)
    parameters = tmp_path / "config.yaml"
    parameters.write_text(yaml.safe_dump({"wandb_version": 1} | call.values))
    sweep = {"WANDB_SWEEP_ID": "abcdefgh", "WANDB_SWEEP_PARAM_PATH": str(parameters)}
    done = subprocess.run(
        [*call.words, *TINY, "--run.workers=1", "--wandb=offline", "--run.name=r"],
        cwd=tmp_path,
        env=os.environ | sweep,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "runs/r").glob("wandb/offline-run-*"))
    call.check(tmp_path / "runs/r")


@pytest.mark.slow
def test_a_shipped_sweep_here_and_what_it_cost(dpfedmeta, tiny_task_file, tmp_path):
    file = ROOT / "configs/sweeps/epsilon.yaml"
    words = [file, "--out", "out", "--dataset", tiny_task_file, "--seed", 0, "--window", 2, *TINY, "--jobs", 2]
    words += ["--meta.steps", 1, "--privacy.client.epsilon", 3]
    dpfedmeta("sweep", *words, folder=tmp_path)
    (row,) = json.loads((tmp_path / "out/results.json").read_text())["settings"]
    assert row["epsilons"]["client_public"] == pytest.approx(3, abs=0.01)
    cost = dpfedmeta("sweep", file, "--out", "out", "--count-tuning", folder=tmp_path).out
    assert "1 runs over the same 2,000 clients" in cost


def test_bad_input_is_one_line_and_exit_code_2(dpfedmeta, tmp_path):
    words = [ROOT / "configs/sweeps/window.yaml", "--rounds", 8, "--dataset", "strokes"]
    assert "clip.window = 16 is more than" in dpfedmeta("sweep", *words, folder=tmp_path, code=2).error
    assert not (tmp_path / "runs").exists()
