import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting import bisection as search
from dpfedmeta.accounting import calibration, plan_sizes
from dpfedmeta.accounting.calibration import Targets, _check_left, calibrate
from dpfedmeta.accounting.events.events import Earlier, surplus
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.plan_sizes import largest_cohort, most_rounds
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan

BASE = PrivacyPlan(clients=400_000, cohort=1500, rounds=266, noise_multiplier=0.0)
LAYER = RecordLayer(support_noise=1.0, query_noise=1.0, support_steps=5, support_records=25, query_records=25)
AGRLR = replace(BASE, record=LAYER, max_participations=1)


def epsilon(plan, unit, observer):
    return next(g.epsilon for g in guarantees(plan) if (g.unit, g.observer) == (unit, observer))


@pytest.mark.parametrize(
    ("target", "cohort", "rounds"),
    [
        *((1.5, 1500, 266), (0.3, 50, 20), (8.0, 50, 20)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.3, 1500, 266), (8.0, 1500, 266), (1.5, 50, 20))),
    ],
)
def test_client_noise_meets_its_target_and_wastes_less_than_one_percent(target, cohort, rounds):
    plan = calibrate(replace(BASE, cohort=cohort, rounds=rounds), Targets(client_epsilon=target))
    assert 0.99 * target <= epsilon(plan, "client", "public") <= target


def test_the_designs_noise_is_found():
    plan = calibrate(BASE, Targets(client_epsilon=1.5))
    assert plan.noise_multiplier == pytest.approx(0.755, rel=0.01)


def test_record_noise_is_balanced_and_meets_its_target():
    plan = calibrate(AGRLR, Targets(record_epsilon=2.5))
    assert plan.record.query_noise == pytest.approx(1.634, rel=0.01)
    assert plan.record.support_noise == pytest.approx(math.sqrt(5) * plan.record.query_noise)
    assert 0.99 * 2.5 <= epsilon(plan, "record", "server") <= 2.5


def test_record_noise_without_a_cap_pays_for_the_worst_participation():
    capped = calibrate(AGRLR, Targets(record_epsilon=2.5))
    free = calibrate(replace(AGRLR, max_participations=None), Targets(record_epsilon=2.5))
    assert free.record.query_noise > capped.record.query_noise
    assert 0.99 * 2.5 <= epsilon(free, "record", "server") <= 2.5


def test_record_noise_towards_the_public_is_not_above_its_target():
    stacked = replace(AGRLR, noise_mode="stacked")
    plan = calibrate(stacked, Targets(record_epsilon=2.0, record_observer="public"))
    assert 0.99 * 2.0 <= epsilon(plan, "record", "public") <= 2.0


def test_both_targets_together_are_both_met():
    plan = calibrate(AGRLR, Targets(client_epsilon=1.5, record_epsilon=2.5))
    assert epsilon(plan, "client", "public") <= 1.5
    assert epsilon(plan, "record", "server") <= 2.5


def test_what_surplus_clients_may_take_is_off_the_delta_that_noise_is_solved_at():
    shared = replace(BASE, clients=200, cohort=50, rounds=1, record=LAYER)
    less = shared.client_delta - surplus(replace(shared, noise_multiplier=1.0).phases)
    assert less < shared.client_delta
    alone = replace(shared, record=None, client_delta=less)
    found, expected = (calibrate(each, Targets(client_epsilon=1.5)).noise_multiplier for each in (shared, alone))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("observer", ["server", "public"])
def test_a_target_is_held_against_the_cell_of_its_observer(observer):
    plan = replace(AGRLR, noise_mode="stacked", noise_multiplier=1.0)
    share, words = plan_sizes._reached(plan, Targets(record_epsilon=0.01, record_observer=observer))
    assert share == epsilon(plan, "record", observer) / 0.01
    assert words.startswith(f"(record, {observer})")


def test_an_unreachable_target_says_which_cell_and_what_helps():
    plan = replace(BASE, client_delta=1e-300)
    with pytest.raises(RefusedPlan, match=r"\(client, public\).*raise epsilon or delta"):
        calibrate(plan, Targets(client_epsilon=1e-9))


def test_a_target_of_the_record_is_met_by_the_servers_noise_where_there_is_no_other():
    plan = calibrate(BASE, Targets(record_epsilon=0.5, record_observer="public"))
    assert 0.99 * 0.5 <= epsilon(plan, "record", "public") <= 0.5
    both = calibrate(BASE, Targets(client_epsilon=0.1, record_epsilon=0.5, record_observer="public"))
    assert 0.099 <= epsilon(both, "client", "public") <= 0.1
    assert epsilon(both, "record", "public") <= 0.5


