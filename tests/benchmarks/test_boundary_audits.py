"""Right functions at the boundary are not refuted; the same functions with less noise are."""

import dataclasses

import pytest

from benchmarks import boundary_audits as bench

SUBJECTS = {subject.name: subject for subject in bench.right_functions()}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_row_of_a_right_function(name):
    # A delta as small as usual needs more runs to show anything.
    row = bench.measured(SUBJECTS[name], 2, 1600 if SUBJECTS[name].delta == 1e-5 else 400)
    assert row["confirmed_alarms"] == 0
    assert 0.0 <= row["median"] <= row["largest"]
    assert row["epsilon"] == SUBJECTS[name].epsilon > 0.9


@pytest.mark.parametrize("function", [bench._gaussian(0.3), bench._window(0.4)])
def test_less_noise_than_stated_is_refuted(function):
    rounds = 1 if function.__qualname__.startswith("_gaussian") else 4
    subject = next(each for each in SUBJECTS.values() if each.delta == bench.DELTA and each.rounds == rounds)
    row = bench.measured(dataclasses.replace(subject, function=function), 1, 400)
    assert (row["first_alarms"], row["confirmed_alarms"]) == (1, 1)
