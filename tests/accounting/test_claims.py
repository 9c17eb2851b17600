import math
from dataclasses import replace

import pytest

from dpfedmeta.accounting.claims import claim
from dpfedmeta.config import algorithm_names, resolve
from dpfedmeta.data.task import load_task
from dpfedmeta.planning.privacy import make_privacy


def plan_of(algo):
    dataset = "mnist-shards" if resolve(algo, "mnist-shards").meta.method == "fedavg" else "omniglot"
    return make_privacy(resolve(algo, dataset), load_task(dataset)[0])


@pytest.mark.parametrize("algo", [name for name in algorithm_names() if name != "maml"])
def test_every_private_preset_has_an_origin(algo):
    found = claim(algo, plan_of(algo))
    assert 0 < found.holds < math.inf
    assert 0 < found.claimed < math.inf


def test_without_privacy_there_is_no_claim():
    assert claim("maml", plan_of("maml")) is None


@pytest.mark.parametrize("algo", ["dp-const", "dp-agr", "dp-fedavg", "local-dp"])
def test_where_the_mechanism_is_the_same_rdp_is_only_loose(algo):
    found = claim(algo, plan_of(algo))
    assert found.holds < found.claimed < 2.5 * found.holds


def test_flowers_claim_assumes_half_the_change():
    plan = plan_of("dp-fedavg-fixed")
    wrong = claim("dp-fedavg-fixed", plan)
    assert wrong.claimed < wrong.holds
    # With twice the noise its number is an upper bound of what holds at the noise it was given.
    doubled = claim("dp-fedavg-fixed", replace(plan, noise_multiplier=plan.noise_multiplier / 2))
    assert doubled.claimed >= wrong.holds
