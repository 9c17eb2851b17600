"""Names by sums alone: every name comes back, or none; and names of one client stay away."""

import math
import os
from collections import Counter
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpfedmeta.accounting.events.failure_probability import largest_cohort
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analyses.heavy_hitters import HeavyHitters, _Tables
from dpfedmeta.analytics.analysis import Handing
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.invertible_bloom_table import (
    _CHECKS,
    PRIME,
    REPETITIONS,
    DecodingFailed,
    Limbs,
    NameTable,
    decoded,
    encode,
    failure_bound,
    form_for,
    heaviest,
)
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.thresholded_counts import Threshold
from tests.analytics.asking import asking

SECRET = KeyedSource(5)


LIMBS = Limbs(most=30_000)


def of(table, names):
    """A client's table, in the field."""
    return LIMBS.whole(table.of(names, LIMBS))


def table(names=200, length=12, cells=None, seed=b"seed"):
    return NameTable(names=names, length=length, cells=cells or form_for(names)[0], seed=seed)


def test_a_sum_of_tables_comes_back_as_names_and_counts():
    numbers = np.random.default_rng(0)
    counts = {f"näme {index}"[:10]: int(numbers.integers(1, 400)) for index in range(60)}
    own, total = table(), 0
    for name, count in counts.items():
        total = (total + count * of(own, [name])) % PRIME
    assert own.decode(total) == counts


def test_a_client_counts_each_name_once():
    own = table()
    assert np.array_equal(of(own, ["a", "b", "a"]), (of(own, ["a"]) + of(own, ["b"])) % PRIME)


def test_too_many_names_are_an_error_and_never_a_wrong_list():
    own = table(names=20)
    for size in (200, 2000):
        with pytest.raises(DecodingFailed):
            own.decode(sum(of(own, [f"{index}"]) for index in range(size)) % PRIME)
    damaged = of(own, ["a"])
    damaged[-1] += 1
    with pytest.raises(DecodingFailed):
        own.decode(damaged)


def test_failures_are_no_more_frequent_than_their_bound():
    names, cells = 12, 32
    failed = 0
    for seed in range(200):
        own = table(names=names, length=3, cells=cells, seed=seed.to_bytes(4, "big"))
        try:
            own.decode(sum(of(own, [f"{index}"]) for index in range(names)) % PRIME)
        except DecodingFailed:
            failed += 1
    bound = failure_bound(names, cells)
    assert 0 < bound < 0.1
    assert failed <= 200 * bound + 4 * math.sqrt(200 * bound)
    # Two names that share all cells are what fails most; the bound is not far above them.
    assert bound >= math.comb(names, 2) / cells**3
    assert failure_bound(names, 2 * cells) < bound


def test_names_are_cut_between_characters_and_read_again():
    assert decoded(encode("grün", 24)) == "grün"
    assert decoded(encode("grün", 3)) == "gr"
    assert len(encode("a", 5)) == 6
    assert heaviest({"b": 1, "a": 1, "c": 9, "": 50}, 2) == ["c", "a"]


