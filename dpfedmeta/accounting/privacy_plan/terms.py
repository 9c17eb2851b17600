"""Terms of the four cells: everything that they depend on besides the rounds themselves."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.privacy_plan.privacy_plan import NoiseMode, PrivacyPlan, ServerSees


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A plan without its rounds, as far as a guarantee counts.

    Attributes:
        record: The record-level layer, or None.
        noise_mode: How the server treats messages that carry record-level noise.
        server_sees: Every message, or only their sum.
        max_participations: R, or None.
        client_delta: delta of the client cells.
        record_delta: delta of the record cells.
        before: Releases about the same clients that other ledgers charge, made before these rounds.
        by_absence: Check-ins, a client that is replaced: by the looser bound that stood there until 0.2.0, for files
            that state it.
    """

    record: RecordLayer | None
    noise_mode: NoiseMode
    server_sees: ServerSees
    max_participations: int | None
    client_delta: float
    record_delta: float
    before: tuple[Phase, ...] = ()
    by_absence: bool = False

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Terms:
        """The terms of a plan."""
        return cls(
            record=plan.record,
            noise_mode=plan.noise_mode,
            server_sees=plan.server_sees,
            max_participations=plan.max_participations,
            client_delta=plan.client_delta,
            record_delta=plan.record_delta,
            before=plan.before,
        )
