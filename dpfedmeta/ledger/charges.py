"""What one round is charged with, and what makes doing it again the same release."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import ConfigDict

from dpfedmeta.accounting.phase import SamplerName
from dpfedmeta.accounting.plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class RoundEvent:
    """What one round costs; public constants only.

    Attributes:
        round: Number of the round.
        sampler: How its cohort was drawn.
        clients: N.
        cohort: L.
        rate: q.
        noise_multiplier: z or z_eff that the public faces; None without a client-level mechanism.
        surplus_probability: How likely shared mode dropped surplus clients.
        support_noise: z_s; None without noisy support steps.
        query_noise: z_q, or None.
        support_steps: K; None with z_s.
        message_noise: Deviation of each message's own noise over C; 0 where the server adds it all.
        attempt: 0, or how often the round had been charged before.
        inputs: Digest of the released state and the environment that the round is computed from: what is done again
            with the same inputs is the same release. Random where nothing can be done again identically.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    round: int
    sampler: SamplerName
    clients: int
    cohort: float
    rate: float
    noise_multiplier: float | None
    surplus_probability: float
    support_noise: float | None = None
    query_noise: float | None = None
    support_steps: int | None = None
    message_noise: float = 0.0
    attempt: int = 0
    inputs: str = ""

    @property
    def again(self) -> tuple[int, ...]:
        """What a further attempt adds to the keys of its noise and cohort: it never shares them with another one."""
        if not self.attempt:
            return ()
        return self.attempt, int.from_bytes(hashlib.sha256(self.inputs.encode()).digest()[:8], "big")


def planned_event(plan: PrivacyPlan, round_: int) -> RoundEvent:
    """The event that round `round_` of the plan will be charged with."""
    record, constants = plan.record, plan.at(round_)
    stepping = record if record and record.message != "episodes" else None
    return RoundEvent(
        round=round_,
        sampler=constants.sampler,
        clients=constants.clients,
        cohort=constants.cohort,
        rate=constants.rate,
        noise_multiplier=constants.effective_noise,
        surplus_probability=constants.surplus_probability,
        support_noise=stepping.support_noise if stepping else None,
        query_noise=record.query_noise if record else None,
        support_steps=stepping.support_steps if stepping else None,
        message_noise=constants.message_noise,
    )
