"""Models that leave: files that say all, and a graph that predicts as the model does."""

import json
import stat
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.missing import MissingValues
from dpfedmeta.learning.models.frozen import frozen_network, restored_network
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.training.personal import export_model
from dpfedmeta.training.personal.export_model import DESCRIPTION, GRAPH, WEIGHTS, Predicting, exported
from dpfedmeta.training.personal.personal_model import PersonalModel
from dpfedmeta.training.personal.user_inputs import InputForm
from tests.conftest import dpfedmeta

MISSING = MissingValues(
    values=("?", "", "-999"), columns={"chol": ("0",)}, replaced_by=(50.0, 200.0), indicators=("chol",)
)
TABLE = InputForm(
    channels=3, size=1, records="vectors", mean=(54.0, 220.0, 0.0), deviation=(9.0, 90.0, 1.0),
    columns=("age", "chol"), missing=MISSING,
)  # fmt: skip
VECTORS = {"channels": 3, "image_size": 1, "records": "vectors", "width": 4, "groups": 2}
RANGE = TargetRange(centre=20.0, scale=8.0, lowest=-30.0, highest=60.0, loss="huber")
KINDS = {
    "table": (NetworkSpec(name="mlp", ways=2, norm="group", **VECTORS), TABLE, None),
    "numbers": (NetworkSpec(name="linear", ways=1, norm="none", **VECTORS), TABLE, RANGE),
    "vectors": (
        NetworkSpec(name="mlp", ways=4, norm="batch", features="support", **VECTORS),
        InputForm(channels=3, size=1, records="vectors"),
        None,
    ),
    "images": (
        NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=4, norm="batch", features="support"),
        InputForm(channels=1, size=28, mean=(0.9,), deviation=(0.25,)),
        None,
    ),
    "tokens": (
        NetworkSpec(
            name="text", channels=6, image_size=1, ways=3, width=4, norm="none", records="tokens", vocabulary=30
        ),
        InputForm(channels=6, size=1, records="tokens", vocabulary=30),
        None,
    ),
}


def model_of(kind):
    """A model whose head is not zero, as one that has adapted."""
    spec, form, targets = KINDS[kind]
    weights = initial_weights(spec, 0)
    draw = torch.Generator().manual_seed(1)
    weights = {name: value + 0.3 * torch.randn(value.shape, generator=draw) for name, value in weights.items()}
    support = form.tensor(export_model._examples(form))
    module = frozen_network(build_network(spec), weights, support)
    names = () if targets else tuple(f"class {place}" for place in range(spec.ways))
    return PersonalModel(network=spec, module=module, form=form, steps=3, class_names=names, targets=targets)


def answers(model, records):
    return model.predict(records) if model.targets else model.probabilities(records)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_description_are_all_that_is_needed(kind):
    model = model_of(kind)
    files = exported(model, onnx=False)
    assert [*files] == [WEIGHTS, DESCRIPTION]
    said = json.loads(files[DESCRIPTION])
    assert said["class_names"] == [*model.class_names]
    assert said["records"]["columns"] == [*model.form.columns]
    assert said["records"]["mean"] == [*model.form.mean]
    assert (said["targets"] or {}).get("scale") == (model.targets.scale if model.targets else None)
    again = replace(model, module=restored_network(build_network(model.network), load(files[WEIGHTS])))
    records = export_model._examples(model.form)
    assert torch.equal(answers(again, records), answers(model, records))


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_a_graph_predicts_as_the_model_does(kind):
    model = model_of(kind)
    records = export_model._examples(model.form)
    found, due = Predicting(model)(records), answers(model, records)
    assert float((found - due).abs().max()) < 1e-5 * (model.targets.scale if model.targets else 1)
    assert float(due.std()) > 1e-3


@pytest.mark.filterwarnings("ignore:column .* another unit")
def test_a_value_that_is_missing_is_one_in_the_graph_by_all_its_words():
    model = model_of("table")
    whole = [[61.0, 233.0]]
    for place, marks in ((0, (-999.0, np.nan)), (1, (-999.0, np.nan, 0.0))):
        for mark in marks:
            record = np.array(whole)
            record[0, place] = mark
            found = Predicting(model)(torch.from_numpy(record))
            assert torch.allclose(found, model.probabilities(record), atol=1e-6)
            assert not torch.allclose(found, model.probabilities(whole), atol=1e-3)
    # An age of 0 is a number.
    assert not torch.allclose(model.probabilities([[0.0, 233.0]]), model.probabilities([[-999.0, 233.0]]), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runs_the_graph_on_any_number_of_records(kind):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="not installed: pip install 'dpfedmeta[onnx]'")
    import onnx
    import onnxruntime

    model = model_of(kind)
    graph = exported(model, onnx=True)[GRAPH]
    records = export_model._examples(model.form)[[0, 5, 3, 1, 7]]
    (found,) = onnxruntime.InferenceSession(graph).run(None, {"records": records.numpy()})
    assert np.abs(found - answers(model, records).numpy()).max() < 1e-4 * (model.targets.scale if model.targets else 1)
    (kept,) = onnx.load_from_string(graph).metadata_props
    assert json.loads(kept.value)["records"]["columns"] == [*model.form.columns]


def test_a_graph_that_predicts_otherwise_is_not_written(monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="not installed: pip install 'dpfedmeta[onnx]'")
    otherwise = lambda self, values, missing: torch.cat([values, values[:, :1]], 1)  # noqa: E731
    monkeypatch.setattr(export_model.Predicting, "_filled", otherwise)
    with pytest.raises(InputError, match="predictions differ from the model's by"):
        exported(model_of("table"), onnx=True)


def test_the_command_writes_all_files_for_its_user_alone(tmp_path, monkeypatch):
    model_of("table").save(tmp_path / "mine.safetensors")
    words = ("export", "mine.safetensors", "--out", "left")
    assert "as private as the model itself" in dpfedmeta(*words, folder=tmp_path).out
    assert {path.name for path in (tmp_path / "left").iterdir()} == {WEIGHTS, DESCRIPTION}
    for path in (tmp_path / "left", *(tmp_path / "left").iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    assert "is there already" in dpfedmeta(*words, folder=tmp_path, code=2).error
    assert "not there" in dpfedmeta("export", "none.safetensors", "--out", "new", folder=tmp_path, code=2).error
    monkeypatch.setitem(sys.modules, "onnx", None)
    error = dpfedmeta("export", "mine.safetensors", "--out", "new", "--onnx", folder=tmp_path, code=2).error
    assert "pip install 'dpfedmeta[onnx]'" in error
    assert not (tmp_path / "new").exists()
