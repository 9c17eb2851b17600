import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from dpfedmeta.accounting.divergences import discrete_gaussian_cost
from dpfedmeta.accounting.divergences.discrete_gaussian_cost import (
    Coordinates,
    _moments,
    blended,
    delta_of_discrete,
    epsilon_of_discrete,
    log_ratio,
    pointwise,
    released_coordinates,
    summed_coordinates,
)
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds


def exact_log_ratio(x, variance):
    """By 50 digits: rounded N(0, variance - 1/12) against the discrete Gaussian."""
    with mpmath.workdps(50):
        own = mpmath.mpf(variance)
        root = mpmath.sqrt(own - mpmath.mpf(1) / 12)
        half = mpmath.mpf(1) / 2
        rounded = mpmath.ncdf((half - x) / root) - mpmath.ncdf((-half - x) / root)
        total = mpmath.sqrt(2 * mpmath.pi * own) * (1 + 2 * mpmath.exp(-2 * mpmath.pi**2 * own))
        return float(mpmath.log(rounded / (mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * own)) / total)))


@pytest.mark.parametrize("deviation", [1.5, 5.0, 20.0, 300.0])
def test_the_log_ratio_is_right_to_the_slack(deviation):
    places = np.unique(np.round(np.array([0, 1, 3, 7, 10]) * deviation))
    found = pointwise(places, deviation**2)
    exact = [exact_log_ratio(int(place), deviation**2) for place in places]
    assert np.abs(found - exact).max() < 2e-14


# Ten deviations out (../shared/design/trust-free-server.md, section 3).
@pytest.mark.parametrize(("deviation", "known"), [(20, 2.03e-5), (60, 2.52e-7), (240, 9.84e-10), (981, 3.53e-12)])
def test_known_log_ratios(deviation, known):
    (found,) = pointwise(np.array([10.0 * deviation]), deviation**2)
    assert abs(found) == pytest.approx(known, rel=3e-3)
    leading = (1e4 - 600 + 3) / (2880 * deviation**4)
    assert abs(found) == pytest.approx(leading, rel=30 / deviation**2)


def masses(variance, reach=60):
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values**2) / (2 * variance))
    return values, weights / weights.sum()


@pytest.mark.parametrize(("deviation", "count"), [(3.0, 400), (6.0, 4000)])
def test_the_sum_of_log_ratios_stays_below_its_bound(deviation, count):
    """Under the discrete law, by drawing it; its mean alone, the divergence, is passed at once."""
    values, mass = masses(deviation**2)
    ratios = pointwise(np.abs(values).astype(float), deviation**2)
    drawn = -(np.random.default_rng(0).multinomial(count, mass, size=4000) @ ratios)
    bound = log_ratio(Coordinates(count=count, variance=deviation**2, blended=0.0), 1e-6)
    # Far below what all coordinates together could say at worst.
    assert drawn.max() < bound < 0.1 * count * np.abs(ratios[np.abs(values) < 7 * deviation]).max()
    assert np.quantile(drawn, 0.999) > -count * (ratios @ mass) > 0


def test_shares_blend_as_closely_as_is_said():
    for variance, shares in ((2.25, 2), (2.25, 3), (1.0, 4)):
        _, mass = masses(variance, 80)
        total = mass
        for _ in range(shares - 1):
            total = np.convolve(total, mass)
        _, one = masses(variance * shares, 80 * shares)
        near = np.abs(np.arange(-80 * shares, 80 * shares + 1)) < 6 * math.sqrt(variance * shares)
        assert np.abs(np.log(total[near] / one[near])).max() <= blended(variance, shares, 0.0) + 1e-12
    assert blended(0.2, 10, 0.0) == math.inf
    assert blended(4.0, 10, 4.0) > blended(4.0, 10, 0.0)


@pytest.mark.parametrize(("deviation", "shift"), [(5.0, 5), (2.0, 3)])
def test_one_release_against_its_exact_divergence(deviation, shift):
    """The promised delta covers the exact one, and epsilon is no more than a few percent too large."""
    variance, mu = deviation**2, shift / math.sqrt(deviation**2 - 1 / 12)
    own = [Coordinates(count=1.0, variance=variance, blended=0.0)]

    def at(delta):
        return gaussian_epsilon(mu, delta)

    epsilon = epsilon_of_discrete(at, 1e-4, at(1e-4), own)
    _, mass = masses(variance, 200)
    moved = np.roll(mass, shift)
    exact = np.maximum(mass - math.exp(epsilon) * moved, 0).sum()
    assert exact <= 1e-4
    assert gaussian_delta(epsilon / 1.2, mu) > 1e-4


