import inspect
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.clip_policies import choices
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.clip_policies.median_policy import Median, NormHistogram
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound, QuantilePolicy
from dpfedmeta.privacy.clip_policies.window_literal_policy import WindowLiteral
from dpfedmeta.privacy.clip_policies.window_policy import Walk, Window, _significance, observe
from dpfedmeta.privacy.clip_policy import ATTACHED, attached_scale
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit

SOURCE = KeyedSource(3)


def release(value, bound, z, cohort, round_):
    query = Bounded[ClientUnit, dict](value={"g": value * cohort}, sensitivity=bound)
    mechanism = GaussianMechanism(total_multiplier=z, charged_multiplier=z, denominator=cohort)
    return mechanism.release(query, SOURCE.generator(Purpose.SERVER_NOISE, round_))


def simulate(policy, *, size, cohort, z, rounds, seed=0, consensus=0.3, modes=False):
    """Clients with log-normal gradient norms around 1 that share one direction in part; returns the bounds."""
    generator = np.random.default_rng(seed)
    state, bounds, seen = policy.initial(), [], []
    consensus = consensus if isinstance(consensus, list) else [consensus] * rounds
    direction = torch.zeros(size)
    direction[0] = 1.0
    for round_ in range(rounds):
        norms = np.exp(generator.normal(0.0, 0.4, cohort))
        clipped = np.minimum(norms, state.bound).mean()
        signal = direction * clipped * consensus[round_]
        state, bound = policy.next_bound(state, release(signal, state.bound, z, cohort, round_))
        bounds.append(bound)
        seen.append(state.mode)
    return (np.array(bounds), seen) if modes else np.array(bounds)


def test_a_constant_policy_stays():
    policy = Constant(initial_bound=0.3)
    state, bound = policy.next_bound(policy.initial(), release(torch.ones(3), 0.3, 1.0, 10, 0))
    assert bound == state.bound == 0.3


LARGE = [
    pytest.param(1_000_000, cohort, factor, marks=pytest.mark.slow)
    if (cohort, factor) not in ((200, 100.0), (5_000, 0.01))
    else (1_000_000, cohort, factor)
    for cohort in (200, 5_000)
    for factor in (0.01, 1.0, 100.0)
]


@pytest.mark.parametrize(
    ("size", "cohort", "factor"),
    [
        *((*case, factor) for case in ((1_000, 200), (1_000, 5_000), (30_000, 500)) for factor in (0.01, 1.0, 100.0)),
        *LARGE,
    ],
)
def test_the_window_policy_finds_the_knee_from_far_above_and_far_below(size, cohort, factor):
    rounds = 40 if size > 100_000 else 60
    bounds = simulate(Window(initial_bound=factor), size=size, cohort=cohort, z=0.7, rounds=rounds)
    centre = np.exp(np.log(bounds[-12:]).mean())
    assert 0.2 < centre < 3.0


def test_the_window_policy_neither_collapses_nor_explodes_over_a_long_run():
    bounds = simulate(Window(initial_bound=0.5), size=28_485, cohort=200, z=1.0, rounds=250)
    assert bounds[50:].min() > 0.1
    assert bounds[50:].max() < 10.0


def test_where_noise_always_hides_the_signal_the_bound_searches_and_then_holds_and_says_so():
    policy, probe = Window(initial_bound=1.0), Walk(lowest=1 / 300, highest=300.0).probe
    bounds, modes = simulate(policy, size=1_000_000, cohort=16, z=1.0, rounds=20, modes=True)
    assert bounds.min() >= 1 / 300 / probe * (1 - 1e-9)
    assert modes[5] == "searching"
    assert modes[-5:] == ["holding"] * 5
    assert bounds[-5:].max() <= probe / 300 * (1 + 1e-9)


def test_where_a_signal_disappears_the_bound_falls_and_comes_back_with_the_signal():
    policy = Window(initial_bound=1.0)
    strength = [0.3] * 20 + [0.0] * 30 + [0.3] * 40
    bounds, modes = simulate(policy, size=1_000, cohort=500, z=0.5, rounds=90, modes=True, consensus=strength)
    assert modes[19] == "following"
    assert modes[49] == "holding"
    assert bounds[49] < 0.01
    assert modes[-1] == "following"
    assert 0.2 < np.exp(np.log(bounds[-8:]).mean()) < 3.0


@pytest.mark.parametrize("length", [0.02, 0.5], ids=["mostly noise", "mostly signal"])
def test_the_known_noise_energy_is_subtracted_without_bias(length):
    signal = torch.zeros(10_000)
    signal[0] = length
    energies = [observe(1.0, release(signal, 1.0, 0.5, 200, r)) for r in range(300)]
    mean = np.mean([o.energy for o in energies])
    spread = np.std([o.energy for o in energies])
    assert mean == pytest.approx(length**2, abs=4 * spread / math.sqrt(300))
    assert spread == pytest.approx(np.mean([o.spread for o in energies]), rel=0.15)


