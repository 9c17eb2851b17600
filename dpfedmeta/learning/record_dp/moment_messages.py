"""Moments of one client's records, released with noise that protects each of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released
from dpfedmeta.privacy.units import Bounded, RecordUnit

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import SecretGenerator
    from dpfedmeta.learning.record_dp.second_moments import SecondMoments


def noisy_moments(
    moments: SecondMoments, records: Tensor, bound: float, noise: float, generator: SecretGenerator
) -> Released[RecordUnit, Params]:
    """The whole round of one client; the server may see what it returns.

    Args:
        moments: Public constants.
        records: [ways, m, d], the records of each class.
        bound: C_q, from the clip policy; a smaller one than 1 shortens all moments alike.
        noise: z_q.
        generator: The client's own.

    Returns:
        The moments with noise, over n.

    Guarantee:
        (record, server), zero-out adjacency: 1/z_q-GDP for every record, since n times the moments move by 1 at most
        (`SecondMoments.message`). In other relations `accounting.relations.relations.MomentBlocks.moved` times that.
    """
    count = math.prod(records.shape[:2])
    factor = count * min(1.0, bound)
    exact = {name: value * factor for name, value in moments.message(records).items()}
    mechanism = GaussianMechanism(total_multiplier=noise, charged_multiplier=noise, denominator=count)
    return mechanism.release(Bounded(value=exact, sensitivity=bound), generator)
