"""A federation of real clients gives the weights of the simulation of the same clients and keys, bit for bit."""

import hashlib

import pytest

from dpfedmeta.personal.model import load_personal
from dpfedmeta.training.run import run_training
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE, make_silos


@pytest.fixture(scope="module")
def silos(tmp_path_factory, own_cache):
    return make_silos(tmp_path_factory.mktemp("silos"))


def weights_of(run):
    return hashlib.sha256(run.weights.read_bytes()).hexdigest()


def simulated(silos, algo, folder, **given):
    given |= {"run.noise_seed": str(NOISE), "run.dir": str(folder), "run.name": "simulation"}
    return run_training(silos.settings(algo, silos.everybody, **given))[0]


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        pytest.param("dp-agr", {}, marks=pytest.mark.slow),
        ("dp-agrlr-micro", MICRO),
        pytest.param("dp-agrlr-secure", SECURE, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    expected = simulated(silos, algo, tmp_path, **given)
    run, status = silos.serve(silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)}), tmp_path)
    assert status == "completed"
    assert weights_of(run) == weights_of(expected)
    for number in range(CLIENTS):
        home = tmp_path / f"client{number}"
        assert "round 1: one vector" in (home / "log.txt").read_text()
        assert len(load_personal(home / "personal.safetensors").class_names) == 3
