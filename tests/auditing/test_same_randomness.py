"""Rounds of others under the same random numbers: mistakes are named in seconds, right functions raise no alarm."""

import json
import math

import numpy as np
import pytest
import rounds_of_others as planted

import dpfedmeta as dp
from benchmarks.boundary_audits import CLIENTS, right_functions
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.auditing.rounds.movement_bounds import PairedRuns, all_evidence
from dpfedmeta.auditing.rounds.pytest_plugin import assert_private  # noqa: F401
from dpfedmeta.auditing.rounds.rounds_attack import AuditedRounds
from dpfedmeta.auditing.rounds.same_randomness import SameRandomness
from dpfedmeta.core.errors import InputError

LIKE, C, Z = {"w": np.zeros(20)}, 1.0, 4.0


def norm(update):
    return math.sqrt(sum(float(np.sum(value**2)) for value in update.values()))


def clipped(updates, bound=C):
    return sum(each["w"] * min(1.0, bound / max(norm(each), 1e-12)) for each in updates.values())


def noisy(total, generator, bound=C):
    return {"w": (total + generator.normal(0, Z * bound, 20)) / 10}


def bound_of_norms(share):
    """The bound is a percentile of raw norms: the median, or a higher one."""

    def rounds(state, updates, generator):
        bound = float(np.quantile([norm(each) for each in updates.values()], share))
        return state, noisy(clipped(updates, bound), generator, bound)

    return rounds


def coordinate_median(state, updates, generator):
    return state, {"w": np.median([each["w"] for each in updates.values()], axis=0)}


def trimmed(state, updates, generator):
    return state, {"w": np.sort([each["w"] for each in updates.values()], axis=0)[1:-1].mean(0)}


def krum(state, updates, generator):
    rows = [each["w"] for each in updates.values()]
    scores = [sum(sorted(float(np.sum((a - b) ** 2)) for b in rows)[:6]) for a in rows]
    return state, {"w": rows[int(np.argmin(scores))]}


def long_ones_dropped(state, updates, generator):
    kept = [each["w"] for each in updates.values() if norm(each) < 10]
    return state, {"w": sum(kept) / max(len(kept), 1)}


def noise_for_long_ones(state, updates, generator):
    total = sum(each["w"] if norm(each) <= 50 else clipped({0: each}) for each in updates.values()) / 10
    needed = len(updates) < 10 or any(norm(each) > 50 for each in updates.values())
    return state, {"w": total + (generator.normal(0, Z * C, 20) / 10 if needed else 0)}


def noise_for_client_0(state, updates, generator):
    first = clipped({0: updates[0]}) if 0 in updates else np.zeros(20)
    return state, {"w": noisy(first, generator)["w"] + sum(each["w"] for client, each in updates.items() if client)}


def raw_from_the_fifth_round(state, updates, generator):
    state = (state or 0) + 1
    if state <= 4:
        return state, noisy(clipped(updates), generator)
    return state, {"w": sum(each["w"] for each in updates.values()) / len(updates)}


def divided_by_who_is_there(state, updates, generator):
    return state, {"w": (clipped(updates) + generator.normal(0, Z * C, 20)) / len(updates)}


def clipped_by_spread(state, updates, generator):
    mean = np.mean([each["w"] for each in updates.values()], axis=0)
    return state, {"w": mean * min(1, 1 / max(np.linalg.norm(mean), 1e-9)) + generator.normal(0, Z * C / 10, 20)}


def noise_is_off_by_the_sensitivity(state, updates, generator):
    """Clip bound 1, a stated sensitivity of 1e-4 and epsilon 10: a deviation of 4.8e-5."""
    return state, {"w": clipped(updates) + generator.normal(0, 4.8e-5, 20)}


def another_name(state, updates, generator):
    """A number that only clients with long updates cause."""
    released = noisy(clipped(updates), generator)
    return state, released | ({"clipped": np.ones(1)} if any(norm(each) > 90 for each in updates.values()) else {})


