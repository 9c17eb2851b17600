"""Sums of counts: exact sensitivity, noise of the stated deviation, and answers that do not fit."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from asking import asking, counted

from dpfedmeta.analytics.analyses.gain import Gain
from dpfedmeta.analytics.analyses.histogram import Histogram
from dpfedmeta.analytics.analyses.quantile import Quantile, isotonic
from dpfedmeta.analytics.analysis import PendingRelease, SumForm
from dpfedmeta.analytics.analysis_request import FixedCohort, Request
from dpfedmeta.analytics.secure_counts import CountGrid, fits, sent
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.privacy.samplers import Cohort

SMALL = Quantile(bins=6, lowest=0.1, highest=10.0)


def test_a_client_adds_what_the_plan_says_and_no_more():
    numbers = np.random.default_rng(0)
    assert all((SMALL.vector(norm) ** 2).sum() == 1 for norm in [0.0, 0.1, 3.0, 1e9, *numbers.lognormal(size=20)])
    assert not SMALL.vector(math.nan).any()
    histogram = Histogram()
    for _ in range(20):
        images = numbers.integers(0, 3000, size=numbers.integers(0, 80)).tolist()
        assert (histogram.vector(images) ** 2).sum() == 9
    grid = np.linspace(-0.2, 1.2, 45)
    longest = max(float((Gain(run="").vector(b, a).astype(float) ** 2).sum()) for a in grid for b in grid)
    assert longest == 3_000_000


@pytest.mark.parametrize(
    ("analysis", "length"), [(SMALL, 1.0), (Histogram(), 3.0), (Gain(run=""), 1000 * math.sqrt(3))]
)
def test_the_plan_counts_with_that_length(analysis, length):
    plan = asking(analysis).plan
    whole = plan.at(0).whole
    assert plan.secure.longest == pytest.approx(length, rel=1e-12)
    steps = whole.units / length
    assert steps == pytest.approx(round(steps), rel=1e-12)
    assert whole.of_a_client == whole.units
    # What everybody faces is noise of that many deviations, whoever took part.
    assert math.sqrt(whole.total - 1 / 12) / whole.units >= 1.0


def test_released_counts_are_the_sum_and_the_noise_that_is_stated():
    held = np.eye(8, dtype=np.int64)[np.arange(40) % 8]
    found = [counted(asking(SMALL, seed=seed), lambda client: held[client]) for seed in range(60)]
    errors = (np.array([each.values for each in found]) - held.sum(0)).ravel()
    stated = found[0].deviation
    assert stated == pytest.approx(1.0, rel=0.1)
    assert abs(errors.mean()) < 4 * stated / math.sqrt(errors.size)
    assert errors.std() == pytest.approx(stated, rel=4 / math.sqrt(2 * errors.size))


def test_whoever_falls_silent_the_noise_is_what_is_stated():
    """Ten of forty do, as may happen: their share is the server's, and colluding clients' shares are not counted."""
    plan = Request(
        kind="quantile", epsilon=1.0, delta=1e-3, cohort=40.0, clients=40,
        own={"quantile": 0.5, "bins": 6, "lowest": 0.1, "highest": 10.0},
        fixed=FixedCohort(dropout=0.25, adversarial=0.0),
    ).planned()  # fmt: skip
    assert (plan.sampler, plan.at(0).whole.fewest(40)) == ("fixed", 30)
    held = np.eye(8, dtype=np.int64)[np.arange(40) % 8]
    for there in (40, 30):
        cohort = Cohort(round=0, clients=np.arange(there), invited=40)
        own = [PendingRelease(plan=plan, cohort=cohort, source=KeyedSource(seed)) for seed in range(60)]
        found = [counted(each, lambda client: held[client]) for each in own]
        errors = (np.array([each.values for each in found]) - held[:there].sum(0)).ravel()
        assert errors.std() == pytest.approx(found[0].deviation, rel=4 / math.sqrt(2 * errors.size))
    # With fewer nothing is unmasked, and what is released is noise.
    few = PendingRelease(plan=plan, cohort=Cohort(round=0, clients=np.arange(29), invited=40), source=KeyedSource(1))
    alone = replace(few, cohort=Cohort(round=0, clients=np.arange(1), invited=40))
    assert np.array_equal(
        counted(few, lambda client: held[client]).values, counted(alone, lambda client: held[client]).values
    )


def test_that_all_but_one_client_are_there_changes_nothing_but_its_answer():
    everybody = asking(SMALL)
    without = replace(everybody, cohort=Cohort(round=0, clients=everybody.cohort.clients[:-1]))
    # A round that is too small releases noise alone: everybody would see that one client is missing.
    sums = [counted(each, lambda client: SMALL.vector(3.0)).values.sum() for each in (everybody, without)]
    assert sums == pytest.approx([40, 39], abs=5 * math.sqrt(SMALL.bins + 2))


@pytest.mark.parametrize(
    "bad",
    [
        None,
        np.full(8, 1, dtype=np.int64),
        np.eye(8)[0],
        np.zeros(9, dtype=np.int64),
        2 * np.eye(8, dtype=np.int64)[0],
        -2 * np.eye(8, dtype=np.int64)[0],
    ],
    ids=["nothing", "too long", "no whole numbers", "another size", "twice", "minus"],
)
def test_an_answer_that_does_not_fit_counts_as_zero_and_brings_its_noise(bad):
    plan = asking(SMALL).plan
    whole = plan.at(0).whole
    grid = CountGrid(bits=whole.bits, steps=round(whole.units))
    share, source = whole.share(40), KeyedSource(3)
    nothing = sent(np.zeros(8, dtype=np.int64), whole, grid, share, 7, source)
    assert nothing.any()
    assert np.array_equal(sent(bad, whole, grid, share, 7, source), nothing)
    good = sent(np.eye(8, dtype=np.int64)[2], whole, grid, share, 7, source) - nothing
    assert good.tolist() == [0, 0, grid.steps, 0, 0, 0, 0, 0]


def test_quantiles_are_read_from_counts():
    numbers = np.random.default_rng(1)
    norms = numbers.lognormal(mean=1.0, sigma=0.5, size=4000)
    analysis = Quantile(quantile=0.5, bins=60)
    counts = sum(analysis.vector(norm) for norm in norms)
    noisy = counts + numbers.normal(0, 5, size=counts.shape)
    found = analysis.read(noisy, 5.0)
    assert found["low"] <= math.e <= found["high"]
    assert found["bound"] == pytest.approx(math.e, rel=0.05)
    assert not found["too_noisy"]
    assert analysis.read(numbers.normal(0, 500, size=counts.shape), 500.0)["too_noisy"]


@pytest.mark.parametrize("place", [4, 20, 55])
@pytest.mark.parametrize(("part", "noisy"), [(0.2, False), (0.24, False), (0.26, True), (0.4, True)])
def test_a_quantile_is_too_noisy_where_the_noise_of_all_that_lies_below_it_is(place, part, noisy):
    """Of a quarter of the clients: the counts below are added up, and so is their noise."""
    analysis, counts = Quantile(quantile=0.5), np.zeros(62)
    counts[place] = 1000.0
    deviation = part * 1000.0 / (1.96 * math.sqrt(place + 1))
    found = analysis.read(counts, deviation)
    assert found["too_noisy"] is noisy
    noise = np.random.default_rng(place).normal(0, deviation, size=(4000, place + 1)).sum(axis=1)
    assert float(np.quantile(np.abs(noise), 0.95)) == pytest.approx(part * 1000.0, rel=0.1)


def test_the_rising_sequence_is_the_closest_one():
    values = np.array([0.0, 3.0, 1.0, 2.0, 9.0, 8.0])
    assert isotonic(values).tolist() == [0.0, 2.0, 2.0, 2.0, 8.5, 8.5]


def test_the_interval_of_a_gain_holds_it():
    numbers, analysis, size, inside = np.random.default_rng(2), Gain(run=""), 80, 0
    for seed in range(80):
        before, after = numbers.beta(2, 8, size), numbers.beta(6, 3, size)
        answers = [analysis.vector(b, a) for b, a in zip(before, after, strict=True)]
        sums = counted(asking(analysis, seed=seed, size=size, noise=2.0), lambda client: answers[client])  # noqa: B023
        found = analysis.read(sums.values, sums.deviation)
        inside += abs(found["gain"] - (6 / 9 - 2 / 10)) <= found["ci95"]
    # 95% but for chance, from below.
    assert inside >= 80 * 0.95 - 3 * math.sqrt(80 * 0.95 * 0.05)
    assert found["ci95"] > 1.96 * math.sqrt(2) * 2.0 * math.sqrt(3) / size * 0.9


def test_a_histogram_says_what_clients_can_form():
    analysis = Histogram(share=0.8)
    held = [[12] * 7] * 180 + [[3, 3]] * 20
    counts = np.sum([analysis.vector(images) for images in held], axis=0).astype(float)
    found = analysis.read(counts, 0.5)
    assert [(row["ways"], row["images"]) for row in found["affordable"]] == [(2, 10), (3, 10), (5, 10)]
    assert analysis.read(counts, 100.0)["affordable"] == []


@pytest.mark.parametrize("deviation", [0.5, 4.0])
def test_words_say_the_numbers_that_were_found(deviation):
    analysis = Histogram(share=0.5)
    held = [[12] * 7] * 150 + [[3, 3]] * 50
    found = analysis.read(np.sum([analysis.vector(images) for images in held], axis=0).astype(float), deviation)
    said = [re.findall(r"[\d.]+", line) for line in analysis.words(found)[1:-2]]
    assert len(said) == len(found["affordable"]) > 0
    for row, numbers in zip(found["affordable"], said, strict=True):
        ways, images, clients, interval = map(float, numbers)
        assert (ways, images) == (row["ways"], row["images"])
        assert clients == pytest.approx(100 * row["clients"], abs=0.051)
        assert interval == pytest.approx(100 * row["ci95"], abs=0.051)
        assert interval > 0.1


def test_shares_are_those_of_the_bins_that_they_name():
    analysis = Histogram(share=0.8)
    held = [[12] * 7] * 150 + [[3, 3]] * 50
    found = analysis.read(np.sum([analysis.vector(images) for images in held], axis=0).astype(float), 0.5)
    classes, images = analysis.words(found)[-2:]
    assert classes == "classes of a client: 2 25.0%, 5 to 9 75.0%"
    assert images == "images: 5 to 9 25.0%, 50 to 99 75.0%"
    many = analysis.read(analysis.vector([6000]).astype(float), 0.01)
    assert analysis.words(many)[-1] == "images: 5000 or more 100.0%"


def as_often_as_it_says(inside, draws):
    """95%, but for chance, from below."""
    return inside >= draws * 0.95 - 3 * math.sqrt(draws * 0.95 * 0.05)


@pytest.mark.parametrize("deviation", [0.5, 8.0], ids=["who was drawn", "noise"])
def test_the_range_of_a_quantile_holds_it_as_often_as_it_says(deviation):
    """Where what clients hold decides, and where the noise of all bins below does."""
    numbers, analysis, inside = np.random.default_rng(5), Quantile(quantile=0.5, bins=60), 0
    for _ in range(200):
        norms = numbers.lognormal(mean=1.0, sigma=0.5, size=400)
        counts = np.bincount(np.searchsorted(analysis.edges, norms, side="right"), minlength=62)
        found = analysis.read(counts + numbers.normal(0, deviation, 62), deviation)
        inside += found["low"] <= math.e <= found["high"]
    assert as_often_as_it_says(inside, 200)


def test_the_interval_of_a_gain_holds_it_where_clients_differ_more_than_the_noise():
    numbers, analysis, inside = np.random.default_rng(3), Gain(run=""), 0
    for _ in range(200):
        pairs = zip(numbers.beta(2, 8, 80), numbers.beta(6, 3, 80), strict=True)
        sums = np.sum([analysis.vector(before, after) for before, after in pairs], axis=0)
        found = analysis.read(sums + numbers.normal(0, 10.0, 4), 10.0)
        inside += abs(found["gain"] - (6 / 9 - 2 / 10)) <= found["ci95"]
    assert as_often_as_it_says(inside, 200)


def test_the_share_of_clients_that_can_form_an_episode_lies_within_its_interval():
    """The noise of all bins that are added up is in it: five for three classes or more."""
    numbers, analysis, deviation, inside = np.random.default_rng(6), Histogram(share=0.5), 4.0, 0
    held = [[12] * 7] * 240 + [[3, 3]] * 60
    exact = np.sum([analysis.vector(images) for images in held], axis=0)
    for _ in range(300):
        found = analysis.read(exact + numbers.normal(0, deviation, len(exact)), deviation)
        row = next(row for row in found["affordable"] if row["ways"] == 3)
        inside += abs(row["clients"] - 0.8) <= row["ci95"]
    assert as_often_as_it_says(inside, 300)


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("aggregation.dropout", "dropout", 0.15),
        ("aggregation.adversarial", "adversarial", 0.25),
        ("privacy.client.colluding", "colluding", 3),
        ("privacy.client.hostile", "hostile", 0.1),
    ],
)
def test_a_fixed_cohort_takes_each_option_from_its_setting(setting, name, value):
    usual, changed = (
        FixedCohort.of(resolve("dp-agr-secure", "strokes", None, given)) for given in ({}, {setting: str(value)})
    )
    assert getattr(usual, name) != value
    assert changed == replace(usual, **{name: value})


def test_a_client_hands_over_all_parts_of_a_sum():
    form = SumForm(bits=20, length=7, parts=3)
    assert form.dimension == np.zeros((form.parts, form.length)).size


def read_gain(sums, deviation):
    return Gain(run="").read(np.array(sums, dtype=float), deviation)


def test_a_gain_is_read_from_the_sums_of_four_numbers():
    """Of pairs that are known: the mean of each, and the spread of their differences between clients."""
    pairs = [(0.2, 0.5), (0.4, 0.9), (0.1, 0.3), (0.5, 0.5)]
    analysis = Gain(run="")
    sums = np.sum([analysis.vector(before, after) for before, after in pairs], axis=0)
    found = read_gain(sums, 7.0)
    gains = np.array([after - before for before, after in pairs])
    assert (found["clients"], found["deviation"]) == (4.0, 0.007)
    assert found["before"] == pytest.approx(0.3)
    assert found["after"] == pytest.approx(0.55)
    assert found["gain"] == pytest.approx(gains.mean())
    noise = 0.007**2 * (2.0 + 0.25**2) / 16
    assert found["ci95"] == pytest.approx(1.96 * math.sqrt(gains.var() / 4 + noise) + 0.001, rel=1e-6)


def test_clients_who_all_gain_alike_leave_the_noise_alone():
    """The mean square of their gains is no spread between them."""
    vectors = [Gain(run="").vector(0.2, 0.8)] * 100
    quiet, loud = (read_gain(np.sum(vectors, axis=0), deviation) for deviation in (0.0, 2000.0))
    assert quiet["ci95"] == pytest.approx(0.001)
    # A ratio of noisy sums: the gain moves with both, and with how many clients there seem to be.
    assert loud["ci95"] == pytest.approx(0.001 + 1.96 * 2.0 * math.sqrt(2.36) / 100)


def test_hardly_any_clients_are_one_and_a_spread_is_no_less_than_nothing():
    few = read_gain([200.0, 100.0, 50.0, 10.0], 1.0)
    assert few["clients"] == 1.0
    assert few["gain"] == pytest.approx(0.05)
    below = read_gain([4000.0, 3000.0, 1000.0, -5000.0], 0.0)
    assert below["ci95"] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.25, 0.75, [1000, 750, 250, 250]),
        (0.0, 1.0, [1000, 1000, 0, 1000]),
        (0.5, 0.5, [1000, 500, 500, 0]),
        (-0.3, 1.7, [1000, 1000, 0, 1000]),
        # Downwards: 31^2 are 961 millionths.
        (0.1, 0.131, [1000, 131, 100, 0]),
        (0.1, 0.132, [1000, 132, 100, 1]),
    ],
)
def test_a_client_says_four_numbers_of_itself(before, after, expected):
    assert Gain(run="").vector(before, after).tolist() == expected


@pytest.mark.parametrize(
    ("gain", "ci95", "zero"), [(0.1, 0.05, False), (-0.1, 0.05, False), (0.1, 0.11, True), (-0.1, 0.11, True)]
)
def test_words_of_a_gain_say_where_it_may_be_none(gain, ci95, zero):
    lines = Gain(run="").words({"gain": gain, "ci95": ci95, "before": 0.3, "after": 0.3 + gain, "clients": 1234.4})
    assert lines[0] == (
        f"adaptation to their own images brings the clients {100 * gain:+.1f} ± {100 * ci95:.1f} points of accuracy "
        f"(95%): from 30.0% to {100 * (0.3 + gain):.1f}%, about 1,234 clients"
    )
    assert (len(lines) == 2) is zero


@pytest.mark.parametrize("images", [[], [1], [5, 5, 1], [60, 3], [10] * 60, [2500, 2501]], ids=len)
def test_a_client_is_in_one_bin_of_each_histogram(images):
    """By counting: how many classes have so many images, and how many images there are in all."""
    of_a_class, classes = (1, 2, 5, 10, 15, 20, 30, 50), (0, 1, 2, 3, 5, 10, 20, 50)
    of_a_client = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    vector = Histogram().vector(images)
    assert len(vector) == 8 * 8 + 13
    for row, fewest in enumerate(of_a_class):
        held = sum(each >= fewest for each in images)
        expected = [int(held >= low and (at == 7 or held < classes[at + 1])) for at, low in enumerate(classes)]
        assert vector[8 * row : 8 * row + 8].tolist() == expected
    total = sum(images)
    assert vector[64:].tolist() == [
        int(total >= low and (at == 12 or total < of_a_client[at + 1])) for at, low in enumerate(of_a_client)
    ]


def test_no_bin_of_a_histogram_has_more_than_all_clients():
    """Of six clients the noise is most of the counts."""
    analysis = Histogram()
    counts = np.zeros(77)
    counts[2] = 17.0
    found = analysis.read(counts, 3.0)
    assert found["clients"] == 17.0
    assert "classes of a client: 2 100.0%" in analysis.words(found)


def test_a_histogram_states_both_of_its_marginals_and_how_many_clients_there_are():
    held = [[12] * 7] * 30 + [[3, 3]] * 10 + [[]] * 5
    counts = np.sum([Histogram().vector(images) for images in held], axis=0).astype(float)
    found = Histogram(share=0.6).read(counts, 0.25)
    assert (found["clients"], found["share"], found["deviation"]) == (45.0, 0.6, 0.25)
    assert {name: count for name, count in found["labels"].items() if count} == {"0": 5, "2": 10, "5": 30}
    assert {name: count for name, count in found["images"].items() if count} == {"0": 5, "5": 10, "50": 30}
    # As many images of a class as surely two thirds of the clients have, less what the noise of all those bins may be.
    (two, *_) = found["affordable"]
    assert (two["ways"], two["images"]) == (2, 10)
    assert two["clients"] == pytest.approx(30 / 45)
    assert two["ci95"] == pytest.approx(1.96 * 0.25 * math.sqrt(6) / 45)
    assert all(row["ways"] >= 2 for row in found["affordable"])
    edge = Histogram(share=30 / 45 - two["ci95"]).read(counts, 0.25)["affordable"][0]
    beyond = Histogram(share=30 / 45 - two["ci95"] + 1e-9).read(counts, 0.25)["affordable"]
    assert edge["images"] == 10
    assert not beyond or beyond[0]["images"] < 10


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Histogram(share=0.0), "--share 0"), (lambda: Histogram(share=1.0), "--share 1"),
        (lambda: Quantile(quantile=0.0), "--quantile 0"), (lambda: Quantile(quantile=1.0), "--quantile 1"),
        (lambda: Quantile(lowest=0.0), "--lowest 0"), (lambda: Quantile(lowest=2.0, highest=2.0), "lowest < highest"),
        (lambda: Quantile(highest=math.inf), "--highest inf"), (lambda: Quantile(bins=1), "--bins 1: from 2 to 1000"),
        (lambda: Quantile(bins=1001), "--bins 1001"),
    ],
)  # fmt: skip
def test_options_of_no_meaning_are_refused(make, words):
    with pytest.raises(InputError, match=re.escape(words)):
        make()
    Histogram(share=0.999), Quantile(quantile=0.001, lowest=1e-9, highest=1e9, bins=2), Quantile(bins=1000)


@pytest.mark.parametrize("norm", [0.0, 0.05, 0.1, 0.1000001, 0.99, 1.0, 9.99, 10.0, 11.0, 1e300])
def test_a_norm_is_counted_between_the_edges_that_hold_it(norm):
    edges = SMALL.edges
    assert (edges[0], edges[-1], len(edges)) == (pytest.approx(0.1), pytest.approx(10.0), 7)
    assert np.diff(np.log(edges)) == pytest.approx([math.log(100) / 6] * 6)
    assert int(SMALL.vector(norm).argmax()) == sum(norm >= edge for edge in edges)
    for none in (math.nan, math.inf, -math.inf):
        assert SMALL.vector(none).tolist() == [0] * 8


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_a_quantile_without_noise_lies_where_the_counts_say(quantile):
    """100 clients in each of the six bins: the distribution rises evenly in the logarithm."""
    analysis = replace(SMALL, quantile=quantile)
    found = analysis.read(np.array([0, 100, 100, 100, 100, 100, 100, 0], dtype=float), 0.0)
    assert math.log(found["bound"] / 0.1) == pytest.approx(quantile * math.log(100), rel=1e-9)
    spread = math.sqrt(600 * quantile * (1 - quantile))
    for name, sign in (("low", -1), ("high", 1)):
        level = quantile + sign * 1.96 * spread / 600
        assert math.log(found[name] / 0.1) == pytest.approx(level * math.log(100), rel=1e-9)
    assert (found["quantile"], found["counts"][0], found["edges"]) == (quantile, 0, analysis.edges.tolist())
    # Everybody below the grid: its lower end.
    assert analysis.read(np.array([600.0, *[0.0] * 7]), 0.0)["bound"] == pytest.approx(0.1)


@pytest.mark.parametrize(("shorter", "deviation"), [(0, 0.0), (100, 0.0), (275, 0.0), (0, 5.0), (100, 5.0), (264, 5.0)])
def test_messages_that_are_longer_than_the_grid_are_told_of(shorter, deviation):
    """The few that are shorter end somewhere on it: that is no bound of half of the clients."""
    counts = np.array([0, shorter, 0, 0, 0, 0, 0, 600 - shorter], dtype=float)
    found = SMALL.read(counts, deviation)
    assert (found["beyond"], found["bound"], found["high"]) == (True, pytest.approx(10.0), pytest.approx(10.0))
    (line,) = SMALL.words(found)
    assert line == (
        "fewer than 50% of the clients' messages are no longer than 10 (with 95% confidence), where the grid ends: ask "
        "again with a larger --highest"
    )
    # What an earlier version wrote is read as it was.
    del found["beyond"]
    assert "are no longer than 10 (between" in SMALL.words(found)[0]


@pytest.mark.parametrize(("shorter", "deviation"), [(278, 0.0), (299, 0.0), (275, 5.0), (0, 200.0)])
def test_what_noise_or_who_was_drawn_explains_is_no_statement_about_the_grid(shorter, deviation):
    """By hand: 300 of 600 are wanted, who was drawn deviates by 12.2, and the noise adds its own."""
    counts = np.array([0, shorter, 0, 0, 0, 0, 0, 600 - shorter], dtype=float)
    found = SMALL.read(counts, deviation)
    assert not found["beyond"]
    assert found["bound"] == pytest.approx(10.0)
    assert "with 95% confidence)" in SMALL.words(found)[0]


def test_where_the_noise_is_too_large_nothing_is_said_of_the_grid():
    first, second = SMALL.words({**SMALL.read(np.ones(8), 1.0), "too_noisy": True, "beyond": True})
    assert "ask again" not in first
    assert second.startswith("the noise is large against the counts")


def test_an_upper_end_that_lies_beyond_the_grid_is_where_it_ends():
    found = SMALL.read(np.array([0, 300, 10, 0, 0, 0, 0, 290], dtype=float), 1.0)
    assert not found["beyond"]
    assert found["bound"] < 1.0 < found["high"] == pytest.approx(10.0)
    # Where noise alone is beyond the last edge, the range ends where the clients do.
    inside = SMALL.read(np.array([0, 300, 10, 0, 0, 0, 0, 1.5], dtype=float), 1.0)
    assert inside["high"] < 1.0
    high = replace(SMALL, quantile=0.999).read(np.array([0, 300, 10, 0, 0, 0, 0, 1.5], dtype=float), 1.0)
    assert (high["beyond"], high["bound"]) == (False, pytest.approx(SMALL.edges[2]))


def test_counts_of_other_kinds_do_not_fit():
    plan = asking(SMALL).plan
    whole = plan.at(0).whole
    grid = CountGrid(bits=whole.bits, steps=round(whole.units))
    good = np.eye(8, dtype=np.int64)[0]
    assert fits(good, whole, grid)
    assert fits(0 * good, whole, grid)
    for bad in (good.astype(np.int32), good.astype(float), good[:7], good[None], good + np.eye(8, dtype=np.int64)[1]):
        assert not fits(bad, whole, grid)
    # The longest of three in one place, or in several, and no longer.
    three = asking(Histogram()).plan.at(0).whole
    wide = CountGrid(bits=three.bits, steps=round(three.units / 3))
    fitting, others = ([3], [1] * 9, [2, 2, 1]), ([1] * 10, [3, 1], [4])
    for some, fit in (*((each, True) for each in fitting), *((each, False) for each in others)):
        vector = np.zeros(three.dimension, dtype=np.int64)
        vector[: len(some)] = some
        assert fits(vector, three, wide) is fits(-vector, three, wide) is fit


@pytest.mark.parametrize("bits", [8, 31])
def test_a_sum_is_read_around_zero(bits):
    grid, half = CountGrid(bits=bits, steps=4), 1 << (bits - 1)
    values = np.array([0, 1, -1, half - 1, -half, 7 - half], dtype=np.int64)
    assert grid.centred(values % (2 * half)).tolist() == values.tolist()
    assert grid.width == 0.25
    assert grid.read({"counts": torch.tensor([8.0, -2.0])})["counts"].tolist() == [2.0, -0.5]


def test_where_no_episode_fits_enough_clients_it_says_what_to_do():
    analysis = Histogram(share=0.9)
    found = analysis.read(np.sum([analysis.vector([12] * 7)] * 50, axis=0).astype(float), 0.1)
    none = "  none: lower --share, ask more clients, or allow more epsilon"
    assert none not in analysis.words(found)
    assert analysis.words({**found, "affordable": []})[:2] == [
        "what at least 90% of the clients can form (task.ways; task.shots + task.queries):", none,
    ]  # fmt: skip
