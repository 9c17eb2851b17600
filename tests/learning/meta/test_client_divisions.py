from dataclasses import replace

import pytest
import torch

from dpfedmeta.core.params import difference, norm
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.meta_gradients import batched, batched_divided_gradients
from dpfedmeta.learning.meta.support_query_splits import division_slots
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, learned_part
from dpfedmeta.learning.models.spec import NetworkSpec
from tests.learning.meta.clients import gradient_of

WAYS, HELD = 3, 4


def network_of(norm="none", learn="body"):
    # Without batch statistics the divisions of one pass are episodes of their own: an oracle.
    spec = NetworkSpec(
        name="conv4-strided", channels=1, image_size=28, ways=WAYS, width=4, norm=norm, features="raw", learn=learn
    )
    weights = {n: v.double() for n, v in initial_weights(spec, 1).items()}
    model = learned_part(spec, weights)
    return build_network(spec).double(), model, {n: v for n, v in weights.items() if n not in model}


def records(seed=0, held=HELD):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(WAYS, held, 1, 28, 28, generator=generator, dtype=torch.float64)


def episode_of(images, support, query):
    labels = torch.arange(WAYS)
    return Episode(
        support_images=images[:, support].flatten(0, 1),
        support_labels=labels.repeat_interleave(len(support)),
        query_images=images[:, query].flatten(0, 1),
        query_labels=labels.repeat_interleave(len(query)),
    )


def spec_of(divisions=None, order=2):
    return Maml(
        order=order,
        adaptation=Adaptation(adapt="head", steps=3, lr=0.3),
        divisions=divisions,
    )


@pytest.mark.parametrize("shots", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_division_is_another_one(count, shots):
    support, query = division_slots(Divisions(count=count, shots=shots), HELD)
    assert support.shape == (count, shots)
    assert query.shape == (count, HELD - shots)
    for own, others in zip(support, query, strict=True):
        assert sorted([*own.tolist(), *others.tolist()]) == list(range(HELD))
    assert len({tuple(sorted(own.tolist())) for own in support}) == count


@pytest.mark.parametrize("learn", ["body", "all"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("count", "shots"), [(1, 2), (2, 2), (4, 1), (3, 3)])
def test_the_gradient_is_the_mean_over_the_episodes_that_the_divisions_are(learn, order, count, shots):
    network, model, fixed = network_of(learn=learn)
    images, divisions = records(), Divisions(count=count, shots=shots)
    found = gradient_of(network, model, fixed, episode_of(images, [0, 1], [2, 3]), spec_of(divisions, order))
    slots = zip(*division_slots(divisions, HELD), strict=True)
    own = [
        gradient_of(network, model, fixed, episode_of(images, s.tolist(), q.tolist()), spec_of(order=order))
        for s, q in slots
    ]
    expected = {name: torch.stack([gradient[name] for gradient in own]).mean(0) for name in model}
    assert found.keys() == expected.keys()
    assert float(norm(difference(found, expected))) < 1e-9 * max(1.0, float(norm(expected)))


def test_the_order_of_records_in_the_episode_does_not_matter_to_classes():
    network, model, fixed = network_of()
    whole = episode_of(records(), [0, 1], [2, 3])
    # The first record of every class still comes before its second.
    mixed = torch.tensor([4, 0, 2, 5, 1, 3])
    shuffled = Episode(
        support_images=whole.support_images[mixed],
        support_labels=whole.support_labels[mixed],
        query_images=whole.query_images,
        query_labels=whole.query_labels,
    )
    spec = spec_of(Divisions(count=4, shots=2))
    one, two = (gradient_of(network, model, fixed, each, spec) for each in (whole, shuffled))
    assert float(norm(difference(one, two))) < 1e-9


def test_batch_statistics_are_those_of_all_records():
    network, model, fixed = network_of(norm="batch")
    images, spec = records(), spec_of(Divisions(count=2, shots=2))
    one, other = (
        gradient_of(network, model, fixed, episode_of(images, s, q), spec)
        for s, q in (([0, 1], [2, 3]), ([2, 3], [0, 1]))
    )
    # Two windows of half the records are the two ways to deal out the roles: who began as support is the same.
    assert float(norm(difference(one, other))) < 1e-9 * float(norm(one))


def test_large_features_stay_finite():
    network, model, fixed = network_of()
    loud = {name: 30 * value for name, value in model.items()}
    found = gradient_of(
        network, loud, fixed, episode_of(records(), [0, 1], [2, 3]), spec_of(Divisions(count=4, shots=1))
    )
    assert all(torch.isfinite(value).all() for value in found.values())


def test_clients_agree_more_when_they_divide_more():
    """Statistical: the mean over divisions depends less on how a client's records are dealt out."""
    network, model, fixed = network_of()

    def agreement(divisions):
        sent = []
        for seed in range(40):
            images = records(seed % 5) + 0.05 * records(100 + seed)
            message = gradient_of(network, model, fixed, episode_of(images, [0, 1], [2, 3]), spec_of(divisions))
            flat = torch.cat([value.flatten() for value in message.values()])
            sent.append(flat / flat.norm())
        return float(torch.stack(sent).mean(0).norm())

    assert agreement(Divisions(count=4, shots=2)) > agreement(None) + 0.02


def test_clients_that_cannot_be_divided_are_seen():
    divisions = Divisions(count=2, shots=2)
    images = records()
    assert divisions.fits(episode_of(images, [0, 1], [2, 3]))
    assert not divisions.fits(episode_of(images, [0], [1]))
    uneven = episode_of(images, [0, 1], [2, 3])
    assert not divisions.fits(
        Episode(
            support_images=uneven.support_images[1:],
            support_labels=uneven.support_labels[1:],
            query_images=uneven.query_images,
            query_labels=uneven.query_labels,
        )
    )


@pytest.mark.parametrize("learn", ["body", "all"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm_", ["none", "batch"])
def test_clients_side_by_side_send_what_each_sends_alone(learn, order, norm_):
    network, model, fixed = network_of(norm_, learn)
    divisions, alone = Divisions(count=3, shots=1), spec_of(order=order)
    episodes = [episode_of(records(seed), [0, 1], [2, 3]) for seed in range(3)]
    turned = episodes[1]
    mixed = torch.randperm(len(turned.support_labels), generator=torch.Generator().manual_seed(3))
    # The order of a client's records is its own affair.
    episodes[1] = replace(
        turned, support_images=turned.support_images[mixed], support_labels=turned.support_labels[mixed]
    )
    found = batched_divided_gradients(network, model, fixed, batched(episodes), alone.adaptation, order, divisions)
    for client, episode in enumerate(episodes):
        expected = gradient_of(network, model, fixed, episode, spec_of(divisions, order))
        own = {name: value[client] for name, value in found.items()}
        assert float(norm(difference(own, expected))) < 1e-9 * max(1.0, float(norm(expected)))