def raises_for_long_ones(state, updates, generator):
    if any(norm(each) > 90 for each in updates.values()):
        raise ValueError("too long")
    return state, noisy(clipped(updates), generator)


MISTAKES = {
    bound_of_norms(0.5): "another size", bound_of_norms(0.8): "another size", coordinate_median: "no randomness",
    trimmed: "no randomness", krum: "no randomness", long_ones_dropped: "no randomness",
    noise_for_long_ones: "no randomness", noise_for_client_0: "moves a release by",
    raw_from_the_fifth_round: "of 'w' in round 4 has no randomness", divided_by_who_is_there: "is not there",
    clipped_by_spread: "moves a release by", noise_is_off_by_the_sensitivity: "moves a release by",
    another_name: "'clipped' (1,)", raises_for_long_ones: "raised ValueError: too long",
}  # fmt: skip


def compared(
    function, delta=1e-5, runs=400, seed=1, like=LIKE, rounds=2, clients=10, promised=1.0, relation="add-remove"
):
    zeros = {name: np.zeros(value.shape) for name, value in like.items()}
    trial = AuditedRounds(
        function=function, like=zeros, clients=clients, rounds=rounds, length=100.0, delta=delta, miss=0.05,
        relation=relation,
    )  # fmt: skip
    return SameRandomness(trial=trial, seed=seed).compare(runs, promised)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__qualname__.partition(".")[0])
def test_a_mistake_is_named(mistake):
    found = compared(mistake, rounds=5 if mistake is raw_from_the_fifth_round else 2)
    assert found.refuting > 2.0
    assert MISTAKES[mistake] in found.finding


@pytest.mark.parametrize(
    "mistake",
    [
        planted.average_clipped, planted.noise_by_count, planted.bound_from_norms, planted.one_seed,
        planted.weighted_by_norm, planted.noise_on_one_array, planted.one_number_of_noise, planted.raw_momentum,
        planted.never_clipped, planted.fixed_seed, planted.quiet, planted.descends, planted.counts,
    ],
)  # fmt: skip
def test_every_mistake_that_releases_alone_show_is_refuted_in_fewer_runs(mistake):
    assert compared(mistake, like=planted.LIKE, clients=4).refuting > planted.PROMISE.epsilon


def test_a_promise_of_ten_is_refuted_where_no_number_of_runs_would():
    found = dp.audit_rounds(
        noise_is_off_by_the_sensitivity, promise=dp.Promise(epsilon=10, delta=1e-5), like=LIKE, rounds=2, seed=1
    )
    assert found.refuted
    assert found.confirmed is None
    assert "does not hold; no epsilon holds" in str(found) or found.compared.epsilon > 1e4
    assert json.loads(json.dumps(found.as_json()))["refuted"] is True


def test_the_bound_is_that_of_what_is_moved_and_of_the_noise():
    """One round of all clients: mu = C / sigma. The deviation is known to some 5%."""
    found = compared(planted.honest, like=planted.LIKE, rounds=1, runs=400)
    assert found.moved == pytest.approx(1 / planted.CLIENTS, rel=0.05)
    assert found.noise[1] < planted.Z / planted.CLIENTS < found.noise[2]
    assert found.noise[0] == pytest.approx(planted.Z / planted.CLIENTS, rel=0.15)
    true = gaussian_epsilon(1 / planted.Z, 1e-5)
    assert 0.8 * true < found.epsilon < true
    assert found.refuting < found.epsilon


def test_rounds_add_up_and_so_does_noise_that_is_kept():
    """Four rounds are twice one; noise that is drawn once hides nothing from a client that comes in turns."""
    four = compared(planted.honest, like=planted.LIKE, rounds=4, runs=400)
    assert 0.7 * planted.PROMISE.epsilon < four.epsilon < planted.PROMISE.epsilon
    assert math.isinf(compared(planted.one_seed, like=planted.LIKE, rounds=4).refuting)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
