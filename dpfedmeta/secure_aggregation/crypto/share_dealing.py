"""Shares as the server sees them: sealed, committed to, and revealed; whose fault it is where they do not fit."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from dpfedmeta.secure_aggregation.crypto import pairwise
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.payloads import Dealt, Kind, Reveal

SECRET = {Kind.SEED: "seed", Kind.KEY: "mask key"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault found in clients' shares, for the operator of the server.

    Attributes:
        seats: Seats of which one is at fault: a single one, or two of which it is either.
        words: Description of the fault, with {} for each seat that it names.
        named: Seats that the description names.
    """

    seats: tuple[int, ...]
    words: str
    named: tuple[int, ...]

    def text(self, name: Callable[[int], str] = "seat {}".format) -> str:
        """Return the description of the fault.

        Args:
            name: Function from a seat to the name of its client.
        """
        return self.words.format(*map(name, self.named))


@dataclass(kw_only=True)
class Dealings:
    """The shares of one round.

    Attributes:
        bound: What commitments are bound to.
        dealt: What was dealt, by dealer and holder; of those alone who shared, once that is known.
        rejected: By holder, whose shares it said it cannot use: they are not what their dealer committed to.
        shares: Revealed ones that are what their dealer committed to, by (dealer, which secret) and holder.
        faults: What was wrong so far.
    """

    bound: bytes = b""
    dealt: dict[int, dict[int, Dealt]] = field(default_factory=dict)
    rejected: dict[int, frozenset[int]] = field(default_factory=dict)
    shares: dict[tuple[int, Kind], dict[int, int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def reject(self, holder: int, dealers: Iterable[int]) -> None:
        """Note whose shares a holder cannot use.

        Raises:
            Refused: It holds none of theirs.
        """
        named = frozenset(dealers)
        for dealer in sorted(named):
            if holder not in self.dealt.get(dealer, {}):
                raise Refused(f"seat {holder} rejects shares of seat {dealer}, of which it holds none")
        self.rejected[holder] = named

    def judge(self, colluding: int) -> None:
        """Record the faults behind rejected shares.

        A client in dispute with more others than may collude is at fault for certain. Else the fault is the dealer's or
        the holder's.

        Args:
            colluding: Number of clients that may lie; of more than that many, at least one tells the truth.
        """
        pairs = sorted((dealer, holder) for holder, dealers in self.rejected.items() for dealer in dealers)
        dealers, holders = (Counter(pair[place] for pair in pairs) for place in (0, 1))
        for seat in sorted(seat for seat, count in dealers.items() if count > colluding):
            words = f"{{}} dealt {dealers[seat]} others shares that are not what it committed to"
            self.faults.append(Fault(seats=(seat,), words=words, named=(seat,)))
        for seat in sorted(seat for seat, count in holders.items() if count > colluding):
            words = f"{{}} says of {holders[seat]} others that their shares are not what they committed to"
            self.faults.append(Fault(seats=(seat,), words=words, named=(seat,)))
        for dealer, holder in pairs:
            if max(dealers[dealer], holders[holder]) <= colluding:
                words = "{} says that the shares of {} are not what that one committed to"
                self.faults.append(Fault(seats=(dealer, holder), words=words, named=(holder, dealer)))

    def held(self, dealer: int, holders: Collection[int]) -> int:
        """Count how many of these holders have shares of the dealer that they can use."""
        return sum(holder in holders and dealer not in self.rejected.get(holder, ()) for holder in self.dealt[dealer])

    def reveal(self, holder: int, wanted: Sequence[tuple[int, Kind]], revealed: Reveal) -> None:
        """Take the shares that a holder reveals, as far as they are what was committed to.

        Args:
            holder: Who reveals.
            wanted: What it was asked for.
            revealed: What it says.

        Raises:
            Refused: It reveals what it was not asked for.
        """
        left = iter(wanted)
        if not all((seat, kind) in left for seat, kind, _ in revealed.entries):
            raise Refused(f"seat {holder} did not reveal what it was asked for")
        said = {(seat, kind): share for seat, kind, share in revealed.entries}
        for dealer, kind in wanted:
            what, named = f"its share of the {SECRET[kind]} of {{}}", (holder, dealer)
            share = said.get((dealer, kind))
            if share is None:
                if dealer not in self.rejected.get(holder, ()):
                    # Where clients sign no list of who shared, this is the first that they say of it.
                    seats = (holder,) if holder in self.rejected else (dealer, holder)
                    self.faults.append(Fault(seats=seats, words=f"{{}} kept back {what}", named=named))
            elif self._shown(dealer, holder, kind, share) != self.dealt[dealer][holder].commitments[kind]:
                words = f"{{}} revealed another number than {what}"
                self.faults.append(Fault(seats=(holder,), words=words, named=named))
            else:
                self.shares.setdefault((dealer, kind), {})[holder + 1] = share

    def _shown(self, dealer: int, holder: int, kind: Kind, share: int) -> bytes:
        return pairwise.share_commitment(self.bound, dealer, holder, kind, share)

    def misdealt(self, dealer: int, kind: Kind) -> None:
        """Note that shares which are what a dealer committed to do not lie on one polynomial through its secret."""
        words = f"{{}} dealt shares of its {SECRET[kind]} that do not all give what it showed"
        self.faults.append(Fault(seats=(dealer,), words=words, named=(dealer,)))


def certain(faults: Iterable[Fault]) -> frozenset[int]:
    """Seats that are certainly at fault."""
    return frozenset(seat for fault in faults if len(fault.seats) == 1 for seat in fault.seats)
