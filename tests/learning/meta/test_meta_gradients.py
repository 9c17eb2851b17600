import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedmeta.core.params import norm
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from tests.learning.meta.clients import gradient_of

NETWORKS = [("conv4", "batch"), ("conv4-strided", "batch"), ("conv4-strided", "group"), ("mlp", "none")]


def network_of(name, kind, width=4):
    spec = NetworkSpec(name=name, channels=1, image_size=28, ways=3, width=width, norm=kind)
    weights = {n: v.double() for n, v in initial_weights(spec, 1).items()}
    return build_network(spec).double(), weights


def episode(seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.rand(n, 1, 28, 28, generator=generator, dtype=torch.float64)  # noqa: E731
    labels = torch.arange(3).repeat_interleave(2)
    return Episode(support_images=draw(6), support_labels=labels, query_images=draw(6), query_labels=labels)


def spec_of(order=2, adapt="all", steps=2):
    return Maml(order=order, adaptation=Adaptation(adapt=adapt, steps=steps, lr=0.1))


def query_loss(network, weights, data, adaptation):
    return float(cross_entropy(adapted_logits(network, weights, data, adaptation), data.query_labels))


@pytest.mark.parametrize(("name", "kind"), NETWORKS)
@pytest.mark.parametrize("adapt", ["all", "head"])
def test_second_order_agrees_with_finite_differences(name, kind, adapt):
    """The meta-gradient is the derivative of the adapted query loss; central differences along directions."""
    network, weights = network_of(name, kind)
    spec, data = spec_of(adapt=adapt), episode()
    gradient = gradient_of(network, weights, {}, data, spec)
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        direction = {n: torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in weights.items()}
        length = norm(direction)
        direction = {n: v / length for n, v in direction.items()}
        # Small enough that no ReLU changes sides, large enough that rounding stays below 1e-9.
        h = 1e-6
        above, below = (
            query_loss(network, {n: v + s * h * direction[n] for n, v in weights.items()}, data, spec.adaptation)
            for s in (1, -1)
        )
        expected = (above - below) / (2 * h)
        actual = sum(float((gradient[n] * direction[n]).sum()) for n in weights)
        assert actual == pytest.approx(expected, abs=1e-8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), NETWORKS)
@pytest.mark.parametrize("order", [1, 2])
def test_meta_gradients_agree_with_higher(name, kind, order):
    higher = pytest.importorskip("higher")
    network, weights = network_of(name, kind)
    data, spec = episode(), spec_of(order=order)
    with torch.no_grad():
        for parameter_name, parameter in network.named_parameters():
            parameter.copy_(weights[parameter_name])
    support = data.support_images.shape[0]
    both = torch.cat([data.support_images, data.query_images])
    optimizer = torch.optim.SGD(network.parameters(), lr=spec.adaptation.lr)
    with higher.innerloop_ctx(network, optimizer, copy_initial_weights=False, track_higher_grads=order == 2) as (
        functional,
        steps,
    ):
        for _ in range(spec.adaptation.steps):
            logits = functional(both[:support], support) if name != "none" else functional(both[:support])
            steps.step(cross_entropy(logits, data.support_labels))
        loss = cross_entropy(functional(both, support)[support:], data.query_labels)
        at = list(network.parameters()) if order == 2 else list(functional.parameters())
        expected = torch.autograd.grad(loss, at)
    actual = gradient_of(network, weights, {}, data, spec)
    for value, reference in zip(actual.values(), expected, strict=True):
        assert torch.allclose(value, reference, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("adapt", ["all", "head"])
def test_first_order_is_the_gradient_at_the_adapted_parameters(adapt):
    network, weights = network_of("mlp", "none")
    data = episode()
    one, two = (gradient_of(network, weights, {}, data, spec_of(order=o, adapt=adapt)) for o in (1, 2))
    assert any(not torch.allclose(one[n], two[n], rtol=1e-3) for n in one)
    # With a vanishing inner step both are the plain gradient.
    still = [
        gradient_of(
            network,
            weights,
            {},
            data,
            Maml(order=o, adaptation=Adaptation(adapt=adapt, steps=1, lr=1e-12)),
        )
        for o in (1, 2)
    ]
    assert all(torch.allclose(still[0][n], still[1][n], atol=1e-9) for n in one)


def test_head_adaptation_gives_the_same_whether_features_are_cached_or_not():
    """ANIL by hand: full forward passes in which only the head moves."""
    network, weights = network_of("conv4-strided", "batch")
    data, spec = episode(), spec_of(adapt="head")
    leaves = {n: v.clone().requires_grad_() for n, v in weights.items()}
    theta = dict(leaves)
    support = data.support_images.shape[0]
    both = torch.cat([data.support_images, data.query_images])
    head = [n for n in theta if n.startswith("head.")]
    for _ in range(spec.adaptation.steps):
        logits = torch.func.functional_call(network, theta, (both[:support], support))
        loss = cross_entropy(logits, data.support_labels)
        steps = torch.autograd.grad(loss, [theta[n] for n in head], create_graph=True)
        theta.update({n: theta[n] - spec.adaptation.lr * g for n, g in zip(head, steps, strict=True)})
    logits = torch.func.functional_call(network, theta, (both, support))[support:]
    expected = torch.autograd.grad(cross_entropy(logits, data.query_labels), list(leaves.values()))
    actual = gradient_of(network, weights, {}, data, spec)
    assert all(torch.allclose(a, e, atol=1e-10) for a, e in zip(actual.values(), expected, strict=True))


def test_reptile_sends_the_way_back_and_leaves_what_does_not_adapt():
    network, weights = network_of("mlp", "none")
    data = episode()
    spec = Reptile(adaptation=Adaptation(adapt="head", steps=2, lr=0.1))
    update = gradient_of(network, weights, {}, data, spec)
    moved = {n: weights[n] - update[n] for n in weights}
    unadapted = Adaptation(adapt="head", steps=0, lr=0.1)
    assert torch.allclose(
        adapted_logits(network, moved, data, unadapted), adapted_logits(network, weights, data, spec.adaptation)
    )
    assert all(not update[n].any() for n in update if not n.startswith("head."))


def test_messages_are_pure():
    network, weights = network_of("conv4-strided", "batch")
    before = {n: v.clone() for n, v in weights.items()}
    first, second = (gradient_of(network, weights, {}, episode(), spec_of()) for _ in range(2))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert all(torch.equal(before[n], weights[n]) for n in weights)
    assert not any(v.requires_grad for v in first.values())


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_extreme_images_give_finite_or_zeroable_gradients(scale):
    network, weights = network_of("conv4-strided", "group")
    data = episode()
    extreme = Episode(
        support_images=data.support_images * scale,
        support_labels=data.support_labels,
        query_images=data.query_images * scale,
        query_labels=data.query_labels,
    )
    gradient = gradient_of(network, weights, {}, extreme, spec_of())
    assert all(torch.isfinite(v).all() for v in gradient.values())
