"""Meta-gradients of parts for one pass of the body: those of torch.func, and no part knows of another one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.params import difference, norm
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.proto_maml import Prototypes
from dpfedmeta.learning.meta import meta_gradients as side_by_side
from dpfedmeta.learning.meta import partwise_gradients as parts_module
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.meta_gradients import batched_query_gradients
from dpfedmeta.learning.meta.partwise_gradients import client_by_client, part_gradients, parts_share_a_pass
from dpfedmeta.learning.meta.support_query_splits import adapted_heads, divided_gradients, division_slots
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.kernels import normalisation_jit as normalisation
from dpfedmeta.learning.models.layers.per_example_layers import first_values
from dpfedmeta.learning.models.registry import build_network, learned_part
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients, VmapGradients
from dpfedmeta.learning.releases.micro_episodes import MicroEpisodes
from tests.learning.meta.clients import context_of, noise_of

HEAD = Adaptation(adapt="head", steps=3, lr=0.3)
CLIENT = EpisodeShape(ways=3, shots=2, queries=4)
SHAPE = EpisodeShape(ways=3, shots=1, queries=1)
BATCH = NetworkSpec(
    name="conv4", channels=2, image_size=17, ways=3, width=6, norm="batch", features="support", learn="body"
)
GROUP = replace(BATCH, norm="group", groups=2, features="record")
SPECS = {
    "batch": BATCH,
    "batch, head learned": replace(BATCH, learn="all"),
    "batch, few learned": replace(BATCH, learn="scales"),
    "batch, strided": replace(BATCH, name="conv4-strided"),
    "batch, blur": replace(BATCH, name="conv3-blur", channels=3),
    "batch, tanh": replace(BATCH, activation="tanh"),
    "group": GROUP,
    "no norm": replace(BATCH, norm="none", features="raw"),
    "no convolution": replace(BATCH, name="mlp", norm="none"),
    "head learned": replace(GROUP, learn="all"),
}


def weights_of(spec, dtype=torch.float32):
    """Learned and fixed ones, with negative scales and shifts that are not 0."""
    generator = torch.Generator().manual_seed(2)
    made = {
        name: (value + 0.8 * torch.randn(value.shape, generator=generator) if value.ndim == 1 else value).to(dtype)
        for name, value in initial_weights(spec, 0).items()
    }
    learned = learned_part(spec, made)
    return learned, {name: value for name, value in made.items() if name not in learned}


def parts_of(spec, count=3, seed=0, queries=2):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).expand(count, 3)
    image = (spec.channels, spec.image_size, spec.image_size)
    return Episode(
        support_images=torch.randn(count, 3, *image, generator=generator),
        support_labels=labels,
        query_images=torch.randn(count, 3 * queries, *image, generator=generator),
        query_labels=labels.repeat_interleave(queries, 1),
    )


def doubled(episodes):
    return replace(
        episodes, support_images=episodes.support_images.double(), query_images=episodes.query_images.double()
    )


def rows(gradients):
    return torch.cat([value.flatten(1) for value in gradients.values()], dim=1)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("order", [1, 2])
def test_each_part_gets_the_gradient_that_vmap_gives_it(name, order):
    """Both in double precision; and compiled loops beside them."""
    spec = SPECS[name]
    network, (exact, exact_rest), (model, rest) = build_network(spec), weights_of(spec, torch.float64), weights_of(spec)
    episodes = parts_of(spec)
    wanted = rows(batched_query_gradients(network, exact, exact_rest, doubled(episodes), HEAD, order))
    found = part_gradients(network, exact, exact_rest, doubled(episodes), HEAD, order)
    assert {n: v.shape for n, v in found.items()} == {n: (3, *v.shape) for n, v in exact.items()}
    assert float((rows(found) - wanted).norm()) < 1e-12 * float(wanted.norm())
    single = rows(part_gradients(network, model, rest, episodes, HEAD, order)).double()
    for own, exactly in zip(single, wanted, strict=True):
        assert float((own - exactly).norm()) < 1e-5 * float(exactly.norm())


def test_compiled_loops_are_what_float32_goes_through(monkeypatch):
    calls = []
    kept = normalisation.see
    monkeypatch.setattr(normalisation, "see", lambda *given: calls.append(given) or kept(*given))
    model, rest = weights_of(BATCH)
    part_gradients(build_network(BATCH), model, rest, parts_of(BATCH), HEAD, 2)
    assert [coupling.segments for _, coupling, _ in calls] == [3] * 4


@pytest.mark.parametrize("name", ["batch", "batch, blur", "group", "no norm"])
@pytest.mark.parametrize("bad", [0.5, 1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("role", ["support_images", "query_images"])
def test_a_record_does_not_touch_another_parts_gradient(name, bad, role):
    spec = SPECS[name]
    network, (model, rest) = build_network(spec), weights_of(spec)
    honest = parts_of(spec)
    images = getattr(honest, role).clone()
    images[1, 2] = bad
    one, other = (
        rows(part_gradients(network, model, rest, each, HEAD, 2))
        for each in (honest, replace(honest, **{role: images}))
    )
    assert torch.equal(one[[0, 2]], other[[0, 2]])
    assert not torch.equal(one[1], other[1])


def test_statistics_over_all_parts_are_seen(monkeypatch):
    """The planted mistake: what the two tests above would miss if they looked at nothing."""
    kept = normalisation.Coupling
    monkeypatch.setattr(
        "dpfedmeta.learning.models.layers.per_example_layers.Coupling",
        lambda counted, segments: kept(counted=counted * segments),
    )
    with pytest.raises(AssertionError):
        test_a_record_does_not_touch_another_parts_gradient("batch", 0.5, "support_images")


def episode_of(spec, seed):
    generator = torch.Generator().manual_seed(seed)
    image, labels = (spec.channels, spec.image_size, spec.image_size), torch.arange(3)
    return Episode(
        support_images=torch.randn(CLIENT.support_records, *image, generator=generator),
        support_labels=labels.repeat_interleave(CLIENT.shots),
        query_images=torch.randn(CLIENT.query_records, *image, generator=generator),
        query_labels=labels.repeat_interleave(CLIENT.queries),
    )


def divided_once(episodes, divisions):
    """What the parts would be if each were dealt out so, one division after the other."""
    shots, queries = (episodes.support_labels.shape[1] // 3, episodes.query_labels.shape[1] // 3)
    of_class = torch.cat(
        [
            episodes.support_images.unflatten(1, (3, shots)),
            episodes.query_images.unflatten(1, (3, queries)),
        ],
        dim=2,
    )
    labels = torch.arange(3).expand(len(of_class), 3)
    for support, query in zip(*division_slots(divisions, shots + queries), strict=True):
        yield Episode(
            support_images=of_class[:, :, support].flatten(1, 2),
            support_labels=labels.repeat_interleave(len(support), 1),
            query_images=of_class[:, :, query].flatten(1, 2),
            query_labels=labels.repeat_interleave(len(query), 1),
        )


@pytest.mark.parametrize("name", ["group", "no norm", "head learned"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("count", "shots"), [(1, 1), (3, 1), (2, 2)])
def test_a_divided_part_gets_the_mean_over_its_divisions(monkeypatch, name, order, count, shots):
    """Each computed on its own; (1, 1) is the part as it stands."""
    spec, divisions = SPECS[name], Divisions(count=count, shots=shots)
    network, (model, rest), episodes = build_network(spec), weights_of(spec, torch.float64), doubled(parts_of(spec))
    found = rows(part_gradients(network, model, rest, episodes, HEAD, order, divisions))
    alone = [rows(part_gradients(network, model, rest, own, HEAD, order)) for own in divided_once(episodes, divisions)]
    wanted = torch.stack(alone).mean(0)
    assert float((found - wanted).norm()) < 1e-12 * float(wanted.norm())


@pytest.mark.parametrize("name", ["batch", "batch, head learned", "batch, strided", "group"])
@pytest.mark.parametrize("order", [1, 2])
def test_divided_parts_are_what_clients_with_these_records_would_send(name, order):
    """Statistics over all records of the part, as those of a client that divides all of its own."""
    spec, divisions = SPECS[name], Divisions(count=3, shots=2)
    network, (model, rest), episodes = build_network(spec), weights_of(spec, torch.float64), doubled(parts_of(spec))
    found = rows(part_gradients(network, model, rest, episodes, HEAD, order, divisions))
    wanted = rows(divided_gradients(network, model, rest, episodes, HEAD, order, divisions))
    assert float((found - wanted).norm()) < 1e-12 * float(wanted.norm())


@pytest.mark.parametrize("name", ["batch", "group"])
@pytest.mark.parametrize("bad", [0.5, torch.inf, torch.nan])
@pytest.mark.parametrize("role", ["support_images", "query_images"])
def test_a_record_does_not_touch_another_divided_parts_gradient(name, bad, role):
    spec, divisions = SPECS[name], Divisions(count=3, shots=1)
    network, (model, rest) = build_network(spec), weights_of(spec)
    honest = parts_of(spec)
    images = getattr(honest, role).clone()
    images[1, 2] = bad
    one, other = (
        rows(part_gradients(network, model, rest, each, HEAD, 2, divisions))
        for each in (honest, replace(honest, **{role: images}))
    )
    assert torch.equal(one[[0, 2]], other[[0, 2]])
    assert not torch.equal(one[1], other[1])


def test_divisions_across_parts_are_seen(monkeypatch):
    """The planted mistake: a part's queries are classified by the head of the part before."""
    monkeypatch.setattr(
        parts_module, "adapted_heads", lambda *given: {n: v.roll(3, 0) for n, v in adapted_heads(*given).items()}
    )
    with pytest.raises(AssertionError):
        test_a_record_does_not_touch_another_divided_parts_gradient("group", 0.5, "support_images")