def test_a_name_of_one_client_is_released_as_seldom_as_stated():
    rare = Threshold(noise=ThresholdedNoise(multiplier=2.0, missed=0.02), names=2, alone=0.02)
    tries, released = 6000, 0
    generator = SECRET.generator(Purpose.SERVER_NOISE, 1)
    for _ in range(tries // 200):
        released += len(rare.release({f"{index}": 1 for index in range(200)}, generator).value)
    # `alone` is for all names of a client, of which there are two.
    expected = tries * rare.alone / 2
    assert released <= expected + 4 * math.sqrt(expected)
    assert released >= expected * 0.3
    assert Threshold(noise=ThresholdedNoise(multiplier=4.2, missed=1e-8), names=1, alone=1e-8).lowest == 26


@pytest.mark.parametrize("names", [1, 2, 7])
@pytest.mark.parametrize("alone", [0.3, 1e-3, 1e-9])
def test_the_threshold_is_the_smallest_that_will_do(names, alone):
    own = Threshold(noise=ThresholdedNoise(multiplier=3.0, missed=0.5), names=names, alone=alone)
    # A count of 1 with noise is at least `lowest` where the noise, rounded, is at least one less.
    reached = [
        names * norm.sf((lowest - 1 - 0.5) / (3.0 * math.sqrt(names))) for lowest in (own.lowest, own.lowest - 1)
    ]
    assert reached[0] <= alone < reached[1]


def test_what_many_hold_is_released_with_its_count():
    own = Threshold(noise=ThresholdedNoise(multiplier=3.0, missed=1e-8), names=1, alone=1e-8)
    found = own.release({"often": 500, "once": 1}, SECRET.generator(Purpose.SERVER_NOISE, 2)).value
    assert list(found) == ["often"]
    assert abs(found["often"] - 500) < 6 * 3.0


def test_the_noise_with_a_threshold_is_worse_by_its_p_and_no_less():
    p, epsilons = 0.03, np.linspace(-4.0, 9.0, 200)
    plain, own = GaussianNoise(multiplier=1.3), ThresholdedNoise(multiplier=1.3, missed=p)
    added = own.profile(epsilons, 1.0)
    # Brute force over the pair (1-p) N(1) + p A against (1-p) N(0) + p B.
    x = np.linspace(-16.0, 17.0, 40_001)
    ahead, behind = (np.exp(-((x - at) ** 2) / (2 * 1.3**2)) / (1.3 * math.sqrt(2 * math.pi)) for at in (1.0, 0.0))
    for epsilon, value in zip(epsilons[::20], added[::20], strict=True):
        excess = np.maximum((1 - p) * (ahead - math.exp(epsilon) * behind), 0.0)
        assert value == pytest.approx(np.trapezoid(excess, x) + p, rel=1e-5)
    assert (added >= plain.profile(epsilons, 1.0) - 1e-15).all()
    assert own.mu(1.0) == math.inf


@pytest.mark.parametrize("names", [1, 2, 10, 300, 10_000])
def test_tables_are_large_enough_for_any_names(names):
    cells, failure = form_for(names)
    assert failure <= 0.1
    assert 3 * cells >= 1.3 * names


def test_so_many_names_fit_no_table_of_a_bound():
    with pytest.raises(ValueError, match="multiplier"):
        ThresholdedNoise(multiplier=0.0, missed=0.1)
    with pytest.raises(InputError, match="most-names 0"):
        HeavyHitters(most_names=0)


@pytest.mark.parametrize("most", [1, 2, 50, 65_535, 65_536, 65_537, 65_538, 2_000_000])
def test_so_many_numbers_add_up_without_wrapping_round(most):
    """The largest number of the field, as often as may be, in sums modulo 2^32."""
    limbs, largest = Limbs(most=most), np.array([PRIME - 1, 0, 12345], dtype=np.int64)
    total = most * limbs.cut(largest)
    assert total.max() < 2**32
    assert limbs.bits == 31 or most * (2 ** (limbs.bits + 1) - 1) >= 2**32
    assert limbs.whole((total % 2**32).reshape(-1)).tolist() == [most * int(value) % PRIME for value in largest]


def test_a_sum_of_tables_says_nothing_of_which_names_one_client_holds():
    """Linear in the names, collisions in a cell included: who says two of them looks as two who say one each."""
    own, small = table(names=3, cells=1), Limbs(most=3)
    assert np.array_equal(own.of(["a", "b"], small), own.of(["a"], small) + own.of(["b"], small))


def test_more_names_than_any_sum_holds_are_an_error():
    with pytest.raises(InputError, match="too many"):
        _ = Limbs(most=2**31).bits


@pytest.mark.parametrize("taken_back", [1, 2, 5])
def test_a_client_more_moves_a_count_by_one_whatever_another_takes_back(taken_back):
    """Or one dishonest client would learn for certain whether anybody holds a name of its choice."""
    own = table()
    taken = (PRIME - taken_back) * of(own, ["rare"]) % PRIME
    seen = []
    for holders in range(8):
        found = own.decode((taken + holders * of(own, ["rare"]) + 3 * of(own, ["other"])) % PRIME)
        assert found.pop("other") == 3
        seen.append(found.pop("rare", 0))
        assert not found
    assert np.abs(np.diff(seen)).max() == 1
    assert seen == [abs(holders - taken_back) for holders in range(8)]


@pytest.mark.parametrize("holders", [0, 1, 2])
def test_a_name_in_one_of_its_cells_is_an_error_and_no_endless_search(holders, monkeypatch):
    own, looks, plain = table(), [], NameTable._single
    rows = of(own, ["a"]).reshape(-1, own._width)
    rows[np.flatnonzero(rows[:, 0])[1:]] = 0

    def counted(self, cell):
        looks.append(cell)
        assert len(looks) < 1000
        return plain(self, cell)

    monkeypatch.setattr(NameTable, "_single", counted)
    with pytest.raises(DecodingFailed):
        own.decode((rows.reshape(-1) + holders * of(own, ["a", "b"])) % PRIME)


def test_bytes_that_read_alike_are_one_name():
    own, raw = table(length=12), b"\xff".ljust(12, b"\0")
    places, numbers = own._of_one(raw)
    rows = of(own, ["\\xff"]).reshape(-1, own._width)
    for place in places:
        rows[place] += 4 * numbers
    assert own.decode(rows.reshape(-1) % PRIME) == {"\\xff": 5}


@pytest.mark.parametrize(("length", "due"), [(1, ["b"]), (2, ["b"]), (3, ["日本", "中国"]), (4, ["日本", "中国"])])
def test_a_name_of_which_nothing_is_kept_is_not_said(length, due):
    """All of them would be one name without a letter, with the clients of all."""
    analysis: Any = HeavyHitters(most_names=2, length=length)
    own = asking(analysis, size=50)
    held = SimpleNamespace(names=lambda client: {"日本": 9, "中国": 9, "b": 1})
    told, tables = analysis.told(own, None), _Tables.of(analysis, own.plan)
    sent = analysis.sent(Handing(plan=own.plan, told=told, held=held, client=0, invited=50, source=own.source), 0)
    assert analysis._counts(tables, told, SimpleNamespace(part=lambda part: sent)) == dict.fromkeys(
        (decoded(encode(name, length)) for name in due), 1
    )


def test_what_an_earlier_client_says_of_nothing_is_no_name():
    own = table(length=3)
    assert own.decode((7 * of(own, ["\0"]) + 2 * of(own, ["a"])) % PRIME) == {"a": 2}


def test_a_folder_whose_name_is_no_text_keeps_nobody_from_answering():
    name = os.fsdecode(b"caf\xe9")
    assert table().decode(of(table(), [name, "b"])) == {"caf\\udce9": 1, "b": 1}


@pytest.mark.parametrize("change", ["seed", "cells", "name", "check"])
def test_cells_and_checks_of_a_name_are_those_of_a_keyed_hash(change):
    """By another seed its cells are others, else a table that cannot be taken apart stays one in the next try."""
    seed, cells, encoded = b"seed", 31, encode("name", 12)
    words = np.frombuffer(blake2b(encoded, key=seed, digest_size=8 * (REPETITIONS + _CHECKS)).digest(), dtype="<u8")
    found = NameTable(names=9, length=12, cells=cells, seed=seed)._of_one(encoded)
    expected = [part * cells + int(words[part]) % cells for part in range(REPETITIONS)]
    assert found[0] == expected
    assert found[1][-_CHECKS:].tolist() == [1 + int(word) % (PRIME - 1) for word in words[REPETITIONS:]]
    others = {
        "seed": NameTable(names=9, length=12, cells=cells, seed=b"other")._of_one(encoded),
        "cells": NameTable(names=9, length=12, cells=37, seed=seed)._of_one(encoded),
        "name": NameTable(names=9, length=12, cells=cells, seed=seed)._of_one(encode("names", 12)),
        "check": NameTable(names=9, length=12, cells=cells, seed=b"other")._of_one(encoded),
    }
    place = 1 if change == "check" else 0
    assert list(others[change][place]) != list(found[place])


@pytest.mark.parametrize("most_names", [1, 3])
@pytest.mark.parametrize(("clients", "cohort"), [(1000, 100.0), (1000, 1000.0)])
def test_all_that_may_go_wrong_with_names_is_within_what_is_taken_off_delta(clients, cohort, most_names):
    """A name of one client, a sum that cannot be taken apart, and a cohort that no table holds: all three together."""
    request = Request(
        kind="heavy-hitters", epsilon=4.0, delta=1e-4, cohort=cohort, clients=clients, own={"most_names": most_names},
        names="names.jsonl",
    )  # fmt: skip
    plan = request.planned()
    analysis: Any = request.analysis
    form, alone = analysis.form(plan), analysis._threshold(plan).alone
    _, failure = form_for(form.most * most_names)
    crowded = float(binom.sf(form.most, clients, cohort / clients))
    assert 0 < alone + failure**form.parts + crowded <= plan.missed
    # Most of it is for names of one client, whose threshold is the lower the more there is.
    assert 0.7 * plan.missed < alone


@pytest.mark.parametrize(("clients", "cohort"), [(1000, 100.0), (1000, 1000.0)])
def test_what_is_stated_beside_the_names_is_of_those_who_were_asked(clients, cohort):
    request = Request(
        kind="heavy-hitters", epsilon=4.0, delta=1e-4, cohort=cohort, clients=clients, own={}, noise_seed=None,
        names="names.jsonl",
    )  # fmt: skip
    plan = request.planned()
    analysis: Any = request.analysis
    found = analysis.result(plan, SimpleNamespace(value={"b": 50, "a": 50, "c": 90}))
    assert [*found["names"]] == ["c", "a", "b"]
    threshold = analysis._threshold(plan)
    assert (found["threshold"], found["deviation"]) == (threshold.lowest, threshold.deviation)
    assert found["share_seen"] == pytest.approx(threshold.lowest / cohort)
    form = request.analysis.form(plan)
    assert (found["tries_allowed"], form.parts) == (form.parts, found["tries_allowed"])


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("most_names", [1, 2, 5])
def test_all_names_of_all_who_may_be_asked_fit_however_many_a_client_has(most_names, alike):
    analysis: Any = HeavyHitters(most_names=most_names, length=8)
    own = asking(analysis, size=200)
    told, form = analysis.told(own, None), analysis.form(own.plan)
    held = [[f"{0 if alike else client}-{place}" for place in range(most_names)] for client in range(200)]

    def sent(client, part):
        names = SimpleNamespace(names=lambda client: dict.fromkeys(held[client], 1))
        return analysis.sent(
            Handing(plan=own.plan, told=told, held=names, client=client, invited=200, source=own.source), part
        )

    sums = [sum(sent(client, part) for client in range(200)) % 2**form.bits for part in range(form.parts)]
    found = analysis._counts(_Tables.of(analysis, own.plan), told, SimpleNamespace(part=sums.__getitem__))
    assert found == Counter(name for names in held for name in names)


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_a_client_says_the_names_of_which_it_holds_most(most):
    """Of equals the first in the alphabet, whatever the order in which they are held."""
    held = {"d": 2, "b": 2, "a": 1, "c": 2, "e": 7, "": 9, "\0": 8, "z": 1}
    due = ["e", "b", "c", "d", "a", "z"][:most]
    assert heaviest(held, most) == heaviest(dict(reversed(list(held.items()))), most) == due


@pytest.mark.parametrize(
    ("name", "length", "kept"),
    [("abcdef", 4, "abcd"), ("abc", 3, "abc"), ("abc", 4, "abc"), ("äbc", 1, ""), ("äbc", 2, "ä"), ("a\0b", 5, "ab"),
     ("", 3, "")],
)  # fmt: skip
def test_a_name_has_as_many_bytes_as_the_table_keeps(name, length, kept):
    encoded = encode(name, length)
    assert len(encoded) == 3 * math.ceil(length / 3)
    assert decoded(encoded) == kept


@pytest.mark.parametrize("most", [1, 7, 65_536])
def test_pieces_are_cut_from_the_lowest_bits_up(most):
    limbs = Limbs(most=most)
    numbers = np.array([[0, 1, PRIME - 1], [12_345, 2**30, 2**16]], dtype=np.int64)
    pieces = limbs.cut(numbers)
    assert pieces.shape == (limbs.count, 2, 3)
    assert limbs.count == math.ceil(31 / limbs.bits)
    assert pieces.max() < 2**limbs.bits
    assert sum(piece * 2 ** (limbs.bits * place) for place, piece in enumerate(pieces)).tolist() == numbers.tolist()
    assert limbs.whole(pieces.reshape(-1)).tolist() == (numbers % PRIME).reshape(-1).tolist()


def test_as_few_bits_as_are_kept_are_four():
    assert Limbs(most=(2**32 - 1) // 15).bits == 4
    with pytest.raises(InputError, match=r"names in a sum: too many; ask fewer clients"):
        _ = Limbs(most=(2**32 - 1) // 14).bits


@pytest.mark.parametrize(("names", "cells"), [(2, 5), (3, 4), (30, 40), (50, 33)])
def test_the_bound_of_a_failure_is_the_union_over_all_sets_of_names(names, cells):
    """For each size the least over x of s! (e^x - x)^n / (x n)^s, to the third power, times the number of such sets."""
    total = 0.0
    for size in range(2, names + 1):
        x = np.geomspace(1e-4, 60.0, 400)
        logs = cells * np.log(np.exp(x) - x) - size * np.log(x)
        one = min(math.lgamma(size + 1) - size * math.log(cells) + float(logs.min()), 0.0)
        sets = math.lgamma(names + 1) - math.lgamma(size + 1) - math.lgamma(names - size + 1)
        total += math.exp(min(sets + 3 * one, 1.0))
    assert failure_bound(names, cells) == pytest.approx(min(total, 1.0), rel=1e-9)
    assert failure_bound(1, cells) == 0.0


def test_a_table_is_the_smallest_of_those_that_seldom_fail():
    for names in (1, 2, 40, 3000):
        cells, failure = form_for(names)
        assert failure == failure_bound(names, cells) <= 0.1
        smaller = [math.ceil(space * names / 3) for space in (1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)]
        assert cells in smaller
        assert all(failure_bound(names, less) > 0.1 for less in smaller if less < cells)


@pytest.mark.parametrize("options", [{"most_names": 0}, {"most_names": 101}, {"length": 0}, {"length": 256}])
def test_options_of_names_have_ends(options):
    ((name, value),) = options.items()
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} {value}: from 1 to"):
        HeavyHitters(**options)
    assert HeavyHitters(most_names=100, length=255).longest(None) == 10.0
    assert HeavyHitters(most_names=1, length=1).longest(None) == 1.0


@pytest.mark.parametrize("fixed", [False, True])
def test_tables_are_made_for_as_many_as_may_come(fixed):
    """As many as are asked where that is a number; else as many as hardly ever come, and no more than there are."""
    analysis: Any = HeavyHitters(most_names=2, length=9)
    for clients, cohort in ((1000, 100.0), (1000, 990.0)):
        plan = analysis.planned(PrivacyPlan(
            clients=clients, cohort=cohort, rounds=1, noise_multiplier=2.0, client_delta=1e-4,
            sampler="fixed" if fixed else "poisson",
        ))  # fmt: skip
        assert (plan.server_sees, plan.missed) == ("sum", pytest.approx(0.01 * 1e-4))
        tables = _Tables.of(analysis, plan)
        most = int(cohort) if fixed else min(largest_cohort(clients, cohort / clients, 0.001 * 1e-4)[0], clients)
        assert (tables.clients, tables.names, tables.length) == (most, 2 * most, 9)
        cells, failure = form_for(2 * most)
        assert tables.cells == cells
        # As many tries as all fail with a thousandth of delta, and no more.
        assert failure**tables.tries <= 0.001 * 1e-4 < failure ** (tables.tries - 1)
        form = analysis.form(plan)
        assert (form.bits, form.parts, form.most) == (32, tables.tries, most)
        assert form.length == tables.limbs.count * 3 * cells * (1 + 3 + 2)


def test_each_try_has_a_seed_of_its_own_and_no_other_number_of_them_is_taken():
    analysis: Any = HeavyHitters(most_names=1, length=8)
    own = asking(analysis, size=60)
    told = analysis.told(own, None)
    tries = _Tables.of(analysis, own.plan).tries
    seeds = [told[32 * place : 32 * place + 32] for place in range(tries)]
    assert len(told) == 32 * tries
    assert len({*seeds}) == tries > 1
    analysis.check_told(told, own.plan, None)
    for wrong in (b"", told[:-1], told + b"x", told + told[:32], told[:32] if tries > 1 else b"x"):
        with pytest.raises(InputError, match=f"{len(wrong):,} bytes, expected {tries} seeds"):
            analysis.check_told(wrong, own.plan, None)


def test_a_sum_that_no_try_takes_apart_releases_nothing_and_the_first_that_is_taken_apart_counts():
    analysis: Any = HeavyHitters(most_names=1, length=8)
    own = asking(analysis, size=60)
    told, tables = analysis.told(own, None), _Tables.of(analysis, own.plan)
    whole = [tables.with_seed(told[32 * t : 32 * t + 32]).of(["a"], tables.limbs) for t in range(tables.tries)]
    broken = [part.copy() for part in whole]
    for part in broken:
        part[0] += 1
    assert tables.tries > 1
    asked = []

    def sums(parts):
        asked.clear()
        return SimpleNamespace(part=lambda place: asked.append(place) or parts[place])

    assert analysis._counts(tables, told, sums([broken[0], *whole[1:]])) == {"a": 1}
    assert asked == [0, 1]
    with pytest.raises(InputError, match=f"could not be decoded in {tables.tries} tries.*nothing is released"):
        analysis._counts(tables, told, sums(broken))
    assert asked == list(range(tables.tries))


def test_words_of_names_are_in_order_and_say_where_there_are_none():
    found = {"names": {"b": 1500, "a": 40}, "threshold": 26, "deviation": 4.1234, "share_seen": 0.0125}
    assert HeavyHitters().words(found) == [
        "2 names with 26 clients or more, noise of deviation 4.12 included (a share of 1.25% of those asked)",
        "     1,500  b",
        "        40  a",
    ]
    assert HeavyHitters().words({**found, "names": {}})[1:] == [
        "  none: ask more clients (--cohort), or allow more epsilon"
    ]


@pytest.mark.parametrize(("length", "shown"), [(24, "a long name of a clas\u2026"), (6, "a l\u2026"), (5, "a lon")])
def test_a_name_that_was_cut_says_so(length, shown):
    """Two names that are cut alike are one; the answer tells."""
    names = ["a long name of a class, the first", "a long name of a class, the second"]
    assert {decoded(encode(name, length)) for name in names} == {shown}
    said = HeavyHitters(length=length).words({"names": {shown: 30}, "threshold": 26, "deviation": 3, "share_seen": 0.1})
    assert any("several may have become one" in line for line in said) == (length > 5)
    assert decoded(encode("short", 5)) == "short"
