"""Whole clients against their definition: a head of a client's own classes, means over classes, nothing padded."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.learning.algorithms.fedavg import FedAvg
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.proto_maml import ProtoMaml, Prototypes
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes, ProtoNet
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.meta import prototype_gradients
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.algorithm import ClientNoise
from dpfedmeta.learning.meta.inner_loop import LinearSupport, descended_head
from dpfedmeta.learning.meta.target_kind import mean_loss, record_weights
from dpfedmeta.learning.meta.whole_clients import WholeClients
from dpfedmeta.learning.models.functional import apply
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.learning.targets.classification import Classification
from dpfedmeta.learning.targets.regression import Regression
from dpfedmeta.simulation.client_data import DataForm
from tests.learning.meta.clients import context_of

SPEC = NetworkSpec(name="mlp", channels=6, image_size=1, ways=8, width=16, norm="none", learn="body", records="vectors")
SHAPE = WholeShape(support_share=0.5, most_ways=8, most_records=60)
HEAD = Adaptation(adapt="head", steps=3, lr=0.5, balance="classes")
ALL = replace(HEAD, adapt="all", lr=0.1)
METHODS: dict[str, Any] = {
    "maml": Maml(order=2, adaptation=HEAD),
    "maml-all": Maml(order=2, adaptation=ALL),
    "fomaml": Maml(order=1, adaptation=ALL),
    "reptile": Reptile(adaptation=ALL),
    "proto-maml": ProtoMaml(order=2, adaptation=replace(HEAD, rule=Prototypes())),
    "protonet": ProtoNet(order=2, adaptation=replace(HEAD, steps=0, rule=CosinePrototypes())),
    "fedavg": FedAvg(adaptation=ALL, records=60, own_head=True),
    "fedavg-batches": FedAvg(adaptation=ALL, records=60, own_head=True, batch=4),
}


def ragged(support, query, seed=0):
    """A client with so many records of each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(support), 6, generator=generator)
    labels = [torch.arange(len(part)).repeat_interleave(torch.tensor(part)) for part in (support, query)]
    images = [centres[own] + 0.5 * torch.randn(len(own), 6, generator=generator) for own in labels]
    return Episode(support_images=images[0], support_labels=labels[0], query_images=images[1], query_labels=labels[1])


CLIENTS = [ragged([3, 1, 5], [2, 4, 1]), ragged([1, 1], [1, 9], 1), ragged([2] * 8, [1, 3] * 4, 2)]


def moved(spec=SPEC, seed=0):
    """(learned, fixed), away from the initial values."""
    weights = initial_weights(spec, seed)
    learned = learned_part(spec, weights)
    generator = torch.Generator().manual_seed(5)
    away = {n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in learned.items()}
    return away, {name: value for name, value in weights.items() if name not in learned}


def silent(key=0):
    drawn = KeyedSource(7).generator(Purpose.LOCAL_BATCHES, 0, key)
    return ClientNoise(support=drawn, query=drawn, batches=drawn)


def messages(method, episodes, spec=SPEC, shape=SHAPE):
    learned, fixed = moved(spec)
    context = context_of(build_network(spec), learned, fixed, network=spec)
    made = WholeClients(method=method, shape=shape)
    found = made.messages(context, episodes, float("inf"), [silent(len(own.query_labels)) for own in episodes])
    return [flatten(message) for message in found]


def by_class(logits, labels):
    """The mean over classes of the mean over each one's records, class by class."""
    return torch.stack(
        [cross_entropy(logits[labels == each], labels[labels == each]) for each in labels.unique()]
    ).mean()


@pytest.mark.parametrize("episode", CLIENTS)
def test_the_meta_gradient_is_that_of_a_network_of_the_clients_own_classes(episode):
    """By autograd through plain steps of a network that was built for that many classes."""
    ways = int(episode.support_labels.max()) + 1
    own = replace(SPEC, ways=ways)
    network, (learned, _) = build_network(own), moved()
    body = {name: value.clone().requires_grad_() for name, value in learned.items()}
    head = {n: torch.zeros_like(v) for n, v in initial_weights(own, 0).items() if n not in learned}
    head = {name: value.requires_grad_() for name, value in head.items()}
    for _ in range(3):
        loss = by_class(apply(network, {**body, **head}, episode.support_images, None), episode.support_labels)
        steps = torch.autograd.grad(loss, tuple(head.values()), create_graph=True)
        head = {name: value - 0.5 * step for (name, value), step in zip(head.items(), steps, strict=True)}
    loss = by_class(apply(network, {**body, **head}, episode.query_images, None), episode.query_labels)
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, tuple(body.values()))])
    (found,) = messages(METHODS["maml"], [episode])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_no_bit_of_a_message_depends_on_limits_or_on_other_clients(name):
    """Nothing is padded: one client alone, beside larger ones, and with a head for many more classes."""
    together = messages(METHODS[name], CLIENTS)
    wide, larger = replace(SPEC, ways=40), replace(SHAPE, most_ways=40, most_records=10_000)
    for episode, beside in zip(CLIENTS, together, strict=True):
        (alone,) = messages(METHODS[name], [episode])
        assert torch.equal(alone, beside)
        assert float(alone.norm()) > 0
        (of_many,) = messages(METHODS[name], [episode], wide, larger)
        assert torch.equal(alone, of_many)


