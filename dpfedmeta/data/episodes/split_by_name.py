"""Which classes or clients train, and which judge: by a hash of their names, with enough of them in each part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dpfedmeta.data.storage.decoded_cache import SPLITS, Split


def split_of(name: str) -> Split:
    """The split of a class by the SHA-256 of its name, 64 : 16 : 20; the same in every copy of the data."""
    share = _share(name)
    return "train" if share < 0.64 else "val" if share < 0.80 else "test"


def splits_of(names: Iterable[str], least: int) -> dict[str, Split]:
    """The split of every name: `split_of`, unless a part would have fewer than `least` and there are enough for all.

    Then the two limits between the parts move, along the same hashes, as little as gives every part `least`. Nothing
    but names decides.

    Args:
        names: Classes or clients.
        least: How many each part needs.
    """
    ordered = sorted(set(names), key=lambda name: (_share(name), name))
    counts = {split: sum(split_of(name) == split for name in ordered) for split in SPLITS}
    if min(counts.values()) < least and len(ordered) >= 3 * least:
        counts = {split: max(count, least) for split, count in counts.items()}
        for _ in range(sum(counts.values()) - len(ordered)):
            largest = max(SPLITS, key=lambda split: counts[split])
            counts[largest] -= 1
    parts = [split for split in SPLITS for _ in range(counts[split])]
    return dict(zip(ordered, parts, strict=True))


def surely_public(names: Iterable[str]) -> set[str]:
    """Names that train under no number of classes that each part may need: what follows from them alone may be told.

    The limits of `splits_of` move with that number, and so may the part of a name that is near one.
    """
    ordered = sorted(set(names), key=lambda name: (_share(name), name))
    training = sum(split == "train" for split in splits_of(ordered, 1).values())
    return set(ordered[max(training, len(ordered) // 3) :])


def _share(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", errors="surrogateescape")).digest()[:8], "big") / 2.0**64
