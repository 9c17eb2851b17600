"""A model card is what Hugging Face's hub reads: by its package where that is installed, and by its specification."""

import json
from itertools import combinations
from types import SimpleNamespace

import numpy
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import save

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.results.model_card import check_license, hub_weights, model_card

ACCURACY = {"mean": 0.9312, "ci95": 0.01, "episodes": 600, "ways": 5, "shots": 1, "queries": 15, "steps": 10}
SUMMARY = {"algo": "dp-agr", "dataset": "cifar-fs", "rounds": 2, "accuracy": ACCURACY, "begins_with": None}
OTHERS = {
    "own data": {**SUMMARY, "dataset": "/home/somebody/Clinic 7 (new).yaml"},
    "whole clients": {**SUMMARY, "dataset": "strokes", "accuracy": {"mean": 0.5, "ci95": 0.1, "clients": 9}},
    "numbers": {**SUMMARY, "dataset": "sinusoids", "accuracy": None, "error": {"mean": 0.2}},
    "neither": {**SUMMARY, "dataset": "strokes", "accuracy": None},
}
# Of a run, by the name of what says it, in the order of a card.
CAUTIONS = {"simulation": "it is a simulation", "chosen": "report 7", "word": "its noise rests on an author's word"}
# huggingface/hub-docs, modelcard.md of 2026-08: what may stand where, and what has to (True).
CARD = {
    "license": False, "license_name": False, "license_link": False, "library_name": False, "language": False,
    "tags": False, "datasets": False, "metrics": False, "base_model": False, "pipeline_tag": False,
    "model-index": False,
}  # fmt: skip
RESULT = {
    "task": {"type": True, "name": False},
    "dataset": {"type": True, "name": True, "config": False, "split": False, "revision": False, "args": False},
    "metrics": {"type": True, "value": True, "name": False, "config": False, "args": False},
}


def card(summary, license_id="apache-2.0", **cautions):
    plan = PrivacyPlan(clients=400, cohort=20.0, rounds=2, noise_multiplier=1.0, client_delta=1e-6)
    said = {"simulation": None, "chosen": None, "word": None, **cautions}
    proven = SimpleNamespace(cautions=tuple(filter(None, said.values())))
    found = SimpleNamespace(plan=plan, proven=proven, guarantees=(), unverified="not verified: the noise")
    return model_card("mine", summary, found, "head", license_id).decode()


def metadata(text):
    return yaml.safe_load(text.split("---\n")[1])


def check_keys(content, allowed):
    assert not content.keys() - allowed.keys()
    assert not {name for name, needed in allowed.items() if needed} - content.keys()


def check(content):
    """By the specification."""
    check_keys(content, CARD)
    for name in ("tags", "datasets", "metrics"):
        assert all(isinstance(each, str) for each in content.get(name, [])), name
    for model in content.get("model-index", []):
        check_keys(model, {"name": True, "results": True})
        for result in model["results"]:
            check_keys(result, {"task": True, "dataset": True, "metrics": True})
            check_keys(result["task"], RESULT["task"])
            check_keys(result["dataset"], RESULT["dataset"])
            for metric in result["metrics"]:
                check_keys(metric, RESULT["metrics"])
                assert isinstance(metric["value"], int | float)


@pytest.mark.parametrize("summary", [SUMMARY, *OTHERS.values()], ids=["episodes", *OTHERS])
def test_the_metadata_keep_to_the_hubs_specification(summary):
    check(metadata(card(summary)))
    check(metadata(card(summary, license_id=None)))


@pytest.mark.parametrize("said", [each for size in range(4) for each in combinations(CAUTIONS, size)], ids=str)
def test_each_caution_stands_before_the_numbers_that_it_is_about(said):
    text = card(SUMMARY, **{name: CAUTIONS[name] for name in said})
    promised = text.partition("## What is promised\n")[2].partition("| whose data")[0]
    lines = [line for line in promised.splitlines() if line]
    assert lines == [f"**Attention:** {CAUTIONS[name]}." for name in said]


def test_the_specification_is_held_to():
    content = metadata(card(SUMMARY))
    del content["model-index"][0]["results"][0]["dataset"]["type"]
    with pytest.raises(AssertionError):
        check(content)
    with pytest.raises(AssertionError):
        check(metadata(card(SUMMARY)) | {"licence": "mit"})


