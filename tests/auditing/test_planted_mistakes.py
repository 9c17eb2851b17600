"""Each planted mistake is found by the audit, and the same part without it is not."""

import pytest

from tests.auditing.mistakes import FOUND

# The others take seconds each.
QUICK = (
    "the realised count as denominator",
    "the same noise for both attempts of a round",
    "a bound from raw norms",
)
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FOUND]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_found(name):
    plant, runs = FOUND[name]
    audited, promised = plant(runs)
    assert audited > promised


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_without_it_nothing_is_found(name):
    plant, runs = FOUND[name]
    audited, promised = plant(runs, honest=True)
    assert audited <= promised