def test_parts_agree_more_when_they_divide_more():
    """Statistical: what divisions inside a part are for."""
    network, (model, rest) = build_network(GROUP), weights_of(GROUP)
    common, own = parts_of(GROUP, 1, seed=7, queries=3), parts_of(GROUP, 60, seed=1, queries=3)
    close = replace(
        own,
        support_images=common.support_images + own.support_images,
        query_images=common.query_images + own.query_images,
    )

    def agreement(divisions):
        found = rows(part_gradients(network, model, rest, close, HEAD, 2, divisions))
        return float((found / found.norm(dim=1, keepdim=True)).mean(0).norm())

    assert agreement(Divisions(count=4, shots=1)) > agreement(None) + 0.02


class Silent:
    """Noise of zeros, to look at the signal alone."""

    def normal(self, size):
        return np.zeros(size)


def micro(noise=None, divisions=None):
    method = Maml(order=2, adaptation=HEAD, divisions=divisions)
    return MicroEpisodes(method=method, client=CLIENT, shape=SHAPE, noise=noise)


def client_context(spec, **changes):
    model, rest = weights_of(spec)
    own = context_of(build_network(spec), model, rest, network=spec, engine=LayeredGradients())
    return replace(own, **changes)


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(parts_module, "LEAST_VALUES", 1)


