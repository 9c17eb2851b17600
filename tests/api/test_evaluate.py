import contextlib
import errno
import io
import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.torch import load_file, save_file

from dpfedmeta.api import evaluate as module
from dpfedmeta.api.evaluate import evaluate
from dpfedmeta.api.evaluation_request import EvaluationRequest
from dpfedmeta.api.print_evaluation import evaluate_runs
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import RunDirectory, create, save_weights
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.evaluation import few_shot
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.planning.client_spec import network_spec
from dpfedmeta.planning.data_digests import held_data, keep_data
from dpfedmeta.reporting.html.evaluation_section import evaluations_section, evaluations_shown

SMALL = {"model.width": "4", "task.ways": "3", "task.shots": "2", "evaluation.queries": "3", "meta.steps": "2"}


def made(parent, name, dataset, algo="maml", seed=1, **changes):
    """A run directory without a training: weights drawn from two seeds."""
    settings = resolve(algo, str(dataset), None, {**SMALL, "run.name": name, "run.dir": str(parent), **changes})
    run = create(parent, name)
    (run.path / "config.yaml").write_text(to_yaml(settings))
    spec = network_spec(settings, load_task(str(dataset))[0])
    save_weights(run.weights, initial_weights(spec, seed))
    save_weights(run.initial_weights, initial_weights(spec, 0))
    return run.path


@pytest.fixture
def run(tmp_path, tiny_task_file):
    return made(tmp_path, "one", tiny_task_file)


def evaluated(tmp_path, *runs, **more):
    console = Console(record=True, width=100, file=io.StringIO())
    # Fine-tuning takes most of the time; the test of it asks for it.
    request = EvaluationRequest(runs=runs, **{"episodes": 3, "workers": 1, "fine_tuning": False, **more})
    evaluate_runs(request, console)
    return json.loads((runs[0] / "evaluation.json").read_text()), console.export_text()


def test_a_run_by_shots_ways_steps_and_seeds(run, tmp_path):
    found, printed = evaluated(tmp_path, run, shots=(1, 2), ways=(2, 5), steps=(4,), seeds=(0, 5))
    assert [(r["ways"], r["shots"]) for r in found["results"]] == [(2, 1), (2, 2), (5, 1), (5, 2)]
    assert found["results"][0]["accuracy"]["episodes"] == 6
    # After 4 as asked, after 0, and after the run's own 2.
    assert [row["steps"] for row in found["results"][0]["by_steps"]] == [0, 2, 4]
    assert found["protocol"] == "single model, inductive, held-out test classes"
    assert found["note"] == "only 6 episodes, not the usual 600"
    assert found["note"] in printed
    assert found["protocol"] in printed
    assert {"accuracy", "accuracy_before_adaptation", "accuracy_untrained", "accuracy_pixel_prototype"} <= set(
        found["results"][0]
    )
    for name in ("evaluation-steps.png", "evaluation-clients.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")


def test_transductive_says_so_everywhere(run, tmp_path):
    found, printed = evaluated(tmp_path, run, transductive=True, steps=(0, 2, 7))
    assert "TRANSDUCTIVE" in found["protocol"]
    assert "TRANSDUCTIVE" in printed
    assert [row["steps"] for row in found["results"][0]["by_steps"]] == [0, 2, 7]


def test_the_picture_of_a_comparison_and_the_same_episodes(run, tmp_path, tiny_task_file):
    other = made(tmp_path, "two", tiny_task_file, seed=2, **{"run.seed": "9", "meta.steps": "3"})
    first, _ = evaluated(tmp_path, run, other, out=tmp_path / "both.png")
    second = json.loads((other / "evaluation.json").read_text())
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert first["seeds"] == second["seeds"] == [0]
    pixels = [found["results"][0]["accuracy_pixel_prototype"] for found in (first, second)]
    assert pixels[0] == pixels[1]


def test_the_code_of_every_run_is_compared_between_machines(run, tmp_path, tiny_task_file, monkeypatch):
    other = made(tmp_path, "two", tiny_task_file, seed=2)
    monkeypatch.setattr(module, "own_modules", lambda settings, task: [f"code of {settings.run.name}"])
    roots = []
    monkeypatch.setattr(module, "check_together", lambda *given: roots.append(given[-1]))
    evaluated(tmp_path, run, other)
    assert roots == [["code of one", "code of two"]]


