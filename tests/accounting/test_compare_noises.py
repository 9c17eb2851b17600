"""The table of --advise: each row against the accountant or the closed form it stands for."""

import math

import numpy as np
import pytest

from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate
from dpfedmeta.accounting.compare_noises import FederationFacts, advise, best
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.toeplitz_coefficients import optimal_toeplitz, prefix_errors
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
from dpfedmeta.cli.advise import question_of
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError

QUESTION = FederationFacts(clients=400, rounds=8, cohort=50.0, participations=1, epsilon=4.0, delta=1e-5)


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in advise(QUESTION)}


def test_all_seven_are_there_and_the_best_has_the_least_error(rows):
    assert list(rows) == ["cyclic", "poisson", "fixed", "check-ins", "toeplitz", "blt", "banded"]
    chosen = best(tuple(rows.values()), QUESTION.rounds)
    assert all(chosen.per_message(8) <= row.per_message(8) for row in rows.values())


def test_poisson_is_what_the_accountant_solves(rows):
    plan = PrivacyPlan(clients=400, cohort=50.0, rounds=8, noise_multiplier=0.0, client_delta=1e-5)
    noise = calibrate(plan, Targets(client_epsilon=4.0)).noise_multiplier
    assert rows["poisson"].noise == noise
    assert rows["poisson"].error == pytest.approx(noise * math.sqrt(8))
    # A replaced client moves a sum of fixed size by twice as much.
    assert 1.8 < rows["fixed"].noise / noise < 2.4


def test_turns_have_the_noise_that_the_accountant_solves_and_as_many_groups_as_leave_the_least_error(rows):
    groups = int(rows["cyclic"].options.split()[-1])
    given = {"clients": 400, "cohort": 50.0, "rounds": 8, "noise_multiplier": 0.0, "client_delta": 1e-5}
    turns = {"noise": "banded", "sampler": "cyclic"}

    def solved(groups):
        plan = PrivacyPlan(**given, **turns, correlation=Correlation(separation=groups))
        return with_fitted_numbers(calibrate(plan, Targets(client_epsilon=4.0)))

    found = solved(groups)
    assert rows["cyclic"].noise == pytest.approx(found.noise_multiplier, rel=1e-6)
    assert rows["cyclic"].error == pytest.approx(
        found.noise_multiplier * prefix_errors(found.at(0).noise.coefficients(8)).last
    )
    assert rows["cyclic"].error < rows["poisson"].error
    for other in {4, 8} - {groups}:
        plan = solved(other)
        assert plan.noise_multiplier * prefix_errors(plan.at(0).noise.coefficients(8)).last >= rows["cyclic"].error


def test_correlated_noise_is_one_gaussian_release(rows):
    c = optimal_toeplitz(8)
    noise = rows["toeplitz"].noise
    assert gaussian_epsilon(float(np.linalg.norm(c)) / noise, 1e-5) == pytest.approx(4.0, rel=1e-9)
    assert rows["toeplitz"].error == pytest.approx(noise * prefix_errors(c).last)
    assert rows["blt"].error == pytest.approx(rows["toeplitz"].error, rel=0.01)


def test_what_cannot_be_had_is_said_and_the_rest_is_there():
    """A delta below what a full round may take, and a federation in which everybody is needed all the time."""
    with pytest.raises(InputError, match="messages"):
        FederationFacts(clients=50, rounds=10, cohort=10.0, participations=1, epsilon=1.0, delta=1e-5)
    with pytest.raises(InputError, match="target"):
        question_of(resolve("dp-agr", "omniglot", None, {"server.noise_multiplier": "1"}))
    with pytest.raises(InputError, match="clips nothing"):
        question_of(resolve("maml", "omniglot", None, {}))


def test_participations_follow_from_the_messages():
    asked = question_of(resolve("dp-agr", "omniglot", None, {"population.clients": "10000"}))
    assert (asked.participations, asked.separation) == (8, 31)
    assert question_of(resolve("dp-agr-checkins", "omniglot", None, {})).cohort == 300.0
