import math

import pytest
import torch

from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.learning.server_optimizers.adam_rule import adam
from dpfedmeta.learning.server_optimizers.muon_rule import muon
from dpfedmeta.learning.server_optimizers.sgd_rule import sgd
from dpfedmeta.learning.server_step import ServerOptimizer, initial_state, skip, step
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.mechanisms import NoMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit

STREAM = KeyedSource(0).generator(Purpose.SERVER_NOISE)
POLICY = Constant(initial_bound=1.0)


def released(value):
    query = Bounded[ClientUnit, dict](value={"w": value}, sensitivity=math.inf)
    return NoMechanism(denominator=1.0).release(query, STREAM)


def optimizer(**changes):
    return ServerOptimizer(
        **{"rule": adam, "lr": 0.1, "final_lr": None, "rounds": 50, "beta1": 0.9, "beta2": 0.99, **changes}
    )


@pytest.mark.parametrize("rule", [adam, sgd])
def test_steps_agree_with_torch(rule):
    start = torch.tensor([1.0, -2.0, 3.0])
    parameter = torch.nn.Parameter(start.clone())
    if rule is adam:
        reference = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.99))
    else:
        reference = torch.optim.SGD([parameter], lr=0.1)
    state = initial_state({"w": start}, POLICY)
    steps = optimizer(rule=rule, beta1=0.9 if rule is adam else 0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        gradient = torch.randn(3, generator=generator)
        parameter.grad = gradient.clone()
        reference.step()
        state = step(steps, POLICY, state, released(gradient), averages=False)
    assert torch.allclose(state.model["w"], parameter.detach(), atol=1e-5)


@pytest.mark.parametrize("rule", [adam, sgd, muon])
@pytest.mark.parametrize("done", ["0101010101", "0000001111", "1111000011", "0111011110"])
def test_rounds_without_a_release_change_no_step(rule, done):
    start, steps = {"w": torch.ones(2, 3)}, optimizer(rule=rule)
    plain = state = initial_state(start, POLICY)
    generator = torch.Generator().manual_seed(0)
    for there in done:
        if there == "0":
            state = skip(state)
            continue
        gradient = torch.randn(2, 3, generator=generator)
        state, plain = (step(steps, POLICY, each, released(gradient), averages=False) for each in (state, plain))
        assert torch.equal(state.model["w"], plain.model["w"])
    assert (state.round, state.released) == (len(done), done.count("1"))


def test_the_step_size_follows_a_cosine_to_its_end():
    rule = optimizer(lr=1.0, final_lr=0.1)
    assert rule.step_size(0) == pytest.approx(1.0)
    assert rule.step_size(49) == pytest.approx(0.1)
    assert all(rule.step_size(t) > rule.step_size(t + 1) for t in range(49))


def test_the_average_is_the_mean_of_the_averaged_models():
    state = initial_state({"w": torch.zeros(1)}, POLICY)
    models = []
    for number in range(4):
        state = step(optimizer(), POLICY, state, released(torch.ones(1)), averages=number >= 2)
        models.append(state.model["w"])
        assert state.result["w"] is (state.average["w"] if number >= 2 else state.model["w"])
    assert torch.allclose(state.result["w"], (models[2] + models[3]) / 2)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_extreme_aggregates_leave_adam_finite(scale):
    state = initial_state({"w": torch.zeros(3)}, POLICY)
    for _ in range(3):
        state = step(optimizer(), POLICY, state, released(torch.full((3,), scale)), averages=False)
    assert torch.isfinite(state.model["w"]).all()