@pytest.mark.parametrize("right", list(right_functions()), ids=lambda each: each.name)
def test_right_functions_raise_no_alarm(right, relation):
    given = {"like": {"w": np.zeros(right.size)}, "rounds": right.rounds, "clients": CLIENTS}
    found = compared(right.function, right.delta, **given, promised=right.epsilon, relation=relation)
    assert found.refuting is None or found.refuting <= right.epsilon


def beside(**of):
    """Rounds that keep their promise, and a number beside them that says only who is there."""
    return lambda state, updates, generator: (
        state, noisy(clipped(updates), generator) | {name: made(updates) for name, made in of.items()},
    )  # fmt: skip


ABOUT = [
    beside(count=lambda updates: np.array([len(updates)])),
    beside(listed=lambda updates: np.isin(np.arange(10), list(updates)).astype(float)),
    beside(names=lambda updates: np.array(sorted(updates))),
    lambda state, updates, generator: beside(**{f"client {each}": lambda _: np.ones(1) for each in updates})(
        state, updates, generator
    ),
    beside(weight=lambda updates: np.full(1, 1 / len(updates))),
]
NAMES = ["count", "mask", "list", "names of arrays", "denominator"]


@pytest.mark.parametrize("epsilon", [2.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (8.0, 30.0))])
@pytest.mark.parametrize("rounds", ABOUT, ids=NAMES)
def test_a_number_that_says_who_is_there_breaks_a_promise_of_add_and_remove_alone(rounds, epsilon):
    given = {"promise": dp.Promise(epsilon=epsilon, delta=1e-5), "like": LIKE, "rounds": 1, "runs": 1000, "seed": 1}
    found = dp.audit_rounds(rounds, **given)
    assert found.refuted
    assert "add-remove, does not hold" in str(found)
    assert "one that is not there" in str(found) or "a client is not there" in str(found)
    kept = dp.audit_rounds(rounds, **given, relation="zero-out")
    assert not kept.refuted
    # The noisy mean beside it is seen as ever.
    assert 0.7 * gaussian_epsilon(1 / Z, 1e-5) < kept.compared.epsilon < gaussian_epsilon(1 / Z, 1e-5)


def test_a_mean_over_who_is_there_keeps_its_promise_where_the_list_is_public():
    given = {"rounds": 1, "promised": gaussian_epsilon(1 / Z, 1e-5)}
    assert compared(divided_by_who_is_there, **given, clients=3).refuting > given["promised"]
    assert compared(divided_by_who_is_there, **given, clients=3, relation="zero-out").refuting <= given["promised"]


def test_what_refutes_a_promise_of_eight_is_looked_at_so_often_that_a_rare_coin_would_have_failed():
    """Some hundred runs bound epsilon by 4, whatever they show."""
    found = compared(ABOUT[0], rounds=1, promised=8.0)
    assert found.runs > 10 * math.exp(8)
    assert found.without_form > 8.0
    assert math.isinf(found.refuting)
    assert "number 0 of 'count' in round 0 is always the same beside one that is not there" in found.finding
    assert compared(another_name, rounds=1, promised=6.0).refuting > 6.0
    assert compared(rarely_wrong(math.exp(-5)), rounds=1, promised=8.0).refuting < 8.0


@pytest.mark.slow
@pytest.mark.parametrize("right", list(right_functions()), ids=lambda each: each.name)
def test_right_functions_raise_no_alarm_in_a_hundred_tries(right):
    for seed in range(100):
        found = compared(
            right.function, right.delta, seed=seed, like={"w": np.zeros(right.size)}, rounds=right.rounds,
            clients=CLIENTS, promised=right.epsilon,
        )  # fmt: skip
        assert found.refuting is None or found.refuting <= right.epsilon


def rare_coin(state, updates, generator):
    """True with e^8 to 1: in some hundred runs it is never wrong."""
    there = sum(update["w"][0] for update in updates.values()) > 0
    return None, {"w": np.array([1.0 if there == (generator.random() < math.exp(8) / (1 + math.exp(8))) else -1.0])}


def over_a_threshold(state, updates, generator):
    """Zeros without the client, nearly always."""
    return state, {"w": (clipped(updates) + generator.normal(0, 1, 20) > 3.2).astype(float)}


