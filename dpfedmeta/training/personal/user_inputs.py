"""Images, vectors, token sequences and labels as users hand them in, checked."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import check_plain, plain_array, plain_tensor
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.columns import by_name, has_names, in_public_order, numbers_of, other_units
from dpfedmeta.data.episodes.episode import are_tokens
from dpfedmeta.data.episodes.shape import Kind, RecordForm
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.missing import MissingValues, far_from_others, names_of
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.csv_table import read_columns
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.regression import Regression

if TYPE_CHECKING:
    from torch import Tensor

Images: TypeAlias = (
    "Tensor | npt.NDArray[np.uint8] | npt.NDArray[np.floating] | Mapping[str, Any] | str | os.PathLike[str] | Any"
)
Labels: TypeAlias = (
    "Tensor | npt.NDArray[np.integer] | npt.NDArray[np.floating] | Sequence[int] | Sequence[float] | Sequence[str]"
)

FORMAT = "dpfedmeta personal model 1"
"""Of the file of a personal model, also of one that needs no PyTorch (`solved_model`)."""
DESCRIBED = "dpfedmeta"
"""Key of a file's metadata, under which it is described in JSON."""

# Standardised pixels lie within a few units of 0; larger ones are bytes that somebody turned into floats.
_LARGEST = 50.0


