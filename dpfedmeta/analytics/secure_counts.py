"""Sums of vectors of whole numbers under secure aggregation, with discrete noise: from clients to a release."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from dpfedmeta.accounting.events.integer_sum import COUNT_BITS, WholeSum
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.analytics.analysis import Handing, PendingRelease, SumForm, Sums
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, scaled
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, Purpose, SecretSource
from dpfedmeta.privacy.discretised.stochastic_rounding import own_share
from dpfedmeta.privacy.mechanisms import WholeNumberMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit

_COUNTS = "counts"
# For most analyses: what the server has besides what is released.
SEES_SUM = "the sum of the cohort's answers with the noise that the clients made, and who took part"


@dataclass(frozen=True, kw_only=True)
class CountGrid:
    """Counts in whole steps, modulo 2^b.

    Attributes:
        bits: b.
        steps: Steps for a count of one: finer than the counts, so that a client's share of the noise can be small.
    """

    bits: int
    steps: int

    @property
    def width(self) -> float:
        """Width of a step, in counts."""
        return 1.0 / self.steps

    def centred(self, total: IntArray) -> IntArray:
        """A sum modulo 2^b, as the numbers around 0 that it stands for."""
        half = 1 << (self.bits - 1)
        return (total + half) % (2 * half) - half

    def read(self, released: Params) -> Params:
        """Counts again."""
        return scaled(released, self.width)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """PUBLIC: a released vector of counts.

    Attributes:
        values: [d], noisy.
        deviation: Of the noise on each.
    """

    values: FloatArray
    deviation: float


def planned_counts(plan: PrivacyPlan, dimension: int, longest: float) -> PrivacyPlan:
    """The plan of a release of counts.

    Args:
        plan: Who is asked, and delta.
        dimension: Length of a client's vector.
        longest: Largest L2 norm of a client's vector: the sensitivity under adding or removing one, exactly.
    """
    secure = SecureRounds(bits=COUNT_BITS.stop - 1, dimension=dimension, longest=longest)
    return replace(plan, server_sees="sum", secure=secure)


def counted_form(plan: PrivacyPlan) -> SumForm:
    """Return the form of the sum: one vector of counts."""
    whole = plan.at(0).whole
    assert whole is not None
    return SumForm(bits=whole.bits, length=whole.dimension)


def nothing_told(told: bytes) -> None:
    """For analyses that tell clients nothing besides the plan.

    Raises:
        InputError: They are told something.
    """
    if told:
        raise InputError(f"{len(told):,} bytes besides the plan, which this analysis does not have")


def released_counts(asking: PendingRelease, sums: Sums) -> Counts:
    """Release the sum of the clients' counts.

    Args:
        asking: What is charged, and who is asked.
        sums: What secure aggregation gives.

    Guarantee:
        (client, public) and (client, server) of the plan. A client's vector that is not of the form, or longer than
        the plan says, counts as zero; every client adds its share of the noise whatever it holds.
    """
    whole, grid = _whole_of(asking.plan)
    noise = asking.plan.at(0).noise
    assert noise is not None
    total, share, entered = np.zeros(whole.dimension, dtype=np.int64), 0.0, 0
    invited = asking.cohort.asked
    # Too few for the noise: nothing is unmasked, and all noise of the release is the server's.
    if invited >= whole.least and sums.entered >= whole.fewest(invited):
        total, share, entered = grid.centred(sums.part(0)), whole.share(invited), sums.entered
    query: Bounded[ClientUnit, Params] = Bounded(
        value={_COUNTS: torch.from_numpy(total.astype(np.float64))},
        sensitivity=whole.of_a_client,
        noise_variance=share * entered,
        grid=grid,
    )
    generator = asking.source.generator(Purpose.SERVER_NOISE, 0)
    released = WholeNumberMechanism(whole=whole, noise=noise, denominator=1.0).release(query, generator)
    values: FloatArray = released.value[_COUNTS].double().numpy()
    return Counts(values=values, deviation=released.noise_deviation)


def sent_counts(handing: Handing, vector: IntArray | None) -> IntArray:
    """SECRET: what one client hands to secure aggregation, modulo 2^b.

    Args:
        handing: Who it is, and its noise.
        vector: Its counts; None where it holds nothing that fits.
    """
    whole, grid = _whole_of(handing.plan)
    found = sent(vector, whole, grid, whole.share(handing.invited), handing.client, handing.source)
    return found & ((1 << whole.bits) - 1)


def _whole_of(plan: PrivacyPlan) -> tuple[WholeSum, CountGrid]:
    whole = plan.at(0).whole
    assert whole is not None
    assert plan.secure is not None
    assert plan.secure.longest is not None
    return whole, CountGrid(bits=whole.bits, steps=round(whole.units / plan.secure.longest))


def sent(
    vector: IntArray | None, whole: WholeSum, grid: CountGrid, share: float, client: int, source: SecretSource
) -> IntArray:
    """SECRET: what one client hands to secure aggregation: its vector in steps of the grid, with its noise."""
    counts = np.zeros(whole.dimension, dtype=np.int64)
    if vector is not None and fits(vector, whole, grid):
        counts = grid.steps * vector
    return counts + own_share(counts, grid, share, source.generator(Purpose.MESSAGE_NOISE, 0, client))


def fits(vector: IntArray, whole: WholeSum, grid: CountGrid) -> bool:
    """Return whether a vector has whole numbers, the plan's dimension, and no larger norm than the plan says."""
    if vector.shape != (whole.dimension,) or vector.dtype != np.int64:
        return False
    return math.sqrt(math.fsum(float(value) ** 2 for value in vector[vector != 0])) <= (
        whole.sensitivity / grid.steps
    ) * (1.0 + 1e-12)
