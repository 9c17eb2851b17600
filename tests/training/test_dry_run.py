"""A dry run says what the run would, and imports PyTorch only where the run could be refused for its network."""

import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from dpfedmeta.cli.commands import train_command
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.dry_run import forecast, needs_no_network, plan_without_network
from dpfedmeta.training.tracking.callbacks import Callback

SMALL = {"task.ways": "3", "task.shots": "2", "task.queries": "2", "evaluation.queries": "2", "server.rounds": "2"}


class Told(Callback):
    def on_plan(self, planned):
        self.planned = planned


# As presets of colour images have, and of characters.
OF_IMAGES = {
    "maml": {"model.first_gain": "8"},
    "moments-agrlr": {"model.encoder": "strokes", "model.encoder_size": "28"},
}


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr", "maml", "meta-sgd", "moments-agrlr"])
def test_it_says_the_same_with_and_without_a_network(tiny_task_file, algo):
    settings = resolve(algo, str(tiny_task_file), None, SMALL | OF_IMAGES.get(algo, {}))
    told = Told()
    assert needs_no_network(settings)
    assert forecast(settings, callbacks=[told], seconds=None) is None
    assert plan_without_network(settings) == told.planned


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("dp-agrlr", {"model.norm": "batch"}),  # records influence each other
        ("dp-agrlr", {"model.features": "support"}),
        ("dp-agr", {"model.name": "tests.planning.coupled_networks:frozen_layer"}),
        ("dp-agr", {"clip.policy": "tests.seams.own_policy:Halving"}),
        ("dp-agr", {"model.initial": "weights.safetensors"}),
        ("dp-agr", {"run.device": "cuda"}),
        ("dp-agr", {"run.precision": "bfloat16"}),
        ("dp-agr", {"run.chunk": "8"}),
        ("dp-agrlr", {"record.engine": "opacus"}),
    ],
)
def test_what_only_a_network_or_a_machine_shows_is_tried_out(algo, changes):
    assert not needs_no_network(resolve(algo, "strokes", None, changes))


@pytest.mark.parametrize("name", [
    "model.name", "model.encoder", "meta.method", "record.release", "clip.policy", "server.noise", "server.optimizer",
    "population.sampler",
])  # fmt: skip
def test_own_code_is_tried_out_whichever_part_it_is(name):
    settings = resolve("dp-agrlr", "strokes", None)
    section, field = name.split(".")
    assert needs_no_network(settings)
    own = replace(settings, **{section: replace(getattr(settings, section), **{field: "somebody.code:part"})})
    assert not needs_no_network(own)


def test_a_gain_that_nothing_undoes_is_refused_without_a_network(tiny_task_file):
    settings = resolve("maml", str(tiny_task_file), None, SMALL | {"model.first_gain": "8", "model.norm": "none"})
    assert needs_no_network(settings)
    with pytest.raises(InputError, match="does not normalise after its first convolution"):
        plan_without_network(settings)


@pytest.mark.parametrize("dataset", ["omniglot", "cifar-fs", "mini-imagenet", "strokes"])
def test_presets_need_no_network(dataset):
    """Of every published task: some set first_gain and an initial body for colour images."""
    # Of photographs 16 classes are for validation.
    most = 20 if dataset == "omniglot" else 16
    for algo in algorithm_names():
        settings = resolve(algo, dataset, None)
        assert needs_no_network(settings), (algo, dataset)
        assert settings.task.ways <= most, (algo, dataset)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dp-agrlr", "dp-agr-secure", "meta-sgd"])
def test_a_dry_run_imports_no_pytorch(tmp_path, algo):
    program = (
        "import sys\nfrom dpfedmeta.__main__ import main\n"
        f"try:\n    main(['train', '--algo', '{algo}', '--dataset', 'strokes', '--dry-run'])\n"
        "except SystemExit as end:\n    sys.exit(end.code or ('torch' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--calibration 10" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 201])
def test_a_name_that_no_run_may_have_is_refused_in_a_dry_run_too(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"run\.name = .*: use letters"):
        train_command.main(["--algo", "dp-agr", "--dataset", "strokes", "--dry-run", "--run.name", name], Console())
    assert not list(tmp_path.iterdir())


def test_a_variable_of_wandb_that_a_run_refuses_is_refused_in_a_dry_run_too(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(InputError, match="mode = onlin"):
        train_command.main(["--algo", "dp-agr", "--dataset", "strokes", "--dry-run", "--wandb", "online"], Console())


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr", "dp-agrlr-micro"])
@pytest.mark.parametrize("changes", [{}, {"model.norm": "batch"}, {"model.features": "support"}])
def test_records_that_a_network_couples_are_tried_out_where_each_is_protected_by_itself(algo, changes):
    """Inside a micro-episode they may influence each other, and of clients as a whole they always may."""
    settings = resolve(algo, "strokes", None, changes)
    assert needs_no_network(settings) == (not changes or algo != "dp-agrlr")


@pytest.mark.parametrize(("changes", "without"), [
    ({"run.chunk": "1"}, True), ({"run.chunk": "2"}, False), ({"run.chunk": "2", "model.encoder": "lite0"}, True),
    ({"run.device": "cpu"}, True), ({"run.device": "auto"}, True), ({"run.precision": "tf32"}, False),
])  # fmt: skip
def test_what_every_machine_does_alike_needs_no_look_at_it(changes, without):
    assert needs_no_network(resolve("dp-agr", "strokes", None, changes)) == without
