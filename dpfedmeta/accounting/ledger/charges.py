"""Lines of a ledger: the charge of one round, and what was published when a run came to an end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.fresh_seeds import attempt_bytes

_FIELDS, _FRESH, _RELEASE = {"round", "attempt", "inputs", "event"}, "fresh", "release"
_DIGEST = re.compile(r"[0-9a-f]{64}")


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
        release: Digest of the last release before this charge, so that no later line fits another release. Empty: there
            is none. It is no part of the cost.
    """

    round: int
    event: Event
    attempt: int = 0
    inputs: str = ""
    fresh: str = ""
    release: str = ""

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
        return line | {name: value for name, value in ((_FRESH, self.fresh), (_RELEASE, self.release)) if value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Charge:
        """The inverse.

        Raises:
            InputError: A kind of noise that the accountant does not know.
            TypeError: Something is missing, too much, or of another type.
        """
        if (
            set(content) - {_FRESH, _RELEASE} != _FIELDS
            or type(content["round"]) is not int
            or type(content["attempt"]) is not int
        ):
            raise TypeError(f"expected {', '.join(sorted(_FIELDS))}, found {content}")
        if not isinstance(content["inputs"], str):
            raise TypeError(f"inputs: expected text, found {content['inputs']!r}")
        return cls(
            round=content["round"],
            event=Event.from_json(content["event"]),
            attempt=content["attempt"],
            inputs=content["inputs"],
            fresh=_fresh_of(content.get(_FRESH, "")),
            release=_digest_of(_RELEASE, content.get(_RELEASE, "")),
        )


@dataclass(frozen=True, kw_only=True)
class Closing:
    """Line of the ledger that says what was published when a run came to an end; digests of released values only.

    A run that goes on later has charges after it, and a closing line of its own.

    Attributes:
        rounds: How many rounds were released.
        release: Digest of the last release; empty: there is none.
        weights: SHA-256 of each published file of weights, by its name.
    """

    rounds: int
    release: str = ""
    weights: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of what the line holds."""
        return {"rounds": self.rounds, _RELEASE: self.release, "weights": dict(self.weights)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Closing:
        """The inverse.

        Raises:
            TypeError: Something is missing, too much, or of another type.
        """
        if set(content) != {"rounds", _RELEASE, "weights"} or type(content["rounds"]) is not int:
            raise TypeError(f"expected rounds, release and weights, found {content}")
        weights = {str(name): _digest_of(name, value) for name, value in dict(content["weights"]).items()}
        return cls(rounds=content["rounds"], release=_digest_of(_RELEASE, content[_RELEASE]), weights=weights)


def _fresh_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"fresh: expected hexadecimal digits, found {value!r}")
    bytes.fromhex(value)
    return value


def _digest_of(name: str, value: object) -> str:
    if not isinstance(value, str) or (value and not _DIGEST.fullmatch(value)):
        raise TypeError(f"{name}: expected a digest, found {value!r}")
    return value


def planned_charge(plan: PrivacyPlan, round_: int) -> Charge:
    """Return the charge that the plan states for round `round_`."""
    return Charge(round=round_, event=plan.at(round_))