def test_without_the_change_of_measure_too_much_would_be_promised():
    """At a deviation of 1 the two laws differ visibly: the bound has to say so."""
    own = [Coordinates(count=10_000.0, variance=1.0, blended=0.0)]
    assert epsilon_of_discrete(lambda delta: gaussian_epsilon(0.1, delta), 1e-6, 1.0, own) > 2 * gaussian_epsilon(
        0.1, 1e-6
    )
    blends = [Coordinates(count=10.0, variance=400.0, blended=math.inf)]
    assert epsilon_of_discrete(lambda delta: 1.0, 1e-6, 1.0, blends) == math.inf


@pytest.mark.parametrize(("deviation", "shift"), [(5.0, 5), (2.0, 3)])
@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_delta_of_one_release_covers_its_exact_one(deviation, shift, epsilon):
    variance, mu = deviation**2, shift / math.sqrt(deviation**2 - 1 / 12)
    own = [Coordinates(count=1.0, variance=variance, blended=0.0)]
    found = delta_of_discrete(lambda at: float(gaussian_delta(at, mu)), epsilon, own)
    _, mass = masses(variance, 200)
    exact = np.maximum(mass - math.exp(epsilon) * np.roll(mass, shift), 0).sum()
    assert exact <= found <= 1.0
    assert found <= 10.0 * exact


def test_delta_is_1_where_the_two_laws_alone_differ_by_more_than_epsilon():
    own = [Coordinates(count=3.0, variance=1e12, blended=0.1)]
    assert delta_of_discrete(lambda at: math.exp(-at), 0.59, own) == 1.0
    assert delta_of_discrete(lambda at: math.exp(-at), 5.0, own) == pytest.approx(math.exp(0.3 - 4.4), rel=1e-6)
    for epsilon in (math.inf, math.nan):
        assert delta_of_discrete(lambda at: 0.0, epsilon, own) == 1.0


def test_a_change_of_measure_is_paid_at_both_ends_and_off_delta():
    """Noise so fine that nothing is left but the blending of shares: a = 0.1 times the coordinates."""
    own = [Coordinates(count=3.0, variance=1e12, blended=0.1)]
    found = epsilon_of_discrete(lambda delta: -math.log(delta), 1e-5, 12.0, own)
    assert found == pytest.approx(-math.log(1e-5) + 0.3 + 2 * 0.3, abs=1e-4)


@pytest.mark.parametrize("shift", [1, 2])
def test_pairs_of_laws_that_differ_as_much_as_is_allowed(shift):
    """Laws P with epsilon and delta known, Q = P times e^a or e^-a: the bound for Q covers its exact divergence."""
    values, mass = masses(4.0, 40)
    tilted = mass * np.exp(0.05 * np.where(values % 2, 1.0, -1.0))
    a = float(np.abs(np.log(tilted / tilted.sum() / mass)).max())

    def divergence(law, epsilon):
        return float(np.maximum(law - math.exp(epsilon) * np.roll(law, shift), 0).sum())

    def of_the_first(delta):
        grid = np.linspace(0, 6, 2401)
        return float(next(epsilon for epsilon in grid if divergence(mass, epsilon) <= delta))

    own = [Coordinates(count=1.0, variance=1e12, blended=a)]
    epsilon = epsilon_of_discrete(of_the_first, 1e-3, of_the_first(1e-3), own)
    assert divergence(tilted / tilted.sum(), epsilon) <= 1e-3
    # Paid once only, it would not be covered where the tilt is against the shift.
    if shift == 1:
        assert divergence(tilted / tilted.sum(), epsilon - 2 * a) > 1e-3


@pytest.mark.parametrize("deviation", [2.0, 8.0, 60.0])
@pytest.mark.parametrize("beta", [1e-6, 1e-12])
def test_what_lies_far_out_and_what_adds_up_have_half_of_the_probability_each(deviation, beta):
    count, variance = 1e5, deviation**2
    reach = math.sqrt(2 * math.log(4 * count / beta)) + 1 / deviation
    # Of each coordinate, by either law; the half that rounding moves is inside.
    assert count * 2 * math.exp(-((reach - 1 / deviation) ** 2) / 2) <= beta / 2 * (1 + 1e-12)
    largest, second = _moments(variance, reach)
    tail = 2 * math.exp(-((reach - 1 / deviation) ** 2) / 2)
    mean = math.exp(largest) * second / 2 + tail
    found = log_ratio(Coordinates(count=count, variance=variance, blended=0.0), beta)
    # Else the largest ratio of each would be the smaller bound.
    assert found < count * largest
    beyond = found - count * mean
    # Each ratio lies within its largest of its mean, so it moves by twice that at most.
    bernstein = math.exp(-(beyond**2) / 2 / (count * math.exp(largest) * second + 2 * largest * beyond / 3))
    assert bernstein <= beta / 2 * (1 + 1e-6)


