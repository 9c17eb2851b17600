"""Masks that the server takes off the sum of masked vectors, from the shares that survivors revealed."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfedmeta.secure_aggregation.crypto import masks, pairwise, shamir
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Pair
from dpfedmeta.secure_aggregation.crypto.shamir import corrected
from dpfedmeta.secure_aggregation.crypto.share_dealing import Dealings
from dpfedmeta.secure_aggregation.payloads import Keys, Kind
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Round


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Task to recover one client's secret, and the masks that follow from it.

    Tasks are independent, so that several processes can share them.

    Attributes:
        seat: Seat of the client.
        kind: Its seed, where it survived, or its mask key, where it fell silent.
        shares: Revealed ones by point, t at least, each what its dealer committed to.
        keys: Its public keys and commitment.
        survivors: Neighbours that masked with it, and their public keys; empty for a seed.
    """

    seat: int
    kind: Kind
    shares: Mapping[int, int]
    keys: Keys
    survivors: Mapping[int, Keys]


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """Masks of some clients, as the server takes them off the sum.

    Attributes:
        total: Sum of these masks, as they are in the sum of survivors, modulo 2^16 or 2^32.
        corrected: (seat, kind of secret) where some shares did not fit the others; the secret was found all the same.
        lost: (seat, kind of secret) where the shares do not give what the client showed, however few of them are
            wrong; `total` lacks these.
    """

    total: masks.Words
    corrected: tuple[tuple[int, Kind], ...]
    lost: tuple[tuple[int, Kind], ...]


# Runs a function on several tuples of arguments, in any order: `itertools.starmap`, or the `map` of worker processes.
Map = Callable[[Callable[..., Corrected], Iterable[tuple[object, ...]]], Iterable[Corrected]]
_TASKS_AT_ONCE = 128


def one_after_the_other(function: Callable[..., Corrected], tasks: Iterable[tuple[object, ...]]) -> Iterator[Corrected]:
    """In this process (a `Map`)."""
    return (function(*task) for task in tasks)


def corrections(round_: Round, bound: bytes, missing: Sequence[Missing], run: Map) -> Iterable[Corrected]:
    """Compute the masks to take off for all clients, in parts."""
    parts = (missing[i : i + _TASKS_AT_ONCE] for i in range(0, len(missing), _TASKS_AT_ONCE))
    return run(correction, ((round_, bound, part) for part in parts))


def missing_secrets(
    dealings: Dealings,
    keys: Mapping[int, Keys],
    graph: Mapping[int, Sequence[int]],
    survivors: frozenset[int],
) -> Iterator[Missing]:
    """Which secrets the sum hangs on: a seed of each survivor, the mask key of each other one that it masked with."""
    for seat in sorted(dealings.dealt):
        kind = Kind.SEED if seat in survivors else Kind.KEY
        others = () if kind is Kind.SEED else sorted(survivors.intersection(graph[seat]))
        if kind is Kind.KEY and not others:
            continue
        shares = dict(sorted(dealings.shares.get((seat, kind), {}).items()))
        around = {other: keys[other] for other in others}
        yield Missing(seat=seat, kind=kind, shares=shares, keys=keys[seat], survivors=around)


def correction(round_: Round, bound: bytes, missing: Sequence[Missing]) -> Corrected:
    """Compute the masks of these clients, as they are in the sum of survivors."""
    agreement = round_.agreement
    total = np.zeros(agreement.dimension, dtype=masks.word(agreement.bits))
    doubtful, lost = [], []
    for task in missing:
        secret, at_once = _secret(round_, task)
        if secret is None:
            lost.append((task.seat, task.kind))
            continue
        if not at_once:
            doubtful.append((task.seat, task.kind))
        total += _masks_of(task, secret, agreement, bound)
    return Corrected(total=total, corrected=tuple(doubtful), lost=tuple(lost))


def _secret(round_: Round, task: Missing) -> tuple[bytes | None, bool]:
    """The secret that was shown, if the shares give it, and whether the first t of them did."""
    threshold = round_.agreement.threshold
    # Mostly nobody lies, and any t of them do.
    first = _bytes(shamir.join(dict(itertools.islice(task.shares.items(), threshold))))
    if _shown(round_, task, first):
        return first, True
    value = corrected(task.shares, threshold)
    secret = None if value is None else _bytes(value)
    return (secret if secret is not None and _shown(round_, task, secret) else None), False


def _bytes(value: int) -> bytes:
    # Shares of a dishonest dealer give any element of the field, also one that 32 bytes do not hold.
    return (value % (1 << 8 * SECRET_BYTES)).to_bytes(SECRET_BYTES, "big")


def _shown(round_: Round, task: Missing, secret: bytes) -> bool:
    if task.kind is Kind.SEED:
        return pairwise.commitment(round_, secret, task.seat) == task.keys.commitment
    return bool(Pair(secret).public == task.keys.mask_key)


def _masks_of(task: Missing, secret: bytes, agreement: Agreement, bound: bytes) -> masks.Words:
    """Its own mask, or those that survivors share with it, as they are in the sum."""
    size, bits = agreement.dimension, agreement.bits
    if task.kind is Kind.SEED:
        return masks.expand(pairwise.own_seed(bound, secret, task.seat), size, bits)
    total, pair = np.zeros(size, dtype=masks.word(bits)), Pair(secret)
    for seat, keys in task.survivors.items():
        # The server took no key that agrees on nothing secret.
        context = pairwise.pair_context(bound, task.seat, task.keys, seat, keys)
        mask = masks.expand(pairwise.mask_seed(pair, keys.mask_key, context), size, bits)
        # The survivor added it if the silent one's seat is the higher.
        (np.add if task.seat > seat else np.subtract)(total, mask, out=total)
    return total
