"""The inner loop: K gradient steps on the support set, from the shared initialisation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.target_kind import TargetKind, mean_loss, record_weights
from dpfedmeta.learning.models.functional import apply, apply_body, apply_head, channels_last, head_of
from dpfedmeta.learning.models.spec import HEAD
from dpfedmeta.learning.models.trainable import adapting
from dpfedmeta.learning.targets.classification import OWN_CLASSES

WEIGHT, BIAS = f"{HEAD}weight", f"{HEAD}bias"


@dataclass(frozen=True, kw_only=True)
class LinearSupport:
    """A support set as the head sees it.

    Attributes:
        features: [..., n_s, d].
        labels: [n_s], or [..., n_s] where they differ.
        weights: [n_s], of each record in the mean loss; None: 1.
    """

    features: Tensor
    labels: Tensor
    weights: Tensor | None = None


def descended_head(
    initial: Mapping[str, Tensor],
    support: LinearSupport,
    steps: int,
    lr: float,
    targets: TargetKind = OWN_CLASSES,
) -> Params:
    """theta_K of a linear head: K gradient steps on the (weighted) mean loss of the support set.

    Every gradient is a combination of the support features, so the logits follow from the n_s x n_s products of
    features alone: with R the sum of the steps' residuals (for classes probabilities less targets), they are
    Z_0 - (lr / n_s) (X X^T + 1) R. Weights of records multiply their residuals. The same steps, in a tenth of the
    operations, and differentiable once more in initial values and features by an ordinary backward pass.

    Args:
        initial: theta_0: `head.weight` [..., ways, d], and `head.bias` [..., ways] if the head has one.
        support: What to fit.
        steps: K.
        lr: Step size.
        targets: Kind of the labels, for its loss.

    Returns:
        theta_K by the same names.
    """
    features, weight, bias = support.features, initial[WEIGHT], initial.get(BIAS)
    scale = lr / features.shape[-2]
    products = features @ features.mT if bias is None else features @ features.mT + 1.0
    start = features @ weight.mT if bias is None else features @ weight.mT + bias.unsqueeze(-2)
    each = support.weights

    def weighted(outputs: Tensor) -> Tensor:
        values = targets.residuals(outputs, support.labels)
        return values if each is None else each.unsqueeze(-1) * values

    residuals = weighted(start)
    for _ in range(steps - 1):
        residuals = residuals + weighted(start - scale * (products @ residuals))
    if steps == 0:
        return dict(initial)
    found = {WEIGHT: weight - scale * (residuals.mT @ features)}
    return found if bias is None else {**found, BIAS: bias - scale * residuals.sum(-2)}


@dataclass(frozen=True, kw_only=True)
class InnerProblem:
    """An episode as functions of the adapted parameters alone.

    Attributes:
        initial: theta_0 of the adapted parameters.
        support_loss: Mean loss on the support set, over records or classes.
        query_logits: Outputs [n_q, ways]; batch statistics, if any, come from the support set.
        linear: The support set as a linear head sees it, where that is all that adapts, at one rate.
        rates: One step size for all, or one for each adapted parameter.
        targets: Kind of the labels.
        direction: Makes of a gradient what a step takes; None: itself.
    """

    initial: Params
    support_loss: Callable[[Params], Tensor]
    query_logits: Callable[[Params], Tensor]
    linear: LinearSupport | None = None
    rates: float | Params
    targets: TargetKind = OWN_CLASSES
    direction: Callable[[Params], Params] | None = None

    def step(self, theta: Params, gradient: Params) -> Params:
        """Theta - rates * direction, by the names of theta."""
        taken = gradient if self.direction is None else self.direction(gradient)
        if isinstance(self.rates, dict):
            return {name: value - self.rates[name] * taken[name] for name, value in theta.items()}
        return {name: value - self.rates * taken[name] for name, value in theta.items()}


def inner_problem(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    episode: Episode,
    adaptation: Adaptation,
    *,
    first_order: bool,
    transductive: bool = False,
    layout: Callable[[Tensor], Tensor] = channels_last,
) -> InnerProblem:
    """Set up the inner loop. A head on a fixed body needs the body's features only once.

    Args:
        network: The module that the weights belong to.
        weights: The initialisation; the problem is differentiable in it.
        episode: Support and query set.
        adaptation: What adapts, and by which rule.
        first_order: Cut the path from the support features to the body in the steps (FOMAML), not in theta_0.
        transductive: Take batch statistics, if any, from support and query images together, in every step.
        layout: How images lie in memory.
    """
    labels, rule, params = episode.support_labels, adaptation.rule, adaptation.rule.network(weights)
    targets, balance = adaptation.targets, adaptation.balance
    rates, direction = rule.rates(weights, adaptation.lr), getattr(rule, "direction", None)
    support = labels.shape[0]
    reference = None if transductive else support
    both = layout(torch.cat([episode.support_images, episode.query_images]))
    if adaptation.adapt == "head":
        features = apply_body(network, params, both, reference)
        support_features, query_features = features[:support], features[support:]
        initial = rule.start(head_of(params), lambda: features[:support], labels, ways_of(params))
        if first_order:
            support_features = support_features.detach()
        # Of a subclass nothing is known; and with far more records than features plain steps are less work.
        simple = type(network.get_submodule("head")) is nn.Linear and support <= 2 * features.shape[1]
        closed = simple and direction is None and not isinstance(rates, dict)
        each = record_weights(labels, ways_of(params)) if balance == "classes" and support else None
        return InnerProblem(
            initial=initial,
            support_loss=lambda head: mean_loss(apply_head(network, head, support_features), labels, balance, targets),
            query_logits=lambda head: apply_head(network, head, query_features),
            linear=LinearSupport(features=support_features, labels=labels, weights=each) if closed else None,
            rates=rates,
            targets=targets,
            direction=direction,
        )
    seen = both if transductive else both[:support]
    head = rule.start(
        head_of(params), lambda: apply_body(network, params, seen, reference)[:support], labels, ways_of(params)
    )
    return InnerProblem(
        initial=adapting(network, {**params, **head}, "all"),
        support_loss=lambda theta: mean_loss(
            apply(network, {**params, **theta}, seen, reference)[:support], labels, balance, targets
        ),
        query_logits=lambda theta: apply(network, {**params, **theta}, both, reference)[support:],
        rates=rates,
        targets=targets,
        direction=direction,
    )


def descend(problem: InnerProblem, steps: int, *, second_order: bool) -> Params:
    """theta_K. With `second_order` it stays differentiable in theta_0, else it is a fresh leaf."""
    theta = problem.initial
    if problem.linear is not None and not isinstance(problem.rates, dict):
        with torch.set_grad_enabled(second_order):
            theta = descended_head(theta, problem.linear, steps, problem.rates, problem.targets)
        return theta if second_order else as_leaves(theta)
    if not second_order:
        # A rule may have made theta_0 of what has no history.
        theta = as_leaves(theta)
    elif not all(value.is_leaf for value in theta.values()):
        # Nodes of their own: what a rule made of the body is no path of a step by the body.
        theta = {name: value.view_as(value) for name, value in theta.items()}
    for _ in range(steps):
        gradients = torch.autograd.grad(
            problem.support_loss(theta),
            tuple(theta.values()),
            create_graph=second_order,
            materialize_grads=True,
        )
        theta = problem.step(theta, dict(zip(theta, gradients, strict=True)))
        if not second_order:
            theta = {name: value.detach().requires_grad_() for name, value in theta.items()}
    return theta


def ways_of(params: Mapping[str, Tensor]) -> int:
    """Rows of the head; 0 where the network has none of this form."""
    weight = params.get("head.weight")
    return 0 if weight is None else weight.shape[-2]


def as_leaves(params: Mapping[str, Tensor]) -> Params:
    """The same values as leaves that require a gradient."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def adapted_logits(
    network: nn.Module, params: Mapping[str, Tensor], episode: Episode, adaptation: Adaptation
) -> Tensor:
    """Query logits [n_q, ways] after adaptation on the support set; no noise, nothing leaves the device.

    Inductive: the prediction for one query image does not depend on the others.
    """
    (logits,) = logits_along(network, params, episode, adaptation, (adaptation.steps,))
    return logits