@pytest.mark.parametrize("noise", [None, 1.0])
def test_no_bit_of_a_message_depends_on_who_else_is_computed(every_size, monkeypatch, noise):
    monkeypatch.setattr(side_by_side, "batched_query_gradients", None)
    context, release = client_context(BATCH), micro(noise)
    clients = [episode_of(BATCH, seed) for seed in range(3)]

    def messages(group):
        sent = release.messages(context, group, 0.4, [noise_of(Silent())] * len(group))
        return [getattr(message, "value", message) for message in sent]

    together, backwards = messages(clients), messages(clients[::-1])[::-1]
    for number, client in enumerate(clients):
        (alone,) = messages([client])
        assert all(torch.equal(value, together[number][name]) for name, value in alone.items())
        assert all(torch.equal(value, backwards[number][name]) for name, value in alone.items())


@pytest.mark.parametrize("divisions", [None, Divisions(count=2, shots=1)])
@pytest.mark.parametrize("role", ["support_images", "query_images"])
def test_a_null_record_moves_the_sum_by_at_most_the_bound(every_size, role, divisions):
    context, release, bound = client_context(BATCH), micro(1.0, divisions), 1e-3
    whole = episode_of(BATCH, 5)
    for value, allowed in ((torch.nan, bound), (1e4, 2 * bound)):
        images = getattr(whole, role).clone()
        images[3] = value
        sent = release.messages(context, [whole, replace(whole, **{role: images})], bound, [noise_of(Silent())] * 2)
        one, other = (message.value for message in sent)
        assert 0 < norm(difference(one, other)) * len(release.slots()) <= allowed * (1 + 1e-5)