@pytest.mark.parametrize("coordinates_of", [released_coordinates, summed_coordinates])
def test_every_round_of_every_phase_shows_all_of_its_coordinates(coordinates_of):
    """Rounds in two phases, in one, or one by one are the same rounds."""
    plan = PrivacyPlan(
        clients=100, cohort=50.0, rounds=6, noise_multiplier=3.0, sampler="fixed", server_sees="sum",
        secure=SecureRounds(bits=20, dimension=64),
    )  # fmt: skip
    (phase,) = plan.phases
    (together,) = coordinates_of(plan.phases)
    assert together.count == 6 * phase.event.whole.dimension
    for split in ([1, 5], [2, 2, 2], [1] * 6):
        found = coordinates_of([replace(phase, rounds=rounds) for rounds in split])
        assert [each.count for each in found] == [rounds * phase.event.whole.dimension for rounds in split]
        assert {(each.variance, each.blended) for each in found} == {(together.variance, together.blended)}


def test_known_epsilon_at_sixteen_bits():
    """L = 1500, T = 266, z = 1, d = 32,768: 0.475 with Gaussian noise, and next to nothing more."""
    plan = PrivacyPlan(
        clients=400_000,
        cohort=1500,
        rounds=266,
        noise_multiplier=1.0,
        server_sees="sum",
        secure=SecureRounds(bits=16, dimension=32_768),
    )
    public, server, of_record, _ = guarantees(plan)
    assert 0.474 < public.epsilon <= 0.49
    assert server.adjacency == "replace-one"
    assert math.isfinite(server.epsilon)
    assert of_record.epsilon <= server.epsilon


LAWS = [
    Coordinates(count=512.0, variance=60.0, blended=1e-9),
    Coordinates(count=64.0, variance=400.0, blended=0.0),
    Coordinates(count=7.0, variance=130.0, blended=1e-6),
]


@pytest.mark.parametrize("laws", [LAWS[:1], LAWS[:2], LAWS], ids=len)
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_the_tails_of_all_laws_together_are_within_their_share_of_delta(laws, delta, monkeypatch):
    """Each law takes its part, both from delta and times e to epsilon; what is left is asked for, less by e^-a."""
    betas, asked = [], []
    plain = discrete_gaussian_cost.log_ratio

    def noted(own, beta):
        betas.append(beta)
        return plain(own, beta)

    def at(left):
        asked.append(left)
        return gaussian_epsilon(0.7, left)

    monkeypatch.setattr(discrete_gaussian_cost, "log_ratio", noted)
    guess = gaussian_epsilon(0.7, delta)
    epsilon = epsilon_of_discrete(at, delta, guess, laws)
    betas = betas[-len(laws) :]
    assert len({*betas}) == 1
    a = sum(plain(own, betas[0]) for own in laws)
    assert a > sum(own.count * own.blended for own in laws)
    assert epsilon == pytest.approx(gaussian_epsilon(0.7, asked[-1]) + 2 * a, rel=1e-12)
    # (epsilon, delta) with P is (epsilon + 2a, e^a delta + beta_Q + e^(epsilon + a) beta_P) with Q; beta of all laws.
    tails = sum(betas)
    promised = math.exp(a) * asked[-1] + tails + math.exp(epsilon - a) * tails
    assert promised <= delta
    assert promised >= 0.999 * delta


def test_more_laws_take_smaller_tails_each(monkeypatch):
    betas = []
    monkeypatch.setattr(discrete_gaussian_cost, "log_ratio", lambda own, beta: betas.append(beta) or 0.0)
    for laws in (LAWS[:1], LAWS):
        epsilon_of_discrete(lambda delta: 1.0, 1e-6, 1.0, laws)
    assert betas[1:] == pytest.approx([betas[0] / 3] * 3, rel=1e-12)


def test_where_nothing_can_be_said_nothing_is_promised():
    for epsilon_at, guess in ((lambda left: math.inf, 1.0), (lambda left: 1.0, math.inf), (lambda left: 1e4, 1.0)):
        assert epsilon_of_discrete(epsilon_at, 1e-6, guess, LAWS) == math.inf
    # Without such noise it is the other bound, at all of delta.
    assert epsilon_of_discrete(lambda left: left * 3e6, 1e-6, math.inf, []) == 3.0


