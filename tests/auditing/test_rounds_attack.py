"""Rounds without privacy that look well-behaved while the others send zeros; and what the attack looks at."""

import itertools

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.auditing.rounds.rounds_attack import AuditedRounds, World, _Bounds

SIZE, C, Z = 20, 1.0, 4.0
LIKE = {"w": np.zeros(SIZE)}


def norm(update):
    return np.sqrt(np.sum(update["w"] ** 2))


def clip(update, bound):
    return update["w"] * min(1.0, bound / max(norm(update), 1e-12))


def noisy(total, generator, bound=C):
    return {"w": (total + generator.normal(0, Z * bound, SIZE)) / 10}


def rows(updates):
    return np.array([update["w"] for update in updates.values()])


def bound_of_median(state, updates, generator):
    """The bound is the median of raw norms, and so is the noise."""
    bound = float(np.median([norm(update) for update in updates.values()]))
    return state, noisy(sum(clip(update, bound) for update in updates.values()), generator, bound)


def bound_of_percentile(state, updates, generator):
    bound = float(np.percentile([norm(update) for update in updates.values()], 80))
    return state, noisy(sum(clip(update, bound) for update in updates.values()), generator, bound)


def coordinate_median(state, updates, generator):
    return state, {"w": np.median(rows(updates), axis=0)}


def trimmed_mean(state, updates, generator):
    return state, {"w": np.sort(rows(updates), axis=0)[1:-1].mean(axis=0)}


def krum(state, updates, generator):
    found = rows(updates)
    distances = [np.sort(((found - row) ** 2).sum(axis=1))[:6].sum() for row in found]
    return state, {"w": found[int(np.argmin(distances))]}


def long_ones_are_dropped(state, updates, generator):
    kept = [update["w"] for update in updates.values() if norm(update) < 10]
    return state, {"w": sum(kept) / max(len(kept), 1)}


def noise_where_one_is_long(state, updates, generator):
    """Or where one is missing."""
    total = sum(update["w"] if norm(update) <= 50 else clip(update, C) for update in updates.values()) / 10
    loud = len(updates) < 10 or any(norm(update) > 50 for update in updates.values())
    return state, {"w": total + loud * generator.normal(0, Z * C, SIZE) / 10}


def noise_for_the_first_client(state, updates, generator):
    own = clip(updates[0], C) if 0 in updates else np.zeros(SIZE)
    return state, {"w": noisy(own, generator)["w"] + sum(u["w"] for client, u in updates.items() if client)}


def order_of_coordinates(state, updates, generator):
    """As many coordinates on as there are clients: its sums and squares are always the same."""
    return state, {"w": np.roll(np.arange(float(SIZE)) ** 2, 2 * len(updates))}


PROMISE = dp.Promise(epsilon=1.5, delta=1e-5)
WITHOUT_PRIVACY = (
    bound_of_median, bound_of_percentile, coordinate_median, trimmed_mean, krum, long_ones_are_dropped,
    noise_where_one_is_long, noise_for_the_first_client, order_of_coordinates,
)  # fmt: skip
QUICK = (bound_of_median, krum, order_of_coordinates)
MARKED = [
    each if each in QUICK else pytest.param(each, marks=pytest.mark.slow, id=each.__name__) for each in WITHOUT_PRIVACY
]


@pytest.mark.parametrize("function", MARKED)
def test_what_is_private_only_among_zeros_is_refuted(function):
    assert dp.audit_rounds(function, promise=PROMISE, like=LIKE, runs=400, seed=1).refuted


def test_a_release_that_is_always_the_same_tells_nothing():
    """Without randomness, and of no client."""
    found = dp.audit_rounds(
        lambda state, updates, generator: (state, LIKE), promise=PROMISE, like=LIKE, runs=400, seed=1
    )
    assert (found.refuted, found.audited) == (False, 0.0)


def writes(state, updates, generator):
    """Into what it is given, which must not reach the next round."""
    found = sum(update["w"].copy() for update in updates.values())
    for update in updates.values():
        update["w"] += 1e6
    return state, {"w": found}


def trial(function=writes, **changes):
    given = {"like": LIKE, "clients": 10, "rounds": 2, "length": 100.0, "delta": 1e-5, "miss": 0.05}
    given["relation"] = "add-remove"
    return AuditedRounds(function=function, **given | changes)


def test_each_length_of_a_canary_is_tried_at_each_place_among_ordinary_updates():
    worlds = list(trial().worlds())
    among = {(world.length, world.place) for world in worlds if world.ordinary}
    assert among == set(itertools.product((1.0, 1e-2, 1e-4), (0, 5, 9)))
    assert {(world.length, world.pattern) for world in worlds if not world.ordinary} == {(1.0, 1), (1.0, 2)}
    # One round has no turns, two clients have two places.
    assert len(list(trial(rounds=1, clients=2).worlds())) == 1 + 3 * 2


def test_others_send_the_same_in_both_worlds_and_in_each_round():
    seen = []

    def noted(state, updates, generator):
        seen.append({client: float(norm(update)) for client, update in updates.items()})
        return writes(state, updates, generator)

    world = World(length=1e-4, place=5, pattern=1, ordinary=True)
    trial(noted).scores(world, 4, np.random.default_rng(0))
    others = [{client: length for client, length in each.items() if client != 5} for each in seen]
    assert len(seen) == 8
    assert all(each == others[0] for each in others)
    assert sorted(others[0].values())[0] == pytest.approx(0.1)
    assert max(others[0].values()) == pytest.approx(25.0)
    assert [round(each[5], 9) for each in seen if 5 in each] == [0.01] * 4
    # All lengths differ, so one client more moves their median.
    assert len({round(length, 6) for length in others[0].values()}) == 9


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_the_grid_is_that_of_its_test(seed):
    generator = np.random.default_rng(seed)
    one, other = generator.normal(0.8, 1, 60).round(1), generator.normal(0, 1.5, 50).round(1)
    for mine, theirs in ((one, other), (other, one), (one, one[:50])):
        bounds = _Bounds.of(len(mine), len(theirs), 1e-3, 0.05)
        best, test = bounds.best(mine, theirs)
        assert best == pytest.approx(test.epsilon(mine, theirs, 1e-3, 0.05))