@pytest.mark.parametrize("least", [1, 10**9])
def test_a_null_record_is_in_one_divided_part_of_a_sum(monkeypatch, least):
    """In the pass, and part by part without it, which give the same."""
    context, release, whole = client_context(BATCH), micro(None, Divisions(count=2, shots=1)), episode_of(BATCH, 5)
    (wanted,) = release.messages(context, [whole], 1.0, [noise_of(Silent())])
    monkeypatch.setattr(parts_module, "LEAST_VALUES", least)
    places = [part for part, slots in enumerate(release.slots()) if any(3 in own for own in slots)]
    images = whole.support_images.clone()
    images[3] = torch.nan
    sent = release.messages(context, [whole, replace(whole, support_images=images)], 1.0, [noise_of(Silent())] * 2)
    one, other = (rows(message) for message in sent)
    assert torch.allclose(one, rows(wanted), atol=1e-5)
    assert [part for part in range(len(one)) if not torch.equal(one[part], other[part])] == places
    assert len(places) == 1


def test_what_the_pass_is_not_for_is_left_to_torch_func(monkeypatch):
    large = replace(BATCH, image_size=32)
    context, episodes = client_context(large, parts=3), parts_of(large)
    assert first_values(context.module, (32, 32)) == 6 * 32 * 32
    assert parts_share_a_pass(context, HEAD, episodes)
    assert not parts_share_a_pass(client_context(BATCH, parts=3), HEAD, parts_of(BATCH))
    assert not parts_share_a_pass(replace(context, parts=None), HEAD, episodes)
    assert not parts_share_a_pass(replace(context, engine=VmapGradients()), HEAD, episodes)
    assert not parts_share_a_pass(replace(context, device=torch.device("meta")), HEAD, episodes)
    assert not parts_share_a_pass(replace(context, module=torch.nn.Sequential(context.module)), HEAD, episodes)
    assert not parts_share_a_pass(context, replace(HEAD, adapt="all"), episodes)
    assert not parts_share_a_pass(context, replace(HEAD, rule=Prototypes()), episodes)
    monkeypatch.setattr(parts_module, "part_gradients", None)
    method = Maml(order=2, adaptation=replace(HEAD, rule=Prototypes()))
    assert method.gradients(context, episodes).keys() == context.learned.keys()


def test_a_silo_of_many_parts_is_computed_in_pieces_and_nothing_shows_it(monkeypatch):
    model, rest = weights_of(BATCH)
    of_two = replace(context_of(build_network(BATCH), model, rest, network=BATCH), parts=8)
    episodes, sizes, whole = parts_of(BATCH, count=16), [], parts_module.part_gradients
    once = rows(client_by_client(of_two, episodes, HEAD, 2))

    def noted(network, model, fixed, part, *more):
        sizes.append(len(part.support_labels))
        return whole(network, model, fixed, part, *more)

    monkeypatch.setattr(parts_module, "MOST_PARTS", 3)
    monkeypatch.setattr(parts_module, "part_gradients", noted)
    pieces = rows(client_by_client(of_two, episodes, HEAD, 2))
    assert sizes == [3, 3, 2, 3, 3, 2]
    assert float((pieces - once).norm()) < 1e-5 * float(once.norm())
