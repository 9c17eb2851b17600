"""Epsilon in words of guessing: how often somebody who guesses whether data were there may be right."""

import math

# Where guesses may be right more often, a bound is stated and no meaning is given to it: epsilon of about 7.
NO_PROTECTION = 0.999


def most_right_guesses(epsilon: float, delta: float) -> float:
    """Largest share of right guesses of which of two neighbouring data sets it was, if both were equally likely.

    For (epsilon, delta) the total variation is at most (e^epsilon - 1 + 2 delta)/(e^epsilon + 1), and a guess is right
    with probability (1 + that)/2.
    """
    if not math.isfinite(epsilon):
        return 1.0
    odds = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * odds) / (1.0 + odds))


def protects(epsilon: float, delta: float) -> bool:
    """True if a guess stays wrong often enough that the bound means something to a person."""
    return most_right_guesses(epsilon, delta) <= NO_PROTECTION