def test_the_step_size_is_chosen_on_validation_classes_alone(run, tmp_path, tiny_task_file, monkeypatch):
    monkeypatch.setattr(few_shot, "LEAST_STEPS", 3)
    before, _ = evaluated(tmp_path, run, fine_tuning=True)
    other = tmp_path / "other.yaml"
    content = yaml.safe_load(tiny_task_file.read_text())
    content["split"]["test"] = 5  # other test classes, the same validation classes
    other.write_text(yaml.safe_dump(content))
    after, _ = evaluated(tmp_path, made(tmp_path, "less", other), fine_tuning=True)
    chosen = [found["results"][0]["accuracy_fine_tuned"] for found in (before, after)]
    assert chosen[0]["validation"] == chosen[1]["validation"]
    assert before["results"][0]["accuracy_pixel_prototype"] != after["results"][0]["accuracy_pixel_prototype"]


BAD = [
    ({"steps": (-1,)}, "steps = -1"),
    ({"steps": (0, -3)}, "steps = -3"),
    ({"shots": (0,)}, "at least 1 record"),
    ({"ways": (1,)}, "ways = 1"),
    ({"ways": (9,)}, "ways = 9, but the test split"),
    ({"shots": (18,)}, "18 shots + 3 queries = 21 images per class"),
    ({"episodes": 1}, "an interval needs at least 2"),
    ({"seeds": (0, 0)}, "seeds: "),
    ({"workers": 0}, "workers = 0"),
    ({"out": "compare.html"}, "expected a folder, or a .png"),
]


@pytest.mark.parametrize(("words", "reason"), BAD)
def test_bad_requests_are_one_line(run, tmp_path, words, reason):
    words = {**words, **({"out": tmp_path / words["out"]} if "out" in words else {})}
    with pytest.raises(InputError, match=re.escape(reason)) as refusal:
        evaluated(tmp_path, run, **words)
    assert "\n" not in str(refusal.value)
    assert not (run / "evaluation.json").exists()


def test_what_cannot_be_compared_is_refused(run, tmp_path, tiny_task_file):
    with pytest.raises(InputError, match="is this the directory of a run"):
        evaluated(tmp_path, run, tmp_path)
    with pytest.raises(InputError, match="given twice"):
        evaluated(tmp_path, run, run)
    with pytest.raises(InputError, match="different benchmarks"):
        evaluated(tmp_path, run, made(tmp_path, "strokes", "strokes"))
    wider = made(tmp_path, "wider", tiny_task_file, **{"task.ways": "4"})
    with pytest.raises(InputError, match="give ways and shots"):
        evaluated(tmp_path, run, wider)
    evaluated(tmp_path, run, wider, ways=(3,))
    weights = run / "checkpoint" / "model.safetensors"
    save_file({name: value[:1].clone() for name, value in load_file(weights).items()}, weights)
    with pytest.raises(InputError, match=r"model\.safetensors: .*expected"):
        evaluated(tmp_path, run)


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """MNIST of 40 images, none of them real."""
    path = tmp_path / "digits.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, size=(40, 1, 28, 28), dtype=np.uint8))
    pool = ClassPool(path=path, names=tuple("0123456789"), first=tuple(range(0, 40, 4)), counts=(4,) * 10)
    dataset = Dataset(task=load_task("mnist-shards")[0], train=pool, val=pool, test=pool)
    monkeypatch.setattr("dpfedmeta.api.evaluate.open_dataset", lambda *_: dataset)


def test_one_classifier_for_all_is_evaluated_as_such(digits, tmp_path):
    runs = [made(tmp_path, name, "mnist-shards", algo="dp-fedavg", seed=seed) for seed, name in enumerate("ab", 1)]
    found, printed = evaluated(tmp_path, *runs, out=tmp_path / "both.png")
    assert found["protocol"] == "single model, no adaptation, held-out test images"
    assert found["protocol"] in printed
    assert found["results"][0]["accuracy"]["images"] == 40
    assert "by_steps" not in found["results"][0]
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    for words, name in (
        ({"shots": (1,)}, "shots: "),
        ({"steps": (0,)}, "steps: "),
        ({"transductive": True}, "transductive: "),
    ):
        with pytest.raises(InputError, match=name):
            evaluated(tmp_path, *runs, **words)


