"""Sums of vectors of whole numbers under secure aggregation, with discrete noise: from clients to a release."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.events.integer_sum import COUNT_BITS, WholeSum
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.analytics.analysis import Handing, PendingRelease, SumForm, Sums
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, scaled
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, Purpose, SecretGenerator, SecretSource
from dpfedmeta.privacy.discretised.stochastic_rounding import own_share
from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import ClientUnit
from dpfedmeta.simulation.cohort_sums import survivors_sum

if TYPE_CHECKING:
    from dpfedmeta.analytics.client_answers import Held
    from dpfedmeta.analytics.public_context import Ground

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


def planned_counts(plan: PrivacyPlan, dimension: int, longest: float) -> PrivacyPlan:
    """The plan of a release of counts.

    Args:
        plan: Who is asked, and delta.
        dimension: Length of a client's vector.
        longest: Largest L2 norm of a client's vector: the sensitivity under adding or removing one, exactly.
    """
    secure = SecureRounds(bits=COUNT_BITS.stop - 1, dimension=dimension, longest=longest)
    return replace(plan, server_sees="sum", secure=secure)


class CountedAnalysis(ABC):
    """Common part of the analyses that ask each client for one vector of counts.

    Clients are told nothing besides the plan.
    """

    server_sees: ClassVar[str] = SEES_SUM
    by_names: ClassVar[bool] = False

    def form(self, plan: PrivacyPlan) -> SumForm:
        """Return the form of the sum: one vector of counts."""
        whole = plan.at(0).whole
        assert whole is not None
        return SumForm(bits=whole.bits, length=whole.dimension)

    def told(self, asking: PendingRelease, ground: Ground) -> bytes:
        """Nothing: all follows from the plan."""
        return b""

    def check_told(self, told: bytes, plan: PrivacyPlan, held: Held) -> None:
        """Refuse anything that is told besides the plan.

        Raises:
            InputError: Something is.
        """
        if told:
            raise InputError(f"{len(told):,} bytes besides the plan, expected none in this analysis")

    @abstractmethod
    def counted(self, handing: Handing) -> IntArray | None:
        """SECRET: a client's vector; None where it holds nothing that fits."""

    @abstractmethod
    def read(self, counts: FloatArray, deviation: float) -> dict[str, Any]:
        """Read the result from noisy counts, [d], whose noise has this deviation. This is post-processing."""

    def sent(self, handing: Handing, part: int) -> IntArray:
        """SECRET: a client's vector, with its share of the noise."""
        return sent_counts(handing, self.counted(handing))

    def longest(self, plan: PrivacyPlan) -> float:
        """Return the largest L2 norm of a client's vector."""
        assert plan.secure is not None
        assert plan.secure.longest is not None
        return plan.secure.longest

    def released(
        self, asking: PendingRelease, told: bytes, sums: Sums, noise: SecretGenerator
    ) -> Released[ClientUnit, Params]:
        """Release the counts."""
        return released_counts(asking, sums, noise)

    def result(self, plan: PrivacyPlan, released: Released[ClientUnit, Params]) -> dict[str, Any]:
        """Read the counts."""
        return self.read(counts_of(released), released.noise_deviation)


def counts_of(released: Released[ClientUnit, Params]) -> FloatArray:
    """The noisy counts, [d]."""
    values: FloatArray = released.value[_COUNTS].double().numpy()
    return values


def released_counts(asking: PendingRelease, sums: Sums, noise: SecretGenerator) -> Released[ClientUnit, Params]:
    """Release the sum of the clients' counts.

    Args:
        asking: What is charged, and who is asked.
        sums: What secure aggregation gives.
        noise: The server's noise for this attempt.

    Guarantee:
        (client, public) and (client, server) of the plan. A client's vector that is not of the form, or longer than
        the plan says, counts as zero; every client adds its share of the noise whatever it holds.
    """
    whole, grid = _whole_of(asking.plan)
    charged = asking.plan.at(0).noise
    assert charged is not None
    invited = asking.cohort.asked
    query = survivors_sum(_COUNTS, whole, grid, lambda: sums.part(0), entered=sums.entered, invited=invited)
    return WholeNumberMechanism(whole=whole, noise=charged, denominator=1.0).release(query, noise)


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
