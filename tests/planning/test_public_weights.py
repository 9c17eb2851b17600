import io
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training.personal.personal_model import load
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.terminal.progress import Terminal

TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "6", "population.clients": "60", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "privacy.client.delta": "0.001", "run.checkpoint_every": "1",
    "run.noise_seed": "3", "clip.window": "2",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def train(task, folder, name, algo="dp-agr", **given):
    out = io.StringIO()
    settings = resolve(algo, str(task), None, {**TINY, "run.dir": str(folder), "run.name": name, **given})
    run, _ = run_training(settings, callbacks=[Terminal(Console(file=out, width=200))])
    return run, out.getvalue()


@pytest.fixture
def others(tiny_task_file, tmp_path):
    """Another benchmark with images of the same form."""
    path = tmp_path / "others.yaml"
    path.write_text(tiny_task_file.read_text().replace("seed: 1", "seed: 2"))
    return path


@pytest.fixture
def public(others, tmp_path):
    run, _ = train(others, tmp_path, "public", algo="maml")
    return run


def test_a_run_begins_with_the_body_of_another(tiny_task_file, tmp_path, public):
    run, said = train(tiny_task_file, tmp_path, "own", **{"model.initial": str(public.path)})
    begun, given = load_file(run.initial_weights), load_file(public.weights)
    assert all(torch.equal(begun[name], given[name]) for name in given if name.startswith("body."))
    assert "begins with the body of" in said
    assert "no guarantee covers the data it was learned from" in said
    for name in ("plan.json", "summary.json"):
        assert str(public.path) in run.read_json(name)["begins_with"]
    assert "no guarantee covers the data it was learned from" in write_report(run).read_text()
    # What it learned is in its own checkpoint.
    shutil.rmtree(public.path)
    load(run.path)


def test_random_weights_say_nothing(tiny_task_file, tmp_path):
    run, said = train(tiny_task_file, tmp_path, "own")
    assert "begins with" not in said
    assert run.read_json("summary.json")["begins_with"] is None


@pytest.mark.parametrize("algo", ["maml", "dp-agr"])
def test_a_run_on_the_same_images_is_no_beginning(tiny_task_file, tmp_path, algo):
    run, _ = train(tiny_task_file, tmp_path, "first", algo=algo)
    with pytest.raises(RefusedPlan, match=r"model\.initial = .*first: these weights were learned from the images of"):
        train(tiny_task_file, tmp_path, "second", **{"model.initial": str(run.path)})
    assert not (tmp_path / "second").exists()


# Drawing the 20,000 textures takes most of a minute.
@pytest.mark.parametrize("name", [pytest.param("textures", marks=pytest.mark.slow), "strokes"])
def test_a_built_in_body_is_no_beginning_for_the_images_that_taught_it(tmp_path, name):
    algo = {"textures": "dp-agrlr-micro", "strokes": "dp-agrlr"}[name]
    given = {"run.dir": str(tmp_path), "run.name": "own", "model.initial": name, "model.downscale": "1"}
    with pytest.raises(RefusedPlan, match=rf"model\.initial = {name}: these weights were learned from the images of"):
        run_training(resolve(algo, name, None, given))
    assert not (tmp_path / "own").exists()


def test_neither_a_detour_nor_the_file_alone_hides_the_same_images(tiny_task_file, tmp_path, others):
    first, _ = train(tiny_task_file, tmp_path, "first", algo="maml")
    through, _ = train(others, tmp_path, "through", algo="maml", **{"model.initial": str(first.path)})
    for initial in (through.path, first.weights, through.weights):
        with pytest.raises(RefusedPlan, match="these weights were learned from the images of"):
            train(tiny_task_file, tmp_path, "second", **{"model.initial": str(initial)})


def test_a_config_beside_the_weights_is_no_run(tiny_task_file, tmp_path, public):
    folder = tmp_path / "shared"
    folder.mkdir()
    shutil.copy(public.weights, folder / "public.safetensors")
    (folder / "config.yaml").write_text(f"algo: maml\ndataset: {tiny_task_file}\n")
    train(tiny_task_file, tmp_path, "own", **{"model.initial": str(folder / "public.safetensors")})


def test_weights_of_another_normalisation_fit_by_shape_alone_and_are_refused(tiny_task_file, tmp_path, public):
    given = {"model.initial": str(public.path), "model.norm": "group"}
    with pytest.raises(InputError, match=r"trained with model\.norm = batch; give that, not group"):
        train(tiny_task_file, tmp_path, "own", **given)


def test_bad_weights_leave_no_run_directory(tiny_task_file, tmp_path):
    with pytest.raises(InputError, match=r"model\.initial = nowhere"):
        train(tiny_task_file, tmp_path, "own", **{"model.initial": "nowhere"})
    assert not (tmp_path / "own").exists()


def test_a_run_goes_on_only_from_where_it_began(tiny_task_file, tmp_path, public):
    given = {"model.initial": str(public.path)}
    whole, _ = train(tiny_task_file, tmp_path, "whole", **given)
    run, _ = train(tiny_task_file, tmp_path, "own", **given, **{"server.rounds": "2"})
    (run.path / "summary.json").unlink()
    weights = load_file(public.weights)
    save_file({name: value + 1 for name, value in weights.items()}, public.weights)
    with pytest.raises(InputError, match=r"began with other weights than model\.initial"):
        run_training(settings_of_run(run, {}), RunOptions(resume=run))
    save_file(weights, public.weights)
    run_training(settings_of_run(run, {}), RunOptions(resume=run))
    assert all(torch.equal(value, load_file(whole.weights)[name]) for name, value in load_file(run.weights).items())
