import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import norm
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, check_records_uncoupled
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.noisy_steps import private_messages
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients, OpacusGradients, VmapGradients
from tests.learning.meta.clients import noise_of, steps_of

ENGINES = {"layered": LayeredGradients(), "vmap": VmapGradients(), "opacus": OpacusGradients()}
NETWORKS = [("conv4", "group"), ("conv4-strided", "group"), ("conv4-strided", "none"), ("mlp", "none")]


class Silent:
    """Noise of zeros, to look at the signal alone."""

    def normal(self, size):
        return np.zeros(size)


def network_of(name="conv4-strided", norm_="group", precision="float32"):
    spec = NetworkSpec(name=name, channels=1, image_size=28, ways=3, width=4, norm=norm_, precision=precision)
    return build_network(spec), initial_weights(spec, 1)


def episode(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(2)
    return Episode(
        support_images=torch.rand(6, 1, 28, 28, generator=generator),
        support_labels=labels,
        query_images=torch.rand(6, 1, 28, 28, generator=generator),
        query_labels=labels,
    )


def spec_of(adapt="all", steps=2, z=1.0, update=False):
    adaptation = Adaptation(adapt=adapt, steps=steps, lr=0.1)
    method = Reptile(adaptation=adaptation) if update else Maml(order=1, adaptation=adaptation)
    return steps_of(method, noise=z, records=6, ratio=0.5)


def private_message(network, model, fixed, data, bound, noise, spec, engine):
    (message,) = private_messages(network, model, fixed, [data], bound, [noise], spec, engine)
    return message


def keyed(client):
    source = KeyedSource(4)
    return noise_of(
        source.generator(Purpose.SUPPORT_NOISE, 0, client), source.generator(Purpose.QUERY_NOISE, 0, client)
    )


def loop_gradients(network, params, images, labels):
    """The oracle: one record at a time, plain autograd."""
    rows = []
    for image, label in zip(images, labels, strict=True):
        leaves = {n: v.clone().requires_grad_() for n, v in params.items()}
        logits = torch.func.functional_call(network, leaves, (image[None],))
        rows.append(torch.autograd.grad(cross_entropy(logits, label[None]), list(leaves.values())))
    return {n: torch.stack([row[i] for row in rows]) for i, n in enumerate(params)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "norm_"), NETWORKS)
