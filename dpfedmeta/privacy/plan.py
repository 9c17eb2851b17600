"""What a run spends, fixed before its first round: every constant that an epsilon depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy.stats import binom

from dpfedmeta.errors import RefusedPlan

# Part of delta that each rare event may take: more than M messages, more than R participations.
RARE_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class RecordLayer:
    """Record-level noise inside the clients.

    Attributes:
        support_noise: z_s, per support step.
        query_noise: z_q; ignored for Reptile, which has no query release.
        support_steps: K.
        support_records: n_s.
        query_records: n_q.
        message: What a client sends: its noisy query gradient, or the noisy support update (Reptile).
        query_to_message_bound: C_q/C, used in stacked mode.
    """

    support_noise: float
    query_noise: float
    support_steps: int
    support_records: int
    query_records: int
    message: Literal["query", "update"] = "query"
    query_to_message_bound: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Everything the guarantees are computed from (privacy.md sections 2 and 3).

    Attributes:
        clients: N.
        cohort: L, the public expectation of the cohort size.
        rounds: T.
        noise_multiplier: z of the server; None where the algorithm has no client-level mechanism at all.
        max_participations: R, or None.
        noise_mode: How the server treats messages that carry record-level noise.
        colluding: c, how many clients of the cohort pool the knowledge of their own noise.
        record: The record-level layer, or None.
        client_delta: delta of the client cells.
        record_delta: delta of the record cells.
    """

    clients: int
    cohort: float
    rounds: int
    noise_multiplier: float | None
    max_participations: int | None = None
    noise_mode: Literal["shared", "stacked"] = "shared"
    colluding: int = 1
    record: RecordLayer | None = None
    client_delta: float = 1e-6
    record_delta: float = 1e-5

    @property
    def rate(self) -> float:
        """Q = L/N."""
        return self.cohort / self.clients

    @property
    def shares_noise(self) -> bool:
        """Whether the clients' own noise counts towards the server's total (shared mode)."""
        return self.record is not None and self.noise_mode == "shared" and self.noise_multiplier is not None

    @property
    def message_noise(self) -> float:
        """Standard deviation of one message's noise over C_q: z_q/n_q."""
        return self.record.query_noise / self.record.query_records if self.record else 0.0

    @property
    def largest_cohort(self) -> int | None:
        """M of shared mode: surplus clients are dropped, so the messages' noise has a known largest sum."""
        if not self.shares_noise:
            return None
        allowed = RARE_SHARE * min(self.client_delta, self.record_delta) / self.rounds
        size = int(binom.isf(min(allowed, 1.0), self.clients, self.rate))
        while float(binom.sf(size - 1, self.clients, self.rate)) > allowed:
            size += 1
        return max(size, 1)

    @property
    def surplus_probability(self) -> float:
        """Beta = T * P(Bin(N, q) >= M): what shared mode takes off delta in each public cell."""
        largest = self.largest_cohort
        if largest is None:
            return 0.0
        return self.rounds * float(binom.sf(largest - 1, self.clients, self.rate))

    @property
    def total_noise(self) -> float | None:
        """z, or z_T in shared mode."""
        largest = self.largest_cohort
        if largest is None or self.noise_multiplier is None:
            return self.noise_multiplier
        own = self.message_noise**2
        return math.sqrt(max(self.noise_multiplier**2 + self.colluding * own, largest * own))

    @property
    def effective_noise(self) -> float | None:
        """z, or z_eff in shared mode: the noise that a colluding observer does not know.

        Raises:
            RefusedPlan: It is 0.
        """
        total = self.total_noise
        if not self.shares_noise or total is None:
            return total
        squared = total**2 - self.colluding * self.message_noise**2
        if squared <= 0:
            raise RefusedPlan(
                "no noise is left towards the public: the colluding clients "
                f"(privacy.client.colluding = {self.colluding}) know all of it; "
                "raise server.noise_multiplier or lower privacy.client.colluding"
            )
        return math.sqrt(squared)
