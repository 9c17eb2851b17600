"""Rows that record-level releases use, and their places: by a hash of each row alone, whatever else a client holds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode, drawn_records
from dpfedmeta.data.episodes.shape import EpisodeShape

if TYPE_CHECKING:
    from torch import Tensor

KEY_BYTES = 32
NO_ROW = -1
_ROW, _CLASS, _JUDGE = b"dpfedmeta row", b"dpfedmeta class", b"dpfedmeta judge"
# Of two rows, one to adapt on and one to be judged on.
_LEAST = 2
Slots = list[list[list[int]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class HashedRows:
    """SECRET: the rows of one client, and what their hashes say of each.

    Attributes:
        pool: The array that they lie in.
        key: The client's.
        places: [n], places in the pool's array.
        classes: [n], places of their classes in the pool.
        hashes: [n, 4], four independent words of each row's hash: for its group, its role, its order and its looks.

    Guarantee:
        A hash is of the row's class and content, and of how many equal rows stand before it, so equal rows are
        interchangeable. Of two tables that differ in one row, all other rows have the same hashes, for any fixed key,
        known or not. (The last of several equal rows is the one that is missing.)
    """

    pool: ClassPool
    key: bytes
    places: IntArray
    classes: IntArray
    hashes: npt.NDArray[np.uint64]

    @property
    def group(self) -> npt.NDArray[np.uint64]:
        """Word that decides over the group."""
        return self.hashes[:, 0]

    @property
    def role(self) -> npt.NDArray[np.float64]:
        """Number in [0, 1) that decides over the role."""
        return self.hashes[:, 1].astype(np.float64) / 2.0**64

    @property
    def looks(self) -> npt.NDArray[np.uint64]:
        """Word that decides over reflections and shifts."""
        return self.hashes[:, 3]

    def judging(self, share: float) -> npt.NDArray[np.bool_]:
        """[n], whether each row judges and never trains: of a fifth word, which follows from the row's hash alone."""
        words = (blake2b(each.tobytes(), digest_size=8, key=self.key, person=_JUDGE).digest() for each in self.hashes)
        return np.frombuffer(b"".join(words), dtype="<u8").astype(np.float64) / 2.0**64 < share

    def training(self, share: float) -> HashedRows:
        """All rows but those that judge."""
        if not share:
            return self
        kept = ~self.judging(share)
        return replace(self, places=self.places[kept], classes=self.classes[kept], hashes=self.hashes[kept])

    @cached_property
    def by_order(self) -> IntArray:
        """Numbers of the rows by the word that decides over order; the other words break ties."""
        return np.lexsort((*self.hashes.T[[3, 1, 0]], self.hashes[:, 2]))

    @cached_property
    def listed(self) -> IntArray:
        """[n], place of each row's label in the public list of labels; of other rows the place of the class."""
        if not self.pool.labels:
            return self.classes
        order = {name: number for number, name in enumerate(self.pool.labels)}
        return np.asarray([order[self.pool.names[index]] for index in self.classes.tolist()], dtype=np.int64)


def hashed_rows(pool: ClassPool, held: Sequence[int], key: bytes) -> HashedRows:
    """SECRET: the rows of these classes of a pool.

    Args:
        pool: Of features, the rows are known by the images that they were computed from.
        held: Places in the pool of the client's classes.
        key: The client's, `KEY_BYTES` long.
    """
    images, first = pool.plain_images()
    seen: dict[bytes, int] = {}
    places, classes, words = list[int](), list[int](), list[bytes]()
    for index in held:
        name = _bytes(pool.names[index])
        head = len(name).to_bytes(8, "little") + name
        for number in range(pool.counts[index]):
            content = head + np.ascontiguousarray(images[first[index] + number]).tobytes()
            digest = blake2b(content, key=key, person=_ROW).digest()
            copy = seen[digest] = seen.get(digest, -1) + 1
            words.append(blake2b(digest + copy.to_bytes(8, "little"), digest_size=32, key=key, person=_ROW).digest())
            places.append(pool.first[index] + number)
            classes.append(index)
    hashes = np.frombuffer(b"".join(words), dtype="<u8").reshape(len(words), 4).astype(np.uint64)
    return HashedRows(
        pool=pool,
        key=key,
        places=np.asarray(places, dtype=np.int64),
        classes=np.asarray(classes, dtype=np.int64),
        hashes=hashes,
    )


def hash_of_class(name: str, key: bytes) -> int:
    """SECRET: a number that follows from a class's name and the client's key."""
    return int.from_bytes(blake2b(_bytes(name), digest_size=8, key=key, person=_CLASS).digest(), "little")


