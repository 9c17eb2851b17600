"""Other libraries' episodes as clients: torchmeta data sets, learn2learn tasksets, any sequence of pairs."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import check_plain, plain_tensor
from dpfedmeta.core.random.random_sources import Purpose, global_generators_at, public_generator
from dpfedmeta.data.columns import check_same_rows, unlike_columns
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.missing import names_of
from dpfedmeta.data.user_sources.vectors import LARGEST

Part = tuple[Any, Any]
Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of each channel."""
# [n, channels, height, width]; and how far sums of floats may miss 0 and 1.
_IMAGE_AXES, _VECTOR_AXES, _ROUNDING = 4, 2, 1e-5


class Pairs(Protocol):
    """A sequence of (support, query); each part is (images, labels), arrays or tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> tuple[Part, Part]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SequencePopulation:
    """Client number i holds pair number i.

    The same number must always give the same data. With several worker processes the sequence is sent to them, so it
    must be picklable and small; else use --run.workers 1. On a GPU it is read in a thread of its own.

    In training, a client whose pair cannot be read as `shape` says counts as zero, and nobody is told; look before,
    with `problems`.

    Guarantee:
        A record that cannot be used (numbers beyond the range, NaN, masked) counts as nothing and takes no other with
        it. It is judged by itself, whatever the others of its client are.

    Attributes:
        pairs: The episodes. Images are [n, channels, height, width], bytes or numbers in [0, 1]; vectors and sequences
            of tokens are [n, numbers], taken as they are, bytes too; labels are whole numbers from 0 on,
            renumbered from 0 in ascending order.
        shape: What every episode must have: shots support and queries query images of each of its ways.
        image: Channels, height and width of every image, as you know them of the data as a whole: public. Compared
            with the task before round 0; None: not said.
        constants: Mean and deviation of the task, by which training standardises images, as it does those on which it
            is judged; vectors are taken as they are (dpfedmeta.standardised makes them of a table's).
    """

    pairs: Pairs
    shape: EpisodeShape
    image: tuple[int, int, int] | None = None
    constants: Constants = ((), ())

    @property
    def clients(self) -> int:
        """N."""
        return len(self.pairs)

    def episode(self, client: int) -> Episode:
        """The data of client number `client`.

        Raises:
            IndexError: There is no such client.
            InputError: Its episode has another size or other labels than the plan counts with; labels are no whole
                numbers from 0 on; or no image at all is of bytes or numbers in [0, 1].
            Exception: Reading the pair may raise anything else.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        support, query = self.pairs[client]
        try:
            (support_images, support_labels), (query_images, query_labels) = _part(support), _part(query)
            check_some_usable(support[0], query[0])
        except InputError as error:
            raise InputError(f"client {client}: {error}") from None
        values = torch.unique(support_labels)
        sizes = (len(support_labels), len(query_labels), len(values))
        expected = (self.shape.support_records, self.shape.query_records, self.shape.ways)
        if sizes != expected or not bool(torch.isin(query_labels, values).all()):
            raise InputError(
                f"client {client}: {sizes[0]} support and {sizes[1]} query records of {sizes[2]} classes, expected "
                f"{expected[0]}, {expected[1]} and {expected[2]}, with the same classes in both"
            )
        parts = ((support_labels, self.shape.shots, "support"), (query_labels, self.shape.queries, "query"))
        for labels, each, what in parts:
            held = [int((labels == value).sum()) for value in values]
            if any(count != each for count in held):
                raise InputError(f"client {client}: {held} {what} records of its classes, expected {each} of each")
        if len(support_images) != sizes[0] or len(query_images) != sizes[1]:
            raise InputError(
                f"client {client}: {len(support_images)} support and {len(query_images)} query records, but {sizes[0]} "
                f"and {sizes[1]} labels"
            )
        support_images, query_images = (
            standardised_images(images, self.constants) for images in (support_images, query_images)
        )
        # Class by class, as everywhere; among equals in the order of the pair.
        support_order, query_order = (labels.argsort(stable=True) for labels in (support_labels, query_labels))
        return Episode(
            support_images=support_images[support_order],
            support_labels=torch.searchsorted(values, support_labels[support_order]),
            query_images=query_images[query_order],
            query_labels=torch.searchsorted(values, query_labels[query_order]),
        )

    def problems(self, image: tuple[int, ...] | None = None) -> Iterator[tuple[int, str]]:
        """SECRET, as the data are: (client number, what is wrong with its pair), for the owner of the data.

        In training such a client counts as zero, silently, because a line about it would tell of its data. So look
        before training, where the data are, and show what it says to nobody who may not see the data. One whose query
        records are those of its support set takes part all the same, and what it learns from them is memory.

        Args:
            image: Channels, height and width that images must have, or how many numbers vectors; None: what the
                population says, or the same in all clients as in the first that can be read.
        """
        image = image or self.image
        for client in range(self.clients):
            try:
                episode = self.episode(client)
            except InputError as error:
                yield client, str(error).removeprefix(f"client {client}: ")
                continue
            except Exception as error:
                yield client, f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())})"
                continue
            images = (episode.support_images, episode.query_images)
            forms = {tuple(part.shape[1:]) for part in images}
            if image is None and len(forms) == 1 and images[0].dim() in (2, 4):
                (image,) = forms
            if forms != {image}:
                expected = "channels x height x width, or vectors" if image is None else _times(image)
                yield client, f"records of {' and '.join(map(_times, sorted(forms)))}, expected {expected}"
            elif not all(bool(torch.isfinite(part).all()) for part in images):
                yield client, unusable_words("records", *(images for images, _ in self.pairs[client]))
            elif unlike := unlike_words(images[0]):
                yield client, unlike
            elif _records_of(images[1]) <= _records_of(images[0]):
                yield client, "all query records are in the support set too (it takes part); hold other records back"

    def digest(self) -> str | None:
        """SECRET: digest of all pairs, where they are a list or tuple; None: reading a lazy sequence may cost anything.

        Two populations of one digest hold the same, apart from pairs that cannot be read in either.
        """
        if not isinstance(self.pairs, list | tuple):
            return None
        digest = hashlib.sha256(f"{self.clients} {self.shape}\n".encode())
        if any(self.constants):
            digest.update(f"{self.constants}\n".encode())
        for pair in self.pairs:
            parts = _values(pair)
            if parts is None:
                # Whatever it is, it counts as zero.
                digest.update(b"unreadable\n")
                continue
            for part in parts:
                digest.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
                digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Converted:
    """Numbered episodes of a library, as pairs."""

    count: int
    pair: Callable[[int], tuple[Part, Part]]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int, /) -> tuple[Part, Part]:
        return self.pair(number)


