"""ProtoMAML against its definition: a head that begins at the nearest-prototype classifier."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.proto_maml import Prototypes
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.meta.meta_gradients import batched, batched_query_gradients, meta_gradient
from dpfedmeta.learning.models.functional import apply_body
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.client_spec import algorithm_of, method_of

SPEC = NetworkSpec(name="mlp", channels=1, image_size=6, ways=3, width=5, norm="none", learn="body")
RULE = Prototypes()


def episode(seed=0, shots=4):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(shots)
    images = [torch.rand(3 * shots, 1, 6, 6, generator=generator) for _ in range(2)]
    return Episode(support_images=images[0], support_labels=labels, query_images=images[1], query_labels=labels)


def by_distance(weights, held):
    """-|x - c_k|^2 for each query record, written from the definition."""
    network = build_network(SPEC)
    support, query = (apply_body(network, weights, part, None) for part in (held.support_images, held.query_images))
    means = torch.stack([support[held.support_labels == way].mean(0) for way in range(3)])
    return -((query[:, None] - means[None]) ** 2).sum(-1)


@pytest.mark.parametrize("adapt", ["head", "all"])
def test_before_the_first_step_it_is_the_nearest_prototype(adapt):
    weights, held = initial_weights(SPEC, 3), episode()
    still = Adaptation(adapt=adapt, steps=1, lr=1e-12, rule=RULE)
    found = torch.log_softmax(adapted_logits(build_network(SPEC), weights, held, still), -1)
    torch.testing.assert_close(found, torch.log_softmax(by_distance(weights, held), -1), rtol=1e-4, atol=1e-5)
    plain = adapted_logits(build_network(SPEC), weights, held, replace(still, rule=Adaptation.rule))
    assert not torch.allclose(torch.log_softmax(plain, -1), found, atol=1e-3)


def test_the_gradient_flows_through_the_prototypes_into_the_body():
    weights, held = {n: v.double() for n, v in initial_weights(SPEC, 3).items()}, episode()
    held = replace(held, support_images=held.support_images.double(), query_images=held.query_images.double())
    network = build_network(SPEC).double()
    adaptation = Adaptation(adapt="head", steps=2, lr=0.05, rule=RULE)
    model = learned_part(SPEC, weights)
    fixed = {name: value for name, value in weights.items() if name not in model}
    found = meta_gradient(network, model, fixed, held, adaptation, 2)

    def loss(moved):
        logits = adapted_logits(network, {**weights, **moved}, held, adaptation)
        return float(cross_entropy(logits, held.query_labels))

    (name,) = [name for name in model if model[name].ndim == 2][:1]
    for place in ((0, 3), (4, 20)):
        step = torch.zeros_like(model[name])
        step[place] = 1e-5
        numeric = (loss({name: model[name] + step}) - loss({name: model[name] - step})) / 2e-5
        assert float(found[name][place]) == pytest.approx(numeric, rel=1e-4, abs=1e-9)


def test_several_clients_at_once_agree_with_one():
    weights, adaptation = initial_weights(SPEC, 3), Adaptation(adapt="head", steps=2, lr=0.05, rule=RULE)
    model = learned_part(SPEC, weights)
    fixed = {name: value for name, value in weights.items() if name not in model}
    both = batched_query_gradients(build_network(SPEC), model, fixed, batched([episode(0), episode(1)]), adaptation, 2)
    for client in (0, 1):
        alone = meta_gradient(build_network(SPEC), model, fixed, episode(client), adaptation, 2)
        for name, value in alone.items():
            torch.testing.assert_close(both[name][client], value, rtol=1e-3, atol=1e-5)


def test_a_class_without_records_begins_at_zero():
    head = RULE.start({}, lambda: torch.ones(2, 4), torch.tensor([0, 0]), 2)
    assert head["head.weight"].tolist() == [[2.0] * 4, [0.0] * 4]
    assert head["head.bias"].tolist() == [-4.0, 0.0]


def test_what_it_cannot_be_is_refused_and_micro_episodes_cover_it():
    task = load_task("omniglot")[0]
    with pytest.raises(InputError, match=r"meta\.learn = all: ProtoMAML"):
        method_of(resolve("proto-maml", "omniglot", None, {"meta.learn": "all"}), task)
    steps = {"meta.method": "proto-maml", "meta.order": "1"}
    with pytest.raises(RefusedPlan, match="uses support records outside its gradient steps"):
        algorithm_of(resolve("dp-agrlr", "omniglot", None, steps), task)
    assert algorithm_of(resolve("dp-agrlr-micro", "omniglot", None, {"meta.method": "proto-maml"}), task).releases