def test_what_a_card_states():
    content = metadata(card(SUMMARY))
    assert (content["license"], content["datasets"], content["metrics"]) == (
        "apache-2.0", ["uoft-cs/cifar100"], ["accuracy"],
    )  # fmt: skip
    assert "license" not in metadata(card(SUMMARY, license_id=None))
    own = card(OTHERS["own data"])
    assert "somebody" not in own
    assert metadata(own)["model-index"][0]["results"][0]["dataset"] == {
        "name": "Clinic 7 (new)", "type": "clinic-7-new", "split": "test",
    }  # fmt: skip
    assert metadata(card(OTHERS["numbers"]))["metrics"] == ["mae"]
    assert "datasets" not in metadata(card(OTHERS["numbers"]))
    assert "model-index" not in metadata(card(OTHERS["neither"]))


@pytest.mark.parametrize("license_id", ["MIT", "other", "apache 2.0", "-", "a\nb: c"])
def test_a_license_that_the_hub_does_not_know_by_that_name_is_refused(tmp_path, license_id):
    with pytest.raises(InputError, match="expected an identifier"):
        check_license(license_id, tmp_path / "hub")


def test_known_licenses_pass_and_a_zip_file_has_no_card(tmp_path):
    for each in (None, "mit", "apache-2.0", "cc-by-nc-sa-4.0", "openrail++", "llama3.1", "lppl-1.3c"):
        check_license(each, tmp_path / "hub")
    check_license(None, tmp_path / "a.zip")
    with pytest.raises(InputError, match="has no model card"):
        check_license("mit", tmp_path / "a.zip")


def test_weights_keep_their_numbers_and_say_what_they_are(tmp_path):
    content = save({"b": numpy.arange(3.0), "a": numpy.ones((2, 5), dtype="float32")})
    (tmp_path / "model.safetensors").write_bytes(written := hub_weights(content, "head"))
    assert hub_weights(content, "head") == written
    assert hub_weights(written, "other") != written
    assert int.from_bytes(written[:8], "little") % 8 == 0
    with safe_open(tmp_path / "model.safetensors", "numpy") as weights:
        assert weights.metadata()["format"] == "pt"
        assert weights.metadata()["ledger_head"] == "head"
        assert weights.get_tensor("b").tolist() == [0.0, 1.0, 2.0]
        assert weights.get_tensor("a").shape == (2, 5)


@pytest.mark.parametrize("summary", [SUMMARY, *OTHERS.values()], ids=["episodes", *OTHERS])
def test_the_hubs_own_package_reads_all_fields(tmp_path, summary):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install huggingface_hub")
    (tmp_path / "README.md").write_text(text := card(summary), encoding="utf-8")
    read = hub.ModelCard.load(tmp_path / "README.md")
    assert read.content == text  # it writes the same card again, so that nothing was lost
    assert (read.data.license, read.data.library_name) == ("apache-2.0", "dpfedmeta")
    assert "differential-privacy" in read.data.tags
    expected = metadata(text)
    assert read.data.datasets == expected.get("datasets")
    assert json.loads(json.dumps(hub.metadata_load(tmp_path / "README.md"))) == expected
    if "model-index" not in expected:
        assert not read.data.eval_results
        return
    (result,) = read.data.eval_results
    stated = expected["model-index"][0]["results"][0]
    assert (result.task_type, result.metric_type, result.metric_value) == (
        stated["task"]["type"], stated["metrics"][0]["type"], stated["metrics"][0]["value"],
    )  # fmt: skip
    assert (result.dataset_type, result.dataset_name) == (stated["dataset"]["type"], stated["dataset"]["name"])


def test_the_hubs_own_package_reads_the_weights(tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install huggingface_hub")
    path = tmp_path / "model.safetensors"
    path.write_bytes(hub_weights(save({"a": numpy.ones((2, 5), dtype="float32")}), "head"))
    read = hub.parse_local_safetensors_file_metadata(path)
    assert read.parameter_count == {"F32": 10}
    assert read.metadata["format"] == "pt"
