"""People are judged on records that nothing adapted on, beside baselines, each counted once."""

import numpy as np
import pytest
import torch

from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.learning.evaluation.baselines import Alone, Majority, OwnMean, OwnRidge, PixelPrototype
from dpfedmeta.learning.evaluation.people import Person, PersonScores, RecordSplit, compared, judge, overall
from dpfedmeta.learning.targets.classification import Classification
from dpfedmeta.learning.targets.regression import Regression


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
    assert (found.judged, found.first) == (4, {"prototype": 1.0})
    assert found.records == {"class 0": 4, "class 1": 1, "class 2": 4}


@pytest.mark.parametrize(("counts", "numbers"), [((4, 1, 5), {0: 0, 2: 1}), ((1, 4, 1, 5, 3), {1: 0, 3: 1, 4: 2})])
def test_classes_that_are_kept_are_numbered_from_0_without_the_others(counts, numbers):
    """A network that adapts to two classes has two outputs, whatever else a client holds one record of."""
    for episode in HALF.episodes(person(*counts), 0):
        for images, labels in (
            (episode.support_images, episode.support_labels),
            (episode.query_images, episode.query_labels),
        ):
            classes = (images.mean(1) / 3).round().int().tolist()
            assert labels.tolist() == [numbers[label] for label in classes]


@pytest.mark.parametrize("counts", [(7,), (1, 1, 1), (5, 1)])
def test_whoever_has_one_class_is_not_judged(counts):
    found = judge(person(*counts), 0, HALF, lambda counts: {"prototype": PixelPrototype()})
    assert (found.judged, found.first, found.ci95) == (0, {}, {})
    assert overall([found]) == {}


def test_balanced_accuracy_counts_classes_and_not_records():
    found = judge(person(16, 4), 0, HALF, lambda counts: {"majority": Majority(label=int(np.argmax(counts)))})
    assert found.measures["accuracy"]["majority"] == pytest.approx(0.8)
    assert found.measures["balanced"]["majority"] == pytest.approx(0.5)
    assert found.measures["auc"]["majority"] == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_alone_learns_what_is_easy_whatever_the_scale(scale):
    easy = person(10, 10, 10)
    scaled = Person(name="", records=scale * easy.records, labels=easy.labels, classes=easy.classes)
    found = judge(scaled, 0, HALF, lambda counts: {"alone": Alone()})
    assert found.first["alone"] > 0.95


def score(name, value, judged):
    return PersonScores(
        name=name, records={}, judged=judged, ci95={"x": 0.0, "y": 0.0},
        measures={"accuracy": {"x": value, "y": value - 0.1}, "auc": {"x": 0.5 if judged > 1 else None, "y": None}},
    )  # fmt: skip


def test_means_over_people_and_over_records_and_the_worst_tenth():
    scores = [score(f"{n}", n / 20, judged=1 + 9 * (n == 19)) for n in range(20)] + [score("none", 0.0, judged=0)]
    found = overall(scores)["x"]
    values = np.arange(20) / 20
    assert found.people == pytest.approx(values.mean())
    assert found.records == pytest.approx((values[:19].sum() + 10 * values[19]) / 29)
    assert found.worst == pytest.approx((0 + 0.05) / 2)
    # Of one person alone it is defined; of the other model nowhere.
    assert found.others == {"auc": 0.5}
    assert overall(scores)["y"].others == {"auc": None}
    # Of errors the largest are the worst.
    assert overall(scores, higher_is_better=False)["x"].worst == pytest.approx((0.95 + 0.9) / 2)
    assert found.ci95 == pytest.approx(2.093024 * values.std(ddof=1) / 20**0.5)
    # Of nine people the worst one.
    assert overall(scores[1:10])["x"].worst == pytest.approx(0.05)
    assert overall(scores[:1])["x"].ci95 is None


def test_differences_are_of_the_same_people():
    difference = compared([score("a", 0.5, 1), score("b", 0.9, 1), score("c", 0.0, 0)], "x", "y")
    assert (difference.mean, difference.ci95) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-12))
    assert compared([score("a", 0.5, 1)], "x", "y") is None


def numbers(count=12, slope=2.0):
    records = torch.linspace(-1, 1, count)[:, None].repeat(1, 2)
    own = Person(name="n", records=records, labels=slope * records[:, 0].numpy() + 0.3, classes=("target",))
    return own, Regression(range=TargetRange(centre=50, scale=10, lowest=0, highest=100))


def test_numbers_to_predict_are_split_without_classes_and_judged_in_their_unit():
    own, targets = numbers()
    few = RecordSplit(shots=5, repeats=3, seed=0)
    for episode in few.episodes(own, 0, targets):
        assert (len(episode.support_labels), len(episode.query_labels)) == (5, 7)
        held = torch.cat([episode.support_labels, episode.query_labels])
        assert sorted(held.tolist()) == pytest.approx(sorted(own.labels.tolist()))
    found = judge(own, 0, few, lambda counts: {"mean": OwnMean(), "ridge": OwnRidge(penalty=1e-6)}, targets)
    assert found.records == {"target": 12}
    assert found.measures["mae"]["ridge"] < 0.01 < 5 < found.measures["mae"]["mean"]
    assert found.measures["r2"]["ridge"] > 0.999
    assert found.measures["rmse"]["mean"] >= found.measures["mae"]["mean"]


def test_the_same_target_for_all_leaves_r2_undefined():
    own, targets = numbers(slope=0.0)
    found = judge(own, 0, HALF, lambda counts: {"mean": OwnMean()}, targets)
    assert found.measures["r2"] == {"mean": None}
    assert found.measures["mae"]["mean"] == pytest.approx(0.0, abs=1e-5)


def test_shared_labels_keep_their_numbers_though_a_person_holds_few_of_them():
    labels, targets = np.repeat([1, 4], 6), Classification(shared=6)
    own = Person(name="s", records=torch.from_numpy(labels).float()[:, None], labels=labels, classes=tuple("abcdef"))
    for episode in HALF.episodes(own, 0, targets):
        assert {*episode.support_labels.tolist()} == {*episode.query_labels.tolist()} == {1, 4}
    found = judge(own, 0, HALF, lambda counts: {"prototype": PixelPrototype()}, targets)
    assert found.measures == {name: {"prototype": 1.0} for name in ("accuracy", "balanced", "auc")}


def test_whoever_has_one_class_is_not_judged_where_the_data_say_who_adapts():
    one, two = person(6), person(3, 3)
    adapts = np.tile([True, True, False], 2)
    for someone, judged in ((one, 0), (two, 2)):
        own = Person(name="p", records=someone.records, labels=someone.labels, classes=someone.classes, adapts=adapts)
        assert judge(own, 0, HALF, lambda counts: {"prototype": PixelPrototype()}).judged == judged
    # All numbers to predict are one class, also equal ones.
    numbers = Person(name="p", records=one.records, labels=np.full(6, 0.5), classes=("y",), adapts=adapts)
    targets = Regression(range=TargetRange(centre=50, scale=10, lowest=0, highest=100))
    assert len([*HALF.episodes(numbers, 0, targets)]) == 1


def test_where_the_data_say_it_train_adapts_and_test_judges():
    someone = person(6, 6)
    adapts = np.tile([True, True, False], 4)
    own = Person(name="p", records=someone.records, labels=someone.labels, classes=someone.classes, adapts=adapts)
    (episode,) = HALF.episodes(own, 0)
    assert torch.equal(episode.support_images, someone.records[adapts])
    assert torch.equal(episode.query_images, someone.records[~adapts])
