"""The table of --advise: each row against the accountant or the closed form it stands for."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate, compare_noises
from dpfedmeta.accounting.compare_noises import FederationFacts, advise, best
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.failure_probability import least_capacity
from dpfedmeta.accounting.events.fit_toeplitz import fit_banded
from dpfedmeta.accounting.events.toeplitz_coefficients import optimal_toeplitz, prefix_errors, sensitivity
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
from dpfedmeta.cli.advise import question_of
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy

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


@pytest.mark.parametrize("participations", [2, 3])
@pytest.mark.parametrize("name", ["toeplitz", "blt", "banded"])
def test_the_options_of_correlated_noise_give_the_noise_of_their_row(name, participations):
    """Without them a plan keeps clients as far apart as the population allows, which is another plan."""
    facts = {"population.clients": "400", "population.cohort": "10", "server.rounds": "80"}
    facts |= {"privacy.client.epsilon": "4", "privacy.client.delta": "1e-5"}
    asked = question_of(
        resolve("dp-agr", "strokes", None, facts | {"population.max_participations": str(participations)})
    )
    row = getattr(compare_noises, f"_{name}")(asked)
    words = dict(word.split() for word in row.options.removeprefix("--").split(" --"))
    made = make_privacy(resolve("dp-agr", "strokes", None, facts | words), load_task("strokes")[0])
    assert ("server.buffers" in words) is (name == "banded" and participations == 2)
    assert row.noise * (1 - 1e-9) <= made.noise_multiplier <= row.noise * 1.005


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


def solved_from(monkeypatch):
    """Every plan that is solved for, with its target; all of them take a noise of 3."""
    plans = []

    def noted(plan, targets):
        plans.append((plan, targets))
        return replace(plan, noise_multiplier=3.0)

    monkeypatch.setattr(compare_noises, "calibrate", noted)
    return plans


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_each_row_is_solved_for_the_plan_that_its_options_select(monkeypatch, delta):
    plans = solved_from(monkeypatch)
    question = replace(QUESTION, delta=delta, cohort=49.6)
    rows = {row.name: row for row in advise(question)}
    given = {"clients": 400, "rounds": 8, "noise_multiplier": 0.0, "client_delta": delta}
    poisson, fixed, check_ins = (
        next(plan for plan, _ in plans if plan.sampler == name) for name in ("poisson", "fixed", "check-ins")
    )
    assert all(targets == Targets(client_epsilon=4.0) for _, targets in plans)
    assert poisson == PrivacyPlan(**given, cohort=49.6)
    assert fixed == PrivacyPlan(**given, cohort=50.0, sampler="fixed")
    # What a full round may take is off the smaller delta, and records have 1e-5.
    capacity = least_capacity(400, 8, min(delta, 1e-5))
    assert (capacity == least_capacity(400, 8, delta)) is (delta <= 1e-5)
    assert check_ins == PrivacyPlan(**given, cohort=50.0, sampler="check-ins", capacity=capacity, max_participations=1)
    assert rows["check-ins"].options == f"--population.sampler check-ins --cohort {capacity}"
    for name, cohort in (("poisson", 49.6), ("fixed", 50.0), ("check-ins", 50.0)):
        assert (rows[name].noise, rows[name].cohort, rows[name].refused) == (3.0, cohort, None)
        assert rows[name].error == pytest.approx(3.0 * math.sqrt(8))
        assert rows[name].per_message(8) == pytest.approx(3.0 * math.sqrt(8) / (8 * cohort))
    adjacency = {"fixed": "replace-one"}
    for name, row in rows.items():
        assert row.adjacency == adjacency.get(name, "add-remove")
        secret = {"cyclic", "poisson", "fixed"}
        words = "in secret" if name in secret else "its own round" if name == "check-ins" else "nothing secret"
        assert words in row.assumes
        assert (f"--population.sampler {name}" in row.options) is (name in {*secret, "check-ins"})


@pytest.mark.parametrize(
    ("rounds", "cohort", "most"), [(3, 10.0, 3), (40, 50.0, 8), (40, 200.0, 2), (2, 400.0, 1), (5, 390.0, 1)]
)
def test_groups_are_no_more_than_rounds_and_than_the_population_has(monkeypatch, rounds, cohort, most):
    """Each group has a cohort in it, and comes once at least."""
    plans = solved_from(monkeypatch)
    participations = math.ceil(cohort * rounds / 400)
    row = compare_noises._cyclic(replace(QUESTION, rounds=rounds, cohort=cohort, participations=participations))
    separations = [plan.correlation.separation for plan, _ in plans]
    assert separations[0] == min(4, most)
    assert max(separations) <= most
    assert int(row.options.split()[-1]) in separations
    for plan, _ in plans:
        assert (plan.sampler, plan.noise, plan.cohort, plan.rounds) == ("cyclic", "banded", cohort, rounds)
        assert len(plan.correlation.numbers) == plan.correlation.separation


def test_what_the_planner_refuses_is_a_row_that_says_so(monkeypatch):
    def refuse(plan, targets):
        raise RefusedPlan("not with this sampler" if plan.sampler == "fixed" else "no noise reaches it")

    monkeypatch.setattr(compare_noises, "calibrate", refuse)
    rows = {row.name: row for row in advise(QUESTION)}
    for name in ("cyclic", "poisson", "fixed", "check-ins"):
        row = rows[name]
        assert row.refused == ("not with this sampler" if name == "fixed" else "no noise reaches it")
        assert (row.noise, row.error, row.per_message(8)) == (None, None, math.inf)
    assert best(tuple(rows.values()), 8).name in {"toeplitz", "blt", "banded"}


@pytest.mark.parametrize("participations", [1, 2, 4, 8])
def test_clients_keep_as_far_apart_as_their_rounds_allow_and_messages_are_as_many_as_they_may_send(participations):
    given = {"clients": 400, "rounds": 9, "epsilon": 4.0, "delta": 1e-5, "participations": participations}
    most = 400 * participations / 9
    question = FederationFacts(**given, cohort=most)
    assert question.separation == 9 // participations
    with pytest.raises(InputError, match=rf"at most {400 * participations:,}; raise population.max_participations"):
        FederationFacts(**given, cohort=most * (1 + 1e-6))
    c = np.zeros(9)
    bands = min(question.separation, 33, 9)
    c[:bands] = fit_banded(9, bands, participations, question.separation)
    row = compare_noises._banded(question)
    moved = sensitivity(c, participations, question.separation)
    assert gaussian_epsilon(moved / row.noise, 1e-5) == pytest.approx(4.0, rel=1e-9)
    assert row.error == pytest.approx(row.noise * prefix_errors(c).last)
    words = ["--server.noise banded", f"--population.separation {question.separation}"]
    words.append(f"--population.max_participations {participations}")
    assert (row.cohort, row.options) == (most, " ".join(words))
