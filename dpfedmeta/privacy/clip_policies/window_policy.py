"""The stable window policy: where clipping begins, found from past noisy aggregates alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.clip_policy import RANGE, Mode, Surroundings, check_window, clip_limits

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit

# Standard deviations of noise above which a signal counts as visible, and as certain.
_VISIBLE, _CERTAIN = 2.0, 6.0
# Factor by which the centre falls in a round without a visible signal.
_SEARCH = 1.6
# A slope lies in [0, 1], its estimate need not: cutting it there would drag the mean of many estimates down.
_LOWEST_SLOPE, _HIGHEST_SLOPE = -0.5, 2.0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Estimate of the signal's energy at one clip bound, from one released aggregate.

    Attributes:
        bound: C_t, the clip bound of the round.
        energy: ||G||^2 less the known noise energy: unbiased for the squared norm of the clipped mean.
        spread: Standard deviation of `energy` that the noise causes.
    """

    bound: float
    energy: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class WindowState:
    """State of the policy: the centre of its search and the last observations.

    Attributes:
        centre: Current centre of the search.
        bound: The bound to use next, beside the centre.
        observations: The last W observations.
        mode: Current mode, for people.
    """

    centre: float
    bound: float
    observations: tuple[Observation, ...] = ()
    mode: Mode = "searching"


@dataclass(frozen=True, kw_only=True)
class Window:
    """The stable window policy: finds the knee where clipping begins, from past noisy aggregates alone.

    The policy alternates the bound a little above and below a centre, estimates the elasticity of the clipped mean
    (`Walk`) from the noise-corrected energies of the last W aggregates, and moves the centre until the
    elasticity is 0.85 (`following`). That point does not depend on d, L or z, as that of the literal rule does.

    Where noise hides the signal, it lowers the bound (`searching`). Low is safe: above the knee the signal-to-noise
    ratio is worse, below it is the same (with `server.unit bound` or Adam no step shrinks). If the end of the range
    shows nothing either, the aggregate cannot tell signal from noise, and the bound stays there (`holding`) until a
    signal stands out.

    Attributes:
        initial_bound: C_0.
        window: W >= 2 past aggregates.
        walk: How its centre moves; None: between C_0/300 and 300 C_0.

    Guarantee:
        Post-processing of released aggregates; no event. The bound of round t is a function of the releases
        before t, and the mechanism's noise is a multiple of it.
    """

    initial_bound: float
    window: int = 4
    walk: Walk | None = None
    attachment: None = None

    def __post_init__(self) -> None:
        if self.window < 2:
            raise InputError(f"clip.window = {self.window}: the window policy needs at least 2 aggregates")

    @property
    def _walk(self) -> Walk:
        return self.walk or Walk(lowest=self.initial_bound / RANGE, highest=self.initial_bound * RANGE)

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> Window:
        """Build the policy from the settings.

        Raises:
            InputError: The window is longer than the run, or C_0 out of range.
        """
        check_window(clip, around)
        return cls(initial_bound=clip.initial, window=clip.window, walk=Walk.planned(clip))

    def initial(self) -> WindowState:
        """Starts above the centre, so that the second round looks below it."""
        return WindowState(centre=self.initial_bound, bound=self.initial_bound * self._walk.probe)

    def next_bound(self, state: WindowState, aggregate: Released[ClientUnit, Params]) -> tuple[WindowState, float]:
        """Add one observation, move the centre, and put the next probe on the other side."""
        walk, observations = self._walk, (*state.observations, observe(state.bound, aggregate))[-self.window :]
        state = replace(state, observations=observations)
        if len(observations) < 2:
            return _probed(walk, state, state.centre, state.mode)
        significance = _significance(observations)
        at_the_end = state.centre <= walk.lowest
        if significance > (_CERTAIN if at_the_end else _VISIBLE):
            elasticity = _elasticity(observations, otherwise=walk.target_elasticity)
            return _probed(walk, state, walk.moved(state.centre, elasticity), "following")
        centre = walk.within(state.centre / _SEARCH)
        return _probed(walk, state, centre, "holding" if at_the_end else "searching")