def test_a_target_that_nothing_can_reach_names_the_cell_and_the_knob():
    with pytest.raises(RefusedPlan, match=r"\(record, server\).*dp-agrlr-micro"):
        calibrate(BASE, Targets(record_epsilon=1.0))
    noisy = replace(BASE, noise_multiplier=0.3)
    with pytest.raises(RefusedPlan, match=r"\(client, public\).*server.rounds = 1"):
        most_rounds(noisy, Targets(client_epsilon=0.01))
    with pytest.raises(RefusedPlan, match=r"population.cohort = 1"):
        largest_cohort(replace(noisy, rounds=10_000), Targets(client_epsilon=1e-5))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_targets_are_numbers_above_zero(bad):
    with pytest.raises(RefusedPlan, match=r"privacy.client.epsilon"):
        Targets(client_epsilon=bad)


def test_rounds_are_as_many_as_the_target_allows():
    noisy = replace(BASE, noise_multiplier=1.0)
    plan = most_rounds(noisy, Targets(client_epsilon=0.475))
    assert plan.rounds == pytest.approx(266, abs=2)
    assert epsilon(plan, "client", "public") <= 0.475
    assert epsilon(replace(plan, rounds=plan.rounds + 1), "client", "public") > 0.475
    record = replace(AGRLR, max_participations=None, record=replace(LAYER, support_noise=5.0, query_noise=5.0))
    few = most_rounds(record, Targets(record_epsilon=2.0))
    assert epsilon(few, "record", "server") <= 2.0 < epsilon(replace(few, rounds=few.rounds + 1), "record", "server")


@pytest.mark.slow
def test_a_cohort_of_one_size_is_whole_in_every_stretch_of_a_schedule():
    schedule = (Change(from_round=10, cohort_scale=0.5), Change(from_round=15, cohort_scale=0.75))
    plan = PrivacyPlan(
        clients=2000, cohort=4.0, rounds=20, noise_multiplier=2.0, sampler="fixed", schedule=schedule, client_delta=1e-5
    )  # fmt: skip
    targets = Targets(client_epsilon=4.0)
    found = largest_cohort(plan, targets)
    assert found.cohort % 4 == 0
    assert (
        plan_sizes._reached(found, targets)[0]
        <= 1
        < plan_sizes._reached(replace(found, cohort=found.cohort + 4), targets)[0]
    )
    with pytest.raises(RefusedPlan, match=r"even with population\.cohort = 4;"):
        largest_cohort(plan, Targets(client_epsilon=1e-4))


def test_a_cohort_is_as_large_as_the_target_allows():
    noisy = replace(BASE, noise_multiplier=1.0, rounds=50)
    plan = largest_cohort(noisy, Targets(client_epsilon=1.0))
    assert epsilon(plan, "client", "public") <= 1.0
    assert epsilon(replace(plan, cohort=plan.cohort + 1), "client", "public") > 1.0
    fixed = largest_cohort(replace(noisy, sampler="fixed", noise_multiplier=2.0), Targets(client_epsilon=1.0))
    assert epsilon(fixed, "client", "public") <= 1.0


def test_a_schedule_is_calibrated_as_a_whole():
    schedule = (Change(from_round=100, noise_scale=0.8), Change(from_round=200, cohort_scale=2.0))
    plan = calibrate(replace(BASE, schedule=schedule), Targets(client_epsilon=1.5))
    assert 0.99 * 1.5 <= epsilon(plan, "client", "public") <= 1.5
    constant = calibrate(BASE, Targets(client_epsilon=1.5))
    assert plan.noise_multiplier > constant.noise_multiplier


