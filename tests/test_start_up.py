"""What is asked often starts quickly: PyTorch, Opacus and pictures are imported where they are used."""

import json
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dpfedmeta"
HEAVY = ("torch", "opacus", "matplotlib", "wandb", "numba", "optuna", "requests")
PROGRAM = f"""
import contextlib, importlib, io, json, sys

def brought():
    return [name for name in {HEAVY!r} if name in sys.modules]

found = {{}}
for module in sys.argv[1:]:
    importlib.import_module(module)
    found[module] = brought()
from dpfedmeta.__main__ import main
from dpfedmeta.cli.commands import command_names
for command in command_names():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([command, "--help"])
    found[command] = brought()
import dpfedmeta
from dpfedmeta import InputError, RefusedPlan, Settings
for key, wrong in (("cohort", 10**9), ("noise_multiplier", 1e-300), ("shots", 1000), ("model.name", "conv9")):
    for door in (dpfedmeta.plan, dpfedmeta.train):
        try:
            door(Settings.preset("dp-agr", "omniglot", dict([(key, wrong)])))
        except (InputError, RefusedPlan):
            found[door.__name__ + " refuses " + key] = brought()
import requests
found["planted"] = brought()
print(json.dumps(found))
"""
LIGHT = (
    "dpfedmeta",
    "dpfedmeta.__main__",
    "dpfedmeta.config.settings",
    "dpfedmeta.config.load",
    "dpfedmeta.core.random.random_sources",
    "dpfedmeta.core.worker_pool",
    "dpfedmeta.core.files.run_directory",
    "dpfedmeta.data.task",
    "dpfedmeta.data.episodes.shape",
    "dpfedmeta.data.inspection",
    "dpfedmeta.learning.models.spec",
    "dpfedmeta.api.evaluation_request",
    "dpfedmeta.accounting",
    "dpfedmeta.accounting.ledger.ledger",
    "dpfedmeta.training.terminal.tables",
    "dpfedmeta.training.trackers",
    "dpfedmeta.training.verification.file_claims",
    "dpfedmeta.reporting.html.privacy_statement",
    "dpfedmeta.planning.privacy.solve",
    "dpfedmeta.planning.policy_from_settings",
    *(
        f"dpfedmeta.privacy.clip_policies.{path.stem}"
        for path in sorted((PACKAGE / "privacy/clip_policies").glob("[a-z]*.py"))
    ),
    *(
        f"dpfedmeta.learning.algorithms.{path.stem}"
        for path in sorted((PACKAGE / "learning/algorithms").glob("[a-z]*.py"))
    ),
    *(f"dpfedmeta.learning.releases.{path.stem}" for path in sorted((PACKAGE / "learning/releases").glob("[a-z]*.py"))),
    "dpfedmeta.simulation.aggregations.messages",
    "dpfedmeta.secure_aggregation.simulated_round",
)


def test_what_needs_no_pytorch_brings_none():
    # One process for all of them, in an order in which each that brings something is the first to show it.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *LIGHT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("planted") == ["requests"]
    assert len(found) > len(LIGHT)
    assert sum(" refuses " in name for name in found) == 8, "a wrong setting was not refused in Python"
    assert {name: brought for name, brought in found.items() if brought} == {}
