"""Micro-episodes: which records form them, what they compute, and how far one record moves a client's message."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import difference, flatten, norm
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.row_layout import micro_slots
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, check_records_uncoupled
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.releases.micro_episodes import MicroEpisodes
from dpfedmeta.privacy.clipping import clip
from tests.learning.meta.clients import context_of, gradient_of, noise_of

CLIENT = EpisodeShape(ways=3, shots=2, queries=3)
SHAPE = EpisodeShape(ways=3, shots=1, queries=1)
BOUND = 0.4
NETWORKS = [
    {"norm": "group", "features": "record", "feature_scale": 4.0},
    {"norm": "batch", "features": "support"},
    {"norm": "none"},
]


class Silent:
    """Noise of zeros, to look at the signal alone."""

    def normal(self, size):
        return np.zeros(size)


def network_of(ways=3, **changes):
    spec = NetworkSpec(
        **{
            "name": "conv4-strided",
            "channels": 1,
            "image_size": 28,
            "ways": ways,
            "width": 4,
            "norm": "group",
            **changes,
        }
    )
    return spec, initial_weights(spec, 1)


def episode(seed=0, client=CLIENT):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(client.ways)
    return Episode(
        support_images=torch.rand(client.support_records, 1, 28, 28, generator=generator),
        support_labels=labels.repeat_interleave(client.shots),
        query_images=torch.rand(client.query_records, 1, 28, 28, generator=generator),
        query_labels=labels.repeat_interleave(client.queries),
    )


def spec_of(order=2, adapt="head", shape=SHAPE, z=1.0, steps=2):
    adaptation = Adaptation(adapt=adapt, steps=steps, lr=0.3)
    return MicroEpisodes(method=Maml(order=order, adaptation=adaptation), client=CLIENT, shape=shape, noise=z)


def messages(episodes, spec, network, weights, generators=None, bound=BOUND):
    own = context_of(build_network(network), weights, network=network)
    noises = [noise_of(generator) for generator in generators or [Silent()] * len(episodes)]
    return [release.value for release in spec.messages(own, episodes, bound, noises)]


def split(data, shape, client=CLIENT):
    """The micro-episodes by hand: image by image."""
    support = data.support_images.view(client.ways, client.shots, 1, 28, 28)
    query = data.query_images.view(client.ways, client.queries, 1, 28, 28)
    records = torch.cat([support, query], dim=1)
    labels = torch.arange(client.ways)
    each = shape.shots + shape.queries
    for start in range(0, client.shots + client.queries - each + 1, each):
        own = records[:, start : start + each]
        yield Episode(
            support_images=own[:, : shape.shots].reshape(-1, 1, 28, 28),
            support_labels=labels.repeat_interleave(shape.shots),
            query_images=own[:, shape.shots :].reshape(-1, 1, 28, 28),
            query_labels=labels.repeat_interleave(shape.queries),
        )


sizes = st.integers(1, 6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(2, 6), sizes, sizes, st.integers(2, 6), st.integers(1, 3), st.integers(1, 3))
def test_no_record_is_in_two_micro_episodes_and_few_are_in_none(ways, shots, queries, micro_ways, s, q):
    client = EpisodeShape(ways=ways, shots=shots, queries=queries)
    shape = EpisodeShape(ways=min(micro_ways, ways), shots=s, queries=q)
    slots = torch.tensor(micro_slots(client, shape), dtype=torch.long).view(-1, shape.ways, s + q)
    assert len(slots.unique()) == slots.numel()
    labels = torch.arange(ways)
    held = torch.cat([labels.repeat_interleave(shots), labels.repeat_interleave(queries)])
    for group in slots:
        of_class = held[group]
        assert (of_class == of_class[:, :1]).all()
        assert len(of_class[:, 0].unique()) == shape.ways
    left = torch.tensor([shots + queries - int((held[slots.flatten()] == way).sum()) for way in range(ways)])
    # One more would need as many classes with that many records left.
    assert int((left >= s + q).sum()) < shape.ways


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("adapt", "changes"), [*(("head", c) for c in NETWORKS), ("all", NETWORKS[0])])
def test_a_message_is_the_mean_of_the_clipped_meta_gradients(order, adapt, changes):
    """The oracle is the exact client, one micro-episode at a time."""
    network, weights = network_of(**changes)
    data, spec = [episode(0), episode(1)], spec_of(order, adapt)
    module = build_network(network)
    for own, message in zip(data, messages(data, spec, network, weights), strict=True):
        gradients = [clip(gradient_of(module, weights, {}, part, spec.method), BOUND) for part in split(own, SHAPE)]
        expected = torch.stack([flatten(gradient) for gradient in gradients]).mean(0)
        assert torch.allclose(flatten(message), expected, atol=2e-5)


def test_records_that_do_not_lie_class_by_class_do_not_fit():
    data = episode()
    assert spec_of().fits(data)
    assert not spec_of().fits(replace(data, query_labels=data.query_labels.flip(0)))
    # Other numbers of images of each class.
    assert not spec_of().fits(replace(data, support_labels=torch.tensor([0, 0, 0, 1, 1, 2])))


def moved(spec, network, weights, change, place):
    whole = episode(2)
    other = replace(whole, query_images=whole.query_images.clone())
    other.query_images[place] = change
    # The sum, not the mean over M.
    left, right = messages([whole, other], spec, network, weights, bound=1e-3)
    return norm(difference(left, right)) * len(spec.slots())


@pytest.mark.parametrize("changes", [*NETWORKS, {**NETWORKS[0], "precision": "bfloat16"}])
def test_a_null_record_moves_the_sum_by_at_most_the_bound(changes):
    """A record of NaN is a null record: its micro-episode counts as 0, and no other one sees it."""
    network, weights = network_of(**changes)
    for place in (0, 1, 7):
        assert 0 < moved(spec_of(), network, weights, torch.nan, place) <= 1e-3 * (1 + 1e-5)
        # Another value in its place: out, and in.
        assert moved(spec_of(), network, weights, 1e4 * torch.randn(1, 28, 28), place) <= 2e-3 * (1 + 1e-5)


def test_micro_episodes_that_share_a_record_break_the_bound(monkeypatch):
    """The planted mistake: the same record in all of them."""
    network, weights = network_of()
    shared = micro_slots(CLIENT, SHAPE)[1][0][1]
    slots = [[[first[0], shared], *others] for first, *others in micro_slots(CLIENT, SHAPE)]
    monkeypatch.setattr(MicroEpisodes, "slots", lambda self: slots)
    assert moved(spec_of(), network, weights, torch.nan, shared - CLIENT.support_records) > 1.2e-3


def test_the_longest_gradients_lose_nothing_to_rounding():
    network, weights = network_of(norm="none")
    large = {name: value * 1e6 for name, value in weights.items()}
    (message,) = messages([episode(3)], spec_of(1, "head", steps=1), network, large, bound=1e-6)
    assert norm(message) <= 1e-6
    assert torch.isfinite(flatten(message)).all()


def test_the_noise_of_a_message_has_the_planned_deviation():
    network, weights = network_of()
    spec, data = spec_of(z=1.7), episode()
    (centre,) = messages([data], spec, network, weights)
    source = KeyedSource(4)
    generators = [source.generator(Purpose.QUERY_NOISE, 0, client) for client in range(40)]
    noisy = messages([data] * 40, spec, network, weights, generators)
    residual = torch.cat([flatten(difference(message, centre)) for message in noisy])
    deviation = spec.message_deviation * BOUND
    assert deviation == pytest.approx(1.7 * BOUND / 2)
    # chi-squared with n degrees of freedom: relative deviation 1/sqrt(2 n)
    assert float(residual.std()) == pytest.approx(deviation, rel=5 / (2 * residual.numel()) ** 0.5)
    assert abs(float(residual.mean())) < 5 * deviation / residual.numel() ** 0.5


def test_coupling_is_allowed_inside_a_micro_episode_but_not_across():
    coupled = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=4, norm="batch")
    check_records_uncoupled(build_network(coupled), coupled, inside_micro_episodes=True)
    with pytest.raises(RefusedPlan, match="BatchNorm2d"):
        own = replace(coupled, name="own:network")
        check_records_uncoupled(torch.nn.Sequential(torch.nn.BatchNorm2d(1)), own, inside_micro_episodes=True)
