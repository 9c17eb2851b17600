"""Moments of records: how far one record moves them, by search; and the metric that is solved for, by plain algebra."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.params import flatten
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.row_layout import AllRows, chosen_rows
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.moments import SentMoments
from dpfedmeta.learning.record_dp.moment_blocks import packed, unpacked
from dpfedmeta.learning.record_dp.second_moments import TOTAL, WITHIN, SecondMoments, SolvedMetric

WAYS, EACH, SIZE = 3, 5, 6
COUNT = WAYS * EACH
CASES = [
    SecondMoments(directions=directions, constant=constant, pair_bound=bound, pair_weight=weight, radius=radius)
    for directions, constant, bound, weight, radius in (
        *((6, 0.3, 2.0, 8.0, None), (4, 0.3, 0.6, 1.5, None), (2, 1.0, 0.01, 0.2, None)),
        # Records of length 1 and more are cut.
        *((6, 0.3, 2.0, 8.0, 0.5), (4, 0.3, 0.6, 1.5, 0.5)),
    )
]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def drawn(seed):
    """Records of very different lengths, some alike, some opposite."""
    own = generator(seed)
    records = torch.randn(WAYS, EACH, SIZE, generator=own) * 10.0 ** torch.randint(-18, 19, (1,), generator=own).float()
    if seed % 3 == 0:
        records[:, 1] = records[:, 0]
    if seed % 3 == 1:
        records[:, 1] = -3.0 * records[:, 0]
    return records


def moved(moments, one, other):
    return COUNT * float((flatten(moments.message(one)) - flatten(moments.message(other))).norm())


@pytest.mark.parametrize("moments", CASES, ids=str)
def test_a_record_that_counts_as_nothing_moves_the_message_by_one_and_no_more(moments):
    found = []
    for seed in range(120):
        records = drawn(seed)
        without = records.clone()
        without[seed % WAYS, seed % EACH, seed % SIZE] = (math.nan, math.inf)[seed % 2]
        found.append(moved(moments, records, without))
    assert max(found) <= 1.0
    # All numbers in the first directions, the partner opposite: both blocks are as long as they can be.
    records = torch.zeros(WAYS, EACH, SIZE)
    records[:, 0, 0], records[:, 1:, 0] = 7.0, -7.0
    without = records.clone()
    without[0, 0] = math.nan
    assert moved(moments, records, without) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("moments", CASES, ids=str)
def test_another_record_in_its_place_moves_the_message_by_the_square_root_of_two_and_no_more(moments):
    due = moments.blocks.moved("in-place")
    assert due == pytest.approx(math.sqrt(2.0))
    found = []
    for seed in range(120):
        records, other = drawn(seed), drawn(seed)
        other[seed % WAYS, seed % EACH] = drawn(seed + 1000)[0, 0]
        if seed % 5 == 0:
            other[seed % WAYS, seed % EACH] = -records[seed % WAYS, seed % EACH]
        found.append(moved(moments, records, other))
    assert max(found) <= due
    if moments.pair_bound == 2.0:
        return  # pairs are never cut: then both blocks cannot be at their worst at once
    # Two records at right angles where the constant counts, and a partner from which both point at right angles.
    half = math.acos(-min(1.0, moments.constant**2)) / 2.0
    partner = math.cos(half) - math.sin(half)
    records = torch.zeros(WAYS, EACH, SIZE)
    records[:, :, 0] = 1.0
    records[0, 0, :2] = torch.tensor([math.cos(half), math.sin(half)])
    records[0, 1, 0], records[0, 1, -1] = partner, math.sqrt(max(1.0 - partner**2, 0.0))
    other = records.clone()
    other[0, 0, 1] *= -1.0
    assert moved(moments, records, other) == pytest.approx(due, abs=1e-5)


@pytest.mark.parametrize("moments", CASES, ids=str)
def test_a_whole_client_is_no_longer_than_one_and_moves_no_further_than_is_stated(moments):
    due = moments.blocks.of_client(COUNT)
    for seed in range(60):
        one, other = drawn(seed), drawn(seed + 500)
        assert float(flatten(moments.message(one)).norm()) <= 1.0
        assert moved(moments, one, other) <= due
    same = [torch.zeros(WAYS, EACH, SIZE) for _ in range(2)]
    for axis, records in enumerate(same):
        records[:, 0::2, axis], records[:, 1::2, axis] = 1.0, -1.0
    assert moved(moments, *same) > 0.5 * due


LABELS, KEY, MOST = ("a", "b"), bytes(range(32)), 20


def moments_of_table(moments, table, folder):
    """n0 times what a client of these rows (label, vector) sends, where its rows are placed by their hash."""
    held = {label: [vector for name, vector in table if name == label] for label in LABELS}
    path = folder / f"{len([*folder.iterdir()])}.npy"
    np.save(path, np.array([vector for own in held.values() for vector in own], dtype=np.float32))
    counts = tuple(map(len, held.values()))
    pool = ClassPool(path=path, names=LABELS, first=(0, counts[0]), counts=counts)
    shape, layout = EpisodeShape(ways=2, shots=1, queries=1), AllRows(groups=2)
    method = SentMoments(moments=moments, client=shape, adaptation=None, most=MOST, layout=layout)
    episode = chosen_rows(pool, range(2), layout, KEY).episode()
    found = flatten(method.exact(episode))
    # In float32 no bound of a record would hold.
    assert found.dtype == torch.float64
    return MOST * found


@pytest.mark.parametrize("relation", [name for name, own in RELATIONS.items() if own.of_rows])
@pytest.mark.parametrize("moments", CASES, ids=str)
def test_a_row_of_a_clients_own_moves_the_message_by_no_more_than_its_relation_says(moments, relation, tmp_path):
    """With the pairs that it comes into and leaves, along axes and against them, where squares are furthest apart."""
    rng, found = np.random.default_rng(0), [0.0]
    for seed in range(60):
        vectors = rng.choice([-9.0, 9.0], (12, 1)) * np.eye(SIZE)[rng.integers(moments.directions, size=12)]
        if seed % 3 == 0:
            vectors += rng.normal(size=vectors.shape)
        table = [*zip(rng.choice(LABELS, 12), vectors, strict=True)]
        (label, vector), rest = table[0], table[1:]
        new = {
            "row-deleted": [],
            "row-relabelled": [(LABELS[label == "a"], vector)],
            "row-exchanged-same-label": [(label, table[1][1] + 1.0)],
            "row-exchanged": [(rng.choice(LABELS), -vector)],
        }[relation]
        one, other = (moments_of_table(moments, each, tmp_path) for each in (table, [*rest, *new]))
        found.append(float((one - other).norm()))
    # A search comes near to it where pairs are cut; few of the others are at their longest.
    near = 0.3 if moments.pair_bound == 2.0 else 0.6
    assert near * moments.blocks.moved(relation) < max(found) <= moments.blocks.moved(relation)


def test_a_symmetric_matrix_keeps_its_length_as_a_vector():
    matrix = torch.randn(7, 7, generator=generator(0), dtype=torch.float64)
    matrix = matrix + matrix.T
    assert float(packed(matrix).norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(unpacked(packed(matrix), 7), matrix)


def test_the_message_is_the_sums_that_it_says():
    moments, records = CASES[1], drawn(2)
    unit = records.double().flatten(0, 1)
    unit = (unit / unit.norm(dim=1, keepdim=True))[:, :4]
    total = sum(torch.outer(z, z) for z in (torch.cat([x, torch.tensor([0.3])]) / math.sqrt(1.09) for x in unit))
    within = torch.zeros(4, 4, dtype=torch.float64)
    for way in range(WAYS):
        for pair in range(2):
            u = unit[EACH * way + 2 * pair] - unit[EACH * way + 2 * pair + 1]
            u = u * min(1.0, 0.6 / float(u.norm()))
            within += 1.5 * torch.outer(u, u) / 0.36
    found, over = moments.message(records), COUNT * math.sqrt(1.0 + 1.5**2)
    torch.testing.assert_close(unpacked(found[TOTAL], 5), total / over)
    torch.testing.assert_close(unpacked(found[WITHIN], 4), within / over)


def classes(seed, count=400, each=10):
    """[count, each, 8]: unit vectors whose classes differ in numbers 0 and 1, and their records in number 7."""
    own = generator(seed)
    between = torch.tensor([1.0, 1.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05])
    inside = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0])
    means = 2.0 + torch.randn(count, 1, 8, generator=own) * between
    return means + torch.randn(count, each, 8, generator=own) * inside


EXACT = SecondMoments(directions=8, constant=0.3, pair_bound=2.0, pair_weight=8.0)


def mean_of(records, moments=EXACT):
    sent = [moments.message(own) for own in records.unflatten(0, (-1, 4))]
    return {name: torch.stack([own[name] for own in sent]).mean(0) for name in sent[0]}


def test_without_noise_it_is_discriminant_analysis():
    records = classes(0)
    found = EXACT.metric(mean_of(records), 0.0, 8, 8, 10)
    unit = torch.nn.functional.normalize(records, dim=-1).double()
    torch.testing.assert_close(found.centre.double(), unit.mean((0, 1)), atol=1e-5, rtol=0)
    within = (unit - unit.mean(1, keepdim=True)).flatten(0, 1)
    within = within.T @ within / len(within) * 10 / 9
    between = unit.mean(1) - unit.mean((0, 1))
    between = between.T @ between / len(between) - within / 10
    matrix = found.matrix.double()
    kept = matrix.norm(dim=0) > 1e-6
    # Directions at right angles both within and between classes, the best first.
    for scatter, tolerance in ((within, 0.1), (between, 0.1)):
        own = matrix[:, kept].T @ scatter @ matrix[:, kept]
        assert float((own - torch.diag(own.diagonal())).abs().max()) < tolerance * float(own.diagonal().max())
    ratios = (matrix.T @ between @ matrix).diagonal()[kept] / (matrix.T @ within @ matrix).diagonal()[kept]
    assert ratios[0] > 20 * ratios[2]


def accuracy(records, metric):
    """Of 20-way 1-shot prototypes by cosine."""
    found = torch.nn.functional.normalize(
        (torch.nn.functional.normalize(records, dim=-1) - metric.centre) @ metric.matrix, dim=-1
    )
    right = [
        ((own[:, 1:].flatten(0, 1) @ own[:, 0].T).argmax(1) == torch.arange(20).repeat_interleave(9)).float().mean()
        for own in found.unflatten(0, (-1, 20))
    ]
    return float(torch.stack(right).mean())


def nothing_of(size):
    """The metric of the records themselves."""
    alike = torch.eye(size)
    return SolvedMetric(centre=torch.zeros(size), matrix=alike, whitening=alike, between=torch.ones(size), shown=0.0)


def test_with_a_radius_a_records_length_counts_as_far_as_the_radius():
    cut, records = replace(EXACT, radius=2.0), torch.zeros(1, 2, 8)
    records[0, :, 0] = torch.tensor([1.0, 5.0])
    (z, _), (u, _) = cut.rows(records)
    torch.testing.assert_close(z[:, 0] * math.sqrt(1.09), torch.tensor([0.5, 1.0], dtype=torch.float64))
    assert float(u[0, 0]) * cut.pair_bound == pytest.approx(-0.5)
    assert EXACT.rows(records)[0][0][0, 0] == EXACT.rows(records)[0][0][1, 0]


def test_variances_within_classes_are_one_and_those_between_are_what_is_said():
    records = classes(0)
    cut = replace(EXACT, radius=20.0)
    found = cut.metric(mean_of(records, cut), 0.0, 8, 8, 10)
    seen = (records.double() / 20.0 - found.centre.double()) @ found.whitening.double()
    inside = (seen - seen.mean(1, keepdim=True)).square().mean((0, 1)) * 10 / 9
    between = seen.mean(1).var(0) - inside / 10
    # A ridge is added to the variances within.
    assert float(inside[:2].max()) <= 1.05
    torch.testing.assert_close(found.between[:2].double(), between[:2], rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.matrix, found.whitening * (found.between / (found.between + 1.0)).sqrt())


def test_known_noise_decides_over_ridge_and_directions():
    """Where nothing but noise was released it is the metric of the records."""
    new, mean, scores = classes(1), mean_of(classes(0)), []
    own = generator(5)
    for deviation in (0.0, 1e-4, 1e-3, 1e-2, 1.0):
        noisy = {name: value + deviation * torch.randn(value.shape, generator=own) for name, value in mean.items()}
        found = EXACT.metric(noisy, deviation, 8, 8, 10)
        assert torch.isfinite(found.matrix).all()
        assert torch.isfinite(found.centre).all()
        scores.append(accuracy(new, found))
    nothing = EXACT.metric({name: 0.0 * value for name, value in mean.items()}, 1.0, 8, 8, 10)
    assert torch.equal(nothing.matrix, torch.eye(8))
    assert scores[0] > accuracy(new, nothing) + 0.2
    assert scores[1] > scores[0] - 0.05


def test_the_edge_of_the_noise_is_the_largest_that_it_adds():
    size = 64
    noise = torch.randn(size * (size + 1) // 2, generator=generator(3), dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(unpacked(noise, size))[-1]) == pytest.approx(math.sqrt(2.0 * size), rel=0.1)


def test_in_no_direction_classes_are_taken_to_be_closer_than_is_said():
    mean, least = mean_of(classes(0)), 0.7
    plain, found = (replace(EXACT, least=own).metric(mean, 0.0, 8, 8, 10) for own in (0.0, least))
    assert float(plain.between.min()) < 0.1
    torch.testing.assert_close(found.between, plain.between.clamp_min(least))
    torch.testing.assert_close(found.whitening, plain.whitening)
    torch.testing.assert_close(found.matrix, found.whitening * (found.between / (found.between + 1.0)).sqrt())


def test_the_more_noise_the_more_of_the_metric_is_the_encoders_own():
    """Down to it alone, and over many draws of the noise no worse than that."""
    mean, new, own = mean_of(classes(0)), classes(1), generator(0)
    start, shown, scores = accuracy(new, nothing_of(8)), [], []
    for deviation in (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        found = []
        for _ in range(8):
            noisy = {name: value + deviation * torch.randn(value.shape, generator=own) for name, value in mean.items()}
            found.append(EXACT.metric(noisy, deviation, 8, 8, 10))
        shown.append(sum(each.shown for each in found) / len(found))
        scores.append(sum(accuracy(new, each) for each in found) / len(found))
    assert shown[0] == 1.0 > shown[1] > 0.5 > max(shown[2:])
    assert max(shown[-2:]) < 0.1
    assert scores[0] > start + 0.2
    assert min(scores) > start - 0.02


@pytest.mark.parametrize("moments", CASES, ids=str)
def test_the_most_numbers_are_those_whose_entries_still_fit(moments):
    for entries in (1, 50, 10_000_000):
        size = moments.most_numbers(entries)
        assert size == 0 or moments.of_size(size).entries <= entries
        assert moments.of_size(size + 1).entries > entries
    assert moments.most_numbers(10_000_000) == 2235
