"""A federation of real clients gives the weights of the simulation of the same clients and keys, bit for bit."""

import pytest

from dpfedmeta.training.personal.personal_model import load_personal
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        pytest.param("dp-agr", {"task.shift": "3"}, marks=pytest.mark.slow),
        pytest.param("dp-agrlr-micro", MICRO, marks=pytest.mark.slow),
        pytest.param("dp-agrlr-secure", SECURE, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    expected = silos.simulated(algo, tmp_path, **given)
    run, status = silos.serve(silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)}), tmp_path)
    assert status == "completed"
    assert run.weights.read_bytes() == expected.weights.read_bytes()
    for number in range(CLIENTS):
        home = tmp_path / f"client{number}"
        assert "round 1: one vector" in (home / "log.txt").read_text()
        assert len(load_personal(home / "personal.safetensors").class_names) == 3
