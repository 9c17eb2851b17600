import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.failure_probability import least_capacity
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.events.toeplitz_noise_cost import BandedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource, Purpose
from dpfedmeta.privacy.samplers import sampler_of
from dpfedmeta.privacy.samplers.check_ins_sampler import CheckInSampler
from dpfedmeta.privacy.samplers.fixed_sampler import FixedSizeSampler
from dpfedmeta.privacy.samplers.poisson_sampler import PoissonSampler


def draws(sampler, rounds, participations=None, source=None):
    source = source or KeyedSource(5)
    return [sampler.draw(r, participations or {}, source.generator(Purpose.COHORT, r)).clients for r in range(rounds)]


@pytest.mark.parametrize("source", [KeyedSource(5), OperatingSystemSource()])
def test_inclusion_size_and_pairs_are_those_of_independent_coins(source):
    clients, rounds = 20, 4000
    sampler = PoissonSampler(clients=clients, cohort=5.0)
    member = np.zeros((rounds, clients))
    for r, cohort in enumerate(draws(sampler, rounds, source=source)):
        assert len(set(cohort.tolist())) == len(cohort)
        assert (np.diff(cohort) > 0).all()
        member[r, cohort] = 1
    counts = member.sum(0)
    # Each client is a Binomial(rounds, q) count; 20 clients at once. One source is of the operating system: a test that
    # fails once in a thousand runs would stop somebody's work.
    worst = min(stats.binomtest(int(c), rounds, 0.25).pvalue for c in counts)
    assert worst > 1e-6 / clients
    sizes = member.sum(1)
    assert sizes.var() == pytest.approx(clients * 0.25 * 0.75, rel=0.12)
    pairs = np.corrcoef(member.T)[np.triu_indices(clients, 1)]
    assert abs(pairs.mean()) < 0.005
    assert np.abs(pairs).max() < 5 / np.sqrt(rounds)


@pytest.mark.parametrize("source", [KeyedSource(5), OperatingSystemSource()])
def test_the_size_of_a_large_cohort_has_the_mean_that_the_accountant_assumes(source):
    """To a third of a percent, and the variance of independent coins."""
    sizes = np.array([len(c) for c in draws(PoissonSampler(clients=400_000, cohort=1500.0), 1500, source=source)])
    variance = 1500 * (1 - 1500 / 400_000)
    assert abs(sizes.mean() - 1500) < stats.norm.isf(1e-7) * np.sqrt(variance / len(sizes))
    assert sizes.var() == pytest.approx(variance, rel=0.22)


def test_the_cap_leaves_out_exactly_those_who_took_part_often_enough():
    sampler = PoissonSampler(clients=50, cohort=50.0, max_participations=2)
    (cohort,) = draws(sampler, 1, participations={3: 2, 4: 1, 5: 7})
    assert set(range(50)) - set(cohort.tolist()) == {3, 5}


def test_surplus_clients_are_dropped_at_random():
    sampler = PoissonSampler(clients=10, cohort=10.0, largest=4)
    kept = np.concatenate(draws(sampler, 500))
    assert len(kept) == 2000
    assert stats.chisquare(np.bincount(kept, minlength=10)).pvalue > 1e-3


def test_who_came_often_enough_takes_nobodys_place():
    """Seven of ten stay away, and there is room for three."""
    sampler = PoissonSampler(clients=10, cohort=10.0, max_participations=1, largest=3)
    assert [cohort.tolist() for cohort in draws(sampler, 20, participations=dict.fromkeys(range(7), 1))] == [
        [7, 8, 9]
    ] * 20


def test_an_empty_cohort_is_possible_and_has_no_clients():
    cohorts = draws(PoissonSampler(clients=100, cohort=0.01), 200)
    assert sum(len(c) for c in cohorts) < 20


def test_a_population_of_ten_thousand_million_costs_no_memory():
    (cohort,) = draws(PoissonSampler(clients=10**10, cohort=100.0), 1)
    assert 40 < len(cohort) < 200
    assert cohort.max() > 10**8


