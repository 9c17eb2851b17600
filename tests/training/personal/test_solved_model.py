"""Models that were solved for, without PyTorch: the same answers, from the same files."""

import json
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.training.personal.solved_model import BODIES, load_solved_model
from tests.conftest import dpfedmeta
from tests.training.test_table_moments import KINDS, settings_of

# A process in which `import torch` fails, as where it is not installed.
BLOCKED = """
import sys
sys.modules["torch"] = sys.modules["opacus"] = None
"""
ADAPTS = """
import json
from pathlib import Path
import numpy as np
import dpfedmeta as dp
given = json.loads(Path("given.json").read_text())
run = dp.load_solved("run")
model = run.adapt("new.csv", given["labels"], class_names=given["names"])
model.save("by-numpy.safetensors")
own = model.predict("new.csv")
print(json.dumps({"logits": model.logits("new.csv").tolist(), "predicted": own.tolist()}))
"""
PREDICTS = """
from dpfedmeta.__main__ import main
main(["predict", sys.argv[1], "new.csv", "--json"])
"""


def without_torch(program, folder, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else json.loads(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_without_pytorch_adapts_keeps_and_predicts_the_same(kind, tmp_path):
    run = dp.train(settings_of(kind, "moments-agrlr-secure", tmp_path), quiet=True)
    head, *rows = (tmp_path / "people.csv").read_text().splitlines()
    new = [line for line in rows if line.startswith("t,")]
    (tmp_path / "new.csv").write_text("\n".join([head, *new]))
    said = [line.split(",")[2] for line in new]
    names = [] if kind in ("numbers", "labels") else sorted({*said})
    labels = said if kind == "labels" else [names.index(each) if names else float(each) for each in said]
    (tmp_path / "given.json").write_text(json.dumps({"labels": labels, "names": names}))
    model = dp.load(run.path).adapt(str(tmp_path / "new.csv"), labels, class_names=names)
    model.save(tmp_path / "by-torch.safetensors")
    found = without_torch(ADAPTS, tmp_path)
    due = model.logits(str(tmp_path / "new.csv")).numpy()
    np.testing.assert_allclose(found["logits"], due, atol=1e-6 * max(1.0, float(np.abs(due).max())))
    scale = 8.0 if kind == "numbers" else 1.0
    expected = model.predict(str(tmp_path / "new.csv")).tolist()
    np.testing.assert_allclose(found["predicted"], expected, atol=1e-6 * scale)
    assert stat.S_IMODE((tmp_path / "by-numpy.safetensors").stat().st_mode) == 0o600
    # Either file is read by both.
    kept = dp.load_personal(tmp_path / "by-numpy.safetensors").predict(str(tmp_path / "new.csv"))
    np.testing.assert_allclose(kept.tolist(), expected, atol=1e-6 * scale)
    told = without_torch(PREDICTS, tmp_path, "by-torch.safetensors")
    again = without_torch(PREDICTS, tmp_path, "by-numpy.safetensors")
    for one, other in zip(told["predictions"], again.pop("predictions"), strict=True):
        # Numbers differ in their last digits, names do not.
        close = one["predicted"] if kind != "numbers" else pytest.approx(one["predicted"], abs=1e-6 * scale)
        assert {**other, "predicted": close} == {**one, "predicted": other["predicted"]}
    assert again == {name: value for name, value in told.items() if name != "predictions"}
    shown = [row["predicted"] for row in told["predictions"]]
    assert (
        (shown == model.predict_names(str(tmp_path / "new.csv"))) if kind != "numbers" else np.allclose(shown, expected)
    )
    assert told == json.loads(dpfedmeta("predict", "by-torch.safetensors", "new.csv", "--json", folder=tmp_path).out)


@pytest.mark.parametrize("name", BODIES)
def test_each_body_is_that_of_the_network(name):
    spec = NetworkSpec(name=name, channels=5, image_size=1, ways=3, width=4, norm="none", records="vectors")
    network, own = build_network(spec), torch.Generator().manual_seed(0)
    for value in network.parameters():
        value.data = torch.randn(value.shape, generator=own)
    records = torch.cat([torch.randn(6, 5, generator=own), torch.zeros(1, 5)])
    weights = {key: value.numpy() for key, value in network.state_dict().items()}
    with torch.no_grad():
        due = network.body(records).numpy()
    np.testing.assert_allclose(BODIES[name](weights, records.numpy()), due, rtol=1e-5, atol=1e-5)


def test_what_is_no_matrix_says_so(tmp_path, tiny_task_file):
    from tests.seams.trained import trained

    run = trained(tiny_task_file, tmp_path, "maml", {"server.rounds": "1", "model.width": "4"})
    with pytest.raises(InputError, match=r"is no matrix; dpfedmeta\.load reads it, with PyTorch"):
        dp.load_solved(run.path)
    run_of = dp.load(run.path)
    ones = np.ones((2, *run_of.form.form.shape), dtype=np.float32)
    run_of.adapt(ones, [0, 1]).save(tmp_path / "own.safetensors")
    (tmp_path / "new.csv").write_text("x\n1\n")
    said = without_torch(PREDICTS, tmp_path, "own.safetensors", code=2)
    assert said.startswith("error: dpfedmeta is not installed for this Python: it lacks torch, opacus; type: ")
    assert said.count("\n") == 1
    with pytest.raises(InputError, match="is this the directory of a run"):
        dp.load_solved(tmp_path)
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    assert load_solved_model(tmp_path / "damaged.safetensors") is None