# Mini-batches are drawn by number, so others are drawn of more records.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedavg-batches"])
def test_a_class_weighs_the_same_however_many_records_it_has(name):
    """Every record of one class twice: a mean over classes stays, a mean over records does not."""
    method = METHODS[name]

    def twice(episode, label):
        def parts(images, labels):
            more = labels == label
            order = torch.cat([labels, labels[more]]).argsort(stable=True)
            return torch.cat([images, images[more]])[order], torch.cat([labels, labels[more]])[order]

        (one, own), (two, other) = (
            parts(episode.support_images, episode.support_labels),
            parts(episode.query_images, episode.query_labels),
        )
        return Episode(support_images=one, support_labels=own, query_images=two, query_labels=other)

    before, after = messages(method, [CLIENTS[0], twice(CLIENTS[0], 1)])
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5)
    plain = replace(method, adaptation=replace(method.adaptation, balance="records"))
    before, after = messages(plain, [CLIENTS[0], twice(CLIENTS[0], 1)])
    assert float((after - before).norm()) > 1e-2 * float(before.norm())


def test_the_closed_form_of_prototypes_has_the_balanced_loss_too(monkeypatch):
    spec = replace(SPEC, name="low-rank", width=3)
    found = messages(METHODS["protonet"], CLIENTS, spec)
    monkeypatch.setattr(ProtoNet, "_closed_form", lambda self, context, episodes: None)
    for one, other in zip(found, messages(METHODS["protonet"], CLIENTS, spec), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert prototype_gradients.has_closed_form(build_network(spec))


def test_a_head_descends_on_weighted_residuals_as_by_plain_steps():
    episode, generator = CLIENTS[0], torch.Generator().manual_seed(1)
    head = {"head.weight": torch.randn(3, 6, generator=generator), "head.bias": torch.randn(3, generator=generator)}
    labels, features = episode.support_labels, episode.support_images
    weights = record_weights(labels, 3)
    support = LinearSupport(features=features, labels=labels, weights=weights)
    found = descended_head(head, support, 4, 0.3)
    for _ in range(4):
        leaves = {name: value.detach().requires_grad_() for name, value in head.items()}
        loss = by_class(features @ leaves["head.weight"].T + leaves["head.bias"], labels)
        steps = torch.autograd.grad(loss, tuple(leaves.values()))
        head = {name: value - 0.3 * step for (name, value), step in zip(leaves.items(), steps, strict=True)}
    for name, value in head.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-4, atol=1e-6)


def test_weights_of_records():
    labels = torch.tensor([0, 0, 0, 2])
    weights = record_weights(labels, 4)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]))
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mean_loss(logits, labels, "classes"), by_class(logits, labels))
    assert torch.equal(mean_loss(logits, labels, "records"), cross_entropy(logits, labels))


def test_local_training_sends_the_body_and_keeps_the_head():
    learned, fixed = moved()
    context = context_of(build_network(SPEC), learned, fixed, network=SPEC)
    (message,) = WholeClients(method=METHODS["fedavg"], shape=SHAPE).messages(context, CLIENTS[:1], 1.0, [silent()])
    assert message.keys() == learned.keys()
    # Without a head of its own nothing passes back to the body.
    (none,) = replace(METHODS["fedavg"], own_head=False).messages(context, CLIENTS[:1], 1.0, [silent()])
    assert float(flatten(none).norm()) == 0.0 < float(flatten(message).norm())


def labelled(support, query):
    made = [torch.tensor(part) for part in (support, query)]
    return Episode(
        support_images=torch.zeros(len(support), 6),
        support_labels=made[0],
        query_images=torch.zeros(len(query), 6),
        query_labels=made[1],
    )


@pytest.mark.parametrize(
    ("support", "query", "fits"),
    [
        ([0, 1], [0, 1], True),
        ([0, 0, 1, 2], [2], True),
        ([0, 0], [0], False),  # one class
        ([0, 2], [0], False),  # a gap
        ([0, 1], [2], False),  # nothing to adapt on
        ([0, 1] * 15, [0, 1] * 15, True),
        ([0, 1] * 15, [0] * 31, False),  # too many records
        (list(range(8)), list(range(8)), True),
        (list(range(9)), list(range(9)), False),  # too many classes
    ],
)
def test_what_is_no_whole_client_counts_as_zero(support, query, fits):
    needs = WholeClients(method=METHODS["maml"], shape=SHAPE).needs
    form = DataForm(image=(6,), ways=9, counts=needs.counts, queries=needs.queries, divided=needs.division)
    assert form.fits(labelled(support, query)) is fits


RANGE = TargetRange(centre=0.0, scale=1.0, lowest=-30.0, highest=30.0, loss="huber")
# Kind, and network with a head that is learned: one output for each label of the list, or one number.
ONE_HEAD: dict[str, Any] = {
    "shared": (Classification(shared=5), replace(SPEC, ways=5, learn="all")),
    "numbers": (Regression(range=RANGE), replace(SPEC, ways=1, learn="all")),
}


