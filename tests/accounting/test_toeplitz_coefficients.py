"""Coefficients, sensitivities and errors of correlated noise, against matrices and all patterns of participation."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.linalg import toeplitz

from dpfedmeta.accounting.events.fit_toeplitz import _objective, fit_banded, fit_blt
from dpfedmeta.accounting.events.toeplitz_coefficients import (
    Blt,
    inverse,
    largest_row,
    most_participations,
    noise_deviations,
    optimal_toeplitz,
    prefix_errors,
    sensitivity,
)
from dpfedmeta.core.errors import RefusedPlan


def matrix(c):
    return toeplitz(c, np.zeros(len(c)))


def patterns(rounds, most, separation):
    for count in range(1, most + 1):
        for chosen in combinations(range(rounds), count):
            if all(b - a >= separation for a, b in pairwise(chosen)):
                yield list(chosen)


SOME = [
    optimal_toeplitz(9),
    Blt(decays=(0.9, 0.4), weights=(0.2, 0.3)).coefficients(9),
    np.array([1.0, 1.0, 0.5, 0.5, 0.1, 0, 0, 0, 0]),
]


@pytest.mark.parametrize("c", SOME)
@pytest.mark.parametrize(("most", "separation"), [(1, 1), (2, 3), (3, 2), (9, 4), (9, 1)])
def test_no_pattern_of_participations_moves_the_releases_further(c, most, separation):
    big = matrix(c)
    everything = [big[:, chosen].sum(axis=1) for chosen in patterns(len(c), most, separation)]
    assert sensitivity(c, most, separation) == pytest.approx(max(map(np.linalg.norm, everything)), rel=1e-12)
    assert largest_row(c, most, separation) == pytest.approx(max(moved.max() for moved in everything), rel=1e-12)


def test_contributions_of_any_direction_and_length_move_them_no_further():
    generator, c = np.random.default_rng(0), SOME[1]
    worst = sensitivity(c, 3, 2)
    for chosen in list(patterns(9, 3, 2))[::5]:
        x = np.zeros((9, 3))
        x[chosen] = generator.normal(size=(len(chosen), 3))
        x /= np.maximum(np.linalg.norm(x, axis=1), 1.0)[:, None]
        assert np.linalg.norm(matrix(c) @ x) <= worst


@pytest.mark.parametrize("c", [[1, 0.5, 0.6], [1, -0.1, -0.2], [0.9, 0.5], [1, 1.5], [1, math.nan], []])
def test_coefficients_that_increase_are_refused(c):
    with pytest.raises(RefusedPlan, match="correlated noise"):
        sensitivity(np.array(c, dtype=float), 2, 1)


def test_errors_are_those_of_the_matrices():
    c = optimal_toeplitz(12)
    noise = np.linalg.inv(matrix(c))
    assert inverse(c) == pytest.approx(noise[:, 0], abs=1e-14)
    assert noise_deviations(c) == pytest.approx(np.linalg.norm(noise, axis=1))
    rows = np.linalg.norm(np.cumsum(noise, axis=0), axis=1)
    assert prefix_errors(c).largest == pytest.approx(rows.max())
    assert prefix_errors(c).mean == pytest.approx(math.sqrt((rows**2).mean()))


def test_two_buffers_reach_the_known_error_and_three_the_optimum():
    two, three, best = fit_blt(266, 2).coefficients(266), fit_blt(266, 3).coefficients(266), optimal_toeplitz(266)

    def total(c):
        return sensitivity(c) * prefix_errors(c).last

    assert prefix_errors(two).last ** 2 <= 2.915
    assert sensitivity(two) ** 2 == pytest.approx(2.813, rel=1e-3)
    assert total(three) <= 1.001 * total(best)
    # Nothing of this kind is better than the optimum.
    assert total(best) <= min(total(two), total(three))


def test_a_fit_for_several_participations_is_better_than_the_one_for_a_single_one():
    rounds, most, separation = 60, 4, 15

    def total(c):
        return sensitivity(c, most, separation) * prefix_errors(c).largest

    banded = np.zeros(rounds)
    banded[:15] = fit_banded(rounds, 15, most, separation)
    blt = fit_blt(rounds, 3, most, separation).coefficients(rounds)
    assert total(banded) < total(blt) < total(optimal_toeplitz(rounds))


@pytest.mark.parametrize(
    ("decays", "weights"), [((1.0,), (0.1,)), ((0.5,), (1.1,)), ((0.5,), (-0.1,)), ((), ()), ((0.5, 0.4), (0.1,))]
)
def test_buffers_whose_coefficients_would_grow_are_refused(decays, weights):
    with pytest.raises(RefusedPlan, match="blt"):
        Blt(decays=decays, weights=weights)


def test_a_fit_of_no_or_too_many_buffers_or_bands_is_refused():
    for fit in (lambda: fit_blt(10, 0), lambda: fit_blt(10, 9), lambda: fit_banded(10, 11), lambda: fit_banded(10, 0)):
        with pytest.raises(RefusedPlan, match=r"takes 1 to|expected 1 to"):
            fit()


@pytest.mark.parametrize("objective", ["largest", "mean"])
@pytest.mark.parametrize(("most", "separation"), [(1, 1), (2, 4), (3, 3)])
def test_an_objective_is_error_times_sensitivity_and_its_gradient_the_slope(objective, most, separation):
    """By the matrices: each release's own sum for the mean, the last one's for the largest; slopes by differences."""
    c = SOME[1].copy()

    def by_matrices(c):
        noise = np.linalg.inv(matrix(c))
        rows = (np.cumsum(noise, axis=0) ** 2).sum(axis=1)
        error = rows[-1] if objective == "largest" else rows.mean()
        moved = sum(matrix(c)[:, start] for start in range(0, most * separation, separation))
        return math.log(error) + math.log(float(moved @ moved))

    found, slope = _objective(c, most, separation, objective)
    assert found == pytest.approx(by_matrices(c), rel=1e-10)
    for place in range(len(c)):
        step = np.zeros(len(c))
        step[place] = 1e-6
        assert slope[place] == pytest.approx((by_matrices(c + step) - by_matrices(c - step)) / 2e-6, rel=1e-5, abs=1e-8)


def test_a_fit_for_the_mean_error_has_a_smaller_mean_and_no_smaller_largest_one():
    rounds, bands = 24, 6
    totals = {}
    for objective in ("largest", "mean"):
        c = np.zeros(rounds)
        c[:bands] = fit_banded(rounds, bands, 2, 12, objective)
        errors, moved = prefix_errors(c), sensitivity(c, 2, 12)
        totals[objective] = (errors.largest * moved, errors.mean * moved)
    assert totals["largest"][0] < totals["mean"][0] * (1 - 1e-6)
    assert totals["mean"][1] < totals["largest"][1] * (1 - 1e-6)


def test_fitted_numbers_are_rounded_down_to_eight_digits_and_decays_fall():
    found = fit_blt(30, 3, 2, 15)
    assert list(found.decays) == sorted(found.decays, reverse=True)
    for number in (*found.decays, *found.weights):
        assert number == round(number, 8)
    assert math.fsum(found.weights) <= 1
    banded = fit_banded(30, 5, 2, 15)
    assert banded[0] == 1.0
    assert list(banded) == sorted(banded, reverse=True)
    assert fit_banded(30, 1) == (1.0,)
    assert len(fit_banded(7, 7)) == 7


@pytest.mark.parametrize("c", [[1, 0.5, 0.6], [1, 0.9, 0.5, 0.7, 0.8], [1, 0.5, -0.25], [1, 1.5, 2.0]])
def test_the_first_coefficient_that_is_wrong_is_named(c):
    values = np.array(c, dtype=float)
    grown = [k for k in range(1, len(c)) if c[k] > c[k - 1]]
    worst = grown[0] if grown else len(c) - 1
    with pytest.raises(RefusedPlan, match=rf"coefficient {worst} is {c[worst]:.6g} after {c[worst - 1]:.6g};"):
        sensitivity(values, 2, 1)


@pytest.mark.parametrize(
    ("rounds", "separation", "most", "expected"),
    [(9, 1, None, 9), (9, 2, None, 5), (9, 3, None, 3), (9, 4, None, 3), (9, 9, None, 1), (9, 20, None, 1),
     (9, 0, None, 9), (9, 2, 4, 4), (9, 2, 5, 5), (9, 2, 6, 5), (0, 3, 2, 0)],
)  # fmt: skip
def test_a_client_joins_as_often_as_the_distance_allows(rounds, separation, most, expected):
    assert most_participations(rounds, separation, most) == expected


def test_an_errors_last_is_the_last_rounds():
    c = SOME[2]
    rows = np.linalg.norm(np.cumsum(np.linalg.inv(matrix(c)), axis=0), axis=1)
    assert prefix_errors(c).last == pytest.approx(rows[-1])
    assert prefix_errors(c).largest == pytest.approx(rows.max())
    assert Blt(decays=(0.5,), weights=(1.0,)).coefficients(4).tolist() == [1.0, 1.0, 0.5, 0.25]
    assert len(Blt(decays=(0.5,), weights=(1.0,)).coefficients(1)) == len(optimal_toeplitz(1)) == 1
    with pytest.raises(RefusedPlan, match="takes 1 to 5"):
        fit_blt(10, 6)


def total_of(c, most, separation):
    return sensitivity(c, most, separation) * prefix_errors(c).largest


@pytest.mark.parametrize(("bands", "most", "separation"), [(2, 1, 1), (5, 3, 8), (8, 3, 8)])
def test_no_coefficients_beside_fitted_bands_are_better(bands, most, separation):
    """Each ratio a little smaller or larger, with all that follow: the slopes that were followed were right."""
    c = np.zeros(24)
    c[:bands] = fit_banded(24, bands, most, separation)
    least = total_of(c, most, separation)
    for place in range(1, bands):
        for factor in (0.99, 0.999, 1.001, 1.01):
            other = c.copy()
            other[place:] *= factor
            if other[place] <= other[place - 1]:
                assert total_of(other, most, separation) >= least * (1 - 1e-8)


@pytest.mark.parametrize(("buffers", "most", "separation"), [(1, 1, 1), (2, 1, 1), (2, 3, 8)])
def test_no_buffers_beside_the_fitted_ones_are_better(buffers, most, separation):
    found = fit_blt(24, buffers, most, separation)
    least = total_of(found.coefficients(24), most, separation)
    for place in range(buffers):
        for name in ("decays", "weights"):
            for factor in (0.99, 0.999, 1.001, 1.01):
                numbers = list(getattr(found, name))
                numbers[place] *= factor
                given = {"decays": found.decays, "weights": found.weights, name: tuple(numbers)}
                if max(given["decays"]) < 1 and math.fsum(given["weights"]) <= 1:
                    assert total_of(Blt(**given).coefficients(24), most, separation) >= least * (1 - 1e-7)
