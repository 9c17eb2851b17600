"""What rounds are asked for: each number by itself, on its way to the plan, into the ledger and back."""

import itertools
import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

import dpfedmeta as dp
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.privacy.rounds import promise
from dpfedmeta.privacy.rounds.promise import RoundsRequest, promises_of

CLIENT = dp.Promise(epsilon=6.0, delta=1e-4)
RECORD = dp.Promise(unit="record", epsilon=3.0, delta=1e-7)
REQUEST = RoundsRequest(clients=400, cohort=40, rounds=3, promises=(CLIENT,))
OTHERS = {
    "clients": 401, "cohort": 41.5, "rounds": 4, "promises": (RECORD,), "sampler": "fixed", "noise": "blt",
    "separation": 2, "buffers": 5, "max_participations": 7, "clip": "words", "simulation": True,
}  # fmt: skip


def test_others_are_other_in_every_field():
    assert [field.name for field in fields(RoundsRequest)] == list(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_each_number_is_kept_in_words_and_missed_where_it_differs(name):
    other = replace(REQUEST, **{name: OTHERS[name]})
    assert REQUEST.difference(REQUEST) == ""
    assert REQUEST.difference(other) == other.difference(REQUEST) == name
    assert RoundsRequest.from_text(other.as_text(), "here") == other
    assert other.as_text() != REQUEST.as_text()


def test_of_several_differences_the_first_is_named():
    names = list(OTHERS)
    for first, second in itertools.pairwise(names):
        assert REQUEST.difference(replace(REQUEST, **{name: OTHERS[name] for name in (second, first)})) == first


@pytest.mark.parametrize("name", ["clients", "rounds", "separation", "buffers", "max_participations"])
def test_numbers_of_clients_and_rounds_are_whole_and_at_least_one(name):
    assert getattr(replace(REQUEST, **{name: 1}), name) == 1
    for wrong in (0, -1, 1.0, True, "1", None):
        if wrong is None and name not in ("clients", "rounds"):
            assert getattr(replace(REQUEST, **{name: None}), name) is None
        else:
            with pytest.raises(InputError, match=rf"{name} = {wrong!r}, expected a whole number"):
                replace(REQUEST, **{name: wrong})


def test_a_cohort_is_a_finite_number_above_0():
    for right in (5e-324, 0.5, 1, 1e300):
        assert replace(REQUEST, cohort=right).cohort == right
    for wrong in (0, -1.0, math.inf, math.nan, True, "3"):
        with pytest.raises(InputError, match="cohort = "):
            replace(REQUEST, cohort=wrong)


def test_promises_are_one_for_each_unit():
    replace(REQUEST, promises=(CLIENT, RECORD))
    for wrong, words in (((), "at least one"), ((CLIENT, RECORD, CLIENT), "one for each unit, got client, record, cl")):
        with pytest.raises(InputError, match=words):
            replace(REQUEST, promises=wrong)
    assert promises_of(CLIENT) == promises_of([CLIENT]) == (CLIENT,)
    whole = promises_of(dp.Promise(epsilon=6, delta=1e-4))
    assert type(whole[0].epsilon) is float
    with pytest.raises(InputError, match=r"expected dpfedmeta\.Promise"):
        promises_of([CLIENT, 3])


@pytest.mark.parametrize(("name", "most"), [("epsilon", math.inf), ("delta", 1.0)])
def test_what_is_promised_lies_within_its_range(name, most):
    usual = {"epsilon": 6.0, "delta": 1e-4}
    for right in (5e-324, math.nextafter(most, 0.0)):
        assert getattr(dp.Promise(**{**usual, name: right}), name) == right
    for wrong in (0.0, most, -1.0, math.nan, True, "1"):
        with pytest.raises(InputError, match=rf"^Promise: {name} = "):
            dp.Promise(**{**usual, name: wrong})


def test_nothing_is_promised_towards_a_server_that_sees_messages():
    for unit in ("client", "record"):
        with pytest.raises(RefusedPlan, match=rf"\({unit}, server\)"):
            dp.Promise(unit=unit, observer="server", epsilon=1.0, delta=1e-6)
    for wrong in ({"unit": "server"}, {"observer": "client"}):
        with pytest.raises(InputError, match="expected '"):
            dp.Promise(epsilon=1.0, delta=1e-6, **wrong)


# On the way to the plan.


@pytest.fixture
def solved(monkeypatch):
    """(the plan before its noise, the targets) of a request, and nothing computed."""

    def found(**changes):
        seen = []
        monkeypatch.setattr(promise, "calibrate", lambda plan, targets: seen.append((plan, targets)) or plan)
        monkeypatch.setattr(promise, "with_fitted_numbers", lambda plan: SimpleNamespace(fitted=plan))
        made: Any = replace(REQUEST, **changes)._solved()
        assert made.fitted is seen[0][0]
        return seen[0]

    return found


def test_each_promise_is_the_target_of_its_own_unit(solved):
    for promises, epsilons in (((CLIENT,), (6.0, None)), ((RECORD,), (None, 3.0)), ((RECORD, CLIENT), (6.0, 3.0))):
        plan, targets = solved(promises=promises)
        assert (targets.client_epsilon, targets.record_epsilon) == epsilons
        assert targets.record_observer == "public"
        due = {f"{each.unit}_delta": each.delta for each in promises}
        assert {name: getattr(plan, name) for name in due} == due


def test_each_number_is_the_plans(solved):
    plan, _ = solved(max_participations=2, sampler="poisson")
    assert (plan.clients, plan.cohort, plan.rounds, plan.max_participations) == (400, 40.0, 3, 2)
    assert (plan.sampler, plan.noise, plan.correlation, plan.capacity) == ("poisson", "independent", None, None)
    # Neither number is the default one (3 buffers).
    plan, _ = solved(noise="blt", separation=2, buffers=2, clients=403)
    assert (plan.noise, plan.correlation.separation, plan.correlation.buffers) == ("blt", 2, 2)
    # As far apart as the population allows: 400 clients in cohorts of 190, and not by the rounds, of which there are 3.
    assert solved(noise="toeplitz", cohort=190)[0].correlation.separation == 2
    assert solved(noise="toeplitz", cohort=40)[0].correlation.separation == 3


def test_check_ins_come_once_and_a_cohort_is_the_most_of_a_round(solved):
    for cap in (None, 1):
        plan, _ = solved(sampler="check-ins", cohort=250, max_participations=cap)
        assert (plan.cohort, plan.capacity, plan.max_participations) == (400 / 3, 250, 1)
    # What nobody can keep is not made into something else.
    with pytest.raises((InputError, RefusedPlan), match="max_participations"):
        solved(sampler="check-ins", cohort=250, max_participations=2)
    assert solved(sampler="poisson", max_participations=None)[0].max_participations is None


@pytest.mark.parametrize("name", ["separation", "buffers"])
def test_numbers_of_correlated_noise_are_for_no_other(solved, name):
    with pytest.raises(InputError, match=rf"^PrivateRounds: {name} is of use to correlated noise alone"):
        solved(**{name: 2})


def test_turns_need_their_number(solved):
    with pytest.raises(InputError, match="separation is missing"):
        solved(sampler="cyclic", noise="banded", buffers=1)
    with pytest.raises(InputError, match="a mechanism of your own"):
        replace(REQUEST, noise="module:Name")


def test_the_file_beside_a_ledger_says_what_was_asked_for_and_what_follows():
    content = promise.plan_of_rounds(REQUEST)
    assert set(content) == {"loop", "planned", "privacy", "phases"}
    asked = {field.name: getattr(REQUEST, field.name) for field in fields(RoundsRequest)}
    assert content["loop"] == asked | {
        "promises": [{"unit": "client", "observer": "public", "epsilon": 6.0, "delta": 1e-4}]
    }
    assert {name: content[name] for name in ("planned", "privacy", "phases")} == promise.plan_content(REQUEST.planned)
    assert content["planned"] == [each.as_json() for each in REQUEST.guarantees]
    assert sum(each["rounds"] for each in content["phases"]) == 3
