"""A federation of real clients gives the weights of the simulation of the same clients and keys, bit for bit."""

import pytest

from tests.federation.silos import MICRO, SECURE


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        pytest.param("dp-agr", {"task.shift": "3"}, marks=pytest.mark.slow),
        pytest.param("dp-agrlr-micro", MICRO, marks=pytest.mark.slow),
        pytest.param("dp-agrlr-secure", SECURE, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    silos.check_simulated(algo, tmp_path, **given)
