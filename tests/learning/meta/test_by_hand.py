"""Each method, order, way to adapt and division on each path, against the paper's formula by hand in float64."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy, normalize

from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.meta_sgd import LearnedRates
from dpfedmeta.learning.algorithms.proto_maml import Prototypes
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes
from dpfedmeta.learning.meta.adaptation import PLAIN, Adaptation, Divisions
from dpfedmeta.learning.meta.inner_loop import as_leaves, descend, inner_problem
from dpfedmeta.learning.meta.meta_gradients import (
    batched,
    batched_divided_gradients,
    batched_query_gradients,
    meta_gradient,
)
from dpfedmeta.learning.meta.partwise_gradients import part_gradients
from dpfedmeta.learning.meta.support_query_splits import divided_gradients
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

SPEC = NetworkSpec(name="mlp", channels=6, image_size=1, ways=3, width=8, norm="none", records="vectors")
LR, WAYS, SHOTS = 0.1, 3, 2
RULES = {"maml": PLAIN, "meta-sgd": LearnedRates(), "proto-maml": Prototypes(), "protonet": CosinePrototypes()}


def network():
    torch.manual_seed(0)
    return build_network(SPEC).double()


def weights_of(module, rule):
    generator = torch.Generator().manual_seed(1)

    def drawn(value):
        return value.detach() + 0.3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)

    weights = {name: drawn(value) for name, value in module.named_parameters()}
    if isinstance(rule, LearnedRates):
        weights |= {f"rate/{name}": LR * torch.rand_like(value) for name, value in weights.items()}
    learned = {
        n: v for n, v in weights.items() if not isinstance(rule, Prototypes | CosinePrototypes) or "head" not in n
    }
    return learned, {name: value for name, value in weights.items() if name not in learned}


def episode(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(WAYS).repeat_interleave(SHOTS)
    support, query = (torch.randn(len(labels), 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return Episode(support_images=support, support_labels=labels, query_images=query, query_labels=labels)


def by_hand(module, learned, fixed, held, how, order):
    """The gradient of the query loss at theta_K; first order: of theta_0 plus what the steps added, a constant."""
    leaves = {name: value.clone().requires_grad_() for name, value in learned.items()}
    every = {**fixed, **leaves}
    weights = {name: value for name, value in every.items() if not name.startswith("rate/")}
    body = {name[5:]: value for name, value in weights.items() if name.startswith("body.")}
    features = functional_call(module.body, body, (held.support_images,))
    means = torch.stack([features[held.support_labels == way].mean(0) for way in range(WAYS)])
    # theta_0, each weight a node of its own.
    start = {name: 1.0 * value for name, value in weights.items()}
    if isinstance(how.rule, Prototypes):
        start |= {"head.weight": 2.0 * means, "head.bias": -means.square().sum(1)}
    if isinstance(how.rule, CosinePrototypes):
        start |= {"head.weight": normalize(means, dim=1), "head.bias": torch.zeros(WAYS).double()}
    adapting = [name for name in start if how.adapt == "all" or name.startswith("head.")]
    theta = dict(start)
    for _ in range(how.steps):
        loss = cross_entropy(functional_call(module, theta, (held.support_images,)), held.support_labels)
        found = torch.autograd.grad(loss, [theta[name] for name in adapting], create_graph=True)
        for name, gradient in zip(adapting, found, strict=True):
            theta[name] = theta[name] - every.get(f"rate/{name}", LR) * gradient
    if order == 1:
        theta = {name: start[name] + (value - start[name]).detach() for name, value in theta.items()}
    loss = cross_entropy(functional_call(module, theta, (held.query_images,)), held.query_labels)
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True)), {name: theta[name].detach() for name in adapting}


def divisions_of(held, divisions):
    """The episode cut again and again, from the definition: a window that moves round within each class."""
    if divisions is None:
        yield held
        return
    images = torch.cat([held.support_images, held.query_images])
    labels = torch.cat([held.support_labels, held.query_labels])
    each = [torch.nonzero(labels == way).flatten().tolist() for way in range(WAYS)]
    for place in range(divisions.count):
        first = place * len(each[0]) // divisions.count
        turned = [own[first:] + own[:first] for own in each]
        support, query = ([n for own in turned for n in cut(own)] for cut in (
            lambda own: own[: divisions.shots], lambda own: own[divisions.shots :],
        ))  # fmt: skip
        yield Episode(
            support_images=images[support], support_labels=labels[support],
            query_images=images[query], query_labels=labels[query],
        )  # fmt: skip


def paths(module, learned, fixed, episodes, how, order, divisions):
    """By name: the gradient of each episode."""
    found = {"one by one": [meta_gradient(module, learned, fixed, each, how, order, divisions) for each in episodes]}
    given = (module, learned, fixed, batched(episodes), how, order)
    if divisions is None:
        found["several"] = batched_query_gradients(*given)
    else:
        found["several"] = batched_divided_gradients(*given, divisions)
        found["in turn"] = divided_gradients(*given, divisions)
    if how.adapt == "head" and how.rule == PLAIN:
        found["parts"] = part_gradients(*given, divisions)
    return {
        name: own
        if isinstance(own, list)
        else [{n: v[place] for n, v in own.items()} for place in range(len(episodes))]
        for name, own in found.items()
    }


CASES = [
    *(
        (method, order, adapt, None)
        for method in ("maml", "proto-maml")
        for order in (1, 2)
        for adapt in ("head", "all")
    ),
    *(("meta-sgd", 2, adapt, None) for adapt in ("head", "all")),
    *(("protonet", order, "head", None) for order in (1, 2)),
    *(("maml", order, "head", Divisions(count=3, shots=1)) for order in (1, 2)),
]


@pytest.mark.parametrize(("method", "order", "adapt", "divisions"), CASES)
def test_every_path_gives_the_gradient_of_the_paper(method, order, adapt, divisions):
    module = network()
    learned, fixed = weights_of(module, RULES[method])
    how = Adaptation(adapt=adapt, steps=0 if method == "protonet" else 2, lr=LR, rule=RULES[method])
    episodes = [episode(seed) for seed in (2, 3)]
    if method == "meta-sgd" and adapt == "head":
        learned = {name: value for name, value in learned.items() if not name.startswith("rate/body")}
    found = paths(module, learned, fixed, episodes, how, order, divisions)
    for place, held in enumerate(episodes):
        cuts = [by_hand(module, learned, fixed, cut, how, order)[0] for cut in divisions_of(held, divisions)]
        due = {name: sum(cut[name] for cut in cuts) / len(cuts) for name in learned}
        assert max(float(value.abs().max()) for value in due.values()) > 1e-2
        for path, gradients in found.items():
            assert gradients[place].keys() == due.keys()
            for name, value in due.items():
                torch.testing.assert_close(gradients[place][name], value, rtol=1e-9, atol=1e-12, msg=f"{path}, {name}")


@pytest.mark.parametrize(("method", "order", "adapt"), [case[:3] for case in CASES if case[3] is None])
def test_training_and_evaluation_adapt_to_the_same_weights(method, order, adapt):
    module = network()
    learned, fixed = weights_of(module, RULES[method])
    how = Adaptation(adapt=adapt, steps=0 if method == "protonet" else 2, lr=LR, rule=RULES[method])
    if method == "meta-sgd" and adapt == "head":
        learned = {name: value for name, value in learned.items() if not name.startswith("rate/body")}
    held, leaves = episode(2), as_leaves({**fixed, **learned})
    due = by_hand(module, learned, fixed, held, how, 2)[1]
    for second_order in (False, True):
        problem = inner_problem(module, leaves, held, how, first_order=not second_order)
        found = descend(problem, how.steps, second_order=second_order)
        for name, value in due.items():
            torch.testing.assert_close(found[name].detach(), value, rtol=1e-9, atol=1e-12)
