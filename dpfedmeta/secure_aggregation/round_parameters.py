"""Agreement of all parties before the first message: the numbers, the identities and the round."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256

from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation.crypto import masks
from dpfedmeta.secure_aggregation.crypto import neighbour_graph as graph

# Of the messages. Another one signs, derives and lays out otherwise, so nothing of it is understood here.
VERSION = 2
KEY_BYTES = RUN_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The numbers of a round. Every party computes them by itself (`agreed`); the server tells nobody.

    Attributes:
        clients: n, who is invited; they sit in seats 0 to n - 1.
        dimension: d, coordinates of a vector.
        bits: b; sums are modulo 2^b.
        degree: k, neighbours of a client.
        threshold: t, shares that give a secret back.
        colluding: How many clients may tell the server all they know.
        fewest: V, the fewest survivors whose sum is unmasked: their noise is what the promise counts.
        malicious: Whether the server may break the protocol.
    """

    clients: int
    dimension: int
    bits: int
    degree: int
    threshold: int
    colluding: int
    fewest: int
    malicious: bool

    def __post_init__(self) -> None:
        if not masks.FEWEST_BITS <= self.bits <= masks.MOST_BITS:
            raise InputError(
                f"bits = {self.bits}: expected {masks.FEWEST_BITS} to {masks.MOST_BITS} bits per coordinate"
            )
        if not 1 <= self.dimension < 2**31:
            raise InputError(f"dimension = {self.dimension}: expected at least one coordinate, and fewer than 2^31")
        if not 2 <= self.clients <= graph.MOST_CLIENTS:
            raise InputError(f"clients = {self.clients}: expected 2 to {graph.MOST_CLIENTS:,}")
        complete = self.degree == self.clients - 1
        if not complete and not (2 <= self.degree < self.clients and self.degree % 2 == 0):
            raise InputError(
                f"degree = {self.degree}: expected an even number below {self.clients} clients, or {self.clients - 1}"
            )
        if not 2 <= self.threshold <= self.degree:
            raise InputError(f"threshold = {self.threshold}: expected 2 to {self.degree}, the degree")
        if not 0 <= self.colluding < self.clients:
            raise InputError(f"colluding = {self.colluding}: expected fewer than all {self.clients} clients")
        if not self.colluding + 2 <= self.fewest <= self.clients:
            raise InputError(
                f"fewest = {self.fewest} survivors: expected {self.colluding + 2} to {self.clients}; in a smaller sum "
                f"{self.colluding} colluding clients would know every vector but one"
            )
        beside = self.colluding if complete else 0
        if self.malicious and 2 * self.threshold <= self.degree + beside:
            raise InputError(
                f"threshold = {self.threshold}: against a malicious server more than half of the degree {self.degree}"
                + (f" and the {beside} who collude together" if beside else "")
            )

    @property
    def enough(self) -> int:
        """Survivors below which every party ends the round."""
        return max(self.threshold, self.fewest)

    @property
    def quorum(self) -> int:
        """Fewest signatures that two different lists of one round cannot both have, since honest clients sign once.

        Counted over all clients and not over neighbours: a server could tell one half of the ring another list than the
        other half, each with survivors enough, and unmask the sum of a piece between two gaps.
        """
        return max(self.threshold, (self.clients + self.colluding) // 2 + 1)

    def encoded(self) -> bytes:
        """All numbers, 4 bytes each, in the order of the attributes."""
        return struct.pack(f">{len(fields(self))}I", *(int(getattr(self, field.name)) for field in fields(self)))


def agreed(
    *,
    clients: int,
    dimension: int,
    bits: int,
    adversarial: float,
    dropout: float,
    malicious: bool,
    fewest: int | None = None,
    complete: bool = False,
) -> Agreement:
    """The agreement for n invited clients of whom a share colludes and a share may fall silent.

    Args:
        clients: n.
        dimension: Coordinates of a vector.
        bits: 8 to 32 a coordinate.
        adversarial: The share that colludes with the server.
        dropout: The share that may fall silent, in all phases together.
        malicious: Whether the server may break the protocol.
        fewest: V, where it is not ceil((1 - dropout) n).
        complete: Whether everybody shall be everybody's neighbour in any case (CCS 2017).

    Raises:
        InputError: No graph exists for it, or a number is out of its range.
    """
    degree, threshold = graph.parameters(
        clients=clients, adversarial=adversarial, dropout=dropout, malicious=malicious, complete=complete
    )
    colluding = graph.counted(adversarial, clients)
    staying = clients - math.floor(dropout * clients + 1e-9)
    fewest = staying if fewest is None else fewest
    if malicious and (clients + colluding) // 2 + 1 > staying:
        raise InputError(
            f"{clients} clients: too few remain to agree on the survivors; adversarial + 2 dropout must be below 1"
        )
    if malicious and not graph.holds_together(clients, degree, colluding, clients - fewest):
        raise InputError(
            f"{clients} clients, {degree} neighbours each: a malicious server that reports {clients - fewest} of them "
            f"as silent (fewest = {fewest}) could split the graph and learn the sum of a part; require more survivors"
        )
    return Agreement(
        clients=clients,
        dimension=dimension,
        bits=bits,
        degree=degree,
        threshold=threshold,
        colluding=colluding,
        fewest=fewest,
        malicious=malicious,
    )


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Public Ed25519 key of each seat, from a file of one's own.

    Attributes:
        keys: Key by seat.
    """

    keys: Mapping[int, bytes]

    def __post_init__(self) -> None:
        for seat, key in self.keys.items():
            if len(key) != KEY_BYTES:
                raise InputError(f"identity key of seat {seat}: has {len(key)} bytes, expected {KEY_BYTES}")
        if len(set(self.keys.values())) < len(self.keys):
            raise InputError("identities: two seats have the same key")

    def check(self, clients: int) -> None:
        """Check that every invited client has a key here.

        Raises:
            InputError: A client has none, or a seat does not exist.
        """
        beyond = [seat for seat in self.keys if not 0 <= seat < clients]
        if beyond:
            raise InputError(f"identities: seat {beyond[0]} does not exist among {clients} clients")
        if len(self.keys) < clients:
            missing = next(seat for seat in range(clients) if seat not in self.keys)
            raise InputError(f"identities: no key for seat {missing}; list all {clients} keys")

    def digest(self, clients: int) -> bytes:
        """Digest of the whole list, so that all parties must hold the same one."""
        return sha256(b"\0" + b"".join(self.keys[seat] for seat in range(clients))).digest()


@dataclass(frozen=True, kw_only=True)
class Round:
    """Attempt at a round of a run, to which every signature, derived key and sealed share is bound.

    Attributes:
        run: 32 bytes that no other run has.
        round: Counted from 0.
        attempt: Counted from 0; a round that failed may be tried again with fresh keys.
        agreement: The numbers.
        identities: Public key of each seat.
        server: The server's public Ed25519 key.
    """

    run: bytes
    round: int
    attempt: int
    agreement: Agreement
    identities: Identities
    server: bytes

    def __post_init__(self) -> None:
        for name, value, size in (("run", self.run, RUN_BYTES), ("server", self.server, KEY_BYTES)):
            if len(value) != size:
                raise InputError(f"{name}: has {len(value)} bytes, expected {size}")
        for name, number in (("round", self.round), ("attempt", self.attempt)):
            if not 0 <= number < 2**32:
                raise InputError(f"{name} = {number}: expected 0 to 2^32 - 1")
        self.identities.check(self.agreement.clients)

    @cached_property
    def digest(self) -> bytes:
        """Digest of all the fields."""
        place = struct.pack(">H32sII", VERSION, self.run, self.round, self.attempt)
        listed = self.identities.digest(self.agreement.clients)
        return sha256(
            b"dpfedmeta secure aggregation" + place + self.agreement.encoded() + listed + self.server
        ).digest()
