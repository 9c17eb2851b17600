"""Checks by a client of the server's messages before it answers: each refusal names what is wrong."""

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from dpfedmeta.secure_aggregation.crypto.keys import signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.payloads import KeyList, Keys, ShareList, Signatures, Survivors
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, ProtocolPhase, header
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Round


def at_least(wanted: int, got: int, what: str) -> None:
    """Check that enough are left.

    Raises:
        Refused: Fewer than wanted.
    """
    if got < wanted:
        raise Refused(f"{got} {what}, at least {wanted} are needed")


# What a quorum signs, by the phase in which clients do.
_SIGNED = {ProtocolPhase.AGREE: "the sharers", ProtocolPhase.CONSENT: "the survivors"}


def consent(told: Survivors, agreement: Agreement) -> bytes:
    """Digest of a list of survivors, which clients sign."""
    return sha256(b"survivors" + told.encode(agreement)).digest()


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Checks of one client.

    Attributes:
        round_: Round that the client agreed to.
        seat: Its own seat.
        verify: Whether to check signatures of keys where the server is not malicious.
    """

    round_: Round
    seat: int
    verify: bool

    def keys(self, own: Keys, listed: KeyList) -> dict[int, Keys]:
        """The others' keys by seat.

        Raises:
            Refused: An identity that is its own or another than the listed one; a signature that fails; its own keys
                missing or changed, or too few clients, where the server is malicious.
        """
        agreement, found = self.round_.agreement, dict[int, Keys]()
        for seat, body, signature in listed.entries:
            keys = Keys.decode(body)
            if seat == self.seat:
                self._own(own, keys)
                continue
            self._other(seat, keys, signature)
            found[seat] = keys
        if agreement.malicious:
            if len(found) == len(listed.entries):
                raise Refused("its own keys are not in the list")
            at_least(agreement.enough, len(listed.entries), "clients")
        return found

    def _own(self, own: Keys, shown: Keys) -> None:
        if not self.round_.agreement.malicious:
            raise Refused("its own seat is among its neighbours")
        if shown != own:
            raise Refused("its own keys are not what it sent")

    def _other(self, seat: int, keys: Keys, signature: bytes) -> None:
        if seat >= self.round_.agreement.clients:
            raise Refused(f"seat {seat} is unknown")
        if keys.identity != self.round_.identities.keys[seat]:
            raise Refused(f"the identity of seat {seat} is not the listed one")
        if self.verify or self.round_.agreement.malicious:
            content = self.round_.digest + header(self.round_, ProtocolPhase.KEYS, seat, EVERYONE) + keys.encoded
            if not signed_by(keys.identity, signature, content):
                raise Refused(f"the signature of seat {seat} on its keys fails")

    def sharers(self, told: ShareList, neighbours: Collection[int], listed: Collection[int] | None) -> None:
        """Check that a list of sharers can be true, with shares of exactly the neighbours on it.

        Args:
            told: The list, and the shares.
            neighbours: Seats that the client shared with.
            listed: Seats whose keys it was shown, where the server shows all of them; else None.

        Raises:
            Refused: A sharer without keys, shares of a neighbour that are missing, shares of a seat that is no
                neighbour, the client itself not on the list, or too few clients or neighbours on it.
        """
        came = {dealt.seat for dealt in told.sealed.entries}
        for seat in sorted(came - set(neighbours)):
            raise Refused(
                f"got shares of seat {seat}, which is {'its own' if seat == self.seat else 'not a neighbour'}"
            )
        if self.seat not in told.sharers:
            raise Refused("its own seat is not on the list of those who shared")
        strangers = told.sharers - set(listed if listed is not None else told.sharers)
        if strangers:
            raise Refused(f"seat {min(strangers)} is said to have shared, and its keys are not in the list")
        around = told.sharers & set(neighbours)
        for seat in sorted(around ^ came):
            where = "its shares are missing" if seat in around else "it is not on the list of those who shared"
            raise Refused(f"neighbour {seat}: {where}")
        at_least(self.round_.agreement.enough, len(told.sharers), "clients who shared")
        at_least(self.round_.agreement.threshold, len(around), "neighbours who shared")

    def survivors(self, told: Survivors, sharers: frozenset[int]) -> None:
        """Check that a list of survivors can be true, and that its sum may be unmasked.

        Args:
            told: The list.
            sharers: Seats that shared, as agreed before the client masked.

        Raises:
            Refused: Survivors who are silent too or never shared, a sharer who is neither, too few, or the client
                itself not among them.
        """
        both = told.survivors & told.silent
        if both:
            raise Refused(f"seat {min(both)} is said to have survived and to be silent")
        if self.seat not in told.survivors:
            raise Refused("its own seat is not on the list of survivors")
        strangers = (told.survivors | told.silent) - sharers
        if strangers:
            raise Refused(f"seat {min(strangers)} is on the list of survivors and silent ones, and never shared")
        untold = sharers - told.survivors - told.silent
        if untold:
            raise Refused(f"seat {min(untold)} shared, and is neither among the survivors nor silent")
        at_least(self.round_.agreement.enough, len(told.survivors), "survivors")

    def signatures(
        self, phase: ProtocolPhase, bound: bytes, body: bytes, shown: Signatures, among: frozenset[int]
    ) -> None:
        """Check that a quorum signed the list that this client was told.

        Args:
            phase: AGREE for the list of sharers, CONSENT for the list of survivors.
            bound: Digest that the signatures cover beside their header and body.
            body: Body that was signed.
            shown: The signatures.
            among: Seats that may sign: those on the list.

        Guarantee:
            Two clients who accept two lists share an honest client who signed both, and there is none: all who go on
            were told the same.

        Raises:
            Refused: Too few signatures, one that fails, or one of a seat that is not on the list.
        """
        what = _SIGNED[phase]
        for seat, signature in shown.entries:
            key = self.round_.identities.keys.get(seat)
            if seat not in among or key is None:
                raise Refused(f"seat {seat} signed {what}, but does not belong to them")
            signed = self.round_.digest + bound + header(self.round_, phase, seat, EVERYONE) + body
            if not signed_by(key, signature, signed):
                raise Refused(f"the signature of seat {seat} on {what} fails")
        at_least(self.round_.agreement.quorum, len(shown.entries), f"signatures on {what}")