def test_a_larger_epsilon_than_was_guessed_is_looked_for_with_smaller_tails():
    """In three steps; beyond them nothing is promised."""
    found = [
        epsilon_of_discrete(lambda left, e=epsilon: e, 1e-6, 1.0, LAWS) - epsilon for epsilon in (2.5, 15.0, 150.0)
    ]
    assert 0 < found[0] < found[1] < found[2] < 100
    assert epsilon_of_discrete(lambda left: 400.0, 1e-6, 1.0, LAWS) == math.inf


@pytest.mark.parametrize("shares", [0.25, 0.3, 2.25])
@pytest.mark.parametrize("clients", [0, 1, 2, 5])
@pytest.mark.parametrize("own", [0.0, 4.0])
def test_shares_blend_one_after_the_other_and_the_servers_last(shares, clients, own):
    total, apart = 0.0, shares
    for _ in range(1, clients):
        # A share of variance s and a sum of j of them.
        total += 5 * math.exp(-2 * math.pi**2 / (1 / shares + 1 / apart))
        apart += shares
    if own:
        total += 5 * math.exp(-2 * math.pi**2 / (1 / shares + 1 / own))
    assert blended(shares, clients, own) == pytest.approx(total, rel=1e-12)
    assert blended(0.2499, clients, own) == math.inf


def test_no_coordinates_have_no_ratio_and_such_as_do_not_blend_an_infinite_one():
    assert log_ratio(replace(LAWS[0], count=0.0), 1e-9) == 0.0
    assert log_ratio(replace(LAWS[0], blended=math.inf), 1e-9) == math.inf
    assert log_ratio(replace(LAWS[0], count=0.0, blended=math.inf), 1e-9) == 0.0
    # What each coordinate may differ by besides is added as often as there are coordinates.
    apart = log_ratio(replace(LAWS[0], blended=0.01), 1e-9) - log_ratio(replace(LAWS[0], blended=0.0), 1e-9)
    assert apart == pytest.approx(512 * 0.01, rel=1e-9)


@pytest.mark.parametrize("sees", ["the public", "a server"])
def test_coordinates_have_the_variance_of_the_noise_that_is_faced(sees):
    plan = PrivacyPlan(
        clients=1000, cohort=60.0, rounds=3, noise_multiplier=2.0, sampler="fixed", server_sees="sum", hostile=0.01,
        secure=SecureRounds(bits=20, dimension=64, dropout=0.1),
    )  # fmt: skip
    event = plan.at(0)
    whole = event.whole
    (found,) = (released_coordinates if sees == "the public" else summed_coordinates)(plan.phases)
    hidden = event.hostile * whole.largest_share
    due = whole.total - hidden if sees == "the public" else whole.deviation**2
    assert hidden > 0
    assert found.variance == pytest.approx(due, rel=1e-9)
    own = 2.0 if sees == "the public" else 0.0
    assert found.blended == blended(whole.smallest_share, whole.most, own)
    for none in (replace(event, whole=None), replace(event, noise=None)):
        assert released_coordinates([replace(plan.phases[0], event=none)]) == []
    assert summed_coordinates([replace(plan.phases[0], event=replace(event, whole=None))]) == []


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("beyond", "looks"), [(-0.01, 1), (0.01, 2), (0.6, 2)])
def test_tails_are_looked_for_again_where_those_of_all_laws_together_are_too_large(monkeypatch, count, beyond, looks):
    """e^(epsilon + a) times all of them is within its share as long as epsilon + a is within the guess and its room."""
    betas = []
    monkeypatch.setattr(discrete_gaussian_cost, "log_ratio", lambda own, beta: betas.append(beta) or 0.125)
    epsilon, guess, a = 3.0 - 0.125 * count + beyond, 1.0, 0.125 * count
    asked = []
    found = epsilon_of_discrete(lambda left: asked.append(left) or epsilon, 1e-6, guess, LAWS[:count])
    assert found == pytest.approx(epsilon + 2 * a)
    assert len(betas) == looks * count
    share = 1e-6 * 1e-6
    assert betas[0] * count == pytest.approx(share * math.exp(-(guess + 2.0)))
    assert asked[0] == pytest.approx((1e-6 - betas[0] * count - share) * math.exp(-a), rel=1e-15)


@pytest.mark.parametrize("beta", [1e-290, 1e-300, 1e-307, 5e-324, 0.0])
def test_a_tail_that_no_number_holds_has_no_bound(beta):
    coordinates = Coordinates(count=40, variance=9.0, blended=0.0)
    assert math.isfinite(log_ratio(coordinates, 1e-290))
    assert math.isfinite(log_ratio(coordinates, beta)) == (beta > 40 * 1e-300)