@dataclass(frozen=True, kw_only=True)
class InputForm:
    """Form of the records that a network takes, with their standardisation.

    Attributes:
        channels: 1 or 3; for vectors and sequences, their length.
        size: Height and width; for vectors and sequences, 1.
        mean: Mean that is subtracted, per channel (pixels in [0, 1], given as bytes) or number of a vector; empty: 0.
        deviation: Standard deviation that is then divided by, per channel or number; empty: 1.
        records: Kind of the records.
        vocabulary: Tokens are whole numbers below this; None if records are not tokens.
        columns: Names of a vector's numbers in their order, by which tables are read; empty: they have none.
        missing: As of a record's form: values that say that nothing was measured; None: there are none.
    """

    channels: int
    size: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    records: Kind = "images"
    vocabulary: int | None = None
    columns: tuple[str, ...] = ()
    missing: MissingValues | None = None

    @classmethod
    def of(
        cls,
        form: RecordForm,
        mean: tuple[float, ...],
        deviation: tuple[float, ...],
        columns: tuple[str, ...] = (),
    ) -> InputForm:
        """The form of a task's records."""
        size = form.shape[1] if form.kind == "images" else 1
        return cls(
            channels=form.shape[0],
            size=size,
            mean=mean,
            deviation=deviation,
            records=form.kind,
            vocabulary=form.vocabulary,
            columns=columns,
            missing=form.missing,
        )

    @property
    def form(self) -> RecordForm:
        """The form of one record."""
        shape = (self.channels, self.size, self.size) if self.records == "images" else (self.channels,)
        return RecordForm(shape=shape, vocabulary=self.vocabulary)

    def tensor(self, images: Images, *, ask: bool = True) -> Tensor:
        """Records as the network takes them, float32 [n, channels, size, size] or [n, numbers].

        Args:
            images: Bytes (uint8), which are standardised here, or floats that are standardised already. Vectors as in
                the file that they were trained on: they are standardised here; also by the names of their columns, as
                `named` takes them. Sequences of tokens, padded with 0.
            ask: Whether vectors in another unit are asked about.

        Raises:
            InputError: Another shape or type, no image at all, or values that are neither.
        """
        import torch

        if self.records != "images":
            return torch.from_numpy(self.vectors(images, ask=ask))
        given = _tensor(images, "images")
        wanted = (self.channels, self.size, self.size)
        if given.ndim != 4 or tuple(given.shape[1:]) != wanted or not len(given):
            expected = ", ".join(map(str, wanted))
            raise InputError(f"images: expected the shape [n, {expected}] with n >= 1, got {list(given.shape)}")
        if given.dtype == torch.uint8:
            return self._standardised(given)
        if not given.is_floating_point():
            raise InputError(f"images: expected uint8, or standardised floats, got {given.dtype}")
        if not bool(torch.isfinite(given).all()):
            raise InputError("images: hold values that are not finite")
        if self.mean and float(given.min()) >= 0.0 and float(given.max()) <= 1.0:
            raise InputError("images: floats from 0 to 1 are not standardised; give pixels as uint8")
        if float(given.abs().max()) > _LARGEST:
            raise InputError(
                f"images: floats up to {float(given.abs().max()):.0f} are not standardised; give pixels as uint8"
            )
        return given.float()

    def vectors(self, given: Images, *, ask: bool = True) -> npt.NDArray[np.float32]:
        """Records that are no images, float32 [n, numbers]; as of `tensor`, and of arrays without PyTorch.

        Raises:
            InputError: As of `tensor`.
        """
        where = f"{given}: " if isinstance(given, str | os.PathLike) else ""
        named = bool(where) or has_names(given)
        given, length = self.named(given) if named else given, self.channels if named else self.width
        values = _array(given, self.records)
        if values.ndim != 2 or values.shape[1] != length or not len(values):
            twice = values.ndim == 2 and values.shape[1] == self.channels
            raw = "; they are standardised here: give the numbers as in the file" if twice else ""
            raise InputError(f"{self.records}: expected [n, {length}] with n >= 1, got {list(values.shape)}{raw}")
        if values.dtype.kind == "c":
            raise InputError(f"{self.records}: expected numbers, got {values.dtype}")
        # Standardised before digits are rounded off.
        values = values.astype(np.float64)
        if self.missing is not None and not named:
            names = names_of(self.columns, length)
            values = self.missing.filled(values, self.missing.absent(values, names), names)
        if len(odd := np.argwhere(~np.isfinite(_single(values))).tolist()):
            names = names_of(self.columns, self.width)
            said = [f"record {row + 1}, column {names[column]}: {values[row, column]:g}" for row, column in odd]
            raise InputError(f"{self.records}: {len(odd)} value(s) are missing, infinite or too large: {listed(said)}")
        if self.vocabulary is not None:
            if not are_tokens(values, self.vocabulary):
                raise InputError(
                    f"tokens: expected whole numbers from 1 to {self.vocabulary - 1}, padded with 0, at least one "
                    "token in each sequence"
                )
            return _single(values)
        if ask:
            self.ask(values, where)
            self._ask_marks(values, where)
        values = values - np.array(self.mean) if self.mean else values
        return _single(values / np.array(self.deviation) if self.deviation else values)

    def ask(self, values: npt.NDArray[np.float64], where: str = "") -> None:
        """SECRET: warn the owner of records [n, numbers] of columns that look as if they held another unit."""
        for line in other_units(self.columns, values, self.mean, self.deviation):
            warnings.warn(f"{where}{line}", stacklevel=3)

    def _ask_marks(self, values: npt.NDArray[np.float64], where: str) -> None:
        """SECRET: warn the owner of numbers that look like marks for what is missing."""
        names = names_of(self.columns, self.width)
        given = values[:, : len(names)]
        if self.missing is not None:
            given = np.where(given == np.array(self.missing.replaced_by)[: len(names)], np.nan, given)
        for line in far_from_others(names, given):
            warnings.warn(f"{where}{line}", stacklevel=4)

    @property
    def width(self) -> int:
        """How many numbers a vector has, before there are further ones that say where one is missing."""
        return self.channels if self.missing is None else len(self.missing.replaced_by)

    def named(self, given: Any) -> npt.NDArray[np.float64]:
        """[n, numbers], in the order of the model's columns, of what has names; what is missing is replaced.

        Args:
            given: A CSV file with a first line of names, a table (pandas, polars), or a mapping from each name to a
                number or to [n] numbers, or a list of such of single records. Our own columns (class, client, split,
                target) are left out.

        Raises:
            InputError: The model knows no names, others are there or some are missing, or a value is no number.
        """
        if not self.columns:
            raise InputError(
                f"{self.records}: the model knows no names of columns, since its run had none or its table is gone; "
                f"hand over an array [n, {self.width}]"
            )
        where, held = columns_of(given)
        own = in_public_order(where, held, self.columns, "the model's")
        if self.missing is None:
            return numbers_of(where, self.columns, own)
        texts: list[Any] = [np.ma.array(values, dtype=object, copy=True).reshape(-1) for values in own]
        absent = self.missing.absent(list(zip(*texts, strict=True)), self.columns)
        for place, text in enumerate(texts):
            text[absent[:, place]] = 0.0
        return self.missing.filled(numbers_of(where, self.columns, texts), absent, self.columns)

    def _standardised(self, images: Tensor) -> Tensor:
        import torch

        pixels = images.float() / 255.0
        if self.mean:
            pixels = pixels - torch.tensor(self.mean).view(-1, 1, 1)
        return pixels / torch.tensor(self.deviation).view(-1, 1, 1) if self.deviation else pixels


