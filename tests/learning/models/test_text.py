from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, embedding

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode, is_sound
from dpfedmeta.data.episodes.shape import EpisodeShape, RecordForm
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.meta_gradients import meta_gradient
from dpfedmeta.learning.models.functional import apply
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.layers.per_example_layers import has_record_layers
from dpfedmeta.learning.models.layers.stateless_layers import TokenShares
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine

TEXT = NetworkSpec(name="text", channels=6, image_size=1, ways=3, width=5, norm="none", records="tokens", vocabulary=11)
VECTORS = replace(TEXT, name="mlp", records="vectors", vocabulary=None)


def drawn(spec, count):
    generator = torch.Generator().manual_seed(3)
    if spec.vocabulary is None:
        return torch.randn(count, *spec.form.shape, generator=generator)
    records = torch.randint(1, spec.vocabulary, (count, *spec.form.shape), generator=generator).float()
    records[:, 4:] = 0.0  # padding
    records[0, 1:] = 0.0
    return records


def test_shares_are_the_mean_of_embeddings_without_padding():
    records, matrix = drawn(TEXT, 7), torch.randn(11, 5)
    found = TokenShares(11)(records) @ matrix
    for row, record in zip(found, records, strict=True):
        tokens = record[record > 0].long()
        assert torch.allclose(row, embedding(tokens, matrix).mean(0), atol=1e-6)
    assert torch.equal(TokenShares(11)(torch.zeros(1, 6)), torch.zeros(1, 11))


@pytest.mark.parametrize("spec", [TEXT, VECTORS])
def test_engines_agree_with_one_record_at_a_time(spec):
    network, params = build_network(spec), initial_weights(spec, 0)
    records, labels = drawn(spec, 5), torch.tensor([0, 1, 2, 0, 1])
    assert has_record_layers(network)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    expected = []
    for record, label in zip(records, labels, strict=True):
        loss = cross_entropy(apply(network, leaves, record[None], None), label[None])
        expected.append(torch.autograd.grad(loss, list(leaves.values())))
    for engine in ("auto", "vmap", "opacus"):
        found = per_record_engine(engine)(network, params, {}, frozenset(), records, labels)
        for number, gradients in enumerate(expected):
            for value, gradient in zip(found.values(), gradients, strict=True):
                assert torch.allclose(value[number], gradient, atol=1e-5), engine


@pytest.mark.parametrize("spec", [TEXT, VECTORS])
def test_second_order_meta_gradients_match_finite_differences(spec):
    shape = EpisodeShape(ways=3, shots=2, queries=1)
    labels, records = torch.arange(3), drawn(spec, 9).double()
    episode = Episode(
        support_images=records[:6],
        support_labels=labels.repeat_interleave(shape.shots),
        query_images=records[6:],
        query_labels=labels,
    )
    network = build_network(spec).double()
    params = {name: value.double() for name, value in initial_weights(spec, 0).items()}
    adaptation = Adaptation(adapt="all", steps=2, lr=0.3)
    found = meta_gradient(network, params, {}, episode, adaptation, 2)

    def loss(name, change):
        theta = {**params, name: params[name] + change}
        theta = {key: value.clone().requires_grad_() for key, value in theta.items()}
        for _ in range(2):
            inner = cross_entropy(apply(network, theta, episode.support_images, None), episode.support_labels)
            steps = torch.autograd.grad(inner, list(theta.values()))
            theta = {
                key: (value - 0.3 * step).detach().requires_grad_()
                for (key, value), step in zip(theta.items(), steps, strict=True)
            }
        return float(cross_entropy(apply(network, theta, episode.query_images, None), episode.query_labels).detach())

    for name, gradient in found.items():
        direction = torch.randn_like(params[name])
        step = 1e-5
        slope = (loss(name, step * direction) - loss(name, -step * direction)) / (2 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize(
    "spec", [replace(TEXT, name="mlp"), replace(VECTORS, name="conv4"), replace(VECTORS, name="text")]
)
def test_networks_refuse_records_of_another_kind(spec):
    with pytest.raises(InputError, match=r"takes .*, and the records are .*; use --model.name (text|affine)"):
        build_network(spec)


def test_tokens_that_no_embedding_has_are_not_sound():
    # An index out of range would stop a round, and so tell of a client's data.
    labels = torch.arange(3)

    def sound(records):
        held = Episode(support_images=records, support_labels=labels, query_images=records, query_labels=labels)
        return is_sound(held, (6,), 3, (3, 3), vocabulary=11)

    records = drawn(TEXT, 3)
    assert sound(records)
    for value in (11.0, -1.0, 1.5, float("nan")):
        other = records.clone()
        other[1, 0] = value
        assert not sound(other), value
    records[2] = 0.0
    assert not sound(records)


def test_forms_in_words():
    assert RecordForm(shape=(3, 8, 8)).words == "images of 3 x 8 x 8"
    assert VECTORS.form.words == "vectors of 6 numbers"
    assert TEXT.form.words == "sequences of 6 tokens (1 to 10, 0 pads)"
