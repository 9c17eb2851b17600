"""Search for the point where a bound meets its target: the largest whole number or the smallest noise that does."""

import math
from collections.abc import Callable

from dpfedmeta.accounting.divergences.pld_composition import MOST_ROUNDS
from dpfedmeta.core.errors import RefusedPlan

# A calibrated epsilon lies within this factor below its target.
TOLERANCE = 0.002
_LARGEST_NOISE = 1e6


def largest_whole(
    reached: Callable[[int], tuple[float, str]], limit: int, knob: str, least: int = 1, unit: int = 1
) -> int:
    """The largest number within the targets, where what is reached grows with it.

    Interpolates between the logarithms, since an epsilon is close to a power of the rounds and of the cohort; each
    guess is moved a little towards the far end of the bracket, so that both ends come close.
    """
    share, words = reached(least)
    if share > 1:
        raise RefusedPlan(f"{words} even with {knob} = {least * unit}; raise the noise, the target or delta")
    low, below, high, above = least, share, 2 * least, math.inf
    while high <= limit and (above := reached(high)[0]) <= 1:
        # As if epsilon grew with the number itself: never further than eightfold in one step.
        step = min(max(1.0 / above if above > 0 else 8.0, 2.0), 8.0)
        low, below, high = high, above, int(high * step)
    if high > limit:
        high, above = limit + 1, math.inf
    # Beyond these rounds another bound holds, and epsilon jumps: looked at first, since no guess would find it.
    for middle in (MOST_ROUNDS, MOST_ROUNDS + 1):
        if low < middle < high:
            share = reached(middle)[0]
            low, below, high, above = (middle, share, high, above) if share <= 1 else (low, below, middle, share)
    upwards, halved, width = True, True, high - low
    while high - low > 1:
        # Where epsilon is no power, two guesses may not halve the bracket; then its middle does.
        middle = _guess(low, below, high, above, upwards) if halved else (low + high) // 2
        share = reached(middle)[0]
        upwards = share <= 1
        if upwards:
            low, below = middle, share
        else:
            high, above = middle, share
        halved, width = high - low <= 0.7 * width, high - low
    return low


def _guess(low: int, below: float, high: int, above: float, upwards: bool) -> int:
    """A number strictly between the ends, close to where a power through both would reach 1."""
    if not math.isfinite(above) or below <= 0 or above <= below:
        return (low + high) // 2
    slope = math.log(high / low) / math.log(above / below)
    margin = (high - low) // 64 + 1
    guess = round(low * math.exp(-slope * math.log(below))) + (margin if upwards else -margin)
    return min(max(guess, low + 1), high - 1)


def smallest_noise(reached: Callable[[float], float], epsilon: float, cell: str, start: float) -> float:
    """Find the noise at which a decreasing function meets epsilon: never above it, within TOLERANCE below.

    Interpolates between the logarithms of noise and epsilon, since epsilon is close to a power of the noise there.
    """
    enough, least = _bracket_above(reached, epsilon, cell, start)
    little, most = enough, least
    while most <= epsilon:
        enough, least = little, most
        if enough < 1.0 / _LARGEST_NOISE or least >= epsilon * (1.0 - TOLERANCE):
            return enough
        little = enough / 1.5
        most = reached(little)
    while least < epsilon * (1.0 - TOLERANCE) and enough - little > 1e-9 * enough:
        middle = _between(little, most, enough, least, epsilon * (1.0 - TOLERANCE / 2))
        value = reached(middle)
        if value <= epsilon:
            enough, least = middle, value
        else:
            little, most = middle, value
    return enough


def _between(little: float, most: float, enough: float, least: float, wanted: float) -> float:
    """A noise between the two ends, kept off them so that every step shrinks the bracket."""
    share = 0.5
    if math.isfinite(most) and least > 0:
        share = (math.log(most) - math.log(wanted)) / (math.log(most) - math.log(least))
    return float(little * (enough / little) ** min(max(share, 0.02), 0.98))


def _bracket_above(reached: Callable[[float], float], epsilon: float, cell: str, start: float) -> tuple[float, float]:
    noise, value = start, reached(start)
    while value > epsilon:
        noise *= 2.0
        if noise > _LARGEST_NOISE:
            raise RefusedPlan(
                f"{cell}: epsilon = {epsilon!r} is out of reach at this delta, even at a noise multiplier of "
                f"{noise / 2:.0e}; raise epsilon or delta, or lower server.rounds or population.cohort"
            )
        value = reached(noise)
    return noise, value
