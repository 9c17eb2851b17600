"""Counts above a threshold: which of several names come out, with whose noise."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from dpfedmeta.accounting.events.noise_cost import ThresholdedNoise
from dpfedmeta.privacy import thresholded_counts
from dpfedmeta.privacy.thresholded_counts import Threshold


def threshold(multiplier=2.0, missed=1e-6, names=3, alone=4e-7):
    return Threshold(noise=ThresholdedNoise(multiplier=multiplier, missed=missed), names=names, alone=alone)


@pytest.mark.parametrize("multiplier", [0.6, 2.0, 7.5])
@pytest.mark.parametrize("names", [1, 3, 20])
@pytest.mark.parametrize("alone", [1e-9, 4e-7])
def test_a_name_that_one_client_alone_says_is_rare_enough_and_no_lower_threshold_has_that(multiplier, names, alone):
    """A count of 1 with its noise, rounded, is w or more where the noise is w - 1.5 or more: names times that."""
    found = threshold(multiplier, names=names, alone=alone)
    assert found.deviation == multiplier * math.sqrt(names)
    reached = [names * norm.sf(lowest - 1.5, scale=found.deviation) for lowest in (found.lowest, found.lowest - 1)]
    assert reached[0] <= alone
    assert reached[1] > alone or found.lowest == 2


def test_names_have_a_share_of_what_may_be_missed():
    for alone in (5e-324, 1e-6):
        assert threshold(alone=alone).alone == alone
    for wrong in (0.0, -1e-9, math.nextafter(1e-6, 1), math.nan):
        with pytest.raises(ValueError, match=r"expected above 0 and no more than the plan's 1e-06"):
            threshold(alone=wrong)


@pytest.fixture
def drawn(monkeypatch):
    """Noise that is chosen, in deviations, and what it was keyed by."""
    chosen = SimpleNamespace(noise=[], keyed=[])

    def for_message(generator, message):
        chosen.keyed.append(b"|".join(message()))
        return SimpleNamespace(normal=lambda size: np.array(chosen.noise[:size]))

    monkeypatch.setattr(thresholded_counts, "for_message", for_message)
    return chosen


def test_each_name_has_its_own_noise_and_comes_out_from_the_threshold_on(drawn):
    own = threshold()
    least, deviation = own.lowest, own.deviation
    # In the order of the names: noise of 0.4, -0.4, 0.6 and -30 counts.
    drawn.noise = [each / deviation for each in (0.4, -0.4, 0.6, -30.0)]
    released = own.release({"d": least + 30, "b": least - 1, "a": least, "c": least - 1}, None)
    assert released.value == {"a": least, "c": least, "d": least}
    assert list(released.value) == ["a", "c", "d"]
    assert all(type(count) is int for count in released.value.values())
    assert released.noises == (own.noise,)
    assert released.noise_deviation == deviation


def test_noise_follows_from_the_counts_and_from_the_names(drawn):
    drawn.noise = [0.0] * 4
    for counts in ({"a": 3, "b": 4}, {"a": 4, "b": 3}, {"a": 3, "c": 4}, {"b": 4, "a": 3}):
        threshold().release(counts, None)
    assert drawn.keyed[0] == drawn.keyed[3]
    assert len(set(drawn.keyed)) == 3


def test_nobody_said_anything(drawn):
    assert threshold().release({}, None).value == {}
