"""Rounds that somebody wrote: one that keeps its promise, and mistakes that are seen."""

import json
import math

import numpy as np
import pytest
from rounds_of_others import (
    CLIENTS,
    DELTA,
    LIKE,
    PROMISE,
    ROUNDS,
    Z,
    average_clipped,
    bound_from_norms,
    clipped_by_coordinate,
    counts,
    descends,
    fixed_seed,
    honest,
    never_clipped,
    noise_by_count,
    noise_on_one_array,
    one_number_of_noise,
    one_seed,
    quiet,
    raw_momentum,
    total,
    weighted_by_norm,
)

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.auditing.estimators.many_runs import SECOND_MISS
from dpfedmeta.auditing.rounds import audit_rounds
from dpfedmeta.auditing.trade_off_function import ThresholdTest, most_epsilon
from dpfedmeta.core.errors import InputError


def audited(function, **given):
    """Releases alone; `test_same_randomness` has the comparison that comes first."""
    usual = {"promise": PROMISE, "like": LIKE, "clients": CLIENTS, "rounds": ROUNDS, "seed": 4}
    return dp.audit_rounds(function, **usual | {"same_randomness": False} | given)


def test_rounds_that_keep_their_promise_are_not_refuted():
    found = audited(honest, runs=200)
    assert not found.refuted
    assert 0.0 <= found.audited <= PROMISE.epsilon < 2.0
    assert str(found).startswith("no violation of (client, public) epsilon")


OTHERS = (
    noise_by_count, bound_from_norms, weighted_by_norm, one_number_of_noise, raw_momentum,
    never_clipped, fixed_seed,
)  # fmt: skip
SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in OTHERS]


@pytest.mark.parametrize("mistake", [average_clipped, one_seed, *SLOW])
def test_mistakes_are_refuted(mistake):
    found = audited(mistake, runs=200)
    assert found.refuted
    assert found.confirmed > PROMISE.epsilon
    assert "does not hold" in str(found)


def test_an_array_without_noise_is_seen():
    assert audited(noise_on_one_array, runs=200).refuted


@pytest.mark.slow
def test_a_bound_on_each_coordinate_is_refuted_where_there_are_many():
    like = {"w": np.zeros((40, 10)), "b": np.zeros(2)}
    assert audited(clipped_by_coordinate, like=like, runs=200, length=1e4).refuted


@pytest.mark.slow
def test_a_hundred_audits_of_right_rounds_confirm_no_alarm():
    """At the boundary: the promise is what the rounds keep, and no more."""
    verdicts = [
        dp.audit_rounds(honest, promise=PROMISE, like=LIKE, clients=CLIENTS, rounds=ROUNDS, seed=seed, runs=200)
        for seed in range(100)
    ]
    assert not any(verdict.refuted for verdict in verdicts)


@pytest.mark.parametrize(("noise", "samples"), [(1 / 60, 1), (1.0, 4)])
def test_a_second_sample_ends_where_a_quarter_refutes(monkeypatch, noise, samples):
    """Of two alarms, the first real, the second forced."""
    bounds, calls, misses = ThresholdTest.epsilon, 0, []

    def alarmed(test, one, other, delta, miss):
        misses.append(miss)
        return 9.9 if noise == 1.0 and miss == audit_rounds._MISS else bounds(test, one, other, delta, miss)

    def counted(state, updates, generator):
        nonlocal calls
        calls += 1
        return honest(state, updates, Scaled(generator, noise))

    monkeypatch.setattr(ThresholdTest, "epsilon", alarmed)
    found = audited(counted, clients=2, rounds=1, runs=200)
    assert found.refuted == (noise < 1.0)
    assert found.confirmed is not None
    # Seven worlds to choose from and the best three again, and a half for the first bound.
    assert calls == (7 + 3) * 40 + 100 + samples * 200
    looks = [miss for miss in misses if miss < audit_rounds._MISS]
    assert len(looks) == (1 if samples == 1 else 2)
    assert sum(looks) <= SECOND_MISS


def test_a_finding_is_json():
    found = audited(honest, runs=200)
    content = json.loads(json.dumps(found.as_json()))
    assert content["promised"]["epsilon"] == PROMISE.epsilon
    assert content["refuted"] is False
    assert {"audited", "confirmed", "runs", "seed"} <= set(content)


def test_the_attack_shows_most_of_what_a_mechanism_gives_away():
    """Against a promise far below what holds."""
    louder = lambda state, updates, generator: honest(state, updates, Scaled(generator, 1 / 12))  # noqa: E731
    found = audited(louder, runs=200)
    assert found.refuted
    assert 1.5 < found.confirmed <= gaussian_epsilon(ROUNDS**0.5 / (Z / 12), DELTA)


class Scaled:
    def __init__(self, honest, factor):
        self.honest, self.factor = honest, factor

    def normal(self, size):
        return self.factor * self.honest.normal(size=size)


