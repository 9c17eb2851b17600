"""Charge of one round, and the inputs that make a repetition of it the same release."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.fresh_seeds import attempt_bytes

_FIELDS, _FRESH = {"round", "attempt", "inputs", "event"}, "fresh"


@dataclass(frozen=True, kw_only=True)
class Charge:
    """Line of the ledger, the charge of one attempt at a round; public constants only.

    Attributes:
        round: Number of the round.
        event: Privacy cost of the round.
        attempt: Number of earlier charges of the round.
        inputs: Digest of the released state and the environment that the round is computed from: what is done again
            with the same inputs is the same release. Random where nothing can be done again identically.
        fresh: Bytes of the operating system for this attempt alone, in hexadecimal; they are no secret without the key
            beside them (fresh_seeds.FreshSource). Empty where noise has a chosen seed, or none that could be repeated.
    """

    round: int
    event: Event
    attempt: int = 0
    inputs: str = ""
    fresh: str = ""

    @property
    def again(self) -> tuple[int, ...]:
        """Extra key of the noise and cohort of a further attempt, shared with no other attempt; () for the first."""
        if not self.attempt:
            return ()
        return self.attempt, int.from_bytes(hashlib.sha256(self.inputs.encode()).digest()[:8], "big")

    @property
    def stream(self) -> bytes:
        """Key of this attempt's random streams, besides `again` and the secret key."""
        return attempt_bytes(self.fresh, self.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the ledger line."""
        line = {"round": self.round, "event": self.event.as_json(), "attempt": self.attempt, "inputs": self.inputs}
        return line | ({_FRESH: self.fresh} if self.fresh else {})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Charge:
        """The inverse.

        Raises:
            InputError: A kind of noise that the accountant does not know.
            TypeError: Something is missing, too much, or of another type.
        """
        if (
            set(content) - {_FRESH} != _FIELDS
            or type(content["round"]) is not int
            or type(content["attempt"]) is not int
        ):
            raise TypeError(f"expected {', '.join(sorted(_FIELDS))}, found {content}")
        if not isinstance(content["inputs"], str):
            raise TypeError(f"inputs: expected words, found {content['inputs']!r}")
        return cls(
            round=content["round"],
            event=Event.from_json(content["event"]),
            attempt=content["attempt"],
            inputs=content["inputs"],
            fresh=_fresh_of(content.get(_FRESH, "")),
        )


def _fresh_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"fresh: expected hexadecimal digits, found {value!r}")
    bytes.fromhex(value)
    return value


def planned_charge(plan: PrivacyPlan, round_: int) -> Charge:
    """Return the charge that the plan states for round `round_`."""
    return Charge(round=round_, event=plan.at(round_))
