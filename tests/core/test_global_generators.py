"""Code of others draws from the global generators at seeds of ours, and finds them afterwards as they were."""

import random

import numpy as np
import pytest
import torch

from dpfedmeta.core.random.random_sources import global_generators_at

GENERATORS = {
    "python": random.random,
    "numpy": lambda: float(np.random.random()),  # noqa: NPY002
    "torch": lambda: float(torch.rand(1, dtype=torch.float64)),
}
SEEDS = {"python": 1, "numpy": 2, "torch": 3}


def drawn():
    return {name: draw() for name, draw in GENERATORS.items()}


@pytest.fixture(autouse=True)
def seeded():
    with global_generators_at(python=70, numpy=71, torch=72):
        yield


@pytest.mark.parametrize("name", GENERATORS)
def test_each_generator_begins_at_its_own_seed(name):
    with global_generators_at(**SEEDS):
        first, more = drawn(), drawn()
    with global_generators_at(**SEEDS):
        assert drawn() == first
    with global_generators_at(**{**SEEDS, name: 9}):
        other = drawn()
    assert [each for each in GENERATORS if other[each] != first[each]] == [name]
    assert not {*first.values()} & {*more.values()}


@pytest.mark.parametrize("fails", [False, True])
def test_they_go_on_afterwards_where_they_were(fails):
    expected = [drawn(), drawn()]
    with global_generators_at(python=70, numpy=71, torch=72):
        found = [drawn()]
        try:
            with global_generators_at(**SEEDS):
                drawn()
                if fails:
                    raise ValueError("stop")
        except ValueError:
            assert fails
        found.append(drawn())
    assert found == expected
