import json

import pytest
import yaml

from dpfedmeta.accounting.ledger.hash_chain import VERSION
from dpfedmeta.accounting.ledger.ledger import opening_line
from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy
from tests.training.described import identity

# Settings of a sweep's fixed options, so that its plans are quick.
SMALL = {
    "population.clients": "500", "population.cohort": "50", "server.rounds": "9", "server.noise_multiplier": "2",
    "privacy.client.epsilon": "null", "population.max_participations": "null",
}  # fmt: skip

# A train.py that takes no time: its accuracy is a function of its options, and --model.width tells how it ends.
PROGRAM = """
import json, math, os, signal, sys, time
from pathlib import Path

options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
run = Path(options["run.dir"]) / options["run.name"]
if "--dry-run" in sys.argv:
    print("  about 1.0 minutes of training at 100 clients/s, then the evaluation on test classes")
    sys.exit()
run.mkdir(parents=True)
(run / "config.yaml").write_text("run: {noise_seed: null}")
print("workers", options["run.workers"])
if "candidate" in options:
    body = json.loads(Path(__file__).with_name("ledger.json").read_text())
    body["identity"]["candidate"] = options["candidate"]
    (run / "ledger.jsonl").write_text(json.dumps(body, sort_keys=True) + "\\n")
ending = options.get("model.width")
if ending == "13":
    print("error: no luck")
    print("ChildFailedError: as torchrun goes on")
    sys.exit(1)
while ending == "14" and not Path(options["run.dir"]).with_name("go").exists():
    time.sleep(0.02)
seed, window = int(options.get("run.seed", 0)), float(options.get("clip.window", 4))
mean = 0.5 + 0.05 * window / 8 + 0.01 * seed - abs(math.log(float(options.get("clip.initial", 1)))) / 50
sizes = {"ways": 5, "shots": 5, "queries": 15, "steps": 5}
accuracy = {"mean": mean, "ci95": 0.004, "episodes": 600, "protocol": "single model", **sizes}
row = {"round": 0, "clip": 0.3, "clip_mode": "constant", "signal_to_noise": 0.5, "validation_accuracy": accuracy}
(run / "rounds.jsonl").write_text(json.dumps(row) + "\\n")
cell = {"unit": "client", "observer": "public", "epsilon": 1.5, "delta": 1e-6, "adjacency": "add-remove"}
summary = {"status": "completed", "algo": "dp-agr", "dataset": "strokes", "simulation": None, "seconds": 60.0}
names = ("accuracy", "accuracy_untrained", "accuracy_pixel_prototype")
summary |= dict.fromkeys(names, accuracy) | {"guarantees": [cell], "planned": [cell]}
(run / "summary.json").write_text(json.dumps(summary))
"""

FILE = {
    "program": "scripts/train.py",
    "method": "grid",
    "metric": {"name": "validation_accuracy/mean", "goal": "maximize"},
    "parameters": {
        "algo": {"value": "dp-agr"},
        "dataset": {"value": "strokes"},
        "clip.window": {"values": [2, 8]},
        "run.seed": {"values": [0, 1, 2]},
    },
    "command": ["${env}", "${interpreter}", "${program}", "--track.wandb=online", "${args}"],
}


def write_program(path):
    """In the place of `dpfedmeta train`, with the first line of a ledger that it reads."""
    path.write_text(PROGRAM)
    settings = resolve("dp-agr", "strokes", None, SMALL)
    plan = make_privacy(settings, load_task("strokes")[0])
    opening = opening_line(plan, identity(settings, plan))
    content = {**opening, "version": VERSION, "previous": "0" * 64}
    path.with_name("ledger.json").write_text(json.dumps(content))
    return path


@pytest.fixture
def program(tmp_path):
    """In the place of `dpfedmeta train`."""
    (tmp_path / "program").mkdir()
    return write_program(tmp_path / "program" / "train.py")


@pytest.fixture
def sweep_file(tmp_path):
    """A sweep file with some of its keys replaced, or taken out (None)."""

    def made(**changes):
        path = tmp_path / "sweep.yaml"
        content = {name: value for name, value in (FILE | changes).items() if value is not None}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return made
