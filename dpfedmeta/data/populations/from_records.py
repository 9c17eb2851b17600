"""Clients of your own as a mapping: each name with all records and targets of one client, as many as it has."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import check_plain
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.columns import by_name, check_same_rows, has_names, in_public_order, numbers_of
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.episodes.whole_episode import split_whole, too_few
from dpfedmeta.data.names import check_spellings, missing_classes
from dpfedmeta.data.populations.from_pairs import (
    Constants,
    check_some_usable,
    checked_images,
    checked_labels,
    standardised_images,
    unlike_words,
    unusable_words,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordsPopulation:
    """Whole clients from a mapping: client number i is the i-th of its keys.

    In training, a client that cannot be read, or with too few records, counts as zero, and nobody is told; look before,
    with `problems`. With several worker processes the mapping is sent to them, so it must be picklable and small; else
    use --run.workers 1.

    Attributes:
        held: For each client (records, targets). Records are bytes or numbers in [0, 1] of the shape [n, channels,
            height, width], or vectors or tokens [n, numbers], taken as they are, bytes too; or tables with named
            columns (pandas, polars, a mapping), which are taken by name. Targets are the classes,
            [n]: texts or whole numbers from 0 on, each client's own, or the names of `labels`; or numbers to predict.
        shape: Public limits of an episode.
        seed: Of the public generators.
        labels: Public list of labels that all clients share; empty: each has classes of its own.
        range: Public constants of numbers to predict; None: targets are classes.
        columns: Public names of a vector's numbers, in their order, where clients hold tables.
        constants: As of SequencePopulation.
        task: The data set, where it standardises vectors or replaces what is missing: tables, whose numbers would be
            used without that, are then refused. Empty: it does neither, or is not known yet.
    """

    held: Mapping[Any, tuple[Any, Any]]
    shape: WholeShape
    seed: int
    labels: tuple[str, ...] = ()
    range: TargetRange | None = None
    columns: tuple[str, ...] = ()
    constants: Constants = ((), ())
    task: str = ""

    @property
    def clients(self) -> int:
        """N."""
        return len(self.held)

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, a function of (seed, client) and of what it holds.

        Raises:
            IndexError: There is no such client.
            InputError: It holds too little, or records and targets that cannot be used.
            Exception: Reading the mapping may raise anything else.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        try:
            records, targets = self.held[self._names[client]]
            if self.task and has_names(records):
                raise InputError(_raw_words(self.task))
            check_same_rows(records, targets)
            records = _by_name(records, self.columns)
            check_plain(records, "records")
            check_some_usable(records)
            images = standardised_images(checked_images(records), self.constants)
            numbers = self._numbers(targets)
            if len(images) != len(numbers):
                raise InputError(f"{len(images)} records, but {len(numbers)} targets")
            classes = np.zeros(len(numbers), dtype=np.int64) if self.range else numbers
            by_class, shared = [np.flatnonzero(classes == each) for each in np.unique(classes)], self._shared
            generator = public_generator(self.seed, Purpose.CLIENT_DATA, client)
            split = split_whole(generator, by_class, self.shape, shared=shared)
            if split is None:
                raise InputError(too_few(shared=shared))
        except InputError as error:
            raise InputError(f"client {client}: {error}") from None
        support, query = (np.concatenate(part) for part in (split.support, split.query))
        own, other = (
            torch.from_numpy(numbers[rows] if shared else _own_numbers(part))
            for rows, part in ((support, split.support), (query, split.query))
        )
        return Episode(
            support_images=images[support], support_labels=own, query_images=images[query], query_labels=other
        )

    @property
    def _shared(self) -> bool:
        return bool(self.labels) or self.range is not None

    def _numbers(self, targets: Any) -> npt.NDArray[Any]:
        """Number the classes, by a client's own count or by the public list, or scale numbers to predict."""
        if self.range is not None:
            return _scaled(targets, self.range)
        return _listed(targets, self.labels) if self.labels else _classes(targets)

    def problems(self) -> Iterator[tuple[Any, str]]:
        """SECRET, as the data are: (client, what is wrong with its records), for the owner of the data."""
        forms = set[tuple[int, ...]]()
        for client, name in enumerate(self._names):
            try:
                found = self.episode(client)
            except InputError as error:
                yield name, str(error).removeprefix(f"client {client}: ")
                continue
            except Exception as error:
                yield name, f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())})"
                continue
            form, images = tuple(found.support_images.shape[1:]), (found.support_images, found.query_images)
            forms.add(form)
            if len(forms) > 1:
                forms.discard(form)
                yield name, f"records of form {form}, but the first client's have {forms}"
            elif not all(bool(torch.isfinite(part).all()) for part in images):
                yield name, unusable_words("records", self.held[name][0])
            elif unlike := unlike_words(found.support_images, self.columns):
                yield name, unlike

    def digest(self) -> str:
        """SECRET: digest of all names, records and targets, in their order."""
        digest = hashlib.sha256(f"{self.clients} {self.shape} {self.seed}\n".encode())
        if any(self.constants):
            digest.update(f"{self.constants}\n".encode())
        if self._shared:
            digest.update(f"{self.labels} {self.range}\n".encode())
        for name in self._names:
            digest.update(f"{name!r}\n".encode())
            try:
                records, targets = self.held[name]
                content = [_bytes(_by_name(records, self.columns)), _bytes(targets)]
            except Exception:
                # Whatever it is, it counts as zero.
                content = [b"unreadable\n"]
            for each in content:
                digest.update(each)
        return digest.hexdigest()

    @cached_property
    def _names(self) -> tuple[Any, ...]:
        return tuple(self.held)


