"""What a clip policy answers and attaches: every trial of it, every limit, and every term of what a client may move."""

import itertools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.privacy.clip_policies.policy_checks import check_answers, next_bound, packed, unpacked
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound
from dpfedmeta.privacy.clip_policy import (
    ATTACHED,
    LEAST_BOUND,
    MOST_BOUND,
    Surroundings,
    attached_scale,
    bound_problem,
    bounded_numbers,
    check_window,
    clipped_message,
    counts_scale,
    moved_by_a_client,
    with_attachment,
)
from dpfedmeta.privacy.mechanisms import post_process

FORM = {"w": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}


@dataclass(frozen=True)
class State:
    bound: float = 1.0
    rounds: int = 0
    mode: str = "constant"


class Counting:
    """Counts its rounds, and answers what it is told to after so many."""

    attachment = None

    def __init__(self, **answers):
        self.answers, self.seen = answers, []

    def initial(self):
        return State()

    def next_bound(self, state, aggregate):
        self.seen.append((state.rounds, {name: value.copy() for name, value in aggregate.value.items()}))
        following = replace(state, rounds=state.rounds + 1)
        answer = self.answers.get(f"after_{following.rounds}", lambda: 1.0 / following.rounds)()
        return following, answer


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("bounded", [True, False])
def test_whatever_a_policy_gives_in_a_trial_is_looked_at(place, bounded):
    def answers(bound):
        check_answers(Counting(**{f"after_{place}": bound}), "own", FORM, bounded=bounded)

    answers(lambda: 0.5)
    for wrong, shown in ((lambda: 0.0, "0"), (lambda: math.inf, "inf"), (lambda: -1.0, "-1")):
        if bounded:
            with pytest.raises(InputError, match=rf"^own: its next_bound gives {shown}.*, expected a number from"):
                answers(wrong)
        else:
            answers(wrong)
    with pytest.raises(InputError, match="its next_bound raised ZeroDivisionError"):
        answers(lambda: 1 / 0)
    drawn = iter((0.5, 0.25))
    with pytest.raises(InputError, match=r"gives 0\.5, then 0\.25, for the same state and release"):
        answers(lambda: next(drawn))


def test_trials_go_on_from_each_other_on_other_releases_of_the_models_form():
    policy = Counting()
    check_answers(policy, "own", FORM)
    assert [rounds for rounds, _ in policy.seen] == [0, 0, 1, 1, 2, 2]
    releases = [value for _, value in policy.seen]
    assert all({name: part.shape for name, part in each.items()} == {"w": (2, 3), "b": (4,)} for each in releases)
    same = [np.array_equal(one["w"], other["w"]) for one, other in itertools.pairwise(releases)]
    assert same == [True, False, True, False, True]


@pytest.mark.parametrize("wrong", [None, 1.0, (State(), 1.0, 2.0), (SimpleNamespace(bound=1.0), 1.0), [State(), 1.0]])
def test_an_answer_is_a_state_and_a_bound(wrong):
    policy = SimpleNamespace(next_bound=lambda state, aggregate: wrong)
    release = post_process(lambda: dict(FORM), (), 1.0)
    with pytest.raises(InputError, match=r"^here its next_bound gives .*expected \(state, bound\)"):
        next_bound(policy, State(), release, "here")


def test_a_policy_may_write_into_what_it_is_shown_and_give_numbers_of_numpy():
    def answer(state, aggregate):
        aggregate.value["w"][:] = 7.0
        return state, np.float32(0.5)

    release = post_process(lambda: {name: value.copy() for name, value in FORM.items()}, (), 1.0)
    found = next_bound(SimpleNamespace(next_bound=answer), State(), release, "here")
    assert found == (State(), 0.5)
    assert type(found[1]) is float
    assert not release.value["w"].any()


def test_bounds_lie_between_their_limits():
    for right in (LEAST_BOUND, MOST_BOUND, 1, 0.3):
        assert bound_problem(right) is None
    beyond = (math.nextafter(LEAST_BOUND, 0.0), math.nextafter(MOST_BOUND, math.inf))
    for wrong in (*beyond, 0, -1.0, math.nan, math.inf, True, "1", None):
        assert bound_problem(wrong) == f"{wrong!r}, expected a number from 1e-18 to 1e+18"


def test_states_come_back_with_their_vectors():
    vectors = [np.arange(3.0), np.ones((2, 2), dtype=np.float32)]
    state = {"a": 1.5, "b": (vectors[0], [vectors[1], "x"]), "c": {"policy": 3, "d": vectors[1]}}
    arrays = {"value/w": np.zeros(1)}
    text = packed(state, arrays)
    assert len(arrays) == 4
    found = unpacked(text, arrays)
    assert set(arrays) == {"value/w"}
    assert np.array_equal(found["b"][0], vectors[0])
    assert all(np.array_equal(each, vectors[1]) for each in (found["b"][1][0], found["c"]["d"]))
    assert (found["a"], found["b"][1][1], found["c"]["policy"]) == (1.5, "x", 3)


