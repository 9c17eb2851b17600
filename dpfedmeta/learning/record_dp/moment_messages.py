"""Moments of one client's records, released with noise that protects each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedmeta.core.params import scaled
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released
from dpfedmeta.privacy.units import Bounded, RecordUnit

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import SecretGenerator


def noisy_moments(
    exact: Params, count: int, bound: float, noise: float, generator: SecretGenerator
) -> Released[RecordUnit, Params]:
    """The whole round of one client; the server may see what it returns.

    Args:
        exact: SECRET: the moments of its records, over n.
        count: n, public.
        bound: C_q, from the clip policy; a smaller one than 1 shortens all moments alike.
        noise: z_q.
        generator: The client's own.

    Returns:
        The moments with noise, over n.

    Guarantee:
        (record, server), zero-out adjacency: 1/z_q-GDP for every record, since n times the moments move by 1 at most
        (`BlockMoments.summed`). In other relations `accounting.relations.relations.MomentBlocks.moved` times that.
    """
    mechanism = GaussianMechanism(total_multiplier=noise, charged_multiplier=noise, denominator=count)
    return mechanism.release(Bounded(value=scaled(exact, count * min(1.0, bound)), sensitivity=bound), generator)