def logits_along(
    network: nn.Module,
    params: Mapping[str, Tensor],
    episode: Episode,
    adaptation: Adaptation,
    at: Sequence[int],
    *,
    transductive: bool = False,
) -> list[Tensor]:
    """Query logits [n_q, ways] after each of the numbers of steps in `at`, on one path of gradient steps.

    Args:
        network: The module that `params` belong to.
        params: The initialisation.
        episode: Support and query set; query labels are not read.
        adaptation: What adapts and its step size; `at` takes the place of its number of steps.
        at: Ascending.
        transductive: As in `inner_problem`.
    """
    problem = inner_problem(
        network, as_leaves(params), episode, adaptation, first_order=True, transductive=transductive
    )
    logits, done = [], 0
    for steps in at:
        theta = descend(problem, steps - done, second_order=False)
        problem, done = replace(problem, initial=theta), steps
        with torch.no_grad():
            logits.append(problem.query_logits(theta))
    return logits


def adapted_params(
    network: nn.Module, params: Mapping[str, Tensor], images: Tensor, labels: Tensor, adaptation: Adaptation
) -> Params:
    """All parameters after adaptation on support images [n, channels, h, w] with labels [n]."""
    nobody = Episode(support_images=images, support_labels=labels, query_images=images[:0], query_labels=labels[:0])
    problem = inner_problem(network, as_leaves(params), nobody, adaptation, first_order=True)
    theta = descend(problem, adaptation.steps, second_order=False)
    return {name: value.detach() for name, value in {**adaptation.rule.network(params), **theta}.items()}
