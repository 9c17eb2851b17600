import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dpfedmeta import load, load_personal
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.training.personal.user_inputs import InputForm, checked_labels
from dpfedmeta.training.run_training import run_training

ROOT = Path(__file__).parents[3]
TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "4", "population.clients": "500",
    "task.ways": "3", "task.shots": "2", "task.queries": "2", "evaluation.every": "2",
    "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "run.workers": "1",
}  # fmt: skip


def own_network(*, channels, image_size, ways, width, norm):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, width), nn.Tanh(), nn.Linear(width, ways))


def trained(task_file, folder, name, **more):
    settings = resolve("maml", str(task_file), None, {**TINY, "run.dir": str(folder), "run.name": name, **more})
    run_training(settings)
    return folder / name


@pytest.fixture(scope="module")
def run(tiny_task_file, tmp_path_factory, own_cache):
    return trained(tiny_task_file, tmp_path_factory.mktemp("runs"), "r", **{"meta.steps": "2"})


@pytest.fixture(scope="module")
def episode(tiny_strokes):
    return draw_episode(tiny_strokes.test, np.random.default_rng(0), EpisodeShape(ways=3, shots=2, queries=5))


@pytest.fixture(scope="module")
def model(run, episode):
    return load(run).adapt(episode.support_images, episode.support_labels, class_names=["a", "b", "c"])


def test_a_model_predicts_what_evaluation_would(run, episode, model):
    start = load(run)
    shown = repr(start)
    assert "0x" not in shown
    assert len(shown.splitlines()) == 1
    assert len(shown) < 200
    assert start.network.name in shown
    assert f"{sum(value.numel() for value in start.weights.values()):,} weights" in shown
    assert start.learned_by in shown
    assert " on " in start.learned_by
    wanted = adapted_logits(build_network(start.network), start.weights, episode, start.adaptation)
    torch.testing.assert_close(model.logits(episode.query_images), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.predict(episode.query_images), wanted.argmax(1))
    assert model.predict_names(episode.query_images) == ["abc"[label] for label in wanted.argmax(1)]
    torch.testing.assert_close(model.probabilities(episode.query_images).sum(1), torch.ones(15))


def test_bytes_and_standardised_floats_are_the_same(run, episode):
    pixels = (episode.support_images * 255).round().to(torch.uint8)
    labels = episode.support_labels.tolist()
    from_bytes = load(str(run)).adapt(pixels.numpy(), labels)
    from_floats = load(run).adapt(pixels.float() / 255, np.array(labels))
    assert torch.equal(from_bytes.logits(pixels), from_floats.logits(pixels.float() / 255))