@pytest.mark.parametrize("sampler", ["poisson", pytest.param("fixed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", [0.05, pytest.param(30.0, marks=pytest.mark.slow)])
def test_extreme_targets_are_met_too(sampler, target):
    plan = calibrate(replace(BASE, sampler=sampler), Targets(client_epsilon=target))
    assert 0.99 * target <= epsilon(plan, "client", "public") <= target


@pytest.mark.parametrize("excess", [1e-9, 1e-4, 1e-3])
def test_no_noise_is_enough_that_exceeds_the_target_by_however_little(excess):
    """A step from just above the target to far below it: the noise that is found lies behind the step."""

    def reached(noise):
        return 2.0 * (1 + excess) if noise < 1.2345 else 0.5

    assert reached(search.smallest_noise(reached, 2.0, "(client, public)", start=1.0)) <= 2.0


SUMS = PrivacyPlan(
    clients=200, cohort=50.0, rounds=4, noise_multiplier=3.0, sampler="fixed", server_sees="sum", colluding=6,
    secure=SecureRounds(bits=18, dimension=64, parts=8),
    record=RecordLayer(
        support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=8, of_sum=True
    ),
)  # fmt: skip
COUNTS = PrivacyPlan(
    clients=200, cohort=200.0, rounds=1, noise_multiplier=4.0, sampler="fixed", server_sees="sum", colluding=20,
    secure=SecureRounds(bits=31, dimension=10, longest=1.0),
)  # fmt: skip


def targets(**given):
    """One target for each (unit, observer); every other one is out of reach."""
    ((cell, epsilon),) = given.items()
    unit, observer = cell.split("_")
    return Targets(**{f"{unit}_epsilon": epsilon, f"{unit}_observer": observer})


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("observer", ["server", "public"])
def test_what_is_spent_already_is_held_against_the_target_of_the_same_cell(unit, observer):
    before = Earlier(run="a", head="0", phases=COUNTS.phases)
    # A null plan of one round of next to no cost shows what was spent.
    spent = {
        (cell.unit, cell.observer): cell.epsilon
        for cell in guarantees(replace(COUNTS, client_delta=SUMS.client_delta, record_delta=SUMS.record_delta))
    }
    # Knowing of its own noise, a server that colludes learns more than the public does.
    assert spent["client", "server"] > 1.005 * spent["client", "public"]
    plan, found = replace(SUMS, earlier=(before,)), spent[unit, observer]
    _check_left(plan, targets(**{f"{unit}_{observer}": found * 1.002}))
    with pytest.raises(RefusedPlan, match=rf"\({unit}, {observer}\): epsilon = .* is spent already"):
        _check_left(plan, targets(**{f"{unit}_{observer}": found * 0.998}))


@pytest.mark.parametrize("tighter", ["client", "record"])
def test_the_target_that_is_missed_by_most_is_named_with_its_share(tighter):
    cells = {(cell.unit, cell.observer): cell.epsilon for cell in guarantees(SUMS)}
    shares = {"client": 0.7, "record": 0.7, tighter: 0.9}
    share, words = plan_sizes._reached(
        SUMS,
        Targets(
            client_epsilon=cells["client", "public"] / shares["client"],
            record_epsilon=cells["record", "server"] / shares["record"],
        ),
    )
    assert share == pytest.approx(0.9)
    assert words.startswith(f"({tighter}, ")


@pytest.mark.parametrize("parts", [8, 720])
def test_bits_that_are_too_few_for_much_noise_carry_what_a_record_among_many_parts_needs(parts):
    """A search that begins at noise 1, for which there are too few bits, goes on below it."""
    layer = replace(SUMS.record, query_records=parts)

    def with_bits(bits):
        secure = SecureRounds(bits=bits, dimension=8192, parts=parts)
        return replace(SUMS, clients=5, cohort=5.0, colluding=1, noise_multiplier=0.0, record=layer, secure=secure)

    target = Targets(record_epsilon=2.5)
    found = calibrate(with_bits(16), target)
    assert 0.99 * 2.5 <= epsilon(found, "record", "server") <= 2.5
    assert found.noise_multiplier >= 0.999 * calibrate(with_bits(20), target).noise_multiplier
    with pytest.raises(RefusedPlan, match="too few for a sum of 5 clients"):
        calibrate(with_bits(10), Targets(record_epsilon=1e-3))


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_target_that_is_spent_to_the_last_digit_leaves_nothing(unit):
    """No noise is enough for a round more; whatever lies above it may be."""
    plan = replace(SUMS, earlier=(Earlier(run="a", head="0", phases=COUNTS.phases),))
    deltas = replace(COUNTS, client_delta=SUMS.client_delta, record_delta=SUMS.record_delta, earlier=plan.earlier)
    cells = {cell.unit: cell.epsilon for cell in guarantees(deltas, rounds=0) if cell.observer == "public"}
    with pytest.raises(RefusedPlan, match="is spent already"):
        _check_left(plan, targets(**{f"{unit}_public": cells[unit]}))
    _check_left(plan, targets(**{f"{unit}_public": math.nextafter(cells[unit], math.inf)}))


SMALLER = (Change(from_round=5, cohort_scale=0.25),)
LARGER = (Change(from_round=5, cohort_scale=2.5),)


@pytest.mark.parametrize(
    ("schedule", "most"),
    [((), 60), (SMALLER, 60), (LARGER, 24), ((*SMALLER, Change(from_round=7, cohort_scale=2.0)), 30)],
)
def test_no_cohort_of_a_schedule_is_larger_than_the_population(schedule, most, monkeypatch):
    """Before the first change a round has the cohort itself, however small later ones are."""
    monkeypatch.setattr(plan_sizes, "_reached", lambda plan, targets: (0.0 * len(plan.phases), ""))
    plan = replace(BASE, clients=60, cohort=1.0, rounds=9, noise_multiplier=5000.0, schedule=schedule)
    assert largest_cohort(plan, Targets(client_epsilon=5.0)).cohort == most


def test_rounds_are_no_more_than_are_asked_for():
    plan = replace(BASE, noise_multiplier=500.0)
    for limit in (1, 7, 64):
        assert most_rounds(plan, Targets(client_epsilon=5.0), limit).rounds == limit


def test_a_record_is_not_looked_at_where_the_client_is_above_its_target(monkeypatch):
    """It takes as long, and nothing would follow from it."""
    plan = replace(AGRLR, noise_mode="stacked", noise_multiplier=1.0)
    client = guarantees(plan)[0].epsilon
    monkeypatch.setattr(plan_sizes, "cell_of_record", lambda plan, targets: pytest.fail("asked"))
    share, words = plan_sizes._reached(plan, Targets(client_epsilon=client / 1.5, record_epsilon=1e-9))
    assert share == pytest.approx(1.5)
    assert words.startswith("(client, public): epsilon = ")
    assert plan_sizes._reached(plan, Targets()) == (0.0, "")


@pytest.mark.parametrize(("unit", "name"), [("client", "privacy.client.epsilon"), ("record", "privacy.record.epsilon")])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_each_target_is_a_finite_number_above_zero(unit, name, bad):
    with pytest.raises(RefusedPlan, match=rf"^{name} = {bad}: a target is a finite number above 0"):
        targets(**{f"{unit}_public": bad})
    assert targets(**{f"{unit}_public": 1e-9})


def test_noise_that_meets_a_records_target_already_stays_and_too_little_is_raised(monkeypatch):
    monkeypatch.setattr(calibration, "_record_public_epsilon", lambda plan: 1.0 / plan.noise_multiplier)
    for given, expected in ((3.0, 3.0), (2.0, 2.0), (1.9, 2.0), (0.0, 2.0)):
        found = calibrate(replace(BASE, noise_multiplier=given), Targets(record_epsilon=0.5, record_observer="public"))
        assert expected <= found.noise_multiplier <= expected * 1.0021


@pytest.mark.parametrize(("of_client", "due"), [(1.5, 2.0), (2.0, 2.0), (5.0, 5.0), (0.01, 2.0)])
@pytest.mark.parametrize("observer", ["server", "public"])
def test_two_targets_of_a_sum_are_met_by_the_larger_noise(monkeypatch, observer, of_client, due):
    """A record needs a noise of 2 here; that of the client is found first, and stays where it is enough."""
    asked = []

    def of_record(plan, targets):
        asked.append(targets)
        return SimpleNamespace(epsilon=math.inf if not plan.noise_multiplier else 6.0 / plan.noise_multiplier)

    def client(plan, epsilon):
        return replace(plan, noise_multiplier=of_client)

    monkeypatch.setattr(calibration, "cell_of_record", of_record)
    monkeypatch.setattr(calibration, "_calibrate_client", client)
    spent = 4.0 * of_client
    monkeypatch.setattr(calibration, "epsilon_of_client", lambda plan, observer: spent / plan.noise_multiplier)
    both = Targets(client_epsilon=4.0, client_observer=observer, record_epsilon=3.0)
    found = calibrate(replace(SUMS, noise_multiplier=0.5), both).noise_multiplier
    assert due <= found <= due * 1.0021
    assert all(targets == both for targets in asked)
    alone = calibrate(replace(SUMS, noise_multiplier=of_client), Targets(record_epsilon=3.0)).noise_multiplier
    assert due <= alone <= due * 1.0021


def test_a_target_towards_a_server_of_messages_is_refused_and_towards_the_public_it_is_none():
    for solve in (calibrate, most_rounds, largest_cohort):
        with pytest.raises(RefusedPlan, match=r"\(client, server\): the server sees each client's message"):
            solve(replace(BASE, noise_multiplier=1.0), Targets(client_epsilon=1.0, client_observer="server"))
