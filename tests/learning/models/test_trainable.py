"""Weights that are frozen stay, whatever adapts and whoever learns; networks that cannot be learned are named."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.meta_sgd import MetaSgd
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_params
from dpfedmeta.learning.meta.meta_gradients import batched, batched_query_gradients, inner_update, meta_gradient
from dpfedmeta.learning.models.frozen import frozen_network
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.trainable import check_head_is_free, check_parameters, frozen_names
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.learning.record_dp.noisy_steps import support_gradients, support_phase
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine

OWN = "tests.planning.coupled_networks:"
SPEC = NetworkSpec(name=f"{OWN}frozen_layer", channels=1, image_size=8, ways=3, width=4, norm="none")
FROZEN = {"body.2.weight", "body.2.bias"}
ALL = Adaptation(adapt="all", steps=2, lr=0.5)


@pytest.fixture(scope="module")
def episode():
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(12, 1, 8, 8, generator=generator), torch.arange(3).repeat(2)
    return Episode(support_images=images[:6], support_labels=labels, query_images=images[6:], query_labels=labels)


def parts(spec=SPEC):
    weights = initial_weights(spec, 1)
    learned = learned_part(spec, weights)
    return build_network(spec), learned, {name: value for name, value in weights.items() if name not in learned}


def test_frozen_weights_are_neither_learned_nor_adapted(episode):
    network, learned, fixed = parts()
    assert frozen_names(network) == FROZEN == {*fixed}
    assert {*learned} == {"body.4.weight", "body.4.bias", "head.weight", "head.bias"}
    for order in (1, 2):
        gradient = meta_gradient(network, learned, fixed, episode, ALL, order)
        assert {*gradient} == {*learned}
        together = batched_query_gradients(network, learned, fixed, batched([episode]), ALL, order)
        for name, value in gradient.items():
            torch.testing.assert_close(together[name][0], value, rtol=1e-4, atol=1e-6)
    assert {*inner_update(network, learned, fixed, episode, ALL)} == {*learned}
    adapted = adapted_params(network, {**fixed, **learned}, episode.support_images, episode.support_labels, ALL)
    assert all(torch.equal(adapted[name], fixed[name]) for name in FROZEN)
    assert not any(torch.equal(adapted[name], learned[name]) for name in learned)


def test_the_gradient_is_that_of_a_network_in_which_frozen_weights_are_constants(episode):
    """Against finite differences through the inner loop, with the frozen part as constants."""
    network, learned, fixed = parts()
    network = network.double()
    learned, fixed = ({n: v.double() for n, v in part.items()} for part in (learned, fixed))
    episode = replace(
        episode, support_images=episode.support_images.double(), query_images=episode.query_images.double()
    )
    gradient = meta_gradient(network, learned, fixed, episode, ALL, 2)

    def loss(moved):
        theta = {name: value.clone().requires_grad_() for name, value in moved.items()}
        for _ in range(ALL.steps):
            logits = torch.func.functional_call(network, {**fixed, **theta}, (episode.support_images,))
            steps = torch.autograd.grad(nn.functional.cross_entropy(logits, episode.support_labels), [*theta.values()])
            moved = {n: v - ALL.lr * g for (n, v), g in zip(theta.items(), steps, strict=True)}
            theta = {n: v.detach().requires_grad_() for n, v in moved.items()}
        logits = torch.func.functional_call(network, {**fixed, **theta}, (episode.query_images,))
        return float(nn.functional.cross_entropy(logits, episode.query_labels).detach())

    for name in ("body.4.bias", "head.bias"):
        for place in range(2):
            ends = []
            for sign in (1, -1):
                moved = {n: v.clone() for n, v in learned.items()}
                moved[name][place] += sign * 1e-5
                ends.append(loss(moved))
            assert float(gradient[name][place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-8)


def test_record_level_steps_leave_them_out(episode):
    network, learned, fixed = parts()
    phase = support_phase(network, {**fixed, **learned}, [episode], "all")
    (gradients,) = support_gradients(phase, [phase.start], per_record_engine("vmap"))
    assert {*gradients} == {*learned}
    (others,) = support_gradients(phase, [phase.start], per_record_engine("opacus"))
    for name, value in gradients.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-6)


def test_learned_rates_are_those_of_what_adapts():
    weights = MetaSgd(order=2, adaptation=replace(ALL, rule=MetaSgd.rule)).initial(SPEC, 0)
    assert {name.removeprefix("rate/") for name in weights if name.startswith("rate/")} == {*parts()[1]}


def test_nothing_to_learn_is_said():
    frozen_body = replace(SPEC, name=f"{OWN}frozen_body", learn="body")
    with pytest.raises(InputError, match=r"no free weights but its head's.*--meta.learn all"):
        learned_part(frozen_body, initial_weights(frozen_body, 0))
    everything = replace(SPEC, name=f"{OWN}frozen_entirely")
    with pytest.raises(InputError, match=r"all its weights are frozen \(requires_grad_\(False\)\)"):
        learned_part(everything, initial_weights(everything, 0))
    with pytest.raises(InputError, match=r"frozen weights .*: head.bias, head.weight; .*--meta.adapt all"):
        check_head_is_free(build_network(everything), "mine")


def test_a_frozen_head_keeps_its_values_where_a_free_one_begins_at_zero():
    everything = replace(SPEC, name=f"{OWN}frozen_entirely", learn="body")
    assert initial_weights(everything, 0)["head.weight"].abs().sum() > 0
    free = replace(SPEC, learn="body")
    assert initial_weights(free, 0)["head.weight"].abs().sum() == 0


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Flatten()), "has no parameters"),
        (
            nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
            r"1\.weight \(LazyLinear\) has no size.*give the layer its",
        ),
        (nn.Linear(2, 3).double(), r"weight is float64, expected float32; end the factory with network\.float\(\)"),
        (nn.Linear(2, 3).half(), "weight is float16"),
        (nn.ParameterList([nn.Parameter(torch.arange(3), requires_grad=False)]), "0 is int64.*make it a buffer"),
        (nn.ParameterList([torch.ones(2, dtype=torch.complex64)]), "0 is complex64.*real and its imaginary part"),
    ],
)
def test_weights_that_cannot_be_learned_are_named(network, words):
    with pytest.raises(InputError, match=words) as caught:
        check_parameters(network, "mine:network")
    assert str(caught.value).startswith("model.name = mine:network: ")


def test_whole_numbers_in_a_buffer_are_nobodys_weights():
    network = nn.Linear(2, 3)
    network.register_buffer("order", torch.arange(3))
    check_parameters(network, "mine:network")


def test_a_weight_under_two_names_is_kept_as_it_was_adapted(episode):
    spec = replace(SPEC, name=f"{OWN}tied")
    network, weights = build_network(spec), initial_weights(spec, 3)
    made = frozen_network(network, weights, episode.support_images)
    expected = torch.func.functional_call(network, weights, (episode.query_images,))
    assert torch.equal(made(episode.query_images), expected)
    assert not torch.equal(network(episode.query_images), expected)


@pytest.mark.parametrize("name", ["numpy_weights", "python_weights"])
def test_weights_drawn_by_other_libraries_follow_run_seed_too(name):
    spec = replace(SPEC, name=OWN + name)
    first, same, other = (initial_weights(spec, seed)["head.bias"] for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def plain(channels, image_size, ways, **_):
    made = nn.Module()
    made.body, made.head = nn.Flatten(), nn.Linear(channels * image_size**2, ways)
    made.forward = lambda images: made.head(made.body(images))
    return made


def scripted(channels, image_size, ways, **_):
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, ways)))


def compiled(**given):
    return torch.compile(plain(**given))


def compiled_inside(**given):
    made = plain(**given)
    made.body = torch.compile(made.body)
    return made


def parallel(**given):
    return nn.DataParallel(plain(**given))


@pytest.mark.parametrize("wrapped", [scripted, compiled, compiled_inside, parallel])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_compiled_and_parallel_networks_are_asked_for_as_plain_ones(wrapped):
    spec = NetworkSpec(name=f"{__name__}:{wrapped.__name__}", channels=1, image_size=8, ways=3, width=4, norm="none")
    with pytest.raises(InputError, match=r"returns a compiled, scripted or parallel module \(\w+\); return the plain"):
        build_network(spec)
    assert build_network(replace(spec, name=f"{__name__}:plain")) is not None