def _bytes(name: str) -> bytes:
    """A name of a folder may hold any bytes."""
    return name.encode("utf-8", "surrogateescape")


class Layout(Hashable, Protocol):
    """Places for the rows of a client in an episode; hashable, and a constant of the plan."""

    def placed(self, rows: HashedRows) -> tuple[IntArray, IntArray, int]:
        """SECRET: ([n_s + n_q] numbers of rows or NO_ROW, support first; their labels; n_s).

        A place without a row is a null record.
        """
        ...

    def uses(self, records: int) -> tuple[int, int, str]:
        """SECRET: (in how many, at most, so many rows of one label have a part; of how many there are; of what)."""
        ...


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """Rows in M groups by their hash, each group a micro-episode.

    Attributes:
        client: The episode of a client, of a public size.
        shape: A micro-episode.
        complete: Whether a micro-episode needs all its classes, each with all its records; else fewer are enough, and
            rows recur inside of it.
        shared: Whether labels mean the same for all clients; then a group of one label is a micro-episode.

    Guarantee:
        What stands in the places of a group is a function of the rows of that group. So a row more or less changes
        one micro-episode, and a row that becomes another one changes two.
    """

    client: EpisodeShape
    shape: EpisodeShape
    complete: bool
    shared: bool

    def placed(self, rows: HashedRows) -> tuple[IntArray, IntArray, int]:
        """SECRET: the rows of each group in the places of its micro-episode (see `Layout`)."""
        taken, labels = _nothing(self.client)
        slots = micro_slots(self.client, self.shape)
        groups = rows.group[rows.by_order] % np.uint64(len(slots))
        for number, places in enumerate(slots):
            mine = rows.by_order[groups == number]
            for own, label, chosen in zip(places, *self._episode(rows, mine), strict=False):
                taken[own], labels[own] = chosen, label
        return taken, labels, self.client.support_records

    def uses(self, records: int) -> tuple[int, int, str]:
        """SECRET: in how many micro-episodes so many rows of one label have a part at most (see `Layout`)."""
        every = len(micro_slots(self.client, self.shape))
        return min(records // self._least, every), every, "micro-episodes"

    @property
    def _least(self) -> int:
        """Rows of a label without which a micro-episode does without it."""
        return self.shape.shots + self.shape.queries if self.complete else _LEAST

    def _episode(self, rows: HashedRows, mine: IntArray) -> tuple[list[int], list[IntArray]]:
        """(label, rows) of each class of the micro-episode of one group, whose rows come by order; or nothing."""
        shape, by_label = self.shape, dict[int, list[int]]()
        for row, label in zip(mine.tolist(), rows.listed[mine].tolist(), strict=True):
            by_label.setdefault(label, []).append(row)
        held = [(label, own) for label, own in by_label.items() if len(own) >= self._least][: shape.ways]
        if len(held) < (shape.ways if self.complete else min(shape.ways, 1 if self.shared else _LEAST)):
            return [], []
        labels, chosen = list[int](), list[IntArray]()
        for way in range(shape.ways):
            place = way % len(held)
            label, own = held[place]
            support, query = self._roles(own, len(range(place, shape.ways, len(held))))
            turn = way // len(held)
            labels.append(label if self.shared else place)
            chosen.append(np.concatenate([support[turn], query[turn]]))
        return labels, chosen

    def _roles(self, own: list[int], uses: int) -> tuple[IntArray, IntArray]:
        """The support and the query rows of one class, [uses, shots] and [uses, queries]; few rows recur."""
        shots, queries = self.shape.shots, self.shape.queries
        support, query = uses * shots, uses * queries
        if len(own) < support + query:
            adapt = round(len(own) * shots / (shots + queries))
            adapt = min(max(1, adapt), len(own) - 1, support)
        else:
            adapt = support
        judged = own[adapt : adapt + query]
        return np.resize(own[:adapt], (uses, shots)), np.resize(judged, (uses, queries))


@dataclass(frozen=True, kw_only=True)
class RoleLayout:
    """Rows of each role and label with the smallest hashes; roles follow from the hash too.

    Attributes:
        client: The episode of a client; its classes are labels of the public list, or one for numbers to predict.
        labels: Number of listed labels; 0: numbers to predict.

    Guarantee:
        A row more or less exchanges one record in one role. A row that becomes another one does so twice.
    """

    client: EpisodeShape
    labels: int

    def placed(self, rows: HashedRows) -> tuple[IntArray, IntArray, int]:
        """SECRET: rows of each label and role by order, as many as there are places (see `Layout`)."""
        shape = self.client
        taken, labels = _nothing(shape)
        ordered, begin = rows.by_order, shape.support_records
        supports = rows.role < shape.shots / (shape.shots + shape.queries)
        for way, label in enumerate(self._chosen(rows)):
            of_label = ordered[rows.listed[ordered] == label] if self.labels else ordered
            roles = ((way * shape.shots, shape.shots, True), (begin + way * shape.queries, shape.queries, False))
            for start, size, role in roles:
                own = of_label[supports[of_label] == role][:size]
                taken[start : start + len(own)] = own
                labels[start : start + size] = label
        return taken, labels, begin

    def uses(self, records: int) -> tuple[int, int, str]:
        """SECRET: in how many of its places a label has rows at most (see `Layout`)."""
        every = self.client.shots + self.client.queries
        return min(records, every), every, "places of a label"

    def _chosen(self, rows: HashedRows) -> list[int]:
        """The labels of a client's episode: public, or by its key where there are more than it has classes."""
        if not self.labels:
            return [0]
        names = rows.pool.labels
        drawn = sorted(range(self.labels), key=lambda each: hash_of_class(names[each], rows.key))
        return sorted(drawn[: self.client.ways])


@dataclass(frozen=True, kw_only=True)
class AllRows:
    """All rows, however many; first those of pairs: of a label in a group, the two with the smallest hashes.

    Attributes:
        groups: M, by their hash; 0: there are no pairs, and all rows stand in order.

    Guarantee:
        A row more or less changes one pair, and a row that becomes another one two. All other rows stay in no pair, or
        in theirs. A null record, or a pair of them, stands first, so that no row decides whether there are records.
    """

    groups: int

    def placed(self, rows: HashedRows) -> tuple[IntArray, IntArray, int]:
        """SECRET: the rows of pairs as support, one beside the other, and all others (see `Layout`)."""
        ordered, pairs = rows.by_order.tolist(), list[int]()
        if self.groups:
            groups, held = (rows.group % np.uint64(self.groups)).tolist(), dict[tuple[int, int], list[int]]()
            for row in ordered:
                held.setdefault((groups[row], int(rows.listed[row])), []).append(row)
            pairs = [row for own in held.values() if len(own) > 1 for row in own[:2]]
        paired = {*pairs}
        null = [NO_ROW, NO_ROW] if self.groups else [NO_ROW]
        taken = np.asarray([*null, *pairs, *(row for row in ordered if row not in paired)], dtype=np.int64)
        # Labels of a client's own are in its pairs; a shared one belongs to its row.
        known = rows.pool.labels and not self.groups
        labels = np.where(taken == NO_ROW, 0, rows.listed[taken]) if known and len(ordered) else np.zeros_like(taken)
        return taken, labels, len(null) + len(pairs) if self.groups else len(taken)

    def uses(self, records: int) -> tuple[int, int, str]:
        """SECRET: all rows have a part, if there are any (see `Layout`)."""
        return min(records, 1), 1, "sums"


def few_of_labels(layout: Layout, held: Mapping[str, int], labels: Sequence[str]) -> list[str]:
    """SECRET: labels of which a client holds so few rows that most of its message knows nothing of them.

    Args:
        layout: Of the plan.
        held: Rows of each label, by its name.
        labels: Those that each client is expected to hold, in the plan's public list.
    """
    absent, few = [name for name in labels if not held.get(name)], list[str]()
    for name in labels:
        most, every, what = layout.uses(held.get(name, 0))
        if name not in absent and 2 * most < every:
            few.append(f"{held[name]:,} of {name}: at most {most} of {every} {what} hold that label")
    none = f"none of {', '.join(absent)}: the message says nothing of what this client lacks"
    return [*([none] if absent else []), *few]


def _nothing(shape: EpisodeShape) -> tuple[IntArray, IntArray]:
    """No rows; labels as if there were some of each class, since what divides classes reads them."""
    ways = np.arange(shape.ways, dtype=np.int64)
    labels = np.concatenate([ways.repeat(shape.shots), ways.repeat(shape.queries)])
    return np.full(len(labels), NO_ROW, dtype=np.int64), labels


@dataclass(frozen=True, kw_only=True, eq=False)
class RowChoice:
    """SECRET: rows of a client in the places of its episode, before anybody looked at one (`episode.Choice`).

    Attributes:
        pool: Where they come from.
        places: [n, 1], places in the pool's array, support first.
        turns: [n], rotations by 90 degrees.
        flips: [n, 1], which images are mirrored; None: none.
        shifts: [n, 1, 2], pixels by which images are then moved; None: none is moved.
        labels: [n].
        null: [n], places without a row.
        support: How many of them are the support set.
    """

    pool: ClassPool
    places: IntArray
    turns: Sequence[int]
    flips: npt.NDArray[np.bool_] | None
    shifts: IntArray | None
    labels: IntArray
    null: npt.NDArray[np.bool_]
    support: int

    def episode(self) -> Episode:
        """The records themselves."""
        if self.null.all():
            import torch

            return self.of_images(torch.zeros(len(self.null), *self.pool.images.shape[1:]))
        return self.of_images(drawn_records(self))

    def of_images(self, images: Tensor) -> Episode:
        """The episode of images that are made already, [n, ...]; numbers of null records are no numbers (NaN)."""
        import torch

        labels, end = torch.from_numpy(self.labels), self.support
        null = torch.from_numpy(self.null)
        if self.pool.targets:
            images, labels = images[:, :-1].contiguous(), torch.where(null, 0.0, images[:, -1])
        images = images.masked_fill(null.to(images.device).view(-1, *[1] * (images.ndim - 1)), float("nan"))
        return Episode(
            support_images=images[:end],
            support_labels=labels[:end],
            query_images=images[end:],
            query_labels=labels[end:],
        )


@lru_cache(maxsize=512)
def chosen_rows(pool: ClassPool, held: tuple[int, ...], layout: Layout, key: bytes) -> RowChoice:
    """SECRET: the rows of a client in the places of its episode.

    Args:
        pool: Where they lie.
        held: Places in the pool of the client's classes.
        layout: Of the plan.
        key: The client's.

    Guarantee:
        Nothing here depends on how many rows there are. What a row more or less moves says the layout.
    """
    rows = hashed_rows(pool, held, key).training(pool.own_test)
    taken, labels, support = layout.placed(rows)
    null = taken == NO_ROW
    # A place without a row shows the first one of the pool, which nobody sees.
    own = np.where(null, 0, taken)
    places = np.where(null, 0, rows.places[own]) if len(rows.places) else np.zeros_like(taken)
    looks = rows.looks[own] if len(rows.places) else np.zeros(len(taken), dtype=np.uint64)
    turns = {index: hash_of_class(pool.names[index], key) % pool.rotations for index in held}
    turned = [turns[int(each)] for each in rows.classes[own]] if len(rows.places) else [0] * len(taken)
    flips, shifts = _changes(pool, looks)
    return RowChoice(
        pool=pool,
        places=places[:, None],
        turns=turned,
        flips=flips,
        shifts=shifts,
        labels=labels,
        null=null,
        support=support,
    )


def _changes(pool: ClassPool, looks: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.bool_] | None, IntArray | None]:
    """Choose by each row's hash which images are mirrored, and by how much they are moved."""
    flips = (looks & np.uint64(1)).astype(np.bool_)[:, None] if pool.flip else None
    if not pool.shift:
        return flips, None
    words = np.stack([looks >> np.uint64(8), looks >> np.uint64(32)], axis=1) & np.uint64(0xFFFFFF)
    moves = (words % np.uint64(2 * pool.shift + 1)).astype(np.int64) - pool.shift
    return flips, moves[:, None, :]


@lru_cache(maxsize=64)
def micro_slots(client: EpisodeShape, shape: EpisodeShape) -> Slots:
    """Numbers of the records of each micro-episode, by sizes alone: no record decides where another one goes.

    Args:
        client: The episode of a client; its records are numbered support first, each part class by class.
        shape: Of a micro-episode.

    Returns:
        [M, ways, shots + queries] numbers of records, no number twice. A few records may be left over.
    """
    each, held = shape.shots + shape.queries, client.shots + client.queries

    def record(way: int, place: int) -> int:
        if place < client.shots:
            return way * client.shots + place
        return client.support_records + way * client.queries + place - client.shots

    used = [0] * client.ways
    found: Slots = []
    while shape.ways <= client.ways:
        # The classes with the most records left; among equals the first.
        chosen = sorted(range(client.ways), key=used.__getitem__)[: shape.ways]
        if used[chosen[-1]] + each > held:
            break
        found.append([[record(way, used[way] + place) for place in range(each)] for way in chosen])
        for way in chosen:
            used[way] += each
    return found