def test_a_file_gives_the_model_back(model, episode, tmp_path):
    path = tmp_path / "mine.safetensors"
    model.save(path)
    again = load_personal(str(path))
    assert torch.equal(again.logits(episode.query_images), model.logits(episode.query_images))
    assert (again.network, again.form, again.steps, again.class_names) == (
        model.network, model.form, model.steps, ("a", "b", "c"),
    )  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["mine.safetensors"]
    assert path.stat().st_size < 40_000
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_file_predicts_in_a_fresh_process(model, episode, tmp_path):
    model.save(tmp_path / "mine.safetensors")
    np.save(tmp_path / "images.npy", episode.query_images.numpy())
    program = (
        "import numpy as np; from dpfedmeta import load_personal; "
        "print(load_personal('mine.safetensors').predict(np.load('images.npy')).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == model.predict(episode.query_images).tolist()


def test_a_prediction_depends_on_no_other_image(model, episode):
    alone = [model.logits(image[None])[0] for image in episode.query_images]
    torch.testing.assert_close(torch.stack(alone), model.logits(episode.query_images), rtol=1e-4, atol=1e-5)


def test_steps_ways_and_gradients_switched_off(run, tiny_strokes):
    more = draw_episode(tiny_strokes.test, np.random.default_rng(1), EpisodeShape(ways=5, shots=2, queries=2))
    with torch.no_grad():
        model = load(run).adapt(more.support_images, more.support_labels, ways=5, steps=7, lr=0.1)
    assert model.steps == 7
    assert model.logits(more.query_images).shape == (10, 5)
    few = more.support_labels < 2
    fewer = load(run).adapt(more.support_images[few], more.support_labels[few], steps=0)
    assert fewer.logits(more.query_images).shape == (10, 2)


@pytest.mark.parametrize(
    ("steps", "lr"), [(None, None), (0, None), (0, 0.5), (1, None), (2, 0.5), (5, None), (None, 0.01)]
)
def test_steps_and_rate_are_those_that_are_given_else_those_of_the_run(run, episode, steps, lr):
    """No step at all is a number of steps: the initialisation as it was learned."""
    start = load(run)
    model = start.adapt(episode.support_images, episode.support_labels, steps=steps, lr=lr)
    known = start.adaptation
    how = replace(known, steps=known.steps if steps is None else steps, lr=known.lr if lr is None else lr)
    assert model.steps == how.steps
    due = adapted_logits(build_network(start.network), start.weights, episode, how)
    torch.testing.assert_close(model.logits(episode.query_images), due, rtol=1e-4, atol=1e-4)


def test_a_network_of_ones_own_works_the_same(tiny_task_file, tmp_path, episode):
    changes = {
        "model.name": "tests.training.personal.test_personal:own_network",
        "meta.adapt": "all",
        "meta.learn": "all",
    }
    model = load(trained(tiny_task_file, tmp_path, "own", **changes)).adapt(
        episode.support_images, episode.support_labels
    )
    model.save(tmp_path / "own.safetensors")
    again = load_personal(tmp_path / "own.safetensors")
    assert torch.equal(again.logits(episode.query_images), model.logits(episode.query_images))
    with torch.no_grad():
        outside = load(tmp_path / "own").adapt(episode.support_images, episode.support_labels)
    assert torch.equal(outside.logits(episode.query_images), model.logits(episode.query_images))


def images(shape=(6, 1, 28, 28)):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


LABELS = [0, 0, 1, 1, 2, 2]
BAD = [
    (images((6, 1, 32, 32)), LABELS, {}, "got [6, 1, 32, 32]"),
    (images((6, 28, 28)), LABELS, {}, "expected the shape"),
    (images((0, 1, 28, 28)), [], {}, "n >= 1"),
    (255 * images(), LABELS, {}, "give pixels as uint8"),
    (images() * float("nan"), LABELS, {}, "not finite"),
    (images().long(), LABELS, {}, "expected uint8"),
    (images(), [0, 0, 1, 1, 2, 3], {}, "3 is unknown"),
    (images(), [0, 0, 1, 1, 2, -1], {}, "-1 is unknown"),
    (images(), [0, 0, 0, 2, 2, 2], {}, "class 1 has no record"),
    (images(), LABELS, {"ways": 4}, "class 3 has no record"),
    (images(), LABELS[:5], {}, "5 labels for 6 records"),
    (np.ma.masked_less(images().numpy(), 0.5), LABELS, {}, "images have a mask"),
    (images(), np.ma.masked_equal(LABELS, 2), {}, "labels have a mask"),
    (images(), [0.0] * 6, {}, "whole numbers"),
    (images(), list("abcabc"), {}, "are names, expected numbers"),
    (images(), list("abcabc"), {}, "the names as class_names=names"),
    (images(), LABELS, {"steps": -1}, "steps = -1"),
    (images(), LABELS, {"lr": 0.0}, "lr = 0"),
    (images(), LABELS, {"lr": 1e300, "steps": 3}, "diverged"),
    (images(), LABELS, {"ways": 3, "class_names": ["a"]}, "class_names"),
    (images(), None, {}, "labels: is not an array of numbers"),
    (images(), 3, {}, "labels: expected whole numbers [n]"),
    (images(), np.array(3), {}, "labels: expected whole numbers [n]"),
    (images(), np.array(LABELS, dtype=complex), {}, "labels: expected whole numbers [n], got complex128"),
    (images(), LABELS, {"class_names": [1, 2, 3]}, "class_names: 1 is no text"),
    (images(), LABELS, {"class_names": ["a", "b", "a"]}, "class_names: a stands there twice"),
    (images(), LABELS, {"steps": 1.5}, "steps = 1.5"),
    (images(), LABELS, {"lr": "x"}, "lr = x"),
    (images(), LABELS, {"ways": 5.0}, "ways = 5.0"),
    (images(), LABELS, {"ways": 10**12}, "class 3 has no record"),
]


@pytest.mark.parametrize("names", [["1", "2", "3"], np.array(["1", "2", "3"]), ("1", "2", "3")])
def test_labels_and_names_are_taken_as_numpy_gives_them(run, names, tmp_path):
    """What pandas and scikit-learn give: other whole numbers, and arrays of text."""
    for labels in (np.array(LABELS, dtype=np.uint16), np.array(LABELS, dtype=np.uint32), torch.tensor(LABELS)):
        model = load(run).adapt(images(), labels, class_names=names, steps=np.int64(1))
    model.save(tmp_path / "x.safetensors")
    assert load_personal(tmp_path / "x.safetensors").class_names == ("1", "2", "3")
    with pytest.raises(InputError, match=r"is a folder; name a file in it, as .*model\.safetensors"):
        model.save(tmp_path)


@pytest.mark.parametrize(("given", "labels", "more", "reason"), BAD)
def test_what_does_not_fit_is_refused_in_one_line(run, given, labels, more, reason):
    with pytest.raises(InputError) as refusal:
        load(run).adapt(given, labels, **more)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_predictions_refuse_images_of_another_size(model):
    with pytest.raises(InputError, match="expected the shape"):
        model.predict(images((1, 3, 28, 28)))


def test_what_is_no_run_is_refused(tmp_path, run):
    with pytest.raises(InputError, match="is this the directory of a run"):
        load(tmp_path)
    broken = tmp_path / "broken"
    (broken / "checkpoint").mkdir(parents=True)
    (broken / "config.yaml").write_text((run / "config.yaml").read_text())
    for name in ("model", "initial"):
        save_file({"head.bias": torch.zeros(3)}, broken / f"checkpoint/{name}.safetensors")
    with pytest.raises(InputError, match="expected"):
        load(broken)


def test_a_run_without_a_checkpoint_yet_says_so(tmp_path, run):
    stopped = Path(shutil.copytree(run, tmp_path / "stopped"))
    (stopped / "summary.json").unlink()
    (stopped / "checkpoint/model.safetensors").unlink()
    with pytest.raises(InputError, match="stopped, and has no checkpoint yet; evaluate it after its first one"):
        load(stopped)


def damaged(path, how):
    content = path.read_bytes()
    tensors = load_file(path)
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    described = json.loads(metadata["dpfedmeta"])
    name = next(name for name in tensors if name.endswith(".centre"))
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
        return
    if how == "statistics":
        tensors[name] = torch.zeros(99)
    elif how == "missing":
        del tensors[name]
    elif how == "nan":
        tensors[name] = torch.full_like(tensors[name], float("nan"))
    elif how == "network":
        described["network"]["width"] = 8
    elif how == "key":
        del described["network"]["norm"]
    elif how == "deviation":
        described["form"]["deviation"] = [0.0]
    elif how == "mean":
        described["form"]["mean"] = [float("nan")]
    elif how == "ways":
        described["network"]["ways"] = -1
    elif how == "names":
        described["class_names"] = ["a"]
    elif how == "format":
        described["format"] = "something else"
    text = "{" if how == "json" else json.dumps(described)
    save_file(tensors, path, metadata=None if how == "description" else {"dpfedmeta": text})


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "statistics",
        "missing",
        "nan",
        "network",
        "key",
        "names",
        "format",
        "json",
        "description",
        "deviation",
        "mean",
        "ways",
    ],
)
def test_a_damaged_file_is_refused_in_one_line(model, tmp_path, how):
    path = tmp_path / "mine.safetensors"
    model.save(path)
    damaged(path, how)
    with pytest.raises(InputError, match="is damaged, or not a personal model") as refusal:
        load_personal(path)
    assert "\n" not in str(refusal.value)


