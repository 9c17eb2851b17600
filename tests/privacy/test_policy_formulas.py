"""Policies that are a formula: their next bound by hand, and each setting in its own place of it."""

import math

import numpy as np
import pytest

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policies.median_policy import Median, MedianState, NormHistogram
from dpfedmeta.privacy.clip_policies.policy_checks import planned_policy
from dpfedmeta.privacy.clip_policies.quantile_policy import QuantileState
from dpfedmeta.privacy.clip_policies.window_literal_policy import LiteralState
from dpfedmeta.privacy.clip_policy import ATTACHED, Surroundings, attached_scale, clip_limits
from dpfedmeta.privacy.mechanisms import post_process

AROUND = Surroundings(algo="dp-agr", rounds=20, cohort=300.0, noise=1.5, exact=True)
SETTINGS = {
    "initial": 0.7, "window": 3, "percentile": 25.0, "quantile": 0.3, "rate": 0.45, "count_noise": 5.0, "lowest": 0.2,
    "highest": 2.5,
}  # fmt: skip


def policy_of(name, **changes):
    return planned_policy(ClipSettings(policy=name, **{**SETTINGS, **changes}), AROUND)


def released(length=1.0, attached=None):
    value = {"w": np.array([0.6 * length, 0.8 * length])}
    return post_process(lambda: value if attached is None else {**value, ATTACHED: np.array(attached)}, (), 0.5)


def test_the_literal_rule_is_the_percentile_of_the_last_norms_within_its_limits():
    policy = policy_of("window-literal")
    state = policy.initial()
    assert state == LiteralState(bound=0.7)
    norms = []
    for length in (1.0, 2.0, 0.5, 1.75, 9.0, 11.0, 8.0, 0.1, 0.05, 0.04):
        state, bound = policy.next_bound(state, released(length))
        norms = [*norms, length][-3:]
        assert state.norms == pytest.approx(tuple(norms))
        due = 0.7 if len(norms) < 3 else min(max(float(np.percentile(norms, 25.0)), 0.2), 2.5)
        assert bound == state.bound == pytest.approx(due)
    assert bound == 0.2


@pytest.mark.parametrize("bound", [0.7, 1.6])
@pytest.mark.parametrize("share", [-0.4, 0.0, 0.15, 0.5])
def test_the_quantile_rule_is_one_step_by_the_share_of_unclipped_clients(bound, share):
    policy = policy_of("quantile")
    assert policy.initial() == QuantileState(bound=0.7)
    scale = policy.attachment.scale
    assert scale == attached_scale(1.5, 5.0, 0.5)
    # The released number is s C times the mean of bits around 0.
    state, found = policy.next_bound(QuantileState(bound=bound), released(attached=[share * scale * bound]))
    due = bound * math.exp(-0.45 * (share + 0.5 - 0.3))
    assert found == state.bound == pytest.approx(min(max(due, 0.2), 2.5))
    for start, centred, end in ((0.2, 0.5, 0.2), (2.5, -0.5, 2.5)):
        assert policy.next_bound(QuantileState(bound=start), released(attached=[centred * scale * start]))[1] == end


def test_a_histogram_has_a_cell_for_each_factor_of_two():
    cells = NormHistogram.between(0.2, 2.5, scale=0.3)
    # log2(12.5) = 3.6: four steps.
    assert cells.edges == pytest.approx([0.2 * 12.5 ** (i / 4) for i in range(5)])
    assert cells.size == 6
    assert NormHistogram.between(0.5, 2.0, scale=0.3).edges == pytest.approx([0.5, 1.0, 2.0])
    assert NormHistogram.between(1.0, 1.5, scale=0.3).edges == pytest.approx([1.0, 1.5])
    for norm, cell in ((0.0, 0), (0.2, 0), (math.nextafter(0.2, 1), 1), (cells.edges[-1], 4), (9.0, 5), (math.inf, 5)):
        assert list(cells.values(norm, 99.0)) == [1.0 if i == cell else 0.0 for i in range(6)]


def median(window=3):
    policy = policy_of("median", window=window)
    assert (policy.initial_bound, policy.window, policy.attachment.scale) == (
        0.7,
        window,
        attached_scale(1.5, 5.0, 1.0),
    )
    assert policy.attachment.edges == pytest.approx([0.2 * 12.5 ** (i / 4) for i in range(5)])
    assert policy.initial() == MedianState(bound=0.7)
    return policy


@pytest.mark.parametrize(
    ("histogram", "edge"),
    [
        ((0.5, 0, 0, 0, 0, 0), 0), ((0.499, 0, 0.001, 0, 0, 0), 2), ((0.1, 0.2, 0.3, 0.4, 0, 0), 2),
        ((0, 0, 0, 0, 0.6, 0.4), 4), ((0, 0, 0, 0, 0.4, 0.6), 4), ((0, 0.7, -0.3, 0.2, 0.1, 0), 1),
    ],
)  # fmt: skip
def test_the_median_is_the_first_edge_that_half_of_the_cohort_lies_below(histogram, edge):
    policy = median()
    scale = policy.attachment.scale * 1.3
    attached = [share * scale for share in histogram]
    state, bound = policy.next_bound(MedianState(bound=1.3), released(attached=attached))
    assert bound == state.bound == policy.attachment.edges[edge]
    assert state.shares == (pytest.approx(histogram),)


def test_the_median_is_over_the_last_rounds_each_by_its_own_bound():
    policy, cells = median(window=2), 6
    state, kept = policy.initial(), []
    for cell in (0, 4, 4, 2, 2):
        shares = [0.9 if i == cell else 0.02 for i in range(cells)]
        scale = policy.attachment.scale * state.bound
        state, bound = policy.next_bound(state, released(attached=[share * scale for share in shares]))
        kept = [*kept, shares][-2:]
        mean = np.cumsum(np.mean(kept, axis=0))
        assert state.shares == tuple(pytest.approx(tuple(each)) for each in kept)
        assert bound == policy.attachment.edges[min(int(np.argmax(mean >= 0.5)), 4)]


def test_limits_are_the_settings_or_three_hundred_times_c_0():
    assert clip_limits(ClipSettings(**SETTINGS)) == (0.2, 2.5)
    assert clip_limits(ClipSettings(initial=0.6)) == (pytest.approx(0.002), pytest.approx(180.0))
    assert clip_limits(ClipSettings(initial=0.6, lowest=0.5))[1] == pytest.approx(180.0)
    assert clip_limits(ClipSettings(initial=0.6, highest=0.7))[0] == pytest.approx(0.002)


def test_named_policies_have_their_settings_too():
    assert isinstance(policy_of("median"), Median)
    for name in ("window", "window-products"):
        own = policy_of(name)
        assert (own.initial_bound, own.window, own.walk.lowest, own.walk.highest) == (0.7, 3, 0.2, 2.5)
    assert policy_of("constant").initial().bound == 0.7
    assert policy_of("none").initial().bound == math.inf
