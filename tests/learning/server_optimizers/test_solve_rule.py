"""The server step that solves: releases weigh the same, and the deviation of their mean is what it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.toeplitz_coefficients import sums_over_independent
from dpfedmeta.learning.server_step import ServerPhases, ServerSolver, initial_state, step
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit
from tests.learning.test_server_step import STREAM, optimizer


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


def test_the_first_release_solves_and_all_others_move_what_was_solved():
    """As a run that began at the solved model; what was sent for the other phase moves nothing."""
    solver, policy, own = Remembers(), Constant(initial_bound=1.0), torch.Generator().manual_seed(0)
    form = {"sums": torch.zeros(3), "matrix": torch.zeros(2)}
    state = initial_state({"matrix": torch.zeros(2), "phase": torch.zeros(1)}, policy, form)
    phases = ServerPhases(first=ServerSolver(solver=solver), then=optimizer())
    plain = None
    for _ in range(4):
        sent = {name: torch.randn(value.shape, generator=own) for name, value in form.items()}
        mechanism = GaussianMechanism(total_multiplier=1.0, charged_multiplier=1.0, denominator=4.0)
        release = mechanism.release(Bounded[ClientUnit, dict](value=sent, sensitivity=1.0), STREAM)
        state = step(phases, policy, state, release, averages=False)
        if plain is None:
            torch.testing.assert_close(state.model["matrix"], release.value["sums"][:2])
            plain = initial_state({"matrix": state.model["matrix"]}, policy)
            continue
        plain = step(optimizer(), policy, plain, release, averages=False)
        torch.testing.assert_close(state.model["matrix"], plain.model["matrix"])
    assert len(solver.seen) == 1
    assert state.model["phase"] == 0.0


@pytest.mark.parametrize("c", [[1.0, 0.5, 0.375, 0.3125], [1.0, 0.9, 0.4, 0.1], [1.0, 0.0, 0.0, 0.0]], ids=str)
def test_correlated_noise_is_known_as_that_of_the_sum(c):
    """Against drawn noise: C^-1 of fresh noise, added up."""
    fresh = torch.randn(4, 200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lags = torch.arange(4)[:, None] - torch.arange(4)
    matrix = torch.where(lags < 0, 0.0, torch.tensor(c, dtype=torch.float64)[lags.clamp(min=0)])
    noise = torch.linalg.solve_triangular(matrix, fresh, upper=False)
    solver = Remembers()
    server = ServerSolver(solver=solver, correlation=tuple(sums_over_independent(np.array(c))))
    state = initial_state({"matrix": torch.zeros(2)}, Constant(initial_bound=1.0), {"sums": torch.zeros(3)})
    for place in range(4):
        deviation = float(noise[place].std())
        model, first, second = server.moved(state, {"sums": torch.zeros(3)}, deviation)
        state = replace(state, released=place + 1, model=model, first=first, second=second)
        drawn = float(noise[: place + 1].mean(0).std())
        assert solver.seen[-1][1] == pytest.approx(drawn, rel=0.01)