@pytest.fixture
def without_pictures(monkeypatch):
    """They take most of the time of a small evaluation."""
    for name in ("steps_plot", "clients_plot", "comparison_plot"):
        monkeypatch.setattr(f"dpfedmeta.api.evaluate.{name}", lambda path, *_: None)


@pytest.mark.usefixtures("without_pictures")
def test_images_that_changed_since_the_run_began_are_said(run, tiny_task_file, tmp_path):
    now = held_data(open_dataset(str(tiny_task_file)), None)
    for held, changed in ((now, False), (replace(now, decoded="0" * 64), True)):
        keep_data(RunDirectory(run), held)
        found, printed = evaluated(tmp_path, run)
        words = "HAVE CHANGED since this run began"
        assert (words in printed.replace("\n", " "), words in (found["note"] or "")) == (changed, changed)
        assert (words in str(evaluations_section(evaluations_shown(run)))) is changed
    (run / "secret/data.json").unlink()
    assert words not in evaluated(tmp_path, run)[1]


def test_evaluations_are_kept_by_what_they_measured(run, tmp_path):
    evaluated(tmp_path, run)
    evaluated(tmp_path, run, shots=(1,))
    evaluated(tmp_path, run)
    kept = sorted(path.name for path in (run / "evaluations").iterdir())
    assert kept == [
        f"3-way-{shots}-shot-steps-0-to-2-3-episodes-seed-0-no-fine-tuning.json" for shots in (1, 2)
    ]  # fmt: skip
    assert json.loads((run / "evaluations" / kept[0]).read_text())["results"][0]["shots"] == 1


def test_a_folder_for_everything_leaves_the_runs_alone(run, tmp_path, tiny_task_file):
    other = made(tmp_path, "two", tiny_task_file, seed=2)
    before = sorted(run.rglob("*"))
    console = Console(file=io.StringIO())
    asked = EvaluationRequest(runs=(run, other), episodes=2, workers=1, fine_tuning=False, out=tmp_path / "here")
    evaluate_runs(asked, console)
    assert sorted(run.rglob("*")) == before
    found = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*.*")}
    alone = {"evaluation.json", "evaluation-steps.png", "evaluation-clients.png"}
    assert found >= {f"{name}/{file}" for name in ("one", "two") for file in alone} | {"evaluation-comparison.png"}
    with pytest.raises(InputError, match="holds evaluations of two"):
        evaluate_runs(replace(asked, runs=(run,), out=tmp_path / "here" / "two"), console)


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(("number", "ends"), [(errno.EROFS, False), (errno.ENOSPC, True)])
def test_what_cannot_be_written_is_printed_first(run, monkeypatch, number, ends):
    def refuses(path, *_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("dpfedmeta.core.files.run_directory.replace_file", refuses)
    console = Console(record=True, width=100, file=io.StringIO())
    asked = EvaluationRequest(runs=(run,), episodes=2, workers=1, fine_tuning=False)
    with pytest.raises(RuntimeError, match="--out DIR") if ends else contextlib.nullcontext():
        evaluate_runs(asked, console)
    printed = console.export_text()
    assert "this run, adapted" in printed
    assert ("is not kept; --out DIR" in printed) is not ends
    assert "--resume" not in printed
    with pytest.warns(UserWarning, match="out=DIR"):
        (found,) = evaluate(run, episodes=2, workers=1, fine_tuning=False)
    assert found.accuracy.episodes == 2


@pytest.mark.usefixtures("without_pictures")
def test_a_run_that_did_not_end_as_planned_is_labelled_wherever_its_accuracy_is(run, tmp_path):
    (run / "summary.json").write_text(json.dumps({"status": "interrupted"}))
    (run / "checkpoint" / "round-000012.safetensors").touch()
    found, printed = evaluated(tmp_path, run)
    assert (found["status"], found["rounds"]) == ("interrupted", 12)
    label = f"INTERRUPTED after 12 of {found['planned_rounds']} rounds"
    assert label in printed
    section = evaluations_section(evaluations_shown(run))
    assert label in section
    assert ">3-way 2-shot; 3 queries per class; 2 steps; 3 episodes, seed 0; " in section
    with only_writer(run):
        assert "RUNNING after 12 of" in evaluated(tmp_path, run)[1]
    # The state of its end is another thing to measure.
    (run / "summary.json").write_text(json.dumps({"status": "completed"}))
    assert "12 of" not in evaluated(tmp_path, run)[1]
    assert len(list((run / "evaluations").iterdir())) == 2