def values_over_a_threshold(state, updates, generator):
    noise = clipped(updates) + generator.normal(0, 1, 20)
    return state, {"w": np.where(noise > 3.2, noise, 0.0)}


def rounded(step, size):
    """A client moves a rounded number by a step or not at all, as the noise has it."""

    def rounds(state, updates, generator):
        noisy = clipped(updates)[:size] / 2 + 0.5 * generator.normal(0, 2, size)
        return state, {"w": np.round(noisy / step) * step}

    return rounds


def nothing_of_nobody(state, updates, generator):
    """The others' draws are others where the client is not there."""
    cohort = {client: update for client, update in updates.items() if generator.random() < 0.2}
    return state, {"w": clipped(cohort) + generator.normal(0, 1, 20)} if cohort else {}


def says_what_it_sees(state, updates, generator):
    """Names and exceptions follow from what is released."""
    released = clipped(updates) + generator.normal(0, 1, 20)
    if released.sum() > 9:
        raise ValueError("far")
    return state, {"w": released, **({"large": np.ones(1)} if released[0] > 1 else {})}


def over_a_noisy_count(state, updates, generator):
    """In many coordinates one sees exactly which number the noise was divided by."""
    count = len(updates) + generator.normal(0, 4)
    return state, {"w": (clipped(updates) + generator.normal(0, 4, 20)) / max(count, 1)}


def bound_by_noisy_quantile(state, updates, generator):
    """Andrew et al. 2021: with the same noise, the next bound is larger by the same factor in all runs."""
    bound = 1.0 if state is None else state
    share = sum(norm(each) <= bound for each in updates.values()) / 10 + generator.normal(0, 0.5)
    total = clipped(updates, bound)
    return bound * math.exp(-2 * (share - 0.5)), {"w": (total + generator.normal(0, 4 * bound, total.shape)) / 10}


def rarely_wrong(probability):
    """Two coins that are as rarely wrong about who is there: in most audits of some hundred runs they never are."""

    def rounds(state, updates, generator):
        there = [(client in updates) != (generator.random() < probability) for client in (0, 5)]
        return state, noisy(clipped(updates), generator) | {"there": np.array(there, dtype=float)}

    return rounds


# Epsilon at 1e-5, or more, of two rounds.
TWO = gaussian_epsilon(math.sqrt(2), 1e-5)
OTHER_RIGHT = {
    rare_coin: (1, 1, 8.0), rarely_wrong(math.exp(-8)): (20, 1, 8.0 + gaussian_epsilon(1 / Z, 1e-5)),
    over_a_threshold: (20, 2, TWO), values_over_a_threshold: (20, 2, TWO),
    rounded(1.0, 1): (1, 1, gaussian_epsilon(0.5, 1e-5)), rounded(1.0, 20): (20, 1, gaussian_epsilon(0.5, 1e-5)),
    nothing_of_nobody: (20, 2, TWO), says_what_it_sees: (20, 2, TWO),
    over_a_noisy_count: (20, 2, gaussian_epsilon(math.sqrt(2 * (1 / 16 + 1 / 16)), 1e-5)),
    bound_by_noisy_quantile: (20, 3, gaussian_epsilon(math.sqrt(3 * (1 / 16 + 1 / 25)), 1e-5)),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 20))])
@pytest.mark.parametrize("right", OTHER_RIGHT, ids=lambda each: each.__qualname__.partition(".")[0])
def test_functions_whose_releases_change_their_form_with_the_noise_raise_no_alarm(right, seed):
    """What follows from a private release costs nothing, however it looks under the same random numbers."""
    size, rounds, epsilon = OTHER_RIGHT[right]
    found = compared(right, like={"w": np.zeros(size)}, rounds=rounds, seed=seed, promised=epsilon)
    assert found.refuting is None or found.refuting <= epsilon


