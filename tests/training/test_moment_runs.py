"""Runs of moments: one round over the features of an encoder, for clients and for records, to the evaluation."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dpfedmeta as dp
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import load_weights
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.encoders.encoding import encoder_network, encoding_of
from dpfedmeta.learning.algorithms.moments import MATRIX
from dpfedmeta.learning.algorithms.moments_then_gradients import PHASE
from dpfedmeta.learning.record_dp.moment_messages import noisy_moments
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.state.checkpoint import checkpoint_files
from dpfedmeta.training.verification.verify import audit
from tests.learning.record_dp.test_second_moments import CASES, COUNT, drawn
from tests.seams.trained import gone_on, interrupted, settings_of, trained

OWN = "tests.data.encoders.tiny_encoder:tiny"
ENCODED = {"model.encoder": OWN, "model.encoder_size": "16", "model.width": "4", "server.rounds": "1"}
ALGORITHMS = ("moments-agr", "moments-agrlr", "moments-agrlr-secure", "moments-then-gradients")
FEWER = {"meta.own.directions": "8"}


# A drawn cohort must be able to make its noise, and three rounds may not use up everybody.
MANY = {"population.clients": "900", "population.cohort": "60"}


# The preset's phases are of 20 ways, and of more rounds.
PHASES = {"task.ways": "2", "task.shots": "2", "server.rounds": "2"}


def of(algo):
    if algo == "moments-then-gradients":
        return ENCODED | PHASES
    return ENCODED | (FEWER if "agrlr" in algo else {}) | (MANY if "secure" in algo else {})


@pytest.fixture(scope="module", params=ALGORITHMS)
def finished(request, tiny_task_file, tmp_path_factory):
    return trained(tiny_task_file, tmp_path_factory.mktemp("moments"), request.param, of(request.param))


def test_a_run_solves_for_a_metric_in_one_round_and_verifies(finished):
    summary = finished.read_json("summary.json")
    assert summary["status"] == "completed"
    assert all(cell["epsilon"] is None or math.isfinite(cell["epsilon"]) for cell in summary["guarantees"])
    assert torch.isfinite(load_weights(finished.weights)[MATRIX]).all()
    assert "summary.json agrees" in audit(finished).remarks


def test_the_model_is_what_the_last_checkpoint_solves_to(finished):
    tensors = load_file(checkpoint_files(finished.path / "checkpoint")[0][1])
    assert {"first/moments.total", "first/moments.within"} <= {*tensors}
    assert float(tensors.get(f"model/{PHASE}", 1.0)) == 1.0
    assert torch.equal(tensors[f"model/{MATRIX}"], load_weights(finished.weights)[MATRIX])


def test_a_new_client_adapts_and_predicts(finished):
    features = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    for ways in (2, 3):
        labels = [place % ways for place in range(6)]
        found = dp.load(finished.path).adapt(features, labels, ways=ways).predict(features)
        assert {*found.tolist()} <= {*range(ways)}


def test_the_real_protocol_gives_the_sum_of_the_ideal_one(tiny_task_file, tmp_path):
    given = of("moments-agrlr-secure") | {"run.noise_seed": "5"}
    runs = [
        trained(tiny_task_file, tmp_path / protocol, "moments-agrlr-secure", given | {"aggregation.protocol": protocol})
        for protocol in ("false", "true")
    ]
    one, other = (load_weights(run.weights) for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_too_large_a_scale_is_refused_with_the_way_out(tiny_task_file, tmp_path):
    given = of("moments-agrlr-secure") | {"meta.own.scale": "1000"}
    settings = settings_of(tiny_task_file, tmp_path, "moments-agrlr-secure", given)
    with pytest.raises(RefusedPlan, match=r"a smaller meta\.own\.scale"):
        make_plan(settings, open_dataset_task(settings))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(algo, tiny_task_file, tmp_path):
    given = of(algo) | {"server.rounds": "3", "run.noise_seed": "5"}
    whole = trained(tiny_task_file, tmp_path / "a", algo, given)
    half = interrupted(tiny_task_file, tmp_path / "b", algo, given, after=2)
    gone_on(half)
    one, other = (load_weights(run.weights) for run in (whole, half))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_relations_of_a_record_are_those_of_its_blocks(tiny_task_file, tmp_path):
    settings = settings_of(tiny_task_file, tmp_path, "moments-agrlr", of("moments-agrlr"))
    plan = make_plan(settings, open_dataset_task(settings))
    record = next(cell for cell in plan.planned if (cell.unit, cell.observer) == ("record", "server"))
    assert record.epsilon == pytest.approx(2.5, abs=0.01)
    assert record.relations["in-place"] == pytest.approx(3.71, abs=0.01)
    assert {*record.relations} == {"zero-out", "in-place"}


@pytest.mark.parametrize("ratio", [0.1, 1.0, 12.0])
@pytest.mark.parametrize("algo", ["moments-agrlr", "dp-agrlr-micro", "dp-agrlr"])
def test_a_message_that_is_clipped_again_costs_the_public_by_the_smaller_bound(algo, ratio, tiny_task_file, tmp_path):
    """Of every release: noise is scaled to C, and a record moves by C_q of it, whatever C is."""
    given = {"server.noise_mode": "stacked", "record.message_clip_ratio": str(ratio)}
    own = ENCODED | FEWER if algo == "moments-agrlr" else {"model.width": "4", "task.ways": "2"}
    settings = settings_of(tiny_task_file, tmp_path, algo, own | given | {"server.noise_multiplier": "1.0"})
    plan = make_plan(settings, open_dataset_task(settings))
    assert plan.privacy.record.query_to_message_bound == pytest.approx(1.0 / ratio)


def test_moments_of_records_are_sent_in_every_round_or_not_at_all(tiny_task_file, tmp_path):
    """Gradients that follow have another form: the run charged, and every message counted as zero."""
    given = of("moments-agrlr") | {"meta.method": "moments-then-gradients"}
    with pytest.raises(RefusedPlan, match="moments in every round"):
        settings = settings_of(tiny_task_file, tmp_path, "moments-agrlr", given)
        make_plan(settings, open_dataset_task(settings))


def open_dataset_task(settings):
    from dpfedmeta.config.dataset_names import task_of

    return task_of(settings)[0]


@pytest.mark.parametrize("moments", CASES, ids=str)
def test_the_noise_of_a_message_is_that_of_one_record(moments):
    """Over many draws: deviation z_q over n in each number, around the exact moments."""
    records, noise = drawn(1), 1.7
    source = KeyedSource(0)
    exact = moments.message(records)
    found = [
        noisy_moments(exact, COUNT, 1.0, noise, source.generator(Purpose.QUERY_NOISE, 0, client))
        for client in range(200)
    ]
    apart = torch.stack([torch.cat([own.value[n] - exact[n] for n in exact]) for own in found]).double().flatten()
    assert float(apart.std()) == pytest.approx(noise / COUNT, rel=0.05)
    assert abs(float(apart.mean())) < 5 * noise / COUNT / math.sqrt(len(apart))
    assert all(own.noise_deviation == pytest.approx(noise / COUNT) for own in found)


WRONG = [
    ({"model.name": "low-rank"}, InputError, "--model.name metric"),
    ({"server.optimizer": "adam"}, InputError, "--server.optimizer solve"),
    ({"meta.method": "protonet"}, InputError, "protonet takes no settings of its own"),
    ({"meta.own.directions": "65"}, InputError, "a record has 64 numbers"),
    ({"meta.own.pair_weight": "-1"}, InputError, "pair_weight"),
    ({"meta.own.pairs": "1"}, InputError, "no such setting"),
    ({"model.encoder": "null", "task.shift": "0"}, InputError, "give a public encoder"),
    (
        {"record.enabled": "true", "record.release": "noisy-moments", "privacy.record.epsilon": "2"},
        InputError,
        "--clip 1",
    ),
    ({"record.enabled": "true", "record.release": "steps", "privacy.record.epsilon": "2"}, RefusedPlan, "steps"),
]


@pytest.mark.parametrize(("given", "error", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_refused_in_one_line(given, error, words, tiny_task_file, tmp_path):
    with pytest.raises(error, match=words) as refused:
        settings = settings_of(tiny_task_file, tmp_path, "moments-agr", ENCODED | given)
        make_plan(settings, open_dataset_task(settings))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_omniglot_takes_the_strokes_and_photographs_lite0(algo):
    assert resolve(algo, "omniglot").model.encoder == "strokes"
    assert resolve(algo, "cifar-fs").model.encoder == "lite0"
    made = resolve(algo, "omniglot")
    assert made.model.name == "metric"
    assert made.meta.method in ("moments", "moments-then-gradients")


def test_the_built_in_strokes_treat_each_image_alone():
    encoding = encoding_of("strokes", None, 28)
    assert (encoding.card.features, encoding.card.same_images) == (256, ("strokes",))
    network = encoder_network(encoding)
    images = torch.from_numpy(np.random.default_rng(0).random((5, 3, 28, 28), dtype=np.float32))
    with torch.no_grad():
        found = network(images)
        torch.testing.assert_close(found[:2], torch.cat([network(images[[place]]) for place in range(2)]))
    assert found.shape == (5, 256)
    assert len({tuple(row.tolist()) for row in found}) == 5


def test_weights_of_another_encoder_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(2)}, tmp_path / "w.safetensors")
    encoding = encoding_of("strokes", str(tmp_path / "w.safetensors"), 28)
    with pytest.raises(InputError, match=r"no weights of strokes \(has other\)"):
        encoder_network(encoding)
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a safetensors file"):
        encoder_network(encoding_of("strokes", str(tmp_path / "w.safetensors"), 28))