def from_pairs(pairs: Pairs, shape: EpisodeShape, image: tuple[int, int, int] | None = None) -> SequencePopulation:
    """Any sequence of ((images, labels), (images, labels)).

    Args:
        pairs: The episodes.
        shape: What every episode must have.
        image: Channels, height and width of every image: public, and compared with the task before round 0.
    """
    return SequencePopulation(pairs=pairs, shape=shape, image=image)


def from_torchmeta(dataset: Any, shape: EpisodeShape, clients: int, seed: int) -> SequencePopulation:
    """A torchmeta meta-data set, with its tasks split by a ClassSplitter into `train` and `test`, or not split.

    Client i is a combination of classes drawn by (seed, i), so the number of clients is free. Images of a task that is
    not split are drawn by (seed, i) too. (The splitter of torchmeta 1.8 does not run under today's PyTorch.)

    Args:
        dataset: A CombinationMetaDataset; dataset[classes] is a task, a sequence of (image, label), or a mapping.
        shape: As the splitter was told (num_train_per_class, num_test_per_class), if there is one.
        clients: N.
        seed: Chooses the classes of each client.
    """

    def pair(number: int) -> tuple[Part, Part]:
        generator = public_generator(seed, Purpose.CLIENT_DATA, number)
        classes = generator.choice(len(dataset.dataset), size=shape.ways, replace=False)
        task = dataset[tuple(int(index) for index in classes)]
        if isinstance(task, Mapping):
            return _gathered(task["train"]), _gathered(task["test"])
        return _divided(_gathered(task, generator.permutation(len(task)).tolist()), shape)

    return SequencePopulation(pairs=_Converted(count=clients, pair=pair), shape=shape)


def from_learn2learn(taskset: Any, shape: EpisodeShape, clients: int, seed: int = 0) -> SequencePopulation:
    """A learn2learn taskset (`TaskDataset`) whose tasks hold shots + queries images of each class.

    Tasks are drawn once, here, and kept: a taskset draws another task each time it is asked, whatever the number, and a
    client must always hold the same data. So that a run can be resumed in another process, the draw is seeded: the
    global generators of `random`, numpy and torch begin at `seed`, and are put back afterwards. Tasks that were drawn
    when the taskset was made, or by a generator of its own, are the caller's to seed; --resume refuses other data.

    Args:
        taskset: taskset.sample() gives (images, labels).
        shape: The first `shots` images of each class are the support set, the next `queries` the query set.
        clients: N, all of which are kept in memory.
        seed: Of the draw.

    Raises:
        InputError: A task has fewer images of a class.
    """
    numbers = [int(number) for number in np.random.SeedSequence(seed).generate_state(3)]
    with global_generators_at(python=numbers[0], numpy=numbers[1], torch=numbers[2]):
        kept = [_divided(taskset.sample(), shape) for _ in range(clients)]
    return SequencePopulation(pairs=kept, shape=shape)