@pytest.mark.parametrize("differ", [False, True])
def test_a_movement_counts_as_the_same_only_as_a_whole(differ):
    """One that the noise turns is as long in each run, and tells nothing of a cohort."""
    drawn, count = np.random.default_rng(0), 48
    runs = PairedRuns(
        count=count, parts=[(0, "w")], without=drawn.normal(size=(count, 1)), moved=np.ones((count, 1)),
        checked=drawn.normal(size=(count, 1)) if differ else np.ones((count, 1)), sizes=np.zeros((2, count, 1)),
        constant=None, keeps_state=True, form=(), with_form=count, without_form=count,
    )  # fmt: skip
    kinds = [each.kind for each in all_evidence(runs, 1e-5) if each.score > 0]
    assert kinds == ([] if differ else ["movement"])


def test_noise_that_is_not_normal_gets_no_bound():
    """As normal noise of its deviation, Laplace noise would break its promise."""
    laplace = next(each for each in right_functions() if each.name.startswith("Laplace"))
    found = compared(laplace.function, laplace.delta, like={"w": np.zeros(1)}, rounds=1)
    assert found.epsilon is None
    assert "not normal" in str(found)


def test_a_source_that_no_seed_reaches_is_said():
    own = np.random.default_rng(7)

    def rounds(state, updates, generator):
        return state, noisy(clipped(updates), own)

    found = compared(rounds)
    assert found.refuting is None
    assert "neither its generator nor a seed reaches" in str(found)


def test_sources_of_the_whole_process_are_seeded_and_put_back():
    def rounds(state, updates, generator):
        return state, {"w": clipped(updates) + Z * np.random.standard_normal(20)}  # noqa: NPY002

    before = np.random.get_state()[1].copy()  # noqa: NPY002
    found = compared(rounds, rounds=1)
    assert found.moved == pytest.approx(1.0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_rounds_on_tensors_get_tensors_and_a_torch_generator():
    torch = pytest.importorskip("torch")

    def rounds(noise):
        def one(state, updates, generator):
            assert isinstance(generator, torch.Generator)
            rows = torch.stack([each["w"] for each in updates.values()])
            rows = rows * (1 / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
            return state, {"w": rows.sum(0) + noise * torch.randn(20, generator=generator)}

        return one

    given = {"promise": dp.Promise(epsilon=8, delta=1e-5), "like": {"w": torch.zeros(20)}, "seed": 1, "rounds": 1}
    assert dp.audit_rounds(rounds(0.01), runs=1000, **given).refuted
    assert not dp.audit_rounds(rounds(1.0), runs=200, **given).refuted


def test_a_cohort_that_rarely_holds_the_client_lowers_the_bound():
    """One round, the client in a fifth of the cohorts: delta is at least q times that of the client alone."""
    sampled = next(each for each in right_functions() if each.name.startswith("Poisson"))
    found = compared(sampled.function, 1e-5, like={"w": np.zeros(8)}, rounds=1, runs=1000)
    most = next(e for e in np.linspace(0, 20, 2001) if 0.2 * gaussian_delta(e + math.log(5), 1 / 0.7) <= 1e-5)
    assert 0.5 * most < found.epsilon < most


def test_assert_private_fails_a_test_where_a_promise_breaks(assert_private):  # noqa: F811
    assert_private(planted.honest, epsilon=planted.PROMISE.epsilon, delta=1e-5, rounds=1, clients=2, runs=100)
    with pytest.raises(pytest.fail.Exception, match="does not hold"):
        assert_private(noise_is_off_by_the_sensitivity, epsilon=8, delta=1e-5, rounds=1, clients=2)
    given = {"epsilon": 2, "delta": 1e-5, "rounds": 1, "runs": 100}
    with pytest.raises(pytest.fail.Exception, match=r"'count' in round 0 .* where a client is not there"):
        assert_private(ABOUT[0], **given, like=LIKE)
    assert assert_private(ABOUT[0], **given, like=LIKE, relation="zero-out").relation == "zero-out"
    with pytest.raises(InputError, match="give like="):
        assert_private(dict, epsilon=8, delta=1e-5)
