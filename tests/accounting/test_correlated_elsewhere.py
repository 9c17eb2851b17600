"""Sensitivities, errors and fits once more, by somebody else: jax-privacy 2.0.0, where it is installed."""

import numpy as np
import pytest

from dpfedmeta.accounting.events.fit_toeplitz import fit_banded, fit_blt
from dpfedmeta.accounting.events.toeplitz_coefficients import inverse, optimal_toeplitz, prefix_errors, sensitivity

# Hundreds of megabytes with JAX: pip install jax-privacy==2.0.0 in an environment of one's own.
jax = pytest.importorskip("jax", reason="jax is not installed")
toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz", reason="jax-privacy is not installed")
buffered = pytest.importorskip("jax_privacy.matrix_factorization.buffered_toeplitz")


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("rounds", "most", "separation"), [(266, 1, 1), (250, 8, 33), (60, 4, 15), (60, 2, 15)])
def test_sensitivity_inverse_and_errors(rounds, most, separation):
    for c in (optimal_toeplitz(rounds), fit_blt(rounds, 2, most, separation).coefficients(rounds)):
        theirs = float(toeplitz.minsep_sensitivity_squared(c, min_sep=separation, max_participations=most, n=rounds))
        assert sensitivity(c, most, separation) ** 2 == pytest.approx(theirs, rel=1e-9)
        assert inverse(c) == pytest.approx(np.asarray(toeplitz.inverse_coef(c)), abs=1e-9)
        squared = np.asarray(toeplitz.per_query_error(strategy_coef=c, n=rounds))
        assert prefix_errors(c).largest ** 2 == pytest.approx(float(squared.max()), rel=1e-9)
        assert prefix_errors(c).mean ** 2 == pytest.approx(float(squared.mean()), rel=1e-9)


def test_the_optimum_is_theirs():
    assert optimal_toeplitz(266) == pytest.approx(np.asarray(toeplitz.optimal_max_error_strategy_coefs(266)), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "most", "separation"), [(266, 1, 1), (100, 4, 25)])
def test_a_fit_is_no_worse_than_theirs(rounds, most, separation):
    theirs = buffered.optimize(
        n=rounds, min_sep=separation, max_participations=most, error="max", min_buffers=2, max_buffers=2
    )
    c = np.asarray(theirs.toeplitz_coefs(rounds), dtype=float)
    ours = fit_blt(rounds, 2, most, separation).coefficients(rounds)

    def total(c):
        return sensitivity(c, most, separation) * prefix_errors(c).largest

    assert total(ours) <= 1.001 * total(c / c[0])


@pytest.mark.slow
def test_banded_coefficients_are_no_worse_than_theirs():
    rounds, bands, most = 60, 15, 4
    theirs = np.zeros(rounds)
    found = np.asarray(toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands), dtype=float)
    theirs[:bands] = found / found[0]
    ours = np.zeros(rounds)
    ours[:bands] = fit_banded(rounds, bands, most, 15, "mean")
    # Theirs need not fall from band to band; with as many bands as rounds apart that does not matter.
    assert (
        np.sqrt(most) * np.linalg.norm(ours) * prefix_errors(ours).mean
        <= 1.002 * np.sqrt(most) * np.linalg.norm(theirs) * prefix_errors(theirs).mean
    )