def _probed(walk: Walk, state: WindowState, centre: float, mode: Mode) -> tuple[WindowState, float]:
    bound = walk.other_side(state.centre, state.bound, centre)
    return replace(state, centre=centre, bound=bound, mode=mode), bound


def _significance(observations: tuple[Observation, ...]) -> float:
    """Significance of the signal, in standard deviations of what noise alone would show.

    Each observation counts alike (Stouffer), so that one at a far larger bound, with far larger noise, does not drown
    the others.
    """
    if any(o.spread == 0 for o in observations):
        return math.inf
    return sum(o.energy / o.spread for o in observations) / math.sqrt(len(observations))


def _elasticity(observations: tuple[Observation, ...], otherwise: float) -> float:
    """Least-squares slope of ln||signal|| on ln C, drawn towards `otherwise` as far as it is uncertain."""
    # A single energy may be negative; a floor at its own noise keeps the logarithm finite.
    points = [(math.log(o.bound), 0.5 * math.log(max(o.energy, o.spread, 1e-300))) for o in observations]
    centre_x = sum(x for x, _ in points) / len(points)
    centre_y = sum(y for _, y in points) / len(points)
    variance = sum((x - centre_x) ** 2 for x, _ in points)
    if variance < 1e-12:
        return otherwise
    slope = sum((x - centre_x) * (y - centre_y) for x, y in points) / variance
    # Half the relative error of an energy is the error of its logarithm's half.
    errors = (0.5 * min(o.spread / max(o.energy, o.spread, 1e-300), 1.0) for o in observations)
    uncertainty = sum((e * (x - centre_x)) ** 2 for e, (x, _) in zip(errors, points, strict=True)) / variance**2
    weight = 1.0 / (1.0 + uncertainty)
    return otherwise + weight * (min(max(slope, _LOWEST_SLOPE), _HIGHEST_SLOPE) - otherwise)


def observe(bound: float, aggregate: Released[ClientUnit, Params]) -> Observation:
    """Subtract the known noise energy sigma^2 d from ||G||^2.

    The noise part of ||G||^2 has standard deviation sigma^2 sqrt(2d), the cross term 2 sigma ||signal||.
    """
    size = aggregate.size
    variance = aggregate.noise_deviation**2
    energy = aggregate.length**2 - variance * size
    spread = math.sqrt(2.0 * size * variance**2 + 4.0 * variance * max(energy, 0.0))
    return Observation(bound=bound, energy=energy, spread=spread)


MEMBER = Window


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Limits and steps of the centre of a search for the knee: pure functions of released values.

    Below the knee every contribution is clipped and the clipped mean grows in proportion to C: its elasticity
    d ln||signal|| / d ln C is 1. Above it nothing is clipped and the elasticity is 0, while the noise keeps growing.

    Attributes:
        lowest: C_min of the centre.
        highest: C_max of the centre.
        target_elasticity: Elasticity that the centre moves to: 1 clips everything, 0 clips nothing.
        probe: Ratio of the upper to the centre bound, and of the centre to the lower one.
        gain: Step of ln(centre) per unit of elasticity error.
    """

    lowest: float
    highest: float
    target_elasticity: float = 0.85
    probe: float = 1.25
    gain: float = 1.2

    @classmethod
    def planned(cls, clip: ClipSettings) -> Walk:
        """Between the limits of the settings.

        Raises:
            InputError: C_0 is out of range.
        """
        lowest, highest = clip_limits(clip)
        return cls(lowest=lowest, highest=highest)

    def moved(self, centre: float, elasticity: float) -> float:
        """Up where the mean still grows with the bound, down where it does not."""
        return self.within(centre * math.exp(self.gain * (elasticity - self.target_elasticity)))

    def within(self, centre: float) -> float:
        """Between the limits."""
        return min(max(centre, self.lowest), self.highest)

    def other_side(self, centre: float, bound: float, following: float) -> float:
        """The next bound, around the centre `following`: below it where the last one lay above its own, and back."""
        return following / self.probe if bound > centre else following * self.probe