# What a client may move.


def attachment(size=1, sensitivity=0.5, scale=0.75, values=(0.5,)):
    return SimpleNamespace(size=size, sensitivity=sensitivity, scale=scale, values=lambda norm, bound: values)


def test_a_client_moves_its_bound_and_what_is_attached():
    """C r sqrt(1 + (s a)^2), each factor by itself."""
    for ratio in (None, 12.0, 0.25):
        own = 3.0 * (1.0 if ratio is None else ratio)
        assert moved_by_a_client(3.0, None, ratio) == own
        assert moved_by_a_client(3.0, attachment(), ratio) == pytest.approx(own * math.sqrt(1 + 0.375**2), rel=1e-15)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("bound", [0.5, 3.0, 200.0])
def test_a_message_and_what_is_attached_are_as_long_as_is_counted(bound, per_layer):
    seen = []
    own = SimpleNamespace(
        size=1, sensitivity=0.5, scale=0.75, values=lambda norm, bound: seen.append((norm, bound)) or (-0.5,)
    )
    message = {"a.w": np.full(9, 5.0, dtype=np.float32), "b.w": np.full(4, 10.0, dtype=np.float32)}
    found = clipped_message(message, bound, own, per_layer=per_layer)
    # The norm before clipping, and the round's bound.
    assert seen == [(pytest.approx(25.0), bound)]
    assert found[ATTACHED].tolist() == [pytest.approx(-0.5 * 0.75 * bound)]
    length = math.sqrt(sum(float(np.square(np.asarray(value, dtype=np.float64)).sum()) for value in found.values()))
    assert length <= moved_by_a_client(bound, own)
    if bound < 25.0:
        assert length == pytest.approx(moved_by_a_client(bound, own), rel=1e-4)
    assert set(with_attachment(message, own)) == set(found)
    assert set(clipped_message(message, bound, None, per_layer=per_layer)) == set(message)


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ((0.3, -0.4), [0.3, -0.4]), ((0.6, -0.8), [0.3, -0.4]), ((0.3,), [0.0, 0.0]), ((0.1, 0.1, 0.1), [0.0, 0.0]),
        ((math.nan, 0.1), [0.0, 0.0]), ((math.inf, 0.1), [0.0, 0.0]), ((), [0.0, 0.0]),
    ],
)  # fmt: skip
def test_what_is_attached_is_never_longer_than_stated(values, due):
    own = attachment(size=2, values=values)
    assert bounded_numbers(own, 1.0, 2.0) == pytest.approx(due)
    for norm in (math.nan, math.inf):  # a message that is set to 0
        assert bounded_numbers(own, norm, 2.0) == [0.0, 0.0]


AROUND = Surroundings(algo="dp-agr", rounds=20, cohort=300.0, noise=1.5, exact=True)


def test_counts_carry_the_noise_that_is_asked_for():
    """1/z^2 = 1/z_sum^2 + a^2/b^2: the counts' own noise, z sqrt(1 + s^2 a^2)/s, is b."""
    for noise, asked, sensitivity in ((1.5, 4.0, 0.5), (0.7, 0.8, 1.0)):
        scale = attached_scale(noise, asked, sensitivity)
        assert noise * math.sqrt(1.0 + (scale * sensitivity) ** 2) / scale == pytest.approx(asked)
    assert counts_scale(ClipSettings(count_noise=4.0), AROUND, 0.5) == attached_scale(1.5, 4.0, 0.5)
    assert counts_scale(ClipSettings(), AROUND, 0.5) == attached_scale(1.5, 15.0, 0.5)
    attached_scale(1.5, math.nextafter(0.75, 1), 0.5)
    for least in (0.75, 0.5):
        with pytest.raises(RefusedPlan, match=r"with z = 1\.5 may cost; give more than 0\.75"):
            attached_scale(1.5, least, 0.5)


@pytest.mark.parametrize(("rounds", "most"), [(1, 2), (2, 2), (3, 3), (20, 20)])
def test_a_window_is_no_longer_than_the_run_and_two_at_least(rounds, most):
    around = replace(AROUND, rounds=rounds)
    check_window(ClipSettings(window=most), around)
    with pytest.raises(
        InputError, match=rf"more than server\.rounds = {rounds}; give a window of {most} or less \(--window"
    ):
        check_window(ClipSettings(window=most + 1), around)


def test_whoever_says_what_a_bit_is_counts_the_clients_own_bound():
    assert [BelowBound(scale=1.0).values(norm, 2.0) for norm in (1.0, 2.0, math.nextafter(2.0, 3))] == [
        (0.5,), (0.5,), (-0.5,)
    ]  # fmt: skip
