import math
from dataclasses import replace

import pytest

from benchmarks.algorithm_claims import PresetOrigin, claim
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names, claimed_of
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy

# Published without privacy; theirs is dp-agr's.
UNPUBLISHED = [
    *("maml", "meta-sgd", "proto-maml"),
    *("dp-agr-checkins", "dp-agr-correlated", "dp-agr-cyclic", "dp-agr-secure", "dp-agrlr-secure"),
    *("encoder-agr", "encoder-agrlr", "encoder-agrlr-secure"),
    *("moments-agr", "moments-agrlr", "moments-agrlr-secure", "moments-then-gradients"),
]


def plan_of(algo):
    dataset = PresetOrigin(**claimed_of(algo)).dataset
    return make_privacy(resolve(algo, dataset), load_task(dataset)[0])


def claim_of(algo, plan):
    return claim(PresetOrigin(**claimed_of(algo)), plan)


@pytest.mark.parametrize("algo", [name for name in algorithm_names() if name not in UNPUBLISHED])
def test_every_published_system_has_its_claim(algo):
    found = claim_of(algo, plan_of(algo))
    assert 0 < found.holds < math.inf
    assert 0 < found.claimed < math.inf


@pytest.mark.parametrize("algo", UNPUBLISHED)
def test_what_nobody_published_with_an_epsilon_has_none(algo):
    assert claimed_of(algo) is None


@pytest.mark.parametrize("algo", ["dp-const", "dp-agr", "dp-fedavg", "local-dp"])
def test_where_the_mechanism_is_the_same_rdp_is_only_loose(algo):
    found = claim_of(algo, plan_of(algo))
    assert found.holds < found.claimed < 2.5 * found.holds


def test_flowers_claim_assumes_half_the_change():
    plan = plan_of("dp-fedavg-fixed")
    wrong = claim_of("dp-fedavg-fixed", plan)
    assert wrong.claimed < wrong.holds
    # With twice the noise its number is an upper bound of what holds at the noise it was given.
    doubled = claim_of("dp-fedavg-fixed", replace(plan, noise_multiplier=plan.noise_multiplier / 2))
    assert doubled.claimed >= wrong.holds
