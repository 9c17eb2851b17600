import json
import math
import sys
from pathlib import Path

import pytest
import yaml
from wandb.apis.public.sweeps import _validate_config_and_fill_distribution

from dpfedmeta.cli.sweeps.sweep_file import Choices, Range, read_sweep
from dpfedmeta.core.errors import InputError
from tests.cli.sweeps.conftest import FILE

ROOT = Path(__file__).parents[3]
SWEEPS = sorted((ROOT / "configs/sweeps").glob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "${program}", "${args}"]
SCHEMA = Path(sys.prefix) / "wandb-schema/sweeps/config/schema.json"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_shipped_sweeps_are_what_wandb_takes(path):
    content = yaml.safe_load(path.read_text())
    assert _validate_config_and_fill_distribution(content)["parameters"]
    if not SCHEMA.exists():
        pytest.skip("W&B's schema is not here: make test puts it beside the environment")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_shipped_sweeps_are_what_we_take(path):
    sweep = read_sweep(path)
    assert "${args}" in yaml.safe_load(path.read_text())["command"]
    assert sweep.command == {}  # tracking online is for agents
    assert sweep.parameters


def test_shipped_sweeps():
    assert {"window", "policies", "epsilon"} <= {path.stem for path in SWEEPS}


def parameter(sweep_file, entry, method="random"):
    path = sweep_file(method=method, run_cap=2, parameters={"server.lr": entry})
    return read_sweep(path).parameters["server.lr"]


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ({"value": 0.1}, Choices(values=(0.1,))),
        ({"values": [0.1, 2]}, Choices(values=(0.1, 2))),
        ({"min": 0.1, "max": 1.0}, Range(low=0.1, high=1.0)),
        ({"min": 1, "max": 4}, Range(low=1.0, high=4.0, whole=True)),
        ({"min": 1, "max": 9, "q": 4, "distribution": "q_uniform"}, Range(low=1.0, high=9.0, step=4, whole=True)),
        ({"min": 0.1, "max": 1.0, "distribution": "log_uniform_values"}, Range(low=0.1, high=1.0, logarithmic=True)),
        ({"min": 0, "max": 0.5, "distribution": "log_uniform"}, Range(low=1.0, high=math.exp(0.5), logarithmic=True)),
    ],
)  # fmt: skip
def test_parameters_as_wandb_means_them(sweep_file, entry, meant):
    assert parameter(sweep_file, entry) == meant


def test_a_grid_lists_what_can_be_listed(sweep_file):
    assert parameter(sweep_file, {"min": 1, "max": 4}, "grid") == Choices(values=(1, 2, 3, 4))
    assert len(parameter(sweep_file, {"min": 1, "max": 10_000}, "grid").values) == 10_000
    assert parameter(sweep_file, {"min": -700, "max": 700, "distribution": "log_uniform"}).high < math.inf
    stepped = {"min": 0.0, "max": 0.3, "q": 0.1, "distribution": "q_uniform"}
    assert parameter(sweep_file, stepped, "grid").values == pytest.approx((0.0, 0.1, 0.2, 0.3))


def test_short_forms_are_the_settings_they_stand_for(sweep_file):
    assert list(read_sweep(sweep_file(parameters={"window": {"values": [2, 4]}})).parameters) == ["clip.window"]


def swept(**parameters):
    return {"parameters": {name.replace("__", "."): entry for name, entry in parameters.items()}}


