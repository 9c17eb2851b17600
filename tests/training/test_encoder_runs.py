"""Runs on the features of a public encoder: what stands before any client, records, resume, files, evaluation."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dpfedmeta as dp
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.encoders.encoding import encoder_network, encoding_of
from dpfedmeta.data.encoders.features import encoded_images
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.offers.offered_settings import foreign, form_of
from dpfedmeta.federation.offers.offered_settings import task_of as task_of_plan
from dpfedmeta.learning.evaluation.few_shot import Benchmark
from dpfedmeta.planning.client_spec import evaluation_shape
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.training import run_training, setup
from dpfedmeta.training.personal.user_inputs import InputForm
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.verification.verify import audit
from tests.seams.trained import gone_on, interrupted, settings_of, trained

OWN = "tests.data.encoders.tiny_encoder:tiny"
ENCODED = {"model.encoder": OWN, "model.encoder_size": "16", "model.width": "4"}


@pytest.fixture(scope="module")
def finished(tiny_task_file, tmp_path_factory):
    return trained(tiny_task_file, tmp_path_factory.mktemp("encoded"), "dp-agr", ENCODED)


def test_before_any_client_it_is_encoder_and_prototypes_by_plain_numpy(finished, tiny_task_file, tmp_path):
    """The same test episodes, in images, encoded and classified without any of our layers."""
    settings = settings_of(tiny_task_file, tmp_path, "dp-agr", ENCODED)
    encoding = task_of(settings)[0].encoding
    network, images = encoder_network(encoding), open_dataset(str(tiny_task_file))
    summary = finished.read_json("summary.json")
    count = summary["accuracy_untrained"]["episodes"]
    benchmark = Benchmark(pool=images.test, shape=evaluation_shape(settings), seed=settings.run.seed, split="test")

    def directions(records):
        found = encoded_images(network, (records * 255).round().to(torch.uint8).numpy(), encoding).astype(np.float64)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    right = []
    for number in range(count):
        episode = benchmark.episode(number)
        support, query = directions(episode.support_images), directions(episode.query_images)
        means = np.stack(
            [support[episode.support_labels.numpy() == way].mean(0) for way in range(benchmark.shape.ways)]
        )
        nearest = (query @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(1)
        right.append((nearest == episode.query_labels.numpy()).mean())
    assert summary["accuracy_untrained"]["mean"] == pytest.approx(np.mean(right), abs=1e-6)


def test_every_file_names_the_encoder_and_it_verifies(finished):
    said = finished.read_json("plan.json")["begins_with"]
    assert "tiny_encoder:tiny at 16 pixels (CC0; trained on nothing)" in said
    assert finished.read_json("summary.json")["encoder"] == OWN
    assert "summary.json agrees" in audit(finished).remarks
    page = write_report(finished).read_text()
    assert "tiny_encoder:tiny at 16 pixels" in page
    assert "<td>public encoder, no client</td>" in page
    assert "untrained weights" not in page


@pytest.mark.parametrize("key", ["encoder", "begins_with"])
def test_a_summary_that_hides_the_encoder_is_found(finished, tmp_path, key):
    copy = RunDirectory(tmp_path / "copy")
    for path in finished.path.rglob("*"):
        if path.is_file():
            target = copy.path / path.relative_to(finished.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    summary = copy.read_json("summary.json")
    summary[key] = None
    (copy.path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=key):
        audit(copy)


def test_a_resumed_run_is_the_run(finished, tiny_task_file, tmp_path):
    run, status = gone_on(interrupted(tiny_task_file, tmp_path, "dp-agr", ENCODED, 2))
    assert status == "completed"
    assert run.weights.read_bytes() == finished.weights.read_bytes()


def test_another_encoder_on_resume_is_refused(tiny_task_file, tmp_path, monkeypatch):
    run = interrupted(tiny_task_file, tmp_path, "dp-agr", ENCODED, 2)
    from tests.data.encoders import tiny_encoder

    monkeypatch.setattr(tiny_encoder.tiny, "mean", (0.5, 0.5, 0.5), raising=False)
    with pytest.raises(InputError, match="data"):
        gone_on(run)


def test_how_many_clients_a_call_takes_is_part_of_what_a_round_is_known_by(tiny_task_file, tmp_path, monkeypatch):
    """It may decide over last bits: a round that is done again with another number is charged again."""
    seen = []
    monkeypatch.setattr(run_training, "environment_of", lambda device, chunk, own: seen.append(chunk) or "environment")
    for folder, given in enumerate((ENCODED, {**ENCODED, "run.chunk": "1"}, {**ENCODED, "model.name": "mlp"}, {})):
        trained(tiny_task_file, tmp_path / str(folder), "dp-agr", {**given, "server.rounds": "1"})
    assert seen == [16, 1, None, None]


def test_clients_side_by_side_learn_what_they_learn_one_by_one(finished, tiny_task_file, tmp_path):
    alone = trained(tiny_task_file, tmp_path, "dp-agr", {**ENCODED, "run.chunk": "1"})
    weights = [load_file(run.weights) for run in (finished, alone)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr-secure", "dp-agrlr"])
def test_records_are_protected_over_an_encoder_as_over_images(tiny_task_file, tmp_path, algo):
    """The same cells as without it: accounting does not know what a record is."""
    given = {
        "population.clients": "40000",
        "population.cohort": "400",
        "server.rounds": "3",
        "privacy.client.delta": "1e-6",
    }
    encoded, plain = (
        dp.plan(settings_of(tiny_task_file, tmp_path, algo, {**given, **more})).guarantees
        for more in (ENCODED, {"meta.divisions": "1"})
    )
    assert [(cell.unit, cell.observer, cell.method) for cell in encoded] == [
        (cell.unit, cell.observer, cell.method) for cell in plain
    ]
    assert encoded.of("record", "server").epsilon == pytest.approx(plain.of("record", "server").epsilon, rel=0.2)


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_record_level_runs_train(tiny_task_file, tmp_path, algo):
    run = trained(tiny_task_file, tmp_path, algo, {**ENCODED, "server.rounds": "2"})
    assert run.read_json("summary.json")["status"] == "completed"


def test_prototypes_couple_records_so_noisy_steps_refuse_them(tiny_task_file, tmp_path):
    with pytest.raises(RefusedPlan, match=r"record\.release|micro-episodes"):
        dp.plan(settings_of(tiny_task_file, tmp_path, "dp-agrlr", {**ENCODED, "meta.method": "protonet"}))


def test_what_a_preset_says_of_images_gives_way_and_what_is_given_stays(tiny_task_file):
    settings = resolve("dp-agr", str(tiny_task_file), None, {"model.encoder": OWN})
    assert (settings.model.name, settings.meta.method) == ("low-rank", "protonet")
    given = {"model.encoder": OWN, "model.name": "affine", "meta.method": "maml", "server.lr": "0.5"}
    settings = resolve("dp-agr", str(tiny_task_file), None, given)
    assert (settings.model.name, settings.meta.method, settings.server.lr) == ("affine", "maml", 0.5)
    assert resolve("dp-agr", str(tiny_task_file), None, {}).model.name == "conv4-strided"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model.encoder_weights": "x.safetensors"}, r"name the encoder too"),
        ({"model.encoder": OWN, "model.name": "conv4"}, r"model\.name = conv4: takes images, and the records are vec"),
        ({"model.encoder": "lite1"}, r"did you mean lite0"),
        ({"model.encoder": "nowhere:encoder"}, r"there is no module nowhere"),
    ],
    ids=str,
)
def test_what_cannot_be_encoded_is_one_line(tiny_task_file, tmp_path, given, said):
    with pytest.raises(InputError, match=said) as e:
        trained(tiny_task_file, tmp_path, "dp-agr", given)
    assert "\n" not in str(e.value)


def test_real_clients_take_no_encoder_of_a_server_s_own(tiny_task_file, tmp_path):
    settings = settings_of(tiny_task_file, tmp_path, "dp-agr", ENCODED)
    assert foreign(settings) == f"model.encoder = {OWN}"
    assert foreign(replace(settings, model=replace(settings.model, encoder="lite0"))) is None
    task = task_of(settings_of(tiny_task_file, tmp_path, "dp-agr", {}))[0]
    assert task_of_plan({"task": form_of(task)}).encoding is None
    card = {"licence": "", "trained_on": "", "features": 3, "mean": [0, 0, 0], "deviation": [1, 1, 1], "digest": ""}
    for more in ({"encoding": {"name": "os:system", "size": 8, "card": card}}, {"split": "x.csv"}):
        with pytest.raises(Refused, match="other things of the records"):
            task_of_plan({"task": form_of(task) | more})


def test_features_are_not_standardised_by_the_constants_of_images():
    task = load_task("cifar-fs", None, encoding_of(OWN, None, 16))[0]
    assert len(task.mean) == 3
    features = np.full((2, 64), 0.5, np.float32)
    assert torch.equal(InputForm.of(task.form, *task.constants).tensor(features), torch.from_numpy(features))


def test_vectors_have_no_encoder(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("class,a,b\n" + "".join(f"{row % 9},{row},1\n" for row in range(200)))
    with pytest.raises(InputError, match=r"it encodes few-shot images, and .* has vectors of 2 numbers"):
        dp.plan(resolve("dp-agr", str(path), None, {"model.encoder": OWN}))


def test_without_a_clip_bound_clients_teach_too(tiny_task_file, tmp_path):
    """dp-agr steps in units of its bound; maml has none, and was divided by infinity."""
    assert settings_of(tiny_task_file, tmp_path, "dp-agr", ENCODED).server.unit == "bound"
    run = trained(tiny_task_file, tmp_path, "maml", ENCODED)
    before, after = load_file(run.initial_weights), load_file(run.weights)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved
    assert all(bool(torch.isfinite(value).all()) for value in after.values())


def test_a_step_in_units_of_no_bound_is_refused(tiny_task_file, tmp_path):
    settings = settings_of(tiny_task_file, tmp_path, "maml", {"server.unit": "bound"})
    with pytest.raises(InputError, match=r"server\.unit = bound: clip\.policy = none sets no bound to divide by"):
        dp.train(settings)


@pytest.mark.parametrize("encoding", [None, "an encoder"])
def test_images_that_stand_in_two_parts_are_looked_for_among_images_and_not_among_their_features(monkeypatch, encoding):
    """Two images that are the same may have features that differ in their last bits."""
    settings, compared = resolve("dp-agr", "strokes"), []

    def opened(name, folder, ways, encoding=None):
        return SimpleNamespace(task=SimpleNamespace(encoding=encoding))

    monkeypatch.setattr(setup, "open_dataset", opened)
    monkeypatch.setattr(setup, "encoding_of_run", lambda settings: encoding)
    monkeypatch.setattr(setup, "training_part", lambda settings, dataset, ready_made: dataset)
    monkeypatch.setattr(setup, "check_parts_apart", compared.append)
    dataset, _ = setup._opened(settings, RunOptions())
    assert dataset.task.encoding == encoding
    assert [each.task.encoding for each in compared] == [None]
