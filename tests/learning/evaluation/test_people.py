"""People are judged on records that nothing adapted on, beside baselines, each counted once."""

import numpy as np
import pytest
import torch

from dpfedmeta.learning.evaluation.baselines import Alone, Majority, PixelPrototype
from dpfedmeta.learning.evaluation.people import Person, PersonScores, RecordSplit, compared, judge, overall


def person(*counts, name="a", spread=0.1):
    """Classes around points on an axis."""
    labels = np.repeat(np.arange(len(counts)), counts)
    noise = spread * torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1))
    records = torch.from_numpy(labels).float()[:, None] * 3 + noise
    classes = tuple(f"class {number}" for number in range(len(counts)))
    return Person(name=name, records=records, labels=labels, classes=classes)


HALF = RecordSplit(shots=None, repeats=6, seed=0)


def test_a_record_adapts_or_judges_and_never_both():
    someone = person(5, 2, 9)
    for episode in HALF.episodes(someone, 0):
        rows = [tuple(row) for part in (episode.support_images, episode.query_images) for row in part.tolist()]
        assert len({*rows}) == len(rows) == 16
        assert torch.bincount(episode.support_labels).tolist() == [2, 1, 4]
        assert torch.bincount(episode.query_labels).tolist() == [3, 1, 5]
    few = RecordSplit(shots=3, repeats=2, seed=0)
    assert [torch.bincount(e.support_labels).tolist() for e in few.episodes(someone, 0)] == [[3, 1, 3]] * 2


def test_divisions_are_drawn_anew_for_each_person_repeat_and_seed():
    def first(division, number, repeat=0):
        return [e.query_images for e in division.episodes(person(8, 8), number)][repeat]

    base = first(HALF, 0)
    assert torch.equal(base, first(HALF, 0))
    other_seed = RecordSplit(shots=None, repeats=6, seed=1)
    for other in (first(HALF, 0, 1), first(HALF, 1), first(other_seed, 0)):
        assert not torch.equal(base, other)


def test_classes_of_one_record_are_left_out_and_labels_stay_together():
    found = judge(person(4, 1, 4), 0, HALF, lambda counts: {"prototype": PixelPrototype()})
    assert (found.judged, found.accuracy) == (4, {"prototype": 1.0})
    assert found.records == {"class 0": 4, "class 1": 1, "class 2": 4}


@pytest.mark.parametrize("counts", [(7,), (1, 1, 1), (5, 1)])
def test_whoever_has_one_class_is_not_judged(counts):
    found = judge(person(*counts), 0, HALF, lambda counts: {"prototype": PixelPrototype()})
    assert (found.judged, found.accuracy, found.ci95) == (0, {}, {})
    assert overall([found]) == {}


def test_balanced_accuracy_counts_classes_and_not_records():
    found = judge(person(16, 4), 0, HALF, lambda counts: {"majority": Majority(label=int(np.argmax(counts)))})
    assert found.accuracy["majority"] == pytest.approx(0.8)
    assert found.balanced["majority"] == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_alone_learns_what_is_easy_whatever_the_scale(scale):
    easy = person(10, 10, 10)
    scaled = Person(name="", records=scale * easy.records, labels=easy.labels, classes=easy.classes)
    found = judge(scaled, 0, HALF, lambda counts: {"alone": Alone()})
    assert found.accuracy["alone"] > 0.95


def score(name, value, judged):
    return PersonScores(
        name=name, records={}, judged=judged, accuracy={"x": value, "y": value - 0.1}, balanced={"x": 0.5, "y": 0.5},
        ci95={"x": 0.0, "y": 0.0},
    )  # fmt: skip


def test_means_over_people_and_over_records_and_the_worst_tenth():
    scores = [score(f"{n}", n / 20, judged=1 + 9 * (n == 19)) for n in range(20)] + [score("none", 0.0, judged=0)]
    found = overall(scores)["x"]
    values = np.arange(20) / 20
    assert found.people == pytest.approx(values.mean())
    assert found.records == pytest.approx((values[:19].sum() + 10 * values[19]) / 29)
    assert found.worst == pytest.approx((0 + 0.05) / 2)
    assert found.ci95 == pytest.approx(1.96 * values.std(ddof=1) / 20**0.5)
    # Of nine people the worst one.
    assert overall(scores[1:10])["x"].worst == pytest.approx(0.05)
    assert overall(scores[:1])["x"].ci95 is None


def test_differences_are_of_the_same_people():
    difference = compared([score("a", 0.5, 1), score("b", 0.9, 1), score("c", 0.0, 0)], "x", "y")
    assert (difference.mean, difference.ci95) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-12))
    assert compared([score("a", 0.5, 1)], "x", "y") is None
