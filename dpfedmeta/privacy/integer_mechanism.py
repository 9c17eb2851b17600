"""Mechanism of sums of whole numbers: discrete noise, added in steps of the grid that the sum is read by."""

import math
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.integer_sum import SURE_OWN_VARIANCE, WholeSum
from dpfedmeta.accounting.events.noise_cost import Noise
from dpfedmeta.core.params import Params, dimension, scaled, vector_of
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.mechanisms import Released, post_process, release_with
from dpfedmeta.privacy.units import Bounded, Unit, message_of


@dataclass(frozen=True, kw_only=True)
class WholeNumberMechanism:
    """Discrete Gaussian noise to a constant total on a sum of whole numbers, then read off the grid and divided.

    Attributes:
        whole: Public constants of the sum.
        noise: What an observer of the release faces.
        denominator: L, a constant of the plan, never a realised count.

    Guarantee:
        The released sum carries discrete Gaussian noise of the variance `whole.total`, whoever took part: the clients'
        shares, and the server's own for all that is missing. It is brought back to the numbers modulo 2^b after the
        server's noise and not only before: whether the clients' sum alone wrapped round is hidden by their noise
        alone. What that costs beyond Gaussian noise of the multiplier
        that `noise` states is charged by discrete_gaussian_cost. Whole numbers have no low-order bits to attack.
    """

    whole: WholeSum
    noise: Noise
    denominator: float

    def release(self, query: Bounded[Unit, Params], generator: SecretGenerator) -> Released[Unit, Params]:
        """Top the noise of `query` up to the total, release it, and read it.

        Raises:
            ValueError: It is no sum of whole numbers of this plan, or carries more noise than the total: then nothing
                may be released.
        """
        grid, missing = query.grid, self.whole.total - query.noise_variance
        if grid is None or query.sensitivity != self.whole.of_a_client or not missing >= SURE_OWN_VARIANCE:
            raise ValueError(
                f"a sum of sensitivity {query.sensitivity} that lacks noise of {missing} is not of this plan"
            )
        secret = vector_of(query.value).astype(np.int64)
        noise = for_message(generator, lambda: message_of(query, self.whole.total, self.denominator))
        own = noise.discrete_normal(missing, dimension(query.value))
        added = (grid.centred(secret + own) - secret).astype(float)
        deviation = math.sqrt(self.whole.total)
        whole = release_with(query, added, noise=self.noise, deviation=deviation, denominator=1.0)
        return post_process(
            lambda value: scaled(grid.read(value), 1.0 / self.denominator),
            [whole],
            deviation * grid.width / self.denominator,
        )
