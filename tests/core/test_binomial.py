"""Binomial probabilities are those of scipy.stats, bit for bit."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from dpfedmeta.core.random import binomial

TRIALS = (1, 2, 7, 60, 266, 5000, 100_000)
RATES = (1e-9, 7.5e-4, 0.01, 0.3, 0.5, 0.97, 1.0)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("rate", RATES)
def test_probabilities_are_those_of_scipy(trials, rate):
    counts = np.unique(np.linspace(0, trials, 300).astype(np.int64))
    assert np.array_equal(binomial.pmf(counts, trials, rate), binom.pmf(counts, trials, rate))
    assert np.array_equal(binomial.sf(counts, trials, rate), binom.sf(counts, trials, rate))


@pytest.mark.parametrize("trials", [0, *TRIALS])
@pytest.mark.parametrize("rate", [0.0, *RATES[1:]])
def test_draws_by_inversion_are_those_of_scipy(trials, rate):
    for uniform in (0.0, 2.0**-53, 1e-9, 0.3, 0.999, 1 - 2.0**-53):
        # scipy.stats says -1 at 0.
        assert max(0, binomial.ppf(uniform, trials, rate)) == max(0, binom.ppf(uniform, trials, rate))


def test_without_the_functions_scipy_itself_is_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special._ufuncs", SimpleNamespace())
    monkeypatch.delitem(vars(binomial), "sf", raising=False)
    assert binomial.sf == binom.sf
    monkeypatch.delitem(vars(binomial), "sf")


@pytest.mark.parametrize("name", ["rvs", "_binom_sf", "__path__", "__wrapped__"])
def test_it_has_no_other_names(name):
    assert not hasattr(binomial, name)
