"""The comparison with Flower's wrappers: equal epsilons, and an attack that knows what each of them does."""

import math

import numpy as np
import pytest

from benchmarks import flower_accuracy as compared
from benchmarks.algorithm_claims import claim_without_the_factor_of_two
from benchmarks.flower_cases import flower

SYSTEMS = ("Flower, fixed", "Flower, adaptive", "ours, window")


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Three clients of four, in five rounds."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    for name, value in {"CLIENTS": 4, "COHORT": 3, "ROUNDS": 5, "EPSILON": 300.0, "DELTA": 1e-2, "_FEWER": 1}.items():
        monkeypatch.setattr(compared, name, value)
    return compared.solved(tmp_path)


def test_every_system_is_given_the_noise_of_one_true_epsilon():
    noises = compared.noises(1.5)
    assert tuple(noises) == SYSTEMS
    assert {noise.true for noise in noises.values()} == {1.5}
    _, strategies, _ = flower()
    made = strategies.DifferentialPrivacyServerSideAdaptiveClipping(object(), noises["Flower, adaptive"].given, 100)
    # What moves, over what hides it: 2 bounds under the noise of a bound exp(0.1) times smaller, and one client.
    moved = (2.0 * math.exp(0.1) / made.noise_multiplier) ** 2 + (1.0 / made.clipped_count_stddev) ** 2
    assert math.isclose(moved, (2.0 / 1.5) ** 2)


def test_what_a_user_reads_in_flowers_documentation_is_below_what_holds_and_ours_is_not():
    noise = compared.noises(1.5)
    fixed, adaptive = (claim_without_the_factor_of_two(compared.plan(noise[name].given)) for name in SYSTEMS[:2])
    assert adaptive < fixed < compared.epsilon(1.5)
    assert compared.epsilon(noise["ours, window"].given) == compared.epsilon(1.5)


@pytest.mark.parametrize("system", SYSTEMS)
def test_with_little_noise_the_attack_is_as_often_right_as_its_canary_is_asked(few, system):
    noise = compared.Noise(given=few if system == SYSTEMS[2] else 0.2, true=few)
    ratios = {
        one: [compared.log_ratio(system, noise, one=one, seed=seed) for seed in range(4)] for one in (True, False)
    }
    # It takes part in three rounds of four: not to be seen in one of five has probability 1/1024.
    assert all(ratio > 0 for ratio in ratios[True])
    assert all(ratio < 0 for ratio in ratios[False])


def test_a_client_takes_the_steps_of_softmax_regression():
    generator = np.random.default_rng(0)
    records = generator.normal(size=(1, 6, compared.PIXELS + 1)).astype(np.float32)
    labels, model = np.array([[0, 1, 2, 3, 4, 5]]), np.zeros((compared.PIXELS + 1) * compared.CLASSES, np.float32)

    def loss(weights):
        logits = records[0].astype(np.float64) @ weights.reshape(compared.PIXELS + 1, compared.CLASSES)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(6), labels[0]]))

    first = np.float64(compared.trained(records, labels)(0, model))
    steps = compared.STEPS * compared.RATE
    # All steps follow the slope, and the first one has its whole size.
    assert loss(first) < loss(model) < loss(-first)
    slope = (loss(1e-4 * first) - loss(-1e-4 * first)) / 2e-4
    assert -slope > 0.5 * float(first @ first) / steps
    assert (model == 0).all()