def test_without_a_signal_the_window_s_significance_is_a_standard_normal_number():
    nothing, bounds = torch.zeros(2_000), (1.0, 30.0, 0.1, 3.0)
    seen = [observe(bounds[r % 4], release(nothing, bounds[r % 4], 0.5, 200, r)) for r in range(1600)]
    found = [_significance(tuple(seen[start : start + 4])) for start in range(0, len(seen), 4)]
    assert np.mean(found) == pytest.approx(0.0, abs=4 / math.sqrt(400))
    assert np.std(found) == pytest.approx(1.0, abs=4 / math.sqrt(800))


def test_the_window_remembers_as_many_releases_as_it_says():
    policy = Window(initial_bound=1.0, window=3)
    state = policy.initial()
    for round_ in range(6):
        bound = state.bound
        state, _ = policy.next_bound(state, release(torch.full((50,), 0.3), bound, 0.5, 200, round_))
        assert len(state.observations) == min(round_ + 1, 3)
        assert state.observations[-1].bound == bound


def test_the_next_bound_is_a_function_of_releases_alone():
    # Replay: the same releases give the same bounds, whatever the clients' data were.
    policy = Window(initial_bound=0.5)
    releases = [release(torch.randn(50, generator=torch.Generator().manual_seed(r)), 0.5, 1.0, 9, r) for r in range(9)]
    runs = []
    for _ in range(2):
        state, bounds = policy.initial(), []
        for aggregate in releases:
            state, bound = policy.next_bound(state, aggregate)
            bounds.append(bound)
        runs.append(bounds)
    assert runs[0] == runs[1]


def test_extreme_and_zero_aggregates_leave_the_bound_finite():
    policy = Window(initial_bound=1.0)
    state = policy.initial()
    for round_, scale in enumerate((0.0, 1e18, 0.0, 1e-18, 1e18)):
        state, bound = policy.next_bound(state, release(torch.full((10,), scale), state.bound, 1.0, 1, round_))
        assert 0 < bound < math.inf


def test_a_window_of_one_is_refused():
    with pytest.raises(InputError, match=r"clip\.window"):
        Window(initial_bound=1.0, window=1)


def simulate_counting(policy, *, cohort, z, rounds, size=100, median=1.0, seed=0):
    """Clients with log-normal norms and what the policy has them attach; returns the bounds."""
    generator = np.random.default_rng(seed)
    state, bounds = policy.initial(), []
    attachment = policy.attachment
    for round_ in range(rounds):
        norms = median * np.exp(generator.normal(0.0, 0.5, cohort))
        counts = np.sum([attachment.values(n, state.bound) for n in norms], axis=0)
        attached = torch.tensor(counts) * attachment.scale * state.bound
        sensitivity = state.bound * math.sqrt(1 + (attachment.scale * attachment.sensitivity) ** 2)
        query = Bounded[ClientUnit, dict](value={"g": torch.zeros(size), ATTACHED: attached}, sensitivity=sensitivity)
        mechanism = GaussianMechanism(total_multiplier=z, charged_multiplier=z, denominator=cohort)
        released = mechanism.release(query, SOURCE.generator(Purpose.SERVER_NOISE, round_))
        state, bound = policy.next_bound(state, released)
        bounds.append(bound)
    return np.array(bounds)


def quantile_policy(initial=1.0, gamma=0.5, rate=0.2, scale=None, limits=(1e-4, 1e4)):
    bit = BelowBound(scale=attached_scale(1.0, 20.0, 0.5) if scale is None else scale)
    return QuantilePolicy(
        initial_bound=initial, quantile=gamma, rate=rate, lowest=limits[0], highest=limits[1], attachment=bit
    )


@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("initial", [0.01, 100.0])
def test_the_quantile_policy_finds_its_quantile_from_both_sides(gamma, initial):
    from scipy import stats

    bounds = simulate_counting(quantile_policy(initial, gamma, rate=0.5), cohort=400, z=1.0, rounds=120)
    expected = math.exp(0.5 * stats.norm.ppf(gamma))
    assert np.exp(np.log(bounds[-30:]).mean()) == pytest.approx(expected, rel=0.15)


