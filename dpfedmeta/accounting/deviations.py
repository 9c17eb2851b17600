"""Deviation of the noise in a round's release, as far as the plan fixes it beforehand."""

from __future__ import annotations

from functools import lru_cache

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise


def planned_deviation(event: Event, round_: int) -> float | None:
    """Deviation per coordinate of all noise of a round's sum, over the bound that clips a message.

    0 where the round has no noise; None where its kind of noise fixes none beforehand.
    """
    noise = event.noise
    if noise is None:
        return 0.0
    if isinstance(noise, CorrelatedNoise):
        return noise.multiplier * _deviations(noise)[round_]
    if not noise.steady or event.total_noise is None:
        return None
    # Rounding lengthens a message, and the noise follows.
    return event.total_noise * (event.whole.growth if event.whole is not None else 1.0)


@lru_cache(maxsize=8)
def _deviations(noise: CorrelatedNoise) -> tuple[float, ...]:
    return tuple(noise_deviations(noise.coefficients(noise.rounds)).tolist())