def test_no_file_and_no_folder(model, tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        load_personal(tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match="cannot be written"):
        model.save(tmp_path / "nowhere" / "mine.safetensors")


def test_a_personal_model_is_saved_into_no_run_but_among_its_secrets(model, tmp_path):
    for name in ("config.yaml", "ledger.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "secret").mkdir()
    model.save(tmp_path / "secret" / "mine.safetensors")
    with pytest.raises(InputError, match=r"PersonalModel\.save: .*mine\.safetensors: is inside the run"):
        model.save(tmp_path / "mine.safetensors")
    assert not (tmp_path / "mine.safetensors").exists()


def test_an_unknown_name_of_the_package():
    import dpfedmeta

    assert isinstance(dpfedmeta.load, type(load))
    with pytest.raises(AttributeError):
        dpfedmeta.nothing  # noqa: B018


@pytest.mark.parametrize("mean", [(), (1.0, 2.0)])
@pytest.mark.parametrize("deviation", [(), (4.0, 0.5)])
@pytest.mark.parametrize("records", ["vectors", "images"])
def test_records_are_standardised_by_each_number_that_there_is(mean, deviation, records):
    """A mean alone, a deviation alone, both or neither."""
    given = torch.tensor([[3.0, 5.0], [7.0, 11.0]])
    form = InputForm(channels=2, size=1, mean=mean, deviation=deviation, records=records)
    due = (given - torch.tensor(mean or (0.0, 0.0))) / torch.tensor(deviation or (1.0, 1.0))
    if records == "vectors":
        torch.testing.assert_close(form.tensor(given, ask=False), due)
        return
    pixels = (given * 20).to(torch.uint8).view(2, 2, 1, 1)
    due = (pixels.float().view(2, 2) / 255 - torch.tensor(mean or (0.0, 0.0))) / torch.tensor(deviation or (1.0, 1.0))
    torch.testing.assert_close(form.tensor(pixels).view(2, 2), due)


def test_an_offset_is_taken_off_before_digits_are():
    form = InputForm(channels=1, size=1, mean=(1e8,), deviation=(1.0,), records="vectors")
    given = np.array([[1e8 + 0.25], [1e8 - 1.5]])
    assert form.tensor(given).tolist() == form.tensor(torch.from_numpy(given)).tolist() == [[0.25], [-1.5]]


@pytest.mark.parametrize(
    ("labels", "ways", "shared", "said"),
    [
        ([0, 1, 0], 2, False, 2), ([0, 1, 0], None, False, 2), ([0, 0, 0], None, False, "class 1 has no record"),
        ([0, 1, 2], 3, False, 3), ([0, 1, 2], 2, False, "labels: 2 is unknown; labels are 0 ... 1, as many as were"),
        ([0, 1, 4], None, False, "labels: 4 is unknown; labels are 0 ... 3, as many as in training"),
        ([0, 1, 1], 1, False, "ways = 1: at least 2"), ([0, 1, 1], 0, False, "ways = 0: at least 2"),
        ([0, 1], None, False, "got 2 labels for 3 records"), ([0, 1, 1, 0], None, False, "got 4 labels for 3 records"),
        ([0, 3, 3], None, True, 4), ([0, 3, 3], 4, True, 4), ([0, 3, 3], 3, True, "with a public list of 4 labels"),
        ([0, -1, 1], None, False, "labels: -1 is unknown"), ([0, 4, 4], None, True, "labels: 4 is unknown"),
        ([0.0, 1.0, 1.0], None, False, "expected whole numbers"), ([True, False, True], None, False, "expected whole"),
        ([[0], [1], [1]], None, False, "expected whole numbers"), (["a", "b", "b"], None, False, "are names"),
    ],
)  # fmt: skip
def test_labels_are_taken_exactly_where_each_class_has_an_image(labels, ways, shared, said):
    if isinstance(said, int):
        found, classes = checked_labels(labels, 3, 4, ways, shared=shared)
        assert (found.tolist(), found.dtype, classes) == (labels, np.int64, said)
        return
    with pytest.raises(InputError, match=re.escape(said)):
        checked_labels(labels, 3, 4, ways, shared=shared)


@pytest.mark.parametrize(("mean", "low", "high", "refused"), [
    ((0.5,), 0.0, 1.0, True), ((0.5,), 0.2, 0.9, True), ((0.5,), -0.1, 1.0, False), ((0.5,), 0.0, 1.1, False),
    ((), 0.0, 1.0, False),
])  # fmt: skip
def test_floats_as_pixels_are_no_standardised_ones(mean, low, high, refused):
    """`ToTensor` gives numbers from 0 to 1; a standardised image has some below 0."""
    form = InputForm(channels=1, size=2, mean=mean, deviation=(0.25,) if mean else ())
    given = torch.tensor([low, high, low, high]).reshape(1, 1, 2, 2)
    if not refused:
        assert torch.equal(form.tensor(given), given)
        return
    with pytest.raises(InputError, match="floats from 0 to 1 are not standardised; give pixels as uint8"):
        form.tensor(given)
