"""Shapes of built-in networks are those of the networks themselves, and nothing is built for them."""

from dataclasses import replace
from itertools import product

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, convolved_channels
from dpfedmeta.learning.models.spec import NETWORKS, NetworkSpec
from dpfedmeta.learning.models.weight_shapes import built_in_channels, learned_part, stand_ins, weight_shapes
from dpfedmeta.planning.client_spec import algorithm_of, network_spec
from dpfedmeta.planning.privacy.secure_sum_settings import countable_weights

IMAGES = NetworkSpec(name="conv4", channels=1, image_size=28, ways=5, width=4, norm="group", learn="body")
TEXTS = replace(IMAGES, name="text", records="tokens", channels=7, image_size=1, vocabulary=30)
SPECS = [
    *(
        replace(IMAGES, name=name, norm=norm, image_size=side, channels=channels, downscale=downscale)
        for name, norm, side, channels, downscale in product(
            [name for name in NETWORKS if name != "text"], ("group", "batch", "none"), (16, 33), (1, 3), (None, 1, 2)
        )
    ),
    replace(IMAGES, name="mlp", records="vectors", channels=9, image_size=1),
    TEXTS,
]


def shapes_of(weights):
    return [(name, tuple(value.shape)) for name, value in weights.items()]


def refusal(function, spec):
    try:
        function(spec)
    except InputError as error:
        return str(error)
    return None


def test_shapes_are_those_of_the_networks():
    for spec in SPECS:
        refused = refusal(weight_shapes, spec)
        assert refusal(build_network, spec) == refused, spec
        if refused is None:
            assert list(weight_shapes(spec).items()) == shapes_of(dict(build_network(spec).named_parameters())), spec


def test_convolutions_are_those_of_the_networks():
    for spec in SPECS:
        if refusal(weight_shapes, spec) is None:
            assert set(built_in_channels(spec)) == set(convolved_channels(build_network(spec))), spec


@pytest.mark.parametrize("learn", ["all", "body", "scales"])
@pytest.mark.parametrize("name", ["conv3-blur", "mlp"])
def test_the_same_names_are_learned(name, learn):
    spec = replace(IMAGES, name=name, learn=learn)
    counted = learned_part(spec, stand_ins(weight_shapes(spec)))
    assert shapes_of(counted) == shapes_of(learned_part(spec, initial_weights(spec, 0)))


@pytest.mark.parametrize("algo", ["dp-agrlr", "dp-agrlr-micro", "meta-sgd", "proto-maml", "dp-fedavg"])
def test_methods_count_what_they_begin_with(algo):
    settings, (task, _) = resolve(algo, "strokes", None), load_task("strokes")
    algorithm, network = algorithm_of(settings, task), network_spec(settings, task)
    begun = algorithm.initial(network, 0)
    counted = countable_weights(algorithm, network, 0)
    assert shapes_of(counted) == shapes_of(begun)
    assert shapes_of(algorithm.learned(network, counted)) == shapes_of(algorithm.learned(network, begun))


def test_channels_that_no_groups_divide_are_refused():
    with pytest.raises(InputError, match=r"or --model\.groups null"):
        build_network(replace(IMAGES, width=6))


def test_stand_ins_take_no_memory():
    assert stand_ins({"a": (10**6, 10**6)})["a"].strides == (0, 0)