def test_engines_agree_with_a_loop_over_records(engine, name, norm_):
    network, weights = network_of(name, norm_)
    data = episode()
    expected = loop_gradients(network, weights, data.query_images, data.query_labels)
    actual = ENGINES[engine](network, weights, {}, frozenset(), data.query_images, data.query_labels)
    assert list(actual) == list(weights)
    for name_ in expected:
        assert torch.allclose(actual[name_], expected[name_], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("adapt", ["all", "head"])
def test_a_clients_round_agrees_with_a_loop_over_records(engine, adapt):
    """Algorithm 3 by hand, without noise, record by record."""
    network, weights = network_of()
    data, spec, bound = episode(), spec_of(adapt), 0.8
    theta = dict(weights)
    for _ in range(spec.adaptation.steps):
        gradients = loop_gradients(network, theta, data.support_images, data.support_labels)
        adapted = [n for n in theta if adapt == "all" or n.startswith("head.")]
        step = clipped_mean({n: gradients[n] for n in adapted}, 0.5 * bound)
        theta = {n: v - 0.1 * step[n] if n in step else v for n, v in theta.items()}
    gradients = loop_gradients(network, theta, data.query_images, data.query_labels)
    expected = clipped_mean(gradients, bound)
    silent = noise_of(Silent())
    actual = private_message(network, weights, {}, data, bound, silent, spec, ENGINES[engine]).value
    for name in expected:
        assert torch.allclose(actual[name], expected[name], atol=1e-5)


def clipped_mean(gradients, bound):
    total = {n: torch.zeros_like(g[0]) for n, g in gradients.items()}
    for record in range(6):
        one = {n: g[record] for n, g in gradients.items()}
        factor = min(1.0, bound / max(norm(one), 1e-30))
        total = {n: total[n] + factor * one[n] / 6 for n in total}
    return total


@pytest.mark.parametrize(
    ("clip", "ratio", "bound", "due"),
    [(None, 0.5, 0.08, 0.04), (None, 2.0, 0.02, 0.04), (0.01, 0.5, 0.08, 0.01), (0.03, 0.5, 0.02, 0.03)],
)
@pytest.mark.parametrize("update", [False, True])
def test_support_steps_are_clipped_by_the_constant_of_the_plan_else_by_a_share_of_the_query_bound(
    clip, ratio, bound, due, update
):
    """And the noise is as long as what clipped them."""
    network, weights = network_of("mlp", "none")
    adaptation = Adaptation(adapt="all", steps=1, lr=0.1)
    method = Reptile(adaptation=adaptation) if update else Maml(order=1, adaptation=adaptation)
    data, spec = episode(), steps_of(method, noise=1.5, records=6, ratio=ratio, clip=clip)
    gradients = loop_gradients(network, weights, data.support_images, data.support_labels)
    step = clipped_mean(gradients, due)
    message = private_message(network, weights, {}, data, bound, noise_of(Silent()), spec, ENGINES["vmap"])
    if update:
        assert message.noise_deviation == pytest.approx(0.1 * 1.5 * due / 6)
        found = {name: value / 0.1 for name, value in message.value.items()}
    else:
        assert message.noise_deviation == pytest.approx(1.5 * bound / 6)
        theta = {name: value - 0.1 * step[name] for name, value in weights.items()}
        found = message.value
        step = clipped_mean(loop_gradients(network, theta, data.query_images, data.query_labels), bound)
    for name in step:
        torch.testing.assert_close(found[name], step[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_message_without_its_noise_is_at_most_the_query_bound(precision):
    network, weights = network_of(precision=precision)
    silent = noise_of(Silent())
    for seed in range(5):
        message = private_message(network, weights, {}, episode(seed), 1e-3, silent, spec_of(), ENGINES["vmap"])
        assert norm(message.value) <= 1e-3


def test_the_noise_of_a_message_has_the_planned_deviation():
    network, weights = network_of()
    spec, bound, data = spec_of("head", 1), 0.8, episode()
    quiet = noise_of(keyed(0).support, Silent())
    centre = private_message(network, weights, {}, data, bound, quiet, spec, ENGINES["vmap"]).value
    residuals = []
    for client in range(30):
        noise = noise_of(keyed(0).support, keyed(client).query)
        message = private_message(network, weights, {}, data, bound, noise, spec, ENGINES["vmap"])
        residuals.append(torch.cat([(message.value[n] - centre[n]).flatten() for n in centre]))
    residual = torch.cat(residuals)
    assert message.noise_deviation == pytest.approx(bound / 6)
    assert float(residual.std()) == pytest.approx(bound / 6, rel=0.03)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_noise_of_an_update_has_the_deviation_of_all_its_steps(steps):
    network, weights = network_of()
    # With so much noise and so small a rate the steps' gradients do not matter.
    spec = steps_of(Reptile(adaptation=Adaptation(adapt="head", steps=steps, lr=1e-6)), noise=50.0, records=6)
    found = [
        private_message(network, weights, {}, episode(), 0.8, keyed(client), spec, ENGINES["vmap"])
        for client in range(20)
    ]
    noise = torch.cat([v.flatten() for each in found for n, v in each.value.items() if n.startswith("head.")])
    assert float(noise.std()) == pytest.approx(found[0].noise_deviation, rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("engine", ["layered", "vmap"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_one_query_record_moves_the_message_by_at_most_c_over_n(bad, engine, precision):
    network, weights = network_of(precision=precision)
    silent = noise_of(Silent())
    data, bound = episode(), 0.8

    def sent(images):
        changed = Episode(
            support_images=data.support_images,
            support_labels=data.support_labels,
            query_images=images,
            query_labels=data.query_labels,
        )
        return private_message(network, weights, {}, changed, bound, silent, spec_of(), ENGINES[engine]).value

    whole = sent(data.query_images)
    poisoned = data.query_images.clone()
    poisoned[2] = bad  # a gradient that is not finite counts as 0: the null record
    moved = sent(poisoned)
    # Where the gradient is finite still, another record has taken the place: out, and in.
    moves = 2 if bad == 1e38 else 1
    assert norm({n: whole[n] - moved[n] for n in whole}) <= moves * bound / 6 * (1 + 1e-5)
    assert all(torch.isfinite(v).all() for v in moved.values())


def test_the_event_lists_every_touch_of_a_record():
    network, weights = network_of()
    released = private_message(network, weights, {}, episode(), 0.8, keyed(0), spec_of(steps=3, z=1.5), ENGINES["vmap"])
    assert len(released.noises) == 4
    assert released.noises[0] == GaussianNoise(multiplier=1.5)


def test_reptile_is_post_processing_of_the_support_steps():
    network, weights = network_of()
    released = private_message(
        network, weights, {}, episode(), 0.8, keyed(0), spec_of(steps=3, update=True), ENGINES["vmap"]
    )
    assert len(released.noises) == 3
    assert set(released.value) == set(weights)


@pytest.mark.parametrize(
    ("module", "offer"),
    [
        (torch.nn.BatchNorm2d(4), r"ModuleValidator\.fix"),
        (torch.nn.InstanceNorm2d(4, track_running_stats=True), r"track_running_stats=False"),
    ],
)
def test_coupled_records_are_refused_with_an_offer(module, offer):
    spec = NetworkSpec(name="my.package:net", channels=1, image_size=28, ways=3, width=4, norm="none")
    with pytest.raises(RefusedPlan, match=offer):
        check_records_uncoupled(torch.nn.Sequential(module), spec)
    built_in = NetworkSpec(name="conv4", channels=1, image_size=28, ways=3, width=4, norm="batch")
    with pytest.raises(RefusedPlan, match=r"--model\.norm group"):
        check_records_uncoupled(build_network(built_in), built_in)
    check_records_uncoupled(network_of()[0], built_in)


@pytest.mark.parametrize("adapt", ["all", "head"])
@pytest.mark.parametrize("learned", ["all", "body"])
def test_clients_computed_together_send_what_they_send_alone(adapt, learned):
    network, weights = network_of()
    model = {n: v for n, v in weights.items() if learned == "all" or not n.startswith("head.")}
    fixed = {n: v for n, v in weights.items() if n not in model}
    data = [episode(seed) for seed in range(3)]
    together = private_messages(
        network, model, fixed, data, 0.8, [keyed(c) for c in range(3)], spec_of(adapt), ENGINES["vmap"]
    )
    for client, message in enumerate(together):
        alone = private_message(
            network, model, fixed, data[client], 0.8, keyed(client), spec_of(adapt), ENGINES["vmap"]
        )
        assert set(message.value) == set(model)
        assert all(torch.allclose(message.value[n], alone.value[n], atol=1e-5) for n in model)


def test_the_opacus_engine_says_that_it_takes_one_client_at_a_time():
    network, weights = network_of()
    data = episode()
    with pytest.raises(ValueError, match="one client"):
        ENGINES["opacus"](network, weights, {}, frozenset({"head.bias"}), data.query_images, data.query_labels)


def test_opacus_agrees_where_a_part_of_the_weights_is_fixed():
    network, weights = network_of()
    data = episode()
    model = {n: v for n, v in weights.items() if not n.startswith("head.")}
    fixed = {n: v for n, v in weights.items() if n not in model}
    rows = [ENGINES[e](network, model, fixed, frozenset(), data.query_images, data.query_labels) for e in ENGINES]
    assert list(rows[0]) == list(rows[1]) == list(model)
    assert all(torch.allclose(rows[0][n], rows[1][n], rtol=1e-4, atol=1e-5) for n in model)
