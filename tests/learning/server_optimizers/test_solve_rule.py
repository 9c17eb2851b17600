"""The server step that solves: releases weigh the same, and the deviation of their mean is what it is."""

import pytest
import torch

from dpfedmeta.learning.server_step import ServerSolver, initial_state, step
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit
from tests.learning.test_server_step import STREAM


class Remembers:
    def __init__(self):
        self.seen = []

    def solved(self, mean, deviation, /):
        self.seen.append((mean["sums"].clone(), deviation))
        return {"matrix": mean["sums"][:2]}


def test_all_releases_weigh_the_same_and_their_noise_adds_up():
    solver, policy = Remembers(), Constant(initial_bound=1.0)
    state = initial_state({"matrix": torch.zeros(2)}, policy, {"sums": torch.zeros(3)})
    releases = []
    for noise in (2.0, 0.5, 1.0):
        mechanism = GaussianMechanism(total_multiplier=noise, charged_multiplier=noise, denominator=4.0)
        query = Bounded[ClientUnit, dict](value={"sums": torch.arange(3.0)}, sensitivity=1.0)
        releases.append(mechanism.release(query, STREAM))
        state = step(ServerSolver(solver=solver), policy, state, releases[-1], averages=False)
        mean = torch.stack([release.value["sums"] for release in releases]).mean(0)
        torch.testing.assert_close(solver.seen[-1][0], mean)
        known = sum(release.noise_deviation**2 for release in releases) ** 0.5 / len(releases)
        assert solver.seen[-1][1] == pytest.approx(known, rel=1e-5)
        torch.testing.assert_close(state.model["matrix"], mean[:2])
    assert (state.round, state.released) == (3, 3)
