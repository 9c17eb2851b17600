"""Every engine on every device sends what float32 on a CPU sends: the same noise, nearly the same gradients."""

from dataclasses import replace

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.provenance import environment_of
from dpfedmeta.training import setup as prepared
from dpfedmeta.training.setup import use_precision
from tests.simulation.test_worker_backend import setting

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
SHORTER = [("cpu", "bfloat16"), *(pytest.param("cuda", name, marks=NEEDS_GPU) for name in ("bfloat16", "tf32"))]
ENGINES = [("dp-agr", "auto"), ("dp-agrlr-micro", "auto"), *(("dp-agrlr", name) for name in ("auto", "vmap", "opacus"))]
CLIENTS, BOUND = [1, 2, 3, 4], 0.1


@pytest.fixture(autouse=True)
def switch():
    """float32, as a run has it: PyTorch itself begins with TF32 in convolutions."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def sums(tiny_strokes, device, algo, engine, precision, **given):
    """The clients' sum as asked for, and that of the float32 engine on a CPU."""
    _, clients, model = setting(tiny_strokes, algo, **given)
    expected, entered = clients.clipped_sum(model, BOUND, 0, CLIENTS)
    network = replace(clients.network, precision=precision)
    there = replace(clients, device=torch.device(device), engine=engine, network=network)
    found, also = there.clipped_sum(model, BOUND, 0, CLIENTS)
    assert also == entered == len(CLIENTS)
    numbers = clients.whole_numbers(BOUND, expected.shape[1])
    return numbers.values(found), numbers.values(expected), clients


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("algo", "engine"), ENGINES)
def test_engines_agree_across_devices(tiny_strokes, device, algo, engine):
    found, expected, _ = sums(tiny_strokes, device, algo, engine, "float32")
    assert float((found - expected).norm() / expected.norm()) < 2e-3


# What a GPU computes side by side and a CPU one by one.
FORMS = {
    "divisions": ("dp-agr", {"meta.divisions": "3"}),
    "layers": ("dp-agr", {"clip.scope": "per-layer", "meta.order": "1"}),
    "attached": ("dp-aqc", {}),
    "steps of all": ("dp-agrlr", {"meta.adapt": "all", "meta.learn": "all", "model.features": "raw", "meta.lr": "0.1"}),
    "unbounded": ("maml", {}),
}


@NEEDS_GPU
@pytest.mark.parametrize("form", FORMS)
def test_what_a_gpu_computes_side_by_side_agrees(tiny_strokes, form):
    algo, given = FORMS[form]
    found, expected, _ = sums(tiny_strokes, "cuda", algo, "auto", "float32", **given)
    assert float((found - expected).norm() / expected.norm()) < 2e-3


@pytest.mark.parametrize(("device", "precision"), SHORTER)
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro", "dp-agrlr"])
def test_shorter_products_change_neither_the_bound_nor_the_noise(tiny_strokes, device, algo, precision):
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    found, expected, clients = sums(tiny_strokes, device, algo, "auto", precision)
    # Two honest sums of the same noise differ by their clipped parts alone, whose mean is at most C long in each.
    most = 2.0 * len(CLIENTS) * clients.message_bound(BOUND)
    assert float((found - expected).norm()) <= 0.25 * most
    if algo == "dp-agr":
        assert float(found.norm()) <= len(CLIENTS) * clients.message_bound(BOUND) * (1 + 1e-6)


def use(precision, device, monkeypatch, capability=(9, 0), bfloat16=True):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(prepared, "bfloat16_in_hardware", lambda: bfloat16)
    use_precision(resolve("maml", "strokes", None, {"run.precision": precision}), torch.device(device))
    return torch.backends.cudnn.allow_tf32


def test_tf32_is_on_only_where_it_is_asked_for(monkeypatch):
    assert use("tf32", "cuda", monkeypatch)
    assert not use("float32", "cuda", monkeypatch)
    assert not use("bfloat16", "cpu", monkeypatch)


def test_a_precision_that_the_hardware_lacks_is_refused(monkeypatch):
    for device, capability in (("cpu", (9, 0)), ("cuda", (7, 5))):
        with pytest.raises(InputError, match="needs an NVIDIA GPU"):
            use("tf32", device, monkeypatch, capability)
    with pytest.raises(InputError, match="this processor lacks avx512_bf16"):
        use("bfloat16", "cpu", monkeypatch, bfloat16=False)


def test_what_chooses_kernels_is_part_of_the_environment(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = environment_of(torch.device("cpu"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert environment_of(torch.device("cpu")) != before
