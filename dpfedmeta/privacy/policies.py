"""Clip policies: pure state machines from released aggregates to the next clip bound.

A policy sees `Released` values and nothing else, so its bound is post-processing and enters no event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dpfedmeta.errors import InputError
from dpfedmeta.parameters import Params, dimension, norm
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import Client


class PolicyState(Protocol):
    """What every policy's state can say."""

    @property
    def bound(self) -> float:
        """The clip bound of the next round."""
        ...


State = TypeVar("State")

# Standard deviations of noise above which a signal counts as visible, and as seen for good.
_VISIBLE, _CERTAIN = 2.0, 6.0


class ClipPolicy(Protocol[State]):
    """A pure state machine over released aggregates."""

    def initial(self) -> State:
        """The state before the first round."""
        ...

    def next_bound(self, state: State, aggregate: Released[Client, Params]) -> tuple[State, float]:
        """The state and the clip bound after `aggregate` was released."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConstantState:
    """Nothing changes."""

    bound: float


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same bound in every round; inf for training without privacy."""

    initial_bound: float

    def initial(self) -> ConstantState:
        """The bound, for ever."""
        return ConstantState(bound=self.initial_bound)

    def next_bound(self, state: ConstantState, aggregate: Released[Client, Params]) -> tuple[ConstantState, float]:
        """Ignores the aggregate."""
        return state, state.bound


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one released aggregate says about the signal at one bound.

    Attributes:
        bound: C_t that the round was clipped with.
        energy: ||G||^2 less the known noise energy: unbiased for the squared norm of the clipped mean.
        spread: Standard deviation of `energy` that the noise causes.
    """

    bound: float
    energy: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class WindowState:
    """Centre of the search, the bound to use next, the last W observations, and whether a signal stood out yet."""

    centre: float
    bound: float
    observations: tuple[Observation, ...] = ()
    signal_seen: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """The stable window policy: finds the knee where clipping begins, from past noisy aggregates alone.

    Below the knee every contribution is clipped and the clipped mean grows in proportion to C: its elasticity
    d ln||signal|| / d ln C is 1. Above it nothing is clipped and the elasticity is 0, while the noise keeps
    growing. The policy alternates the bound a little above and below a centre, estimates the elasticity from
    the noise-corrected energies of the last W aggregates, and moves the centre until the elasticity is
    `target_elasticity`. Where noise hides the signal and always did, it lowers the bound, at most
    by the factor `search_range`: above the knee that raises the signal-to-noise ratio, below it costs nothing.
    Where noise hides a signal that was seen before, it holds.

    Unlike the literal percentile rule of DP-AGR (C = percentile of the last W aggregate norms), the fixed
    point does not depend on d, L or z, so the bound neither collapses nor explodes (privacy.md section 4).

    Attributes:
        initial_bound: C_0.
        window: W >= 2 past aggregates.
        target_elasticity: Where to sit: 1 clips everything, 0 clips nothing.
        probe: Ratio of the upper to the centre bound, and of the centre to the lower one.
        gain: Step of ln(centre) per unit of elasticity error.
        search_range: How far the bound may leave initial_bound, as a factor in both directions.

    Guarantee:
        Post-processing of released aggregates; no event. The bound of round t is a function of the releases
        before t, and the mechanism's noise is a multiple of it.
    """

    initial_bound: float
    window: int = 4
    target_elasticity: float = 0.6
    probe: float = 1.25
    gain: float = 0.8
    search_range: float = 300.0

    def __post_init__(self) -> None:
        if self.window < 2:
            raise InputError(f"clip.window: the window policy compares at least 2 aggregates, got {self.window}")

    def initial(self) -> WindowState:
        """Starts above the centre, so that the second round looks below it."""
        return WindowState(centre=self.initial_bound, bound=self.initial_bound * self.probe)

    def next_bound(self, state: WindowState, aggregate: Released[Client, Params]) -> tuple[WindowState, float]:
        """Add one observation, move the centre, and put the next probe on the other side."""
        observations = (*state.observations, observe(state.bound, aggregate))[-self.window :]
        significance = _significance(observations)
        seen = state.signal_seen or (len(observations) >= 2 and significance > _CERTAIN)
        if len(observations) < 2:
            elasticity = self.target_elasticity
        elif significance <= _VISIBLE:
            elasticity = self.target_elasticity if seen else 0.0
        else:
            elasticity = _slope(observations, otherwise=self.target_elasticity)
        lowest = self.initial_bound / self.search_range
        highest = self.initial_bound * self.search_range
        moved = state.centre * math.exp(self.gain * (elasticity - self.target_elasticity))
        centre = min(max(moved, lowest), highest)
        above = state.bound > state.centre
        bound = centre / self.probe if above else centre * self.probe
        return WindowState(centre=centre, bound=bound, observations=observations, signal_seen=seen), bound


def _significance(observations: tuple[Observation, ...]) -> float:
    """Total signal energy in standard deviations of what noise alone would show."""
    spread = math.sqrt(sum(o.spread**2 for o in observations))
    return sum(o.energy for o in observations) / spread if spread > 0 else math.inf


def _slope(observations: tuple[Observation, ...], otherwise: float) -> float:
    """Least-squares slope of ln||signal|| on ln C, in [0, 1]; `otherwise` where the bound did not vary."""
    # A single energy may be negative; a floor at its own noise keeps the logarithm finite.
    points = [(math.log(o.bound), 0.5 * math.log(max(o.energy, o.spread, 1e-300))) for o in observations]
    centre_x = sum(x for x, _ in points) / len(points)
    centre_y = sum(y for _, y in points) / len(points)
    variance = sum((x - centre_x) ** 2 for x, _ in points)
    if variance < 1e-12:
        return otherwise
    slope = sum((x - centre_x) * (y - centre_y) for x, y in points) / variance
    return min(max(slope, 0.0), 1.0)


def observe(bound: float, aggregate: Released[Client, Params]) -> Observation:
    """Subtract the known noise energy sigma^2 d from ||G||^2.

    The noise part of ||G||^2 has standard deviation sigma^2 sqrt(2d), the cross term 2 sigma ||signal||.
    """
    size = dimension(aggregate.value)
    variance = aggregate.noise_deviation**2
    energy = norm(aggregate.value) ** 2 - variance * size
    spread = math.sqrt(2.0 * size * variance**2 + 4.0 * variance * max(energy, 0.0))
    return Observation(bound=bound, energy=energy, spread=spread)