@pytest.mark.parametrize("source", [KeyedSource(5), OperatingSystemSource()])
@pytest.mark.parametrize("clients", [10**6, 10**10])
@pytest.mark.parametrize("kind", [PoissonSampler, FixedSizeSampler])
def test_memory_grows_with_the_cohort_and_not_with_the_population(source, clients, kind):
    draws(kind(clients=100, cohort=3), 1, source=source)
    tracemalloc.start()
    (cohort,) = draws(kind(clients=clients, cohort=1000), 1, source=source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 800 < len(cohort) < 1200
    assert peak < 1_000_000  # 10**6 numbers alone would be 8 MB


def test_a_fixed_cohort_is_a_uniform_subset_and_fresh_in_every_round():
    clients, size, rounds = 20, 5, 4000
    member = np.zeros((rounds, clients))
    for r, cohort in enumerate(draws(FixedSizeSampler(clients=clients, cohort=size), rounds)):
        assert len(set(cohort.tolist())) == size
        member[r, cohort] = 1
    assert min(stats.binomtest(int(c), rounds, 0.25).pvalue for c in member.sum(0)) > 1e-3 / clients
    # Within a round two clients exclude each other a little; between rounds nothing is left.
    pairs = np.corrcoef(member.T)[np.triu_indices(clients, 1)]
    assert pairs.mean() == pytest.approx(-1 / (clients - 1), abs=0.003)
    between = [np.corrcoef(member[:-1, c], member[1:, c])[0, 1] for c in range(clients)]
    assert np.abs(between).max() < 4 / np.sqrt(rounds)


def test_the_sampler_is_the_one_that_the_accountant_assumes():
    layer = RecordLayer(support_noise=2.0, query_noise=2.0, support_steps=1, support_records=5, query_records=5)
    plan = PrivacyPlan(clients=1000, cohort=50, rounds=3, noise_multiplier=0.0, record=layer, max_participations=2)
    poisson = sampler_of(plan.at(0), plan.max_participations)
    assert poisson == PoissonSampler(clients=1000, cohort=50, max_participations=2, largest=plan.at(0).largest_cohort)
    fixed = PrivacyPlan(clients=1000, cohort=50, rounds=3, noise_multiplier=1.0, sampler="fixed")
    assert sampler_of(fixed.at(2), None) == FixedSizeSampler(clients=1000, cohort=50)


@pytest.mark.parametrize(("sampler", "cap"), [("poisson", None), ("poisson", 3), ("fixed", None)])
def test_who_draws_is_the_sampler_that_the_accountant_counts_with(sampler, cap):
    plan = PrivacyPlan(clients=1000, cohort=50, rounds=3, noise_multiplier=1.0, sampler=sampler, max_participations=cap)
    found = sampler_of(plan.at(1), plan.max_participations)
    expected = {
        "poisson": PoissonSampler(clients=1000, cohort=50.0, max_participations=cap, largest=None),
        "fixed": FixedSizeSampler(clients=1000, cohort=50),
    }
    assert found == expected[sampler]


def slots_of(sampler, source):
    """In which round each client came, drawn as the loop draws: by who has come so far."""
    counts, found = {}, np.full(sampler.clients, -1)
    for round_ in range(sampler.slots):
        cohort = sampler.draw(round_, counts, source.generator(Purpose.COHORT, round_)).clients
        assert (found[cohort] == -1).all()
        assert (np.diff(cohort) > 0).all()
        found[cohort] = round_
        counts |= dict.fromkeys(cohort.tolist(), 1)
    return found


@pytest.mark.parametrize("kind", [KeyedSource, lambda _: OperatingSystemSource()], ids=["seed", "system"])
def test_every_client_comes_once_in_a_uniform_slot_of_its_own(kind):
    """As if all slots were drawn before the first round: uniform, and independent from client to client."""
    sampler, runs = CheckInSampler(clients=6, slots=4), 500
    found = np.array([slots_of(sampler, kind(run)) for run in range(runs)])
    assert (found >= 0).all()
    for client in range(6):
        assert stats.chisquare(np.bincount(found[:, client], minlength=4)).pvalue > 1e-5
    together = np.zeros((4, 4))
    np.add.at(together, (found[:, 0], found[:, 5]), 1)
    assert stats.chi2_contingency(together + 1e-9).pvalue > 1e-5
    assert stats.chisquare(together.ravel()).pvalue > 1e-5


def test_a_round_that_is_done_again_has_nobody_in_it():
    sampler, source = CheckInSampler(clients=50, slots=2), KeyedSource(3)
    first = sampler.draw(0, {}, source.generator(Purpose.COHORT, 0)).clients
    counts = dict.fromkeys(first.tolist(), 1)
    again = source.again((1, 7)).generator(Purpose.COHORT, 0)
    assert len(sampler.draw(0, counts, again, again=True).clients) == 0
    last = sampler.draw(1, counts, source.generator(Purpose.COHORT, 1)).clients
    assert sorted([*first.tolist(), *last.tolist()]) == list(range(50))
    counts |= dict.fromkeys(last.tolist(), 1)
    assert len(sampler.draw(1, counts, again).clients) == 0
    with pytest.raises(ValueError, match="2 slots"):
        sampler.draw(2, counts, again)


def test_a_full_round_turns_away_at_random():
    sampler = CheckInSampler(clients=10, slots=1, largest=4)
    kept = np.concatenate([draws(sampler, 1, source=KeyedSource(run))[0] for run in range(500)])
    assert len(kept) == 2000
    assert stats.chisquare(np.bincount(kept, minlength=10)).pvalue > 1e-3


def test_a_plan_of_check_ins_has_its_sampler():
    plan = PrivacyPlan(
        clients=1000,
        cohort=250.0,
        rounds=4,
        noise_multiplier=1.0,
        sampler="check-ins",
        capacity=400,
        max_participations=1,
    )
    assert sampler_of(plan.at(3), 1) == CheckInSampler(clients=1000, slots=4, largest=400)


BANDED = BandedNoise(multiplier=1.0, rounds=12, participations=3, separation=4, numbers=(1.0, 0.5))


def cyclic(**more):
    event = Event(sampler="cyclic", clients=1002, cohort=50.0, rate=0.2, noise=BANDED)
    return sampler_of(replace(event, **more), None)


def test_in_turns_clients_join_by_coins_of_their_own_and_only_when_it_is_their_turn():
    counts = np.zeros(1002)
    for seed in range(300):
        for round_ in range(4):
            drawn = cyclic().draw(round_, {}, KeyedSource(seed).generator(Purpose.COHORT, round_)).clients
            assert set(drawn % 4) <= {round_}
            assert (np.diff(drawn) > 0).all()
            counts[drawn] += 1
    # Every client has one turn in four rounds: binomial(300, 0.2).
    assert counts.mean() == pytest.approx(60, abs=0.8)
    assert counts.std() == pytest.approx((300 * 0.2 * 0.8) ** 0.5, rel=0.1)
    sizes = [len(cyclic().draw(0, {}, KeyedSource(s).generator(Purpose.COHORT, 0)).clients) for s in range(300)]
    assert np.std(sizes) == pytest.approx((251 * 0.2 * 0.8) ** 0.5, rel=0.2)


def test_in_turns_no_cohort_is_larger_than_what_is_counted_with():
    every = [cyclic(rate=1.0).draw(t, {}, KeyedSource(0).generator(Purpose.COHORT, t)).clients for t in range(4)]
    event = Event(sampler="cyclic", clients=1002, cohort=250.0, rate=1.0, noise=BANDED)
    assert max(map(len, every)) == sampling_of("cyclic").most_messages(event, 1e-9) == 251


def test_in_turns_who_joined_an_attempt_or_has_had_its_rounds_stays_away():
    every = cyclic(rate=1.0)
    generator = KeyedSource(0).generator(Purpose.COHORT, 4)
    assert len(every.draw(4, {}, generator).clients) == 251
    again = every.draw(4, {0: 2, 4: 3}, generator, {0: 4, 4: 0, 8: 0}, again=True).clients
    assert len(again) == 249
    assert 8 in again
    assert not {0, 4} & set(again.tolist())


def test_in_turns_needs_noise_that_says_how_many_groups_there_are():
    with pytest.raises(ValueError, match="groups"):
        cyclic(noise=GaussianNoise(multiplier=1.0))


@pytest.mark.parametrize("cap", [1, 3, None])
def test_a_plan_has_the_cohort_and_the_cap_of_the_settings(cap):
    given = {"population.cohort": "17", "population.max_participations": "null" if cap is None else str(cap)}
    planned = sampling_of("poisson").planned(resolve("dp-agr", "strokes", None, given))
    assert planned == {"cohort": 17, "max_participations": cap}


@pytest.mark.parametrize("clients", [2, 7, 1000])
def test_a_cohort_of_coins_is_expected_to_be_as_large_as_planned(clients):
    plan = PrivacyPlan(clients=clients, cohort=1.5, rounds=1, noise_multiplier=1.0)
    sampler = sampler_of(plan.at(0), None)
    assert isinstance(sampler, PoissonSampler)
    assert sampler.rate * clients == pytest.approx(1.5)


@pytest.mark.parametrize(("scales", "wrong"), [((1.5,), None), ((1.5, 1.25), 7.5), ((1.25, 1.5), 7.5), ((), None)])
def test_every_cohort_of_a_fixed_size_is_a_whole_number(scales, wrong):
    """Of six, and of every change between rounds."""
    schedule = tuple(Change(from_round=2 + number, cohort_scale=scale) for number, scale in enumerate(scales))
    given = {"clients": 50, "cohort": 6, "rounds": 6, "noise_multiplier": 2.0, "sampler": "fixed"}
    if wrong is None:
        plan = PrivacyPlan(**given, schedule=schedule)
        assert [plan.at(number).cohort for number in (0, 2)] == [6, 6 * (scales[0] if scales else 1)]
    else:
        with pytest.raises(RefusedPlan, match=rf"cohort.*{wrong}.*a whole number"):
            PrivacyPlan(**given, schedule=schedule)
    with pytest.raises(RefusedPlan, match="a whole number"):
        PrivacyPlan(**{**given, "cohort": 6.5})


@pytest.mark.parametrize("deltas", [(1e-9, 1e-4), (1e-4, 1e-9), (1e-9, 1e-9)])
def test_a_round_of_check_ins_is_seldom_full_beside_the_smallest_delta(deltas):
    given = {
        "clients": 900, "rounds": 9, "cohort": 100.0, "noise_multiplier": 2.0, "sampler": "check-ins",
        "max_participations": 1, "client_delta": deltas[0], "record_delta": deltas[1],
    }  # fmt: skip
    least = least_capacity(900, 9, 1e-9)
    assert least > least_capacity(900, 9, 1e-4)
    names = {
        "population.sampler": "check-ins", "population.clients": "900", "server.rounds": "9",
        "privacy.client.delta": str(deltas[0]), "privacy.record.delta": str(deltas[1]),
    }  # fmt: skip
    PrivacyPlan(**given, capacity=least)
    CheckInSampler.check_settings(resolve("dp-agr", "omniglot", None, {**names, "population.cohort": str(least)}))
    with pytest.raises(RefusedPlan, match=f"capacity = {least - 1}: expected {least} or more"):
        PrivacyPlan(**given, capacity=least - 1)
    with pytest.raises(RefusedPlan, match=f"fewer than {least} is full too often for delta = 1e-09"):
        CheckInSampler.check_settings(
            resolve("dp-agr", "omniglot", None, {**names, "population.cohort": str(least - 1)})
        )
