"""A federation of real clients gives the weights of the simulation of the same clients and keys, bit for bit."""

import hashlib

import pytest

from dpfedmeta.training.run import run_training
from tests.federation.silos import NOISE, make_silos


@pytest.fixture(scope="module")
def silos(tmp_path_factory, own_cache):
    return make_silos(tmp_path_factory.mktemp("silos"))


def weights_of(run):
    return hashlib.sha256(run.weights.read_bytes()).hexdigest()


def simulated(silos, algo, folder, **given):
    given |= {"run.noise_seed": str(NOISE), "run.dir": str(folder), "run.name": "simulation"}
    return run_training(silos.settings(algo, silos.everybody, **given))[0]


MICRO = {"record.micro_shots": "1", "record.micro_queries": "1", "privacy.client.epsilon": "null"}


@pytest.mark.parametrize(
    ("algo", "given"),
    [("dp-agr", {}), ("dp-agrlr-micro", MICRO), ("dp-agrlr-secure", MICRO)],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    expected = simulated(silos, algo, tmp_path, **given)
    run, status = silos.serve(silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)}), tmp_path)
    assert status == "completed"
    assert weights_of(run) == weights_of(expected)