def _divided(task: Part, shape: EpisodeShape) -> tuple[Part, Part]:
    images, labels = _part(task)
    support: list[Tensor] = []
    query: list[Tensor] = []
    for value in torch.unique(labels):
        rows = torch.nonzero(labels == value).flatten()
        if len(rows) < shape.shots + shape.queries:
            raise InputError(
                f"a task of the taskset has {len(rows)} images of a class; {shape.shots} shots and {shape.queries} "
                f"queries need {shape.shots + shape.queries}"
            )
        support.append(rows[: shape.shots])
        query.append(rows[shape.shots : shape.shots + shape.queries])
    first, second = torch.cat(support), torch.cat(query)
    return (images[first], labels[first]), (images[second], labels[second])


def _gathered(part: Any, order: Iterable[int] | None = None) -> Part:
    """A data set of (image, label), as torchmeta makes them."""
    rows = [part[number] for number in (range(len(part)) if order is None else order)]
    # Labels are numbers, or (class, rotation) unless a target transform made them numbers.
    values = sorted({_label(label) for _, label in rows})
    labels = [values.index(_label(label)) for _, label in rows]
    return torch.stack([_images(image) for image, _ in rows]), torch.tensor(labels)


def _label(label: Any) -> tuple[int, ...]:
    parts = label if isinstance(label, tuple) else (label,)
    return tuple(int(checked_labels([part or 0])[0]) for part in parts)


def _part(part: Part) -> tuple[Tensor, Tensor]:
    images, labels = part
    check_same_rows(images, labels)
    return checked_images(images), checked_labels(labels)


def checked_labels(labels: Any) -> Tensor:
    """int64 [n]; a fraction cut off, or a mark for "no label", would be a class that is none.

    Raises:
        InputError: They are text, NaN, fractions or negative.
    """
    check_plain(labels, "labels", named=True)
    try:
        given = plain_tensor(labels).flatten()
    except (TypeError, ValueError, RuntimeError):
        kind = "text" if np.asarray(labels).dtype.kind in "US" else "not numbers"
        raise InputError(f"cannot be read (labels are {kind}); number the classes: 0, 1, ...") from None
    if given.is_complex() or (given.is_floating_point() and not bool(torch.isfinite(given).all())):
        raise InputError("labels hold NaN or infinity; leave out records without a label")
    # From here on a float tells whole numbers no longer apart.
    if given.is_floating_point() and bool((given.abs() >= 2.0 / torch.finfo(given.dtype).eps).any()):
        raise InputError(f"labels are so large that {given.dtype} makes one of several; give int64, or 0, 1, ...")
    whole = given.long()
    if bool((whole != given).any()):
        first = float(given[whole != given][0])
        raise InputError(f"labels are not whole numbers (first: {first:g}); number the classes: 0, 1, ...")
    if bool((whole < 0).any()):
        first = int(whole[whole < 0][0])
        raise InputError(f"labels are negative (first: {first}); number the classes from 0, drop those without a label")
    return whole


def checked_images(images: Any) -> Tensor:
    """float32; bytes of images become numbers in [0, 1], and images must be such numbers, or bytes.

    A record of another range, or of numbers as large as tables may not have either, becomes a null record: all NaN.

    Raises:
        InputError: They are no real numbers, or have names that a plain array would lose.

    Guarantee:
        Whether a record is a null one follows from it alone, and so does what becomes of it.
    """
    given = raw_records(images)
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"images or vectors of {given.dtype}; expected bytes (uint8) or floats")
    found = _images(images)
    beyond = _beyond(found)
    return found.masked_fill(beyond.view(-1, *[1] * (found.dim() - 1)), math.nan) if bool(beyond.any()) else found


def standardised_images(images: Tensor, constants: Constants) -> Tensor:
    """Images of numbers in [0, 1], standardised by public constants of each channel; vectors as they are."""
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in constants)
    if images.dim() != _IMAGE_AXES:
        return images
    centred = images - mean if len(mean) else images
    return centred / deviation if len(deviation) else centred


