"""What a round costs as sizes grow: its fit, and one point."""

import pytest

from benchmarks.scaling import GROWING, Point, exponent, measured


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_the_exponent_of_a_power_is_found(power):
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power, abs=1e-12)


def test_one_size_grows_at_a_time():
    for grows, points in GROWING.items():
        for other in {"numbers", "cohort", "clients"} - {grows}:
            assert len({getattr(point, other) for point in points}) == 1
        sizes = [getattr(point, grows) for point in points]
        assert sizes == sorted(set(sizes))


def test_a_point_times_the_rounds_that_it_was_asked_for():
    found = measured(Point(numbers=10, cohort=3, clients=50, rounds=2))
    assert found["seconds_per_round"] > 0.0
    assert found["seconds_to_first_round"] > found["seconds_per_round"]
    assert found["peak_memory_mb"] > 10.0
