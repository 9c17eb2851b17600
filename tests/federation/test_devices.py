"""Every engine on every device sends what float32 on a CPU sends: the same noise, nearly the same gradients."""

from dataclasses import replace

import pytest
import torch

from tests.federation.test_backend import setting

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
ENGINES = [("dp-agr", "auto"), ("dp-agrlr", "auto"), *(("dp-agrlr-steps", name) for name in ("auto", "vmap", "opacus"))]
CLIENTS, BOUND = [1, 2, 3, 4], 0.1


def sums(tiny_strokes, device, algo, engine, precision):
    """The clients' sum as asked for, and that of the float32 engine on a CPU."""
    _, clients, model = setting(tiny_strokes, algo)
    expected, entered = clients.clipped_sum(model, BOUND, 0, CLIENTS)
    network = replace(clients.network, precision=precision)
    there = replace(clients, device=torch.device(device), engine=engine, network=network)
    found, also = there.clipped_sum(model, BOUND, 0, CLIENTS)
    assert also == entered == len(CLIENTS)
    return found, expected, clients


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("algo", "engine"), ENGINES)
def test_engines_agree_across_devices(tiny_strokes, device, algo, engine):
    found, expected, _ = sums(tiny_strokes, device, algo, engine, "float32")
    assert float((found - expected).norm() / expected.norm()) < 2e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr", "dp-agrlr-steps"])
def test_shorter_products_change_neither_the_bound_nor_the_noise(tiny_strokes, device, algo, precision):
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        found, expected, clients = sums(tiny_strokes, device, algo, "auto", precision)
    finally:
        torch.backends.cudnn.allow_tf32 = False
    # Two honest sums of the same noise differ by their clipped parts alone, whose mean is at most C long in each.
    most = 2.0 * len(CLIENTS) * clients.message_bound(BOUND)
    assert float((found - expected).norm()) <= 0.25 * most
    if algo == "dp-agr":
        assert float(found.norm()) <= len(CLIENTS) * clients.message_bound(BOUND) * (1 + 1e-6)