def unlike_words(records: Tensor, columns: tuple[str, ...] = ()) -> str | None:
    """Words for vectors of which some numbers would drown others, by the names of columns; None: images, or alike."""
    if records.dim() != _VECTOR_AXES:
        return None
    numbers = records.detach().cpu().numpy()
    # Of the further ones that say where a number is missing none is large.
    names = [*columns, *names_of((), numbers.shape[1])[len(columns) :]]
    found = unlike_columns(names, numbers, (), ())
    if not found or bool((numbers == np.round(numbers)).all()):  # ids of tokens
        return None
    return f"{found[0]} (it takes part); dpfedmeta.standardised(TASK, records) makes such of the table's"


def check_some_usable(*parts: Any) -> None:
    """Refuse records of which all are beyond the range, so that their owner hears of it.

    Nothing hangs on it: data that are refused are null records, and so would these be.

    Raises:
        InputError: All are; in the words of the first part.
    """
    found = [_images(part) for part in parts]
    if all(bool(_beyond(part).all()) for part in found) and any(len(part) for part in found):
        raise InputError(_beyond_words(found[0]))


def _beyond(found: Tensor) -> Tensor:
    """[n], which records hold numbers beyond the range."""
    numbers = found.flatten(1) if found.dim() > 1 else found.view(-1, 1)
    if found.dim() == _IMAGE_AXES:
        return ((numbers < -_ROUNDING) | (numbers > 1.0 + _ROUNDING)).any(1)
    # Ids of tokens may be as large: whole numbers from 0 on, all of them.
    ids = ((numbers >= 0) & (numbers == numbers.round())).all(1)
    return (numbers.isfinite() & (numbers.abs() > LARGEST)).any(1) & ~ids


def _beyond_words(found: Tensor) -> str:
    """Words for records, of which some are beyond the range."""
    odd = found[_beyond(found)]
    odd = odd[odd.isfinite()]
    if not len(odd):
        return "images hold infinity"
    if found.dim() == _IMAGE_AXES:
        return (
            f"images hold {float(odd.min()):g} to {float(odd.max()):g}; expected bytes (uint8), or numbers from 0 to 1"
        )
    return (
        f"vectors hold numbers up to {float(odd.abs().max()):.3g}, more than {LARGEST:,.0f}, which would drown all "
        "others; scale them by public constants"
    )


def unusable_words(kind: str, *parts: Any) -> str:
    """Words for records of which some count as nothing.

    Args:
        kind: Of the records, in the plural.
        parts: Arrays or tensors of them.
    """
    read = [_images(part) for part in parts]
    if not all(bool(torch.isfinite(part).all()) for part in read):
        return f"{kind} hold NaN or infinity"
    odd = next(part for part in read if bool(_beyond(part).any()))
    return f"{int(_beyond(odd).sum())} of {len(odd)} {_beyond_words(odd)}"


def _records_of(images: Tensor) -> set[bytes]:
    return {record.tobytes() for record in np.ascontiguousarray(images.detach().cpu().numpy())}


def _values(pair: Any) -> list[Tensor] | None:
    """Images and labels of both parts as they are; None where they cannot be read, so that no episode can be either."""
    try:
        support, query = pair
        return [
            value for images, labels in (support, query) for value in (raw_records(images), torch.as_tensor(labels))
        ]
    except Exception:
        return None


def _times(form: tuple[int, ...]) -> str:
    return " x ".join(map(str, form)) or "nothing"


def raw_records(images: Any) -> Tensor:
    """Arrays, lists of arrays or tensors as one tensor, of the type that they have; a record with a mask is all NaN.

    Raises:
        InputError: They would lose names.
    """
    if isinstance(images, Tensor):
        return images
    masked = np.ma.asarray(images) if _is_masked(images) else None
    if masked is None:
        check_plain(images, "records")
        return plain_tensor(np.asarray(images))
    plain = _images(np.asarray(masked.data))
    hidden = torch.from_numpy(np.ma.getmaskarray(masked).reshape(len(plain), -1).any(1))
    return plain.masked_fill(hidden.view(-1, *[1] * (plain.dim() - 1)), math.nan)


def _is_masked(values: Any) -> bool:
    """Return whether anything is masked, in an array or in one of a list."""
    parts = values if isinstance(values, list | tuple) else [values]
    return any(isinstance(part, np.ma.MaskedArray) and bool(np.ma.is_masked(part)) for part in parts)


def _images(images: Any) -> Tensor:
    """float32; bytes of images become numbers in [0, 1], while vectors and ids of tokens stay as they are."""
    if isinstance(images, list | tuple) and images and all(np.ndim(each) == _IMAGE_AXES - 1 for each in images):
        # One by one: of records of several types a common one would be another scale for all.
        return torch.cat([_images(each[None]) for each in images])
    found = raw_records(images)
    pixels = found.dtype == torch.uint8 and found.dim() == _IMAGE_AXES
    return found.float() / 255.0 if pixels else found.float()