def of_one_head(kind):
    """Methods, network, and clients whose labels are places in a list of five, of which nobody has all; or numbers."""
    targets, spec = ONE_HEAD[kind]
    balance = "records" if targets.numbers else "classes"
    how = replace(ALL, targets=targets, balance=balance)
    methods = {
        "maml": Maml(order=2, adaptation=how),
        "maml-head": Maml(order=2, adaptation=replace(how, adapt="head", lr=0.5)),
        "fomaml": Maml(order=1, adaptation=how),
        "reptile": Reptile(adaptation=how),
        "fedavg": FedAvg(adaptation=how, records=60, own_head=True),
    }
    if targets.numbers:
        clients = [
            replace(each, support_labels=each.support_images.sum(1), query_labels=each.query_images.sum(1))
            for each in CLIENTS
        ]
    else:
        lists = (torch.tensor([0, 2, 4]), torch.tensor([3, 1]), torch.tensor([4]))
        sizes = (CLIENTS[0], CLIENTS[1], ragged([3], [4], 2))
        clients = [
            replace(each, support_labels=own[each.support_labels], query_labels=own[each.query_labels])
            for each, own in zip(sizes, lists, strict=True)
        ]
    return methods, spec, clients


def plain_loss(targets, outputs, labels):
    """The mean over classes of the mean over each one's records; of numbers Huber's, over records."""
    if not targets.numbers:
        return by_class(outputs, labels)
    return torch.nn.functional.huber_loss(outputs.squeeze(1), labels)


@pytest.mark.parametrize("kind", ONE_HEAD)
@pytest.mark.parametrize("number", range(3))
def test_with_one_head_for_all_a_message_is_that_of_plain_steps_on_a_clients_own_records(kind, number):
    """One client after the other by plain autograd: no mask, no record of anybody else, nothing padded."""
    methods, spec, clients = of_one_head(kind)
    episode, targets, network = clients[number], ONE_HEAD[kind][0], build_network(spec)
    learned, _ = moved(spec)
    assert "head.weight" in learned
    start = {name: value.clone().requires_grad_() for name, value in learned.items()}
    theta = start
    for _ in range(3):
        loss = plain_loss(targets, apply(network, theta, episode.support_images, None), episode.support_labels)
        steps = torch.autograd.grad(loss, tuple(theta.values()), create_graph=True)
        theta = {name: value - 0.1 * step for (name, value), step in zip(theta.items(), steps, strict=True)}
    loss = plain_loss(targets, apply(network, theta, episode.query_images, None), episode.query_labels)
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, tuple(start.values()))])
    (found,) = messages(methods["maml"], [episode], spec)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    # Federated averaging steps on both sets alike.
    images = torch.cat([episode.support_images, episode.query_images])
    labels = torch.cat([episode.support_labels, episode.query_labels])
    theta = start
    for _ in range(3):
        steps = torch.autograd.grad(plain_loss(targets, apply(network, theta, images, None), labels), [*theta.values()])
        theta = {
            n: (v - 0.1 * step).detach().requires_grad_() for (n, v), step in zip(theta.items(), steps, strict=True)
        }
    (found,) = messages(methods["fedavg"], [episode], spec)
    expected = flatten({name: (start[name] - theta[name]).detach() for name in start})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ONE_HEAD)
def test_with_one_head_for_all_no_bit_depends_on_limits_or_on_other_clients(kind):
    methods, spec, clients = of_one_head(kind)
    larger = replace(SHAPE, most_ways=40, most_records=10_000)
    for name, method in methods.items():
        together = messages(method, clients, spec)
        for episode, beside in zip(clients, together, strict=True):
            (alone,) = messages(method, [episode], spec)
            assert torch.equal(alone, beside), name
            (of_many,) = messages(method, [episode], spec, larger)
            assert torch.equal(alone, of_many), name
            assert float(alone.norm()) > 0


def test_the_limits_of_clients_with_one_head_are_those_of_classes_and_records():
    for targets, support, query, fits in (
        (Classification(shared=12), [4], [4], True),  # one class
        (Classification(shared=12), [0, 7], [9], True),  # a class that has query records alone
        (Classification(shared=12), list(range(8)), [8], False),  # too many classes
        (Classification(shared=12), [1] * 30, [1] * 31, False),  # too many records
        (Classification(shared=12), [1], [12], False),  # outside the list
        (Regression(range=RANGE), [0.5] * 20, [0.1 * n for n in range(40)], True),  # more numbers than classes may be
        (Regression(range=RANGE), [0.5] * 30, [0.5] * 31, False),
        (Regression(range=RANGE), [0.5], [31.0], False),  # outside the range
        (Regression(range=RANGE), [0.5], [float("nan")], False),
    ):
        needs = WholeClients(method=Maml(order=1, adaptation=replace(ALL, targets=targets)), shape=SHAPE).needs
        form = DataForm(
            image=(6,), ways=12, counts=needs.counts, queries=needs.queries, divided=needs.division, targets=targets
        )
        assert form.fits(labelled(support, query)) is fits, (targets, support, query)