SEARCH = {"method": "bayes", "run_cap": 3}
BAD = [
    ({"methd": "grid"}, "did you mean method"),
    ({"method": "gird"}, "did you mean grid"),
    ({"method": None}, "method: missing"),
    ({"parameters": 3}, "parameters"),
    ({"parameters": {}}, "empty"),
    ({"program": "scripts/evaluate.py"}, "only scripts/train.py"),
    ({"early_terminate": {"type": "hyperband"}}, "early_terminate: not supported"),
    ({"run_cap": 0}, "run_cap"),
    (SEARCH | {"run_cap": None}, "run_cap: missing"),
    (SEARCH | {"metric": None}, "metric: missing"),
    (SEARCH | {"metric": {"name": "accuracy/mean", "goal": "maximize"}}, "test classes must not choose settings"),
    (SEARCH | {"metric": {"name": "validation_accuracy/mean"}}, "goal: maximize"),
    ({"command": ["${env}", "python", "train.py"]}, "command: expected"),
    ({"command": [*COMMAND, "${args_no_hyphens}"]}, "command: expected"),
    ({"command": [*COMMAND, "--clip.windw=3"]}, "did you mean clip.window"),
    ({"command": [*COMMAND, "-x"]}, "--name=value"),
    (swept(clip__windw={"values": [2]}), "did you mean clip.window"),
    (swept(run__name={"values": ["a"]}), "run.name: the sweep sets it for each run"),
    (swept(window={"values": [2]}, clip__window={"values": [2]}), "twice"),
    (swept(clip={"parameters": {"window": {"values": [2]}}}), "nested"),
    (swept(server={"value": 2}), "is a section; nested parameters are not read"),
    (swept(server__lr={"parameters": {"window": {"values": [2]}}}), "nested"),
    (swept(clip__window={"values": []}), "nothing to sweep"),
    (swept(clip__window={"values": [2, 2]}), "twice"),
    (swept(clip__window={"values": [None]}), '"null"'),
    (swept(clip__window={"values": [[2]]}), "single values"),
    (swept(clip__window={"vales": [2]}), "did you mean value"),
    (swept(clip__window={}), "give one of"),
    (swept(clip__window={"value": 2, "values": [2]}), "give one of"),
    (swept(clip__window={"values": [2], "q": 2}), "no q"),
    (swept(server__lr={"min": 0.1, "max": 1.0}), "a grid needs values"),
    (SEARCH | swept(server__lr={"min": 0.1, "max": 1.0, "distribution": "unifrom"}), "did you mean uniform"),
    (SEARCH | swept(server__lr={"mu": 0.1, "sigma": 1.0, "distribution": "normal"}), "unknown key"),
    (SEARCH | swept(server__lr={"min": 0.1, "max": 1.0, "distribution": "beta"}), "beta: not supported"),
    (SEARCH | swept(server__lr={"min": 0.1}), "both min and max"),
    (SEARCH | swept(server__lr={"min": 1.0, "max": 0.1}), "not below"),
    (SEARCH | swept(server__lr={"min": "1e-4", "max": 0.1}), "1.0e-4"),
    (SEARCH | swept(server__lr={"min": 0.0, "max": 0.1, "distribution": "log_uniform_values"}), "above 0"),
    (SEARCH | swept(server__lr={"min": 0.1, "max": 1.0, "q": 0.1}), "q_uniform"),
    (SEARCH | swept(server__lr={"min": 1, "max": 1000, "distribution": "log_uniform"}), "write distribution: log_unif"),
    (SEARCH | swept(server__lr={"min": -1000, "max": 1, "distribution": "log_uniform"}), "exponents of e, up to 700"),
    (SEARCH | swept(server__lr={"min": 10**400, "max": 1.0}), "min = inf is not below max = 1"),
    (SEARCH | swept(server__lr={"min": 0, "max": 10**400}), "min = 0 is not below max = inf"),
    (swept(server__lr={"min": 1, "max": 3, "q": 10**400, "distribution": "q_uniform"}), "expected a step above 0"),
    (swept(run__seed={"min": 0, "max": 10**11}), "parameters.run.seed: has 1e+11 steps"),
    (swept(run__seed={"min": 0, "max": 10_000}), "parameters.run.seed: has 1e+04 steps"),
    (swept(server__lr={"min": 0.0, "max": 1e300, "q": 1e-300, "distribution": "q_uniform"}), "has inf steps"),
    ({"command": [*COMMAND[:3], "--rounds=3", "--server.rounds=5", "${args}"]}, "server.rounds occurs twice"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD, ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_wrong_is_named_in_one_line(sweep_file, changes, reason):
    with pytest.raises(InputError) as refusal:
        read_sweep(sweep_file(**changes))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["[1", "3", "- a", "", "run_cap: 2026-99-01"])
def test_a_file_that_is_no_sweep(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.yaml"):
        read_sweep(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_sweep(tmp_path / "nowhere.yaml")


def test_settings_of_members_of_ones_own_are_parameters(sweep_file):
    """As `train --meta.own.bound 0.3` takes them; the section itself is none."""
    parameters = {**FILE["parameters"], "meta.own.bound": {"values": [0.1, 1.0]}, "clip.own.every": {"value": 2}}
    found = read_sweep(sweep_file(parameters=parameters)).parameters
    assert {"meta.own.bound", "clip.own.every"} <= {*found}
    with pytest.raises(InputError, match=r"meta\.owm\.bound: not a setting"):
        read_sweep(sweep_file(parameters={**FILE["parameters"], "meta.owm.bound": {"value": 1}}))
