import math
import pickle
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.mechanisms import GaussianMechanism, NoMechanism, Released, post_process
from dpfedmeta.privacy.units import Bounded, ClientUnit, message_of

SOURCE = KeyedSource(11)


def stream(*key):
    return SOURCE.generator(Purpose.SERVER_NOISE, *key)


def bounded(value=0.0, sensitivity=1.0, noise_variance=0.0, size=20_000):
    tensors = {"a": torch.full((size // 2,), value), "b": torch.full((size // 2,), value)}
    return Bounded[ClientUnit, dict](value=tensors, sensitivity=sensitivity, noise_variance=noise_variance)


def mechanism(total=2.0, charged=None, denominator=4.0):
    return GaussianMechanism(total_multiplier=total, charged_multiplier=charged or total, denominator=denominator)


def test_release_divides_by_the_public_denominator_and_charges_its_multiplier():
    released = mechanism(total=1e-9, charged=1e-9).release(bounded(8.0), stream(0))
    assert torch.allclose(released.value["a"], torch.tensor(2.0))
    assert released.noises == (GaussianNoise(multiplier=1e-9),)


def test_what_is_charged_is_what_the_observer_faces_and_not_the_total():
    released = mechanism(total=2.0, charged=1.5).release(bounded(), stream(0))
    assert released.noises == (GaussianNoise(multiplier=1.5),)
    assert released.noise_deviation == 0.5


def test_noise_follows_from_everything_that_is_released_or_scales_it():
    """Two questions with one noise would show their difference."""
    one, two = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
    query = Bounded[ClientUnit, dict](value={"a": one, "b": two}, sensitivity=1.0)
    changed: dict[str, list[Any]] = {
        "value": [{"a": one}, {"a": one, "c": two}, {"a": two, "b": one}, {"a": one.reshape(3, 2), "b": two},
                  {"a": one.view(np.int32), "b": two}, {"a": one, "b": np.nextafter(two, np.float32(2))}],
        "sensitivity": [2.0],
        "noise_variance": [1.0],
        "grid": [SimpleNamespace(width=1.0), SimpleNamespace(width=2.0)],
        "left_out": [],  # told to people; no part of what is released
    }  # fmt: skip
    others = [replace(query, **{field.name: other}) for field in fields(query) for other in changed[field.name]]
    told = [
        tuple(message_of(each, *constants))
        for each, constants in [
            (query, (2.0, 4.0)),
            (query, (4.0, 2.0)),
            (query, (2.0,)),
            *((o, (2.0, 4.0)) for o in others),
        ]
    ]
    assert len(set(told)) == len(told)
    assert tuple(message_of(replace(query, value={"b": two, "a": one}), 2.0, 4.0)) == told[0]


def test_noise_has_the_planned_deviation_and_is_normal_in_every_tensor():
    released = mechanism().release(bounded(sensitivity=3.0), stream(1))
    assert released.noise_deviation == pytest.approx(2.0 * 3.0 / 4.0)
    for tensor in released.value.values():
        scaled = tensor.numpy() / released.noise_deviation
        assert stats.kstest(scaled, "norm").pvalue > 1e-3


def test_noise_is_independent_across_tensors_and_rounds_and_repeats_for_the_same_key():
    first, second = (mechanism().release(bounded(), stream(r)).value for r in (0, 1))
    again = mechanism().release(bounded(), stream(0)).value
    assert torch.equal(first["a"], again["a"])
    for left, right in ((first["a"], first["b"]), (first["a"], second["a"])):
        assert abs(np.corrcoef(left.numpy(), right.numpy())[0, 1]) < 0.04


def test_noise_that_is_already_there_is_topped_up_to_the_same_total():
    # The query carries noise of variance 3 of a total of (2 * 1)^2 = 4, so 1 is added.
    released = mechanism(denominator=1.0).release(bounded(noise_variance=3.0), stream(2))
    assert float(released.value["a"].std()) == pytest.approx(1.0, rel=0.03)
    assert released.noise_deviation == pytest.approx(2.0)


def test_more_noise_than_the_total_is_an_error_and_never_clamped():
    with pytest.raises(ValueError, match="more messages entered the sum"):
        mechanism(total=1.0).release(bounded(noise_variance=1.01), stream(3))


@pytest.mark.parametrize("query", [bounded(sensitivity=math.inf), bounded(value=math.nan), bounded(value=math.inf)])
def test_unbounded_or_non_finite_values_are_not_released(query):
    with pytest.raises(ValueError, match=r"unbounded|NaN or Inf"):
        mechanism().release(query, stream(4))


@pytest.mark.parametrize(
    "bad", [{"total": 0.0}, {"total": math.nan}, {"total": 1.0, "charged": 2.0}, {"denominator": 0.0}]
)
def test_impossible_mechanisms_cannot_be_built(bad):
    with pytest.raises(ValueError, match="must be"):
        mechanism(**bad)


@pytest.mark.parametrize("bad", [{"sensitivity": -1.0}, {"sensitivity": math.nan}, {"noise_variance": -1.0}])
def test_impossible_bounds_cannot_be_built(bad):
    with pytest.raises(ValueError, match="must be a number"):
        bounded(**bad)


def test_noise_stays_right_for_extreme_sensitivities():
    for sensitivity in (1e-20, 1e20):
        released = mechanism(denominator=1.0).release(bounded(sensitivity=sensitivity), stream(5))
        assert float(released.value["a"].double().std()) == pytest.approx(2.0 * sensitivity, rel=0.03)


def test_nobody_else_releases():
    with pytest.raises(TypeError, match="only a mechanism"):
        Released(1.0, (None,), 0.0, seal=object())
    released = mechanism().release(bounded(size=2), stream(6))
    with pytest.raises(TypeError):
        replace(released, value=0)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(released)
    with pytest.raises(AttributeError, match="does not change"):
        released.value = {}


def test_post_processing_costs_what_its_inputs_cost_together():
    first, second = (mechanism().release(bounded(size=2), stream(r)) for r in (7, 8))
    combined = post_process(lambda a, b: a["a"] + b["a"], [first, second], 1.0)
    assert torch.equal(combined.value, first.value["a"] + second.value["a"])
    assert combined.noises == (*first.noises, *second.noises)


def test_without_a_mechanism_the_event_says_so():
    released = NoMechanism(denominator=4.0).release(bounded(8.0), stream(9))
    assert torch.equal(released.value["a"], torch.full((10_000,), 2.0))
    assert released.noises == (None,)
