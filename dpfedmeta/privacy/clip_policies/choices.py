"""Clip policies as a loop of one's own names them: `dpfedmeta.clip.Window(initial=1.0, window=5)`.

Each function returns the settings of a policy. The policy itself is made when the noise of the run is known, since what
some of them count has to be scaled with it.
"""

from typing import Any

from dpfedmeta.config.clip_settings import ClipSettings

__all__ = ["Constant", "Median", "Named", "Quantile", "Window", "WindowLiteral", "WindowProducts"]


def Constant(initial: float) -> ClipSettings:
    """The same bound in every round."""
    return ClipSettings(policy="constant", initial=initial)


def Window(
    initial: float, *, window: int = 4, lowest: float | None = None, highest: float | None = None
) -> ClipSettings:
    """Find the bound at which clipping begins to matter, from the last releases alone.

    Args:
        initial: C_0.
        window: How many past releases it looks at.
        lowest: Smallest bound; None: C_0/300.
        highest: Largest bound; None: 300 C_0.
    """
    return ClipSettings(policy="window", initial=initial, window=window, lowest=lowest, highest=highest)


def WindowProducts(
    initial: float, *, window: int = 4, lowest: float | None = None, highest: float | None = None
) -> ClipSettings:
    """Find the same bound from the products of past releases; see `Window`."""
    return ClipSettings(policy="window-products", initial=initial, window=window, lowest=lowest, highest=highest)


def WindowLiteral(
    initial: float,
    *,
    window: int = 4,
    percentile: float = 90.0,
    lowest: float | None = None,
    highest: float | None = None,
) -> ClipSettings:
    """A percentile of the last releases' norms, as DP-AGR was published; kept for comparisons."""
    return ClipSettings(
        policy="window-literal", initial=initial, window=window, percentile=percentile, lowest=lowest, highest=highest
    )


def Quantile(
    initial: float,
    *,
    quantile: float = 0.5,
    rate: float = 0.2,
    count_noise: float | None = None,
    lowest: float | None = None,
    highest: float | None = None,
) -> ClipSettings:
    """A quantile of the clients' norms, from bits that are released with the sum (Andrew et al. 2021).

    Args:
        initial: C_0.
        quantile: Share of clients that shall stay unclipped.
        rate: Step of the geometric update.
        count_noise: Deviation of the noise on the count; None: L/20.
        lowest: Smallest bound; None: C_0/300.
        highest: Largest bound; None: 300 C_0.
    """
    return ClipSettings(
        policy="quantile",
        initial=initial,
        quantile=quantile,
        rate=rate,
        count_noise=count_noise,
        lowest=lowest,
        highest=highest,
    )


def Median(
    initial: float,
    *,
    window: int = 4,
    count_noise: float | None = None,
    lowest: float | None = None,
    highest: float | None = None,
) -> ClipSettings:
    """The median of the clients' norms, from a histogram that is released with the sum."""
    return ClipSettings(
        policy="median", initial=initial, window=window, count_noise=count_noise, lowest=lowest, highest=highest
    )


def Named(policy: str, *, initial: float, **settings: Any) -> ClipSettings:
    """A policy by the name of `clip.policy`, or as package.module:Name, with its settings."""
    return ClipSettings(policy=policy, initial=initial, **settings)
