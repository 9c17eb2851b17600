"""What a client checks of what a server says, before it answers: each refusal names what is wrong."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256

from dpfedmeta.secure_aggregation.agreement import Agreement, Identities, Round
from dpfedmeta.secure_aggregation.bodies import Consents, KeyList, Keys, Survivors
from dpfedmeta.secure_aggregation.keys import signed_by
from dpfedmeta.secure_aggregation.messages import EVERYONE, Phase, header
from dpfedmeta.secure_aggregation.refusals import Refused


def at_least(wanted: int, got: int, what: str) -> None:
    """Whether enough are left.

    Raises:
        Refused: Fewer.
    """
    if got < wanted:
        raise Refused(f"{got} {what}, at least {wanted} are needed")


def consent(told: Survivors, agreement: Agreement) -> bytes:
    """What is signed of a list of survivors."""
    return sha256(b"survivors" + told.encode(agreement)).digest()


@dataclass(frozen=True, kw_only=True)
class Checks:
    """One client's.

    Attributes:
        round_: What it agreed to.
        seat: Its own.
        verify: Whether to check signatures of keys where the server is not malicious.
    """

    round_: Round
    seat: int
    verify: bool

    def keys(self, own: Keys, listed: KeyList, identities: Identities) -> tuple[dict[int, Keys], Identities]:
        """The others' keys by seat, and identities with those that were met for the first time.

        Raises:
            Refused: An identity that is unknown, in two seats, its own or another than the listed one; a signature
                that fails; its own keys missing or changed, or too few clients, where the server is malicious.
        """
        agreement, found = self.round_.agreement, {}
        met = {**identities.keys, self.seat: own.identity}
        for seat, body, signature in listed.entries:
            keys = Keys.decode(body)
            if seat == self.seat:
                self._own(own, keys)
                continue
            self._other(seat, keys, signature, identities)
            found[seat], met[seat] = keys, keys.identity
        if agreement.malicious:
            if len(found) == len(listed.entries):
                raise Refused("its own keys are not in the list")
            at_least(agreement.enough, len(listed.entries), "clients")
        if len(set(met.values())) < len(met):
            raise Refused("one identity sits in two seats")
        return found, replace(identities, keys=met)

    def _own(self, own: Keys, shown: Keys) -> None:
        if not self.round_.agreement.malicious:
            raise Refused("its own seat is among its neighbours")
        if shown != own:
            raise Refused("its own keys are not what it sent")

    def _other(self, seat: int, keys: Keys, signature: bytes, identities: Identities) -> None:
        if seat >= self.round_.agreement.clients:
            raise Refused(f"seat {seat} is unknown")
        if keys.identity != identities.keys.get(seat, keys.identity if identities.first_contact else None):
            raise Refused(f"the identity of seat {seat} is not the listed one")
        if self.verify or self.round_.agreement.malicious:
            content = self.round_.digest + header(self.round_, Phase.KEYS, seat, EVERYONE) + keys.encoded
            if not signed_by(keys.identity, signature, content):
                raise Refused(f"the signature of seat {seat} on its keys fails")

    def survivors(self, told: Survivors, shared: Collection[int]) -> None:
        """Whether a list of survivors can be true, and is one whose sum may be unmasked.

        Args:
            told: The list.
            shared: Neighbours whose masks the client used.

        Raises:
            Refused: Survivors who are silent too, a neighbour who is neither, too few, or the client itself not
                among them.
        """
        both = told.survivors & told.silent
        if both:
            raise Refused(f"seat {min(both)} is said to have survived and to be silent")
        if self.seat not in told.survivors:
            raise Refused("it is not among the survivors itself")
        untold = set(shared) - told.survivors - told.silent
        if untold:
            raise Refused(f"neighbour {min(untold)} shared, and is neither among the survivors nor silent")
        at_least(self.round_.agreement.enough, len(told.survivors), "survivors")

    def consents(self, bound: bytes, told: Survivors, consents: Consents, identities: Identities) -> None:
        """Whether enough survivors signed the list that this client was told.

        Guarantee:
            Two clients who accept two lists share an honest client who signed both, and there is none: all who go on
            were told the same.

        Raises:
            Refused: Too few signatures, one that fails, or one of somebody who is no survivor.
        """
        content = consent(told, self.round_.agreement)
        for seat, signature in consents.entries:
            key = identities.keys.get(seat)
            if seat not in told.survivors or key is None:
                raise Refused(f"seat {seat} signed the survivors and is none")
            signed = self.round_.digest + bound + header(self.round_, Phase.CONSENT, seat, EVERYONE) + content
            if not signed_by(key, signature, signed):
                raise Refused(f"the signature of seat {seat} on the survivors fails")
        at_least(self.round_.agreement.quorum, len(consents.entries), "signatures on the survivors")