def standardised(dataset: str, records: Images, data_folder: str | os.PathLike[str] | None = None) -> npt.NDArray[Any]:
    """Vectors of clients of your own, as a run over a data set would have them.

    What a task file says is done to them: columns are found by their names, missing values are replaced, numbers are
    standardised by public constants. `from_pairs` and mappings of clients take vectors as they are: hand them these.

    Args:
        dataset: As --dataset.
        records: As `PersonalModel.predict` takes them: an array [n, numbers], a table, a mapping, or a CSV file.
        data_folder: As --data-dir.

    Returns:
        float32 [n, numbers], with a further number for each column that says where a value is missing.

    Raises:
        InputError: There is no such data set, or the records do not fit it.

    Example:
        >>> import dpfedmeta as dp
        >>> dp.standardised("sinusoids", [[2.5], [-5.0]]).shape
        (2, 1)
    """
    task, _ = load_task(dataset, None if data_folder is None else Path(data_folder))
    source = task.source
    columns = columns_in(source.reader, Path(source.path)) if isinstance(source, OwnSource) else ()
    return InputForm.of(task.form, *task.constants, columns=columns).vectors(records)


def columns_of(given: Any) -> tuple[str, Mapping[str, Any]]:
    """(What it is, each column by its name), of a table on disk or of what a program holds."""
    if isinstance(given, str | os.PathLike):
        return str(given), read_columns(Path(given))
    return "records", by_name(given)


def checked_labels(
    labels: Labels, images: int, trained_ways: int, ways: int | None, *, shared: bool = False
) -> tuple[npt.NDArray[np.int64], int]:
    """Labels [n] and the number of classes.

    Args:
        labels: A whole number for each image.
        images: How many images there are.
        trained_ways: Classes that the network was trained with.
        ways: Classes that the user wants; None: those that the labels have.
        shared: Whether labels are places in the public list of the training, of which some may have no image.

    Raises:
        InputError: Labels are no whole numbers, or too many or too few, or outside of 0 ... classes - 1, or a class
            has no image.
    """
    if isinstance(labels, Iterable) and _has_names(labels):
        raise InputError(
            "labels: are names, expected numbers; convert them with `names = sorted(set(labels)); labels = "
            "[names.index(label) for label in labels]`, and give the names as class_names=names"
        )
    given = _array(labels, "labels")
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise InputError(f"labels: expected whole numbers [n], got {given.dtype} of shape {list(given.shape)}")
    given = given.astype(np.int64)
    if len(given) != images:
        raise InputError(f"labels: got {len(given)} labels for {images} records")
    if ways is not None and (not isinstance(ways, Integral) or ways < 2):
        raise InputError(f"ways = {ways}: at least 2 classes are needed, a whole number of them")
    if shared and ways not in (None, trained_ways):
        raise InputError(
            f"ways = {ways}: the network was trained with a public list of {trained_ways} labels; leave it out"
        )
    limit = ways or trained_ways
    wrong = [label for label in given.tolist() if not 0 <= label < limit]
    if wrong:
        reason = "as many as were asked for" if ways else "as many as in training; ask for more with ways="
        raise InputError(f"labels: {wrong[0]} is unknown; labels are 0 ... {limit - 1}, {reason}")
    if shared:
        return given, trained_ways
    classes = ways or max(2, int(given.max()) + 1)
    held = {*given.tolist()}
    if len(held) < classes:
        absent = next(label for label in range(classes) if label not in held)
        raise InputError(f"labels: class {absent} has no record; every class of 0 ... {classes - 1} needs one")
    return given, classes


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """Labels, or numbers to predict, that a client hands in with its records.

    Attributes:
        labels: As handed in.
        records: How many records there are.
        ways: Classes that were asked for; None: those that the labels have.
        names: Of classes; empty: none were given.
    """

    labels: Labels
    records: int
    ways: int | None
    names: tuple[str, ...]

    def known(
        self, targets: TargetKind, trained_ways: int, listed_labels: tuple[str, ...]
    ) -> tuple[npt.NDArray[Any], int, tuple[str, ...]]:
        """(Labels, or numbers in scales; number of classes; their names), as a model takes them.

        Args:
            targets: Kind of the model's.
            trained_ways: Classes that it was trained with.
            listed_labels: Its public list; empty: there is none.

        Raises:
            InputError: They do not fit.
        """
        if isinstance(targets, Regression):
            if self.names or self.ways is not None:
                raise InputError("class_names, ways: the network predicts numbers; leave them out")
            return checked_numbers(self.labels, self.records, targets.range), 1, ()
        shared = not targets.masked
        labels = places_of(self.labels, listed_labels) if shared and listed_labels else self.labels
        wanted = _wanted_ways(self.ways, self.names)
        found, classes = checked_labels(labels, self.records, trained_ways, wanted, shared=shared)
        return found, classes, self.names or (listed_labels if shared else ())