def test_counting_clipped_clients_instead_makes_the_bound_run_away():
    """Flower's adaptive wrapper: the update of Andrew et al. is for unclipped clients, its bits count clipped ones."""

    class Flipped(BelowBound):
        def values(self, norm, bound):
            return (-super().values(norm, bound)[0],)

    ours = quantile_policy(2.0)
    planted = replace(ours, attachment=Flipped(scale=ours.attachment.scale))
    assert 0.5 < simulate_counting(ours, cohort=400, z=1.0, rounds=80)[-1] < 2.0
    assert simulate_counting(planted, cohort=400, z=1.0, rounds=80)[-1] > 100.0


def test_the_joint_formula_of_andrew_et_al_holds_for_what_is_attached():
    z, count_noise, a = 0.8, 15.0, 0.5
    scale = attached_scale(z, count_noise, a)
    # One isotropic noise of multiplier z on the whole message, seen as two releases.
    sensitivity = math.sqrt(1 + (scale * a) ** 2)
    on_the_sum, on_the_counts = z * sensitivity, z * sensitivity / scale
    assert on_the_counts == pytest.approx(count_noise)
    assert (on_the_sum**-2 + (on_the_counts / a) ** -2) ** -0.5 == pytest.approx(z)
    with pytest.raises(RefusedPlan, match="count_noise"):
        attached_scale(2.0, 0.9, 0.5)


@pytest.mark.parametrize("median", [0.05, 1.0, 20.0])
def test_the_private_median_is_within_a_factor_of_two(median):
    histogram = NormHistogram.between(1 / 300, 300.0, scale=attached_scale(1.0, 20.0, 1.0))
    policy = Median(initial_bound=1.0, window=4, attachment=histogram)
    bounds = simulate_counting(policy, cohort=400, z=1.0, rounds=30, median=median)
    assert (bounds[5:] >= median / 2).all()
    assert (bounds[5:] <= 4 * median).all()
    assert histogram.values(1e9, 1.0)[-1] == 1.0
    assert sum(histogram.values(0.3, 1.0)) == 1.0


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("norm", [1e-4, 0.3, 5.0, 1e4])
def test_a_window_of_histograms_counts_as_many_as_there_are(window, norm):
    """Where all rounds say the same, the bound is the same from the first round on."""
    histogram = NormHistogram.between(1 / 300, 300.0, scale=0.05)
    policy, bounds = Median(initial_bound=1.0, window=window, attachment=histogram), []
    state = policy.initial()
    for _ in range(window + 3):
        counts = [value * histogram.scale * state.bound for value in histogram.values(norm, state.bound)]
        state, bound = policy.next_bound(state, SimpleNamespace(value={ATTACHED: counts}))
        bounds.append(bound)
    cell = next((edge for edge in histogram.edges if norm <= edge), histogram.edges[-1])
    assert bounds == [cell] * len(bounds)


def test_the_literal_rule_collapses_or_explodes_as_the_design_says():
    literal = WindowLiteral(initial_bound=0.5, window=3, percentile=90, lowest=0.5 / 300, highest=150.0)
    down = simulate(literal, size=28_485, cohort=200, z=1.0, rounds=31, consensus=0.1)
    assert down[-1] == pytest.approx(0.105, rel=0.5)
    assert (np.diff(down[3:]) <= 1e-3).mean() > 0.7
    up = simulate(replace(literal, initial_bound=0.5), size=1_000_000, cohort=200, z=1.0, rounds=31)
    assert up[-1] > 100.0
    assert up.max() <= 150.0


@pytest.mark.parametrize(("below", "end"), [(True, 0.25), (False, 4.0)])
def test_a_quantile_policy_stays_within_its_range(below, end):
    policy = QuantilePolicy(
        initial_bound=1.0, quantile=0.5, rate=0.9, lowest=0.25, highest=4.0, attachment=BelowBound(scale=1.0)
    )
    state = policy.initial()
    for _ in range(20):
        centred = 0.5 if below else -0.5
        state, bound = policy.next_bound(state, SimpleNamespace(value={ATTACHED: [centred * state.bound]}))
        assert 0.25 <= bound == state.bound <= 4.0
    assert bound == end


@pytest.mark.parametrize("policy", [name for name in choices.__all__ if name != "Named"])
def test_every_setting_of_a_choice_arrives_under_its_own_name(policy):
    other = {"initial": 2.0, "window": 5, "percentile": 80.0, "quantile": 0.25, "rate": 0.1, "count_noise": 7.0}
    other |= {"lowest": 1.0, "highest": 9.0}
    choice = getattr(choices, policy)
    given = {name: other[name] for name in inspect.signature(choice).parameters}
    settings = choice(**given)
    assert settings == replace(ClipSettings(policy=settings.policy), **given)
    assert settings.policy.replace("-", "") == policy.lower()
    assert choices.Named(settings.policy, **given) == settings
