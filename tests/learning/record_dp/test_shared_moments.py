"""Moments with labels of one list, or numbers to predict: rows of ragged clients, whole numbers, and the model."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.learning.record_dp.moment_blocks import unpacked
from dpfedmeta.learning.record_dp.second_moments import TOTAL
from dpfedmeta.learning.record_dp.shared_moments import CLASSES, SharedMoments
from dpfedmeta.learning.record_dp.whole_moments import WholeMoments

LABELS = SharedMoments(size=5, constant=0.3, radius=3.0, weight=1.0, labels=3, reach=2.0)
NUMBERS = SharedMoments(size=5, constant=0.3, radius=3.0, weight=0.7, labels=0, reach=2.0)
CASES = {
    "labels": LABELS,
    "heavy labels": replace(LABELS, weight=2.5, constant=1.0),
    "light labels": replace(LABELS, weight=0.2, radius=0.5),
    "numbers": NUMBERS,
    "heavy numbers": replace(NUMBERS, weight=3.0, reach=0.1),
}


def table(seed, moments, rows=None):
    """Records of very different lengths, and their labels or numbers."""
    own = torch.Generator().manual_seed(seed)
    count = rows or 1 + seed % 9
    records = torch.randn(count, 5, generator=own) * 10.0 ** torch.randint(-2, 3, (count, 1), generator=own).float()
    if moments.labels:
        return records, torch.randint(0, moments.labels, (count,), generator=own)
    return records, 5.0 * torch.randn(count, generator=own)


def apart(moments, one, other):
    return float((flatten(moments.summed(moments.rows(*one))) - flatten(moments.summed(moments.rows(*other)))).norm())


def changed(relation, given, moments, seed):
    """The table with one row changed, each in turn."""
    records, targets = given
    new, target = table(1000 + seed, moments, rows=1)
    for place in range(len(records)):
        rest = [part[torch.arange(len(part)) != place] for part in given]
        if relation == "zero-out":
            null = records.clone()
            null[place, seed % 5] = (math.nan, math.inf)[seed % 2]
            yield null, targets
        elif relation == "row-deleted":
            yield rest[0], rest[1]
        elif relation == "row-relabelled":
            for mark in (
                (targets[place] + 1) % 3,
                *(() if moments.labels else (-targets[place], 1e9, -1e9, 0.3 * target)),
            ):
                yield records, torch.where(torch.arange(len(records)) == place, mark, targets)
        else:
            for other in (new, -records[place : place + 1], 1e9 * new):
                mark = target if relation == "row-exchanged" else targets[place : place + 1]
                yield torch.cat([rest[0], other]), torch.cat([rest[1], mark])


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", CASES)
def test_one_row_moves_the_message_by_no_more_than_its_relation_says(name, relation):
    moments = CASES[name]
    due = moments.blocks.moved(relation)
    found = [
        apart(moments, given, other)
        for seed in range(60)
        for given in (table(seed, moments),)
        for other in changed(relation, given, moments, seed)
    ]
    assert 0.0 < max(found) <= due


@pytest.mark.parametrize("name", CASES)
def test_the_worst_rows_move_it_by_as_much(name):
    """A record at its longest, deleted; and two whose product is the worst one, of one label."""
    moments = CASES[name]
    target = torch.zeros(1, dtype=torch.int64) if moments.labels else torch.full((1,), 1e6)
    one = torch.tensor([[1e6, 0.0, 0.0, 0.0, 0.0]])
    assert apart(moments, (one, target), (one[:0], target[:0])) == pytest.approx(1.0, abs=1e-6)
    blocks = moments.blocks
    if not moments.labels:
        # Only the number becomes another one, of all of them.
        numbers = torch.linspace(-moments.reach, moments.reach, 401)
        found = max(apart(moments, (one, numbers[:1]), (one, other[None])) for other in numbers)
        assert found == pytest.approx(blocks.moved("row-relabelled"), abs=1e-4)
        return
    product = max(-(moments.weight**2) / 2.0, 1.0 - 2.0 * blocks.radius**2)
    turned = max(-1.0, (product - 1.0 + blocks.radius**2) / blocks.radius**2)
    other = 1e6 * torch.tensor([[turned, math.sqrt(1.0 - turned**2), 0.0, 0.0, 0.0]])
    found = apart(moments, (one, target), (other, target))
    assert found == pytest.approx(blocks.moved("row-exchanged-same-label"), abs=1e-6)


def test_a_record_that_is_not_finite_is_null_alone_and_targets_are_cut():
    records, labels = table(7, LABELS)
    spoilt = records.clone()
    spoilt[2, 0] = math.nan
    kept = torch.arange(len(records)) != 2
    assert apart(LABELS, (spoilt, labels), (records[kept], labels[kept])) == 0.0
    one, far = torch.ones(1, 5), torch.tensor([1e6])
    assert apart(NUMBERS, (one, far), (one, torch.tensor([2.0]))) < 1e-9


def test_the_message_is_the_sums_that_it_says():
    records, labels = table(8, LABELS)
    x = records.double()
    z = torch.cat([x / x.norm(dim=1).clamp_min(3.0)[:, None], torch.full((len(x), 1), 0.3)], 1) / math.sqrt(1.09)
    found = LABELS.summed(LABELS.rows(records, labels))
    torch.testing.assert_close(unpacked(found[TOTAL], 6), z.T @ z / math.sqrt(2.0))
    sums = torch.stack([z[labels == label].sum(0) for label in range(3)])
    torch.testing.assert_close(found[CLASSES], sums / math.sqrt(2.0))


def coins(number):
    return KeyedSource(number).generator(Purpose.ROUNDING, 0, 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [3.0, 40.0])
def test_whole_numbers_of_one_row_are_no_longer_than_stated_and_two_no_further_apart(name, scale):
    """Exactly: rows are rounded, and their sums follow from what they came out as."""
    moments = CASES[name]
    whole = WholeMoments(moments=moments, records=9, scale=scale)
    sent = [
        (whole.message(moments.rows(*given), coins(seed)).astype(float), int(given[1][0]) if moments.labels else 0)
        for seed in range(120)
        for given in (table(seed, moments, rows=1),)
    ]
    assert max(float(np.linalg.norm(own)) for own, _ in sent) <= whole.longest
    same, other = (
        max(
            float(np.linalg.norm(a - b))
            for a, la in sent
            for b, lb in sent
            if (la == lb) is alike or not moments.labels
        )
        for alike in (True, False)
    )
    assert same <= whole.longest * whole.blocks.moved("row-exchanged-same-label")
    assert other <= whole.longest * whole.blocks.moved("row-exchanged")
    # Only the label becomes another one; or the number, and what it stands in is rounded with other coins.
    for seed in range(120):
        records, targets = table(seed, moments, rows=1)
        marks = (targets, (targets + 1) % 3 if moments.labels else -targets)
        one, new = (
            whole.message(moments.rows(records, mark), coins(seed + (0 if moments.labels else 500 * place))).astype(
                float
            )
            for place, mark in enumerate(marks)
        )
        assert float(np.linalg.norm(one - new)) <= whole.longest * whole.blocks.moved("row-relabelled")
    assert max(float(np.abs(own).max()) for own, _ in sent) <= whole.tallest / whole.records


def test_rounded_sums_are_read_as_exact_ones():
    from tests.learning.record_dp.test_whole_moments import sum_of

    whole = WholeMoments(moments=LABELS, records=15, scale=40.0)
    given = table(5, LABELS, rows=15)
    mean = sum(whole.message(LABELS.rows(*given), coins(seed)).astype(float) for seed in range(300)) / 300
    read = whole.grid(sum_of(whole), torch.zeros(1)).read({"": torch.from_numpy(mean)})
    lengthened = whole.longest / (whole.scale**2 * LABELS.blocks.unit)
    for name, value in LABELS.summed(LABELS.rows(*given)).items():
        torch.testing.assert_close(lengthened * 15 * read[name].double(), value, atol=0.02, rtol=0)


def drawn_classes(seed, count=4000):
    own = torch.Generator().manual_seed(seed)
    means = torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.2], [-0.5, 0.5, 0.0, 0.0, 0.2], [0.0, -0.5, 0.3, 0.0, 0.2]])
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), count, replacement=True, generator=own)
    spread = torch.tensor([0.3, 0.2, 0.4, 0.1, 0.5])
    return means[labels] + spread * torch.randn(count, 5, generator=own), labels


def outputs(model, records):
    return (records - model.centre) @ model.matrix @ model.rows.T + model.bias


def test_without_noise_it_is_discriminant_analysis():
    records, labels = drawn_classes(0)
    model = LABELS.model({n: v / 100 for n, v in LABELS.summed(LABELS.rows(records, labels)).items()}, 0.0)
    new, known = drawn_classes(1)
    counts = torch.bincount(labels).double()
    means = torch.stack([records[labels == label].double().mean(0) for label in range(3)])
    within = sum(
        (records[labels == k].double() - means[k]).T @ (records[labels == k].double() - means[k]) for k in range(3)
    )
    within = within / len(records)
    precision = torch.linalg.inv(within + 0.1 * within.trace() / 5 * torch.eye(5))
    due = new.double() @ precision @ means.T - (means @ precision * means).sum(1) / 2 + (counts / counts.sum()).log()
    agreed = (outputs(model, new).argmax(1) == due.argmax(1)).double().mean()
    assert agreed > 0.99
    assert (outputs(model, new).argmax(1) == known).double().mean() > 0.85


def test_the_line_of_numbers_is_ridge_regression():
    own = torch.Generator().manual_seed(0)
    records = 0.5 * torch.randn(4000, 5, generator=own)
    numbers = 0.3 + records @ torch.tensor([0.5, -0.2, 0.0, 0.1, 0.0]) + 0.05 * torch.randn(4000, generator=own)
    sums = NUMBERS.summed(NUMBERS.rows(records, numbers))
    model = NUMBERS.model({name: value / 1000 for name, value in sums.items()}, 0.0)
    torch.testing.assert_close(outputs(model, records)[:, 0], numbers, atol=0.35, rtol=0)
    slope = (model.matrix @ model.rows.T)[:, 0] * 1.1
    torch.testing.assert_close(slope, torch.tensor([0.5, -0.2, 0.0, 0.1, 0.0]), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_noise_that_hides_everything_leaves_numbers_that_are_finite(name):
    moments, own = CASES[name], torch.Generator().manual_seed(0)
    for size in (0.0, 1e-3, 1.0, 1e4):
        mean = {key: size * torch.randn(shape, generator=own) for key, shape in moments.shapes().items()}
        model = moments.model(mean, size)
        assert all(torch.isfinite(getattr(model, part)).all() for part in ("centre", "matrix", "rows", "bias"))


def drawn(moments, seed, count=2000):
    """Standardised records, and labels or numbers that follow from them, in scales."""
    own = torch.Generator().manual_seed(seed)
    records = torch.randn(count, 5, generator=own)
    if not moments.labels:
        return records, (0.7 * records[:, 0] + 0.3 * torch.randn(count, generator=own)).clamp(
            -moments.reach, moments.reach
        )
    return records, (records @ torch.eye(5, 3) * 2.0 + torch.randn(count, 3, generator=own)).argmax(1)


def wrong(model, moments, records, targets):
    found = outputs(model, records)
    if moments.labels:
        return float((found.argmax(1) != targets).double().mean())
    return float((found[:, 0] - targets).abs().mean() / targets.abs().mean())


@pytest.mark.parametrize("name", CASES)
def test_noise_that_hides_everything_leaves_what_public_constants_say(name):
    """A tenth of a count, or a count below 0, was the divisor of all else: one run in five was worse than nothing."""
    moments, worst = CASES[name], 0.0
    records, targets = drawn(moments, 0)
    exact = {key: value / len(records) for key, value in moments.summed(moments.rows(records, targets)).items()}
    of_count = moments.blocks.unit * (1.0 / moments.constant) ** 2
    for seed in range(40):
        own = torch.Generator().manual_seed(seed)
        for hidden in (1.0, 3.0, 30.0):
            size = hidden / of_count
            mean = {key: value + size * torch.randn(value.shape, generator=own) for key, value in exact.items()}
            model = moments.model(mean, size)
            worst = max(worst, wrong(model, moments, records, targets), float(model.centre.norm()) / 10.0)
            if hidden == 30.0 and seed == 1:
                assert not any(getattr(model, part).any() for part in ("centre", "rows")), "the number shows something"
                torch.testing.assert_close(model.matrix, torch.eye(5) / math.sqrt(1.1))
                assert model.bias.std(correction=0) == 0.0
    # Guessing among three labels is wrong twice in three times; a line without a slope has the numbers' own size.
    assert worst < (0.8 if moments.labels else 1.3)


@pytest.mark.parametrize("name", CASES)
def test_the_less_noise_the_more_is_believed(name):
    moments = CASES[name]
    records, targets = drawn(moments, 0)
    exact = {key: value / len(records) for key, value in moments.summed(moments.rows(records, targets)).items()}
    due = wrong(moments.model(exact, 0.0), moments, records, targets)
    found = []
    for size in (1e-5, 1e-3, 1e-2):
        noisy = [
            {key: value + size * torch.randn(value.shape, generator=own) for key, value in exact.items()}
            for seed in range(10)
            for own in (torch.Generator().manual_seed(seed),)
        ]
        found.append(np.mean([wrong(moments.model(mean, size), moments, records, targets) for mean in noisy]))
    assert found[0] == pytest.approx(due, abs=0.02)
    assert found == sorted(found)