def checked_names(class_names: Iterable[object]) -> tuple[str, ...]:
    """As they are kept in a file: text, each once."""
    names = tuple(class_names)
    odd = next((name for name in names if not isinstance(name, str)), None)
    if odd is not None:
        raise InputError(f"class_names: {odd!r} is no text; give class_names=[str(name) for name in names]")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"class_names: {twice} stands there twice; give each class a name of its own")
    return tuple(str(name) for name in names)


def _wanted_ways(ways: int | None, class_names: Sequence[str]) -> int | None:
    if class_names and ways not in (None, len(class_names)):
        raise InputError(f"ways = {ways}, but there are {len(class_names)} class_names")
    return len(class_names) if class_names else ways


def places_of(labels: Any, listed_labels: tuple[str, ...]) -> Any:
    """Places of names in the public list; labels that are no names stay as they are.

    Raises:
        InputError: A name is not in it.
    """
    if not isinstance(labels, Iterable) or not _has_names(labels):
        return labels
    names = [str(label) for label in labels]
    odd = next((name for name in names if name not in listed_labels), None)
    if odd is not None:
        raise InputError(f"labels: {odd!r} is not in the public list ({', '.join(listed_labels)})")
    return [listed_labels.index(name) for name in names]


def checked_numbers(labels: Any, records: int, known: TargetRange) -> npt.NDArray[np.float32]:
    """Numbers to predict [n], scaled as the network sees them.

    Raises:
        InputError: They are none, or too many or too few, or outside the public range.
    """
    given = _array(labels, "labels")
    if given.ndim != 1 or given.dtype.kind == "c" or len(given) != records:
        raise InputError(f"labels: expected {records} numbers [n], got {given.dtype} of shape {list(given.shape)}")
    numbers = given.astype(np.float64)
    if outside := known.outside(numbers.tolist()):
        raise InputError(f"labels: {float(numbers[outside[0]]):g} is outside the public range ({known.words})")
    return _single((numbers - known.centre) / known.scale)


def _has_names(labels: Iterable[object]) -> bool:
    if hasattr(labels, "detach"):  # a tensor holds numbers
        return False
    try:
        return any(isinstance(label, str) for label in labels)
    except TypeError:  # an array without dimensions
        return False


def _tensor(values: Images | Labels, name: str) -> Tensor:
    check_plain(values, name, named=name == "labels")
    try:
        return plain_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: is not an array of numbers ({error})") from error


def _array(values: Images | Labels, name: str) -> npt.NDArray[Any]:
    """The same without PyTorch, unless they are a tensor."""
    check_plain(values, name, named=name == "labels")
    try:
        found = plain_array(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: is not an array of numbers ({error})") from error
    if found.dtype.kind not in "biufc":
        raise InputError(f"{name}: is not an array of numbers (of type {found.dtype})")
    return found


def _single(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """In float32; what is too large is infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
