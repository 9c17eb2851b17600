"""Privacy cost of a round in which the server sees only the sum of the messages and the clients make its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.failure_probability import largest_cohort, smallest_cohort
from dpfedmeta.accounting.events.integer_sum import ROOM, WholeSum, units_of
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_numbers import LARGEST_VARIANCE

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

# Below these a plan is refused unless it is asked for: rounding would cost more than a fifth, or shares of the noise
# would be so small that they no longer blend.
MOST_GROWTH, LEAST_DEVIATION = 1.2, 1.5


@dataclass(frozen=True, kw_only=True)
class SecureRounds:
    """Constants of secure aggregation that a plan adds.

    Attributes:
        bits: b: sums are modulo 2^b.
        dimension: Coordinates of a message.
        parts: M: vectors that a message is the sum of, each clipped and rounded on its own.
        dropout: Share of an invited cohort that may be missing without an abort.
        absent: Share of invited clients that do not answer, each by a coin of its own.
        adversarial: Share of a cohort that may tell the server all it knows, and masks hide the others' messages all
            the same; None: they are hidden in another way.
        longest: Largest length of a part of a client's vector where it is one of whole numbers (counts, moments); None:
            messages are vectors of floats, and rounded.
        tallest: Largest entry of such a vector; None: `longest`.
        malicious: Whether the masks are those against a server that may break the protocol: among real clients. No
            epsilon follows from it; who shares masks with whom does.
    """

    bits: int
    dimension: int
    parts: int = 1
    dropout: float = 0.0
    absent: float = 0.0
    adversarial: float | None = None
    longest: float | None = None
    tallest: float | None = None
    malicious: bool = False

    @property
    def rotated(self) -> int:
        """The next power of two: what is rotated; counts are not."""
        if self.longest is not None:
            return self.dimension
        return 1 << max(self.dimension - 1, 0).bit_length()


def secure_event(plan: PrivacyPlan, secure: SecureRounds) -> Event:
    """Compute the event of one round of the plan.

    Raises:
        RefusedPlan: Cohorts too small for their noise, or too many clients may be missing.
    """
    assert plan.noise_multiplier is not None
    least, most, rare = _sizes(plan)
    hostile, unlucky = plan.sampling.hostile_of(plan, plan.cohort)
    unsure = plan.colluding + hostile
    whole, missing = None, 0.0
    noise = summed = None
    total = assured = plan.noise_multiplier
    if plan.noise_multiplier > 0:
        whole = _whole(plan, secure, (least, most), unsure)
        missing = _missing(plan, secure, whole)
        hidden = hostile * whole.largest_share
        total, assured = (math.sqrt(variance) / whole.of_a_client for variance in (whole.total, whole.total - hidden))
        noise = _faced(whole.total - hidden, whole)
        summed = _faced(whole.deviation**2, whole)
    return Event(
        sampler=plan.sampler,
        clients=plan.clients,
        cohort=plan.cohort,
        rate=plan.sampling.rate_of(plan, plan.cohort),
        largest_cohort=None if plan.sampling.fixed_size else most,
        hostile=hostile,
        surplus_probability=rare + unlucky + missing,
        total_noise=total,
        assured_noise=assured,
        noise=noise,
        support_noise=plan.record.support_noise if plan.record else None,
        support_steps=plan.record.support_steps if plan.record and plan.record.support_noise is not None else None,
        query_noise=plan.record.query_noise if plan.record else None,
        whole=whole,
        sum_noise=summed,
    )


def check_fine(plan: PrivacyPlan) -> None:
    """Refuse a plan whose grid is too coarse to be meant.

    Raises:
        RefusedPlan: Rounding lengthens messages by more than a fifth, or a share of the noise is below 1.5 steps.
    """
    whole = plan.phases[0].event.whole
    if whole is not None and not _is_fine(whole, MOST_GROWTH):
        raise RefusedPlan(
            f"aggregation.bits = {whole.bits}: too few for {whole.most} clients: rounding lengthens a message by a "
            f"factor of {whole.growth:.3g} and a client's share of the noise is {math.sqrt(whole.smallest_share):.3g} "
            f"steps of the grid (at most {MOST_GROWTH} and at least {LEAST_DEVIATION}); give more bits, or "
            "--aggregation.rough true"
        )


def with_bits(plan: PrivacyPlan, bits: int) -> PrivacyPlan:
    """The same with sums modulo 2^bits."""
    assert plan.secure is not None
    return replace(plan, secure=replace(plan.secure, bits=bits))


def is_fine(plan: PrivacyPlan, growth: float) -> bool:
    """Return whether the bits suffice: rounding grows a message by a factor of `growth` at most, and noise blends."""
    try:
        whole = plan.phases[0].event.whole
    except RefusedPlan:
        return False
    return whole is not None and _is_fine(whole, growth)


def _is_fine(whole: WholeSum, growth: float) -> bool:
    return whole.growth <= growth and whole.smallest_share >= LEAST_DEVIATION**2


def _whole(plan: PrivacyPlan, secure: SecureRounds, sizes: tuple[int, int], unsure: int) -> WholeSum:
    least, most = sizes
    assert plan.noise_multiplier is not None
    fixed = {
        "bits": secure.bits,
        "dimension": secure.rotated,
        "parts": secure.parts,
        "least": least,
        "most": most,
        "dropout": secure.dropout,
        "unsure": unsure,
    }
    try:
        # In units of sigma.
        of_one = WholeSum(units=1.0, deviation=1.0, exact=secure.longest is not None, **fixed)  # type: ignore[arg-type]
        surplus = max(of_one.clients_noise(size) for size in (least, most))
    except ValueError as error:
        raise RefusedPlan(
            f"population.cohort = {plan.cohort:g}: a drawn cohort may be as small as {least}, and {error}; raise the "
            "cohort, or lower aggregation.dropout, privacy.client.colluding or privacy.client.hostile"
        ) from error
    if secure.longest is not None:
        return _counted(plan.noise_multiplier, secure, fixed, of_one)
    units = units_of(
        secure.bits,
        dimension=secure.rotated,
        parts=secure.parts,
        clients=most,
        noise=plan.noise_multiplier,
        surplus=surplus,
    )
    if units == 0:
        raise RefusedPlan(
            f"aggregation.bits = {secure.bits}: too few for a sum of {most} clients with noise z = "
            f"{plan.noise_multiplier:.3g}; give more bits, or a target that needs less noise"
        )
    one = WholeSum(units=units, deviation=1.0, **fixed)  # type: ignore[arg-type]
    return WholeSum(units=units, deviation=plan.noise_multiplier * one.of_a_client, **fixed)  # type: ignore[arg-type]


def _counted(noise: float, secure: SecureRounds, fixed: Mapping[str, Any], of_one: WholeSum) -> WholeSum:
    """Counts in the coarsest whole steps in which every client's share of the noise is LEAST_DEVIATION steps or more.

    Raises:
        RefusedPlan: A sum in these steps does not fit into the bits.
    """
    assert secure.longest is not None
    sigma = noise * secure.parts * secure.longest
    tallest = secure.longest if secure.tallest is None else secure.tallest
    steps = max(1, math.ceil(LEAST_DEVIATION / (sigma * math.sqrt(of_one.smallest_share))))
    surplus = max(of_one.clients_noise(size) for size in (of_one.least, of_one.most))
    largest = steps * (tallest * fixed["most"] + ROOM * sigma * math.sqrt(surplus))
    if largest >= 2.0 ** (secure.bits - 1):
        raise RefusedPlan(
            f"aggregation.bits = {secure.bits}: too few for whole numbers of {fixed['most']:,} clients with noise z = "
            f"{noise:.3g}; lower the cohort, or give a larger epsilon (of moments: a smaller meta.own.scale or "
            "meta.own.records)"
        )
    units = steps * secure.longest
    found = WholeSum(units=units, deviation=noise * units * secure.parts, exact=True, **fixed)
    if found.largest_share > LARGEST_VARIANCE:
        raise RefusedPlan(
            f"aggregation.bits = {secure.bits}: a client's share of the noise has a deviation of "
            f"{math.sqrt(found.largest_share):,.0f} whole steps, and at most {math.sqrt(LARGEST_VARIANCE):,.0f} can be "
            "drawn; give more clients or a larger epsilon (of moments: a smaller meta.own.scale)"
        )
    return found


def _faced(variance: float, whole: WholeSum) -> GaussianNoise:
    """Gaussian noise that, rounded, is compared with the discrete noise of this variance."""
    return GaussianNoise(multiplier=math.sqrt(max(variance - 1.0 / 12.0, 1e-12)) / whole.of_a_client)


def _sizes(plan: PrivacyPlan) -> tuple[int, int, float]:
    """(smallest cohort, largest cohort, P(another one)) of a round.

    Raises:
        RefusedPlan: The rounds may use up all clients, and nobody would be left to make the noise.
    """
    if plan.sampling.fixed_size:
        return int(plan.cohort), int(plan.cohort), 0.0
    rate, allowed = plan.cohort / plan.clients, plan.allowed
    most, more = largest_cohort(plan.clients, rate, allowed)
    # Whoever took part as often as allowed leaves a place empty.
    spent = 0 if plan.max_participations is None else math.ceil(plan.rounds * most / plan.max_participations)
    if spent >= plan.clients:
        raise RefusedPlan(
            f"population.max_participations = {plan.max_participations}: {plan.rounds} rounds of up to {most} clients "
            f"may use up the participations of all {plan.clients:,} clients, so that none is left to make the noise; "
            "lower server.rounds or population.cohort, or raise population.max_participations"
        )
    least, fewer = smallest_cohort(plan.clients - spent, rate, allowed)
    return least + 1, most, more + fewer


def _missing(plan: PrivacyPlan, secure: SecureRounds, whole: WholeSum) -> float:
    """P(so few survive that one client more or less decides whether the round is aborted), for the worst cohort.

    Under fixed-size sampling nobody comes or goes, so an abort tells nothing.

    Raises:
        RefusedPlan: It is no rare event.
    """
    if not secure.absent or plan.sampling.fixed_size:
        return 0.0
    from scipy.stats import binom  # a second to import, and who only plans needs none of it

    sizes = np.arange(whole.least, whole.most + 1)
    fewest = np.array([whole.fewest(int(size)) for size in sizes])
    worst = float(binom.cdf(fewest, sizes, 1.0 - secure.absent).max())
    if worst > plan.allowed:
        raise RefusedPlan(
            f"aggregation.dropout = {secure.dropout:g}: with population.dropout = {secure.absent:g} a round would be "
            f"aborted with probability {worst:.2g}, and an abort reveals something about the cohort; raise "
            "aggregation.dropout, or use "
            "--population.sampler fixed"
        )
    return worst