def _by_name(records: Any, columns: tuple[str, ...]) -> Any:
    """A table's numbers in the order of the public names; anything else as it is.

    Raises:
        InputError: Its columns are others, or no names were given.
    """
    if not has_names(records):
        return records
    own = in_public_order("records", by_name(records), columns, "RecordsPopulation.columns")
    return numbers_of("records", columns, own)


def _raw_words(task: str) -> str:
    return (
        "a table with named columns, of which numbers would be used as they are, while the task standardises them or "
        f"replaces what is missing; hand over dpfedmeta.standardised({task!r}, table)"
    )


def _bytes(part: Any) -> bytes:
    """Return what is read of an array or tensor as bytes; of objects (a column of pandas) values, no addresses."""
    if isinstance(part, Tensor):
        held = part.detach().cpu().contiguous()
        form = str(held.dtype).removeprefix("torch.")
        content = held.reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{form} {tuple(held.shape)}\n".encode() + content
    array = np.ascontiguousarray(np.asarray(part))
    content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return f"{array.dtype} {array.shape}\n".encode() + content


def _classes(targets: Any) -> IntArray:
    """Number the classes of a client from 0 on, in the order of their names or numbers.

    Raises:
        InputError: They are no texts and no whole numbers.
    """
    check_plain(targets, "targets", named=True)
    given = np.asarray(targets)
    if given.dtype == object:
        # Columns of pandas, of texts or whole numbers.
        values = given.reshape(-1).tolist()
        given = np.asarray(values) if len({type(value) for value in values}) == 1 else given
    if given.dtype.kind == "U":
        if odd := missing_classes(given.reshape(-1).tolist()):
            raise InputError(f"targets hold {min(odd)!r}, which is written where a class is missing; leave those out")
        check_spellings(
            "targets", [("class", name, "of this client") for name in dict.fromkeys(given.reshape(-1).tolist())]
        )
        return np.unique(given.reshape(-1), return_inverse=True)[1]
    found: IntArray = checked_labels(given if given.dtype != object else targets).numpy()
    return found


def _listed(targets: Any, labels: tuple[str, ...]) -> IntArray:
    """Return places in the public list of labels, which are given by their names."""
    check_plain(targets, "targets", named=True)
    # pandas makes floats of whole numbers where one is missing.
    given = np.asarray(targets).reshape(-1).tolist()
    names = [str(int(name) if isinstance(name, float) and name.is_integer() else name) for name in given]
    odd = sorted({*names} - {*labels})
    if odd:
        raise InputError(f"label {odd[0]!r} is not in the task's public list ({', '.join(labels)})")
    return np.asarray([labels.index(name) for name in names], dtype=np.int64)


def _scaled(targets: Any, known: TargetRange) -> npt.NDArray[np.float32]:
    """Return numbers to predict, as a network sees them."""
    check_plain(targets, "targets", named=True)
    try:
        numbers = np.asarray(targets, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError("targets are not numbers") from None
    odd = known.outside(numbers.tolist())
    if odd:
        raise InputError(f"target {numbers[odd[0]]:g} is missing, or outside the public range ({known.words})")
    return ((numbers - known.centre) / known.scale).astype(np.float32)


def _own_numbers(by_class: Sequence[IntArray]) -> IntArray:
    """Labels of a set, class by class."""
    return np.repeat(np.arange(len(by_class)), [len(own) for own in by_class])