def test_without_a_seed_each_audit_draws_its_own():
    given = {"promise": PROMISE, "like": LIKE, "rounds": 1, "runs": 100}
    one, two = (dp.audit_rounds(honest, **given) for _ in range(2))
    assert one.seed != two.seed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"runs": 20}, "runs = 20"), ({"rounds": 0}, "rounds = 0"), ({"clients": 1}, "clients = 1"),
        ({"runs": 100, "promise": dp.Promise(epsilon=6.0, delta=1e-5)}, r"nothing could be found; give about 25,600"),
        ({"promise": dp.Promise(unit="record", epsilon=1.0, delta=1e-5)}, "give unit='client'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        audited(honest, **given)


def test_releases_alone_are_judged_under_the_same_relation():
    """How many clients there are is refuted for add-remove, and shows nothing where the place of the client stays."""
    usual = {"clients": 3, "rounds": 1, "runs": 200}
    assert not audited(counts, **usual, relation="zero-out").refuted
    assert audited(quiet, **usual, relation="zero-out").refuted


@pytest.mark.parametrize("function", [quiet, descends, counts])
def test_rounds_without_noise_are_refuted_whichever_way_they_move(function):
    found = audited(function, clients=3, rounds=1, runs=200)
    assert found.refuted
    # Always right: what so many runs show at most.
    assert found.confirmed == pytest.approx(most_epsilon(200 // 2, DELTA, SECOND_MISS / 2))


NAN, INF = float("nan"), float("inf")
OUT_OF_RANGE = [
    *((name, value) for name in ("clients", "rounds", "runs") for value in (-1, 0, 1.5, True, NAN, "4", None, 10**9)),
    *(("length", value) for value in (0, 0.0, -1.0, NAN, INF, -INF, 1e-320, 9e-10, 1.1e12, "3", True, None)),
    *(("relation", value) for value in (None, "replace-one", "row-deleted", True)),
    *(("seed", value) for value in (-1, 2**63, 1.5, True, "1", NAN)),
    *(("promise", value) for value in (None, 1.5, {"epsilon": 1.5, "delta": 1e-5})),
    *(("like", value) for value in (None, [], {}, {"w": np.zeros(0)}, {"w": [[], 1]})),
    ("like", {"w": np.zeros((2, 0)), "v": []}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE, ids=lambda each: str(each)[:20])
def test_every_argument_out_of_its_range_is_refused_by_its_name(name, value):
    """Otherwise rounds without noise could pass."""
    usual = {"promise": PROMISE, "like": LIKE, "clients": 3, "rounds": 1, "runs": 200, "length": 100.0, "seed": 4}
    with pytest.raises(InputError, match=name) as error:
        dp.audit_rounds(quiet, **usual | {name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [1e-9, 1, 1e12])
def test_a_canary_of_any_length_in_the_range_refutes_rounds_without_noise(length):
    given = {"promise": PROMISE, "like": LIKE, "clients": 2, "rounds": 1, "runs": 200, "seed": 4}
    assert dp.audit_rounds(quiet, **given, length=length).refuted


@pytest.mark.parametrize(
    ("release", "words"),
    [
        (lambda values: {"w": values, "b": np.zeros(3)}, r"'b' of shape \(3,\), like has \(2,\)"),
        (lambda values: {"w": float(values.sum()), "b": np.zeros(2)}, r"'w' of shape \(\), like has \(2, 3\)"),
        (lambda values: {"w": values}, "no array 'b'"),
        (lambda values: None, "no array 'w'"),
        (lambda values: {"w": np.where(values == 0, 0.0, INF), "b": np.zeros(2)}, "'w' that is not finite"),
        (lambda values: {"w": values, "b": np.full(2, values[0, 0] and NAN)}, "'b' that is not finite"),
    ],
)
def test_a_release_that_gives_no_score_is_refused(release, words):
    """NaN where the canary is there, or one number for all coordinates, would look like nothing found."""
    with pytest.raises(InputError, match=words):
        audited(
            lambda state, updates, generator: (state, release(total(list(updates.values()))["w"])),
            clients=2, rounds=1, runs=200,
        )  # fmt: skip


def test_a_promise_that_no_number_of_runs_refutes_is_refused_at_once(monkeypatch):
    """The sums need no arrays: 10^8 runs of them would not fit this machine."""
    monkeypatch.setattr(np, "ones", None)
    for epsilon in (20.0, 400.0, 1e6):
        with pytest.raises(InputError, match=r"nothing could be found; nor by 100,000,000 runs; promise less") as error:
            audited(honest, promise=dp.Promise(epsilon=epsilon, delta=1e-5))
        assert f"epsilon = {most_epsilon(500, 1e-5, 0.05):.2f}"[:-1] in str(error.value)
    # The largest epsilon that so many runs refute, and the next.
    most = most_epsilon(100 * 2**19 // 4, 1e-5, 0.05) / 1.2
    for epsilon, words in ((0.999 * most, f"about {100 * 2**19:,} runs"), (1.001 * most, "nor by")):
        with pytest.raises(InputError, match=words):
            audited(honest, promise=dp.Promise(epsilon=epsilon, delta=1e-5))


@pytest.mark.parametrize(("runs", "delta"), [(50, 1e-5), (51, 0.2), (1, 1e-5), (3, 0.5)])
def test_the_most_that_runs_show_is_the_bound_of_scores_that_are_always_right(runs, delta):
    always = ThresholdTest(value=0.0, inside=True).epsilon(np.ones(runs), -np.ones(runs), delta, 0.05)
    assert most_epsilon(runs, delta, 0.05) == always
    # By hand: all of n hit, none of n missed, at 0.025 each.
    least = 0.025 ** (1 / runs)
    by_hand = math.log((least - delta) / (1 - least)) if least > delta else 0.0
    assert most_epsilon(runs, delta, 0.05) == pytest.approx(max(by_hand, 0.0), abs=1e-9)
