"""Kinds of targets: loss and residuals agree, measures are those of textbooks, and nothing couples records."""

import pytest
import torch
from scipy.stats import mannwhitneyu

from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.learning.meta.inner_loop import LinearSupport, descended_head
from dpfedmeta.learning.targets.classification import OWN_CLASSES, Classification, area_under_roc, log_odds
from dpfedmeta.learning.targets.regression import Regression


def regression(**more):
    return Regression(range=TargetRange(**{"centre": 20.0, "scale": 4.0, "lowest": 0.0, "highest": 40.0, **more}))


KINDS = {"classes": Classification(shared=3), "squared": regression(), "huber": regression(loss="huber", huber=0.7)}


def drawn(kind, count=9):
    generator = torch.Generator().manual_seed(3)
    outputs = 2 * torch.randn(count, kind.outputs(3), generator=generator, dtype=torch.float64)
    if kind.numbers:
        return outputs, torch.randn(count, generator=generator, dtype=torch.float64)
    return outputs, torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_residuals_are_the_derivative_of_the_loss(kind):
    outputs, targets = drawn(kind)
    (found,) = torch.autograd.grad(kind.loss(outputs.requires_grad_(), targets, "sum"), outputs)
    assert torch.allclose(found, kind.residuals(outputs, targets))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_loss_is_a_sum_over_records_so_one_clip_each_bounds_it(kind):
    outputs, targets = drawn(kind)
    alone = [float(kind.loss(outputs[n : n + 1], targets[n : n + 1], "sum")) for n in range(len(targets))]
    assert float(kind.loss(outputs, targets, "sum")) == pytest.approx(sum(alone))
    assert float(kind.loss(outputs, targets)) == pytest.approx(sum(alone) / len(alone))
    # The residual of a record is the same whoever stands beside it.
    other = torch.cat([outputs[:1], 5 * outputs[1:]])
    assert torch.equal(kind.residuals(outputs, targets)[0], kind.residuals(other, targets)[0])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_closed_form_of_a_linear_head_takes_the_same_steps(kind):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    _, labels = drawn(kind)
    rows = kind.outputs(3)
    initial = {
        "head.weight": torch.randn(rows, 4, generator=generator, dtype=torch.float64),
        "head.bias": torch.randn(rows, generator=generator, dtype=torch.float64),
    }
    found = descended_head(initial, LinearSupport(features=features, labels=labels), 4, 0.3, kind)
    theta = {name: value.clone().requires_grad_() for name, value in initial.items()}
    for _ in range(4):
        loss = kind.loss(features @ theta["head.weight"].mT + theta["head.bias"], labels)
        steps = torch.autograd.grad(loss, list(theta.values()))
        theta = {n: (v - 0.3 * g).detach().requires_grad_() for (n, v), g in zip(theta.items(), steps, strict=True)}
    assert all(torch.allclose(found[name], theta[name]) for name in theta)


def test_the_area_under_the_curve_is_mann_and_whitneys():
    generator = torch.Generator().manual_seed(1)
    scores, positive = torch.randn(40, generator=generator).round(decimals=1), torch.rand(40, generator=generator) > 0.6
    wanted = mannwhitneyu(scores[positive], scores[~positive]).statistic / (
        int(positive.sum()) * int((~positive).sum())
    )
    assert area_under_roc(scores, positive) == pytest.approx(wanted)
    assert area_under_roc(scores, torch.ones(40, dtype=torch.bool)) is None
    assert area_under_roc(torch.full((40,), torch.nan), positive) == 0.5


def test_with_one_class_the_area_is_not_defined_and_balanced_accuracy_is_accuracy():
    found = OWN_CLASSES.measures(torch.eye(3), torch.tensor([1, 1, 1]))
    assert found["auc"] is None
    assert found["balanced"] == found["accuracy"] == pytest.approx(1 / 3)


def test_errors_are_in_the_unit_of_the_targets():
    kind, outputs, targets = regression(), torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0])
    assert kind.measures(outputs, targets) == pytest.approx({"mae": 4.0, "rmse": 4.0, "r2": -3.0})
    assert kind.measures(outputs, torch.tensor([0.5, 0.5]))["r2"] is None
    assert kind.score(kind.predicted(outputs), targets) == pytest.approx(4.0)


def test_predictions_stay_in_the_public_range_and_divergence_is_an_error_that_can_be_written():
    outputs = torch.tensor([[float("nan")], [float("inf")], [-1e30], [0.25]])
    assert regression().predicted(outputs).tolist() == [-5.0, 5.0, -5.0, 0.25]


@pytest.mark.parametrize(
    ("targets", "sound"),
    [([0.0, 5.0, -5.0], True), ([0.0, 5.1], False), ([float("nan")], False), ([float("inf")], False)],
)
def test_targets_beyond_the_range_are_not_sound(targets, sound):
    assert regression().sound(torch.tensor(targets), 1) is sound


def test_classes_and_numbers_are_not_taken_for_each_other():
    assert not regression().sound(torch.tensor([0, 1]), 1)
    assert not OWN_CLASSES.sound(torch.tensor([0.0, 1.0]), 2)
    assert not Classification(shared=3).sound(torch.tensor([0, 3]), 3)


def test_the_area_ranks_by_probabilities_so_what_softmax_does_not_see_moves_nothing():
    """A network may add a number of its own to all outputs of a record."""
    assert OWN_CLASSES.measures(torch.tensor([[0.0, 1.0], [10.0, 9.0]]), torch.tensor([1, 0]))["auc"] == 1.0
    generator = torch.Generator().manual_seed(4)
    outputs, targets = torch.randn(60, 3, generator=generator), torch.randint(3, (60,), generator=generator)
    shares = torch.softmax(outputs, 1)
    due = sum(area_under_roc(shares[:, label], targets == label) for label in range(3)) / 3
    moved = outputs + 100 * torch.randn(60, 1, generator=generator)
    for each in (outputs, moved.double()):
        assert OWN_CLASSES.measures(each, targets)["auc"] == pytest.approx(due, abs=1e-3)
    # Where shares are 0 or 1 in floating point, the order is still there.
    far = torch.tensor([[200.0, 0.0], [100.0, 0.0], [0.0, 0.0]])
    assert OWN_CLASSES.measures(far, torch.tensor([0, 1, 1]))["auc"] == 1.0


def test_classes_without_records_to_adapt_on_rank_nobody():
    none = -torch.inf
    outputs = torch.tensor([[0.0, none, -1.0], [-1.0, none, 0.0], [2.0, none, 0.0]])
    assert area_under_roc(log_odds(outputs, 1), torch.tensor([False, False, True])) == 0.5
    assert area_under_roc(log_odds(outputs, 0), torch.tensor([True, False, False])) == 0.5
    assert area_under_roc(log_odds(outputs, 2), torch.tensor([False, True, False])) == 1.0
