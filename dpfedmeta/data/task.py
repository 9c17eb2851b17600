"""Task files: what is learned, as data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dpfedmeta.data.encoders.encoding import Encoding
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.missing import MissingValues
from dpfedmeta.data.sources import Source
from dpfedmeta.data.storage.decoded_cache import Split


@dataclass(frozen=True, kw_only=True)
class OwnSource(Source):
    """Data of the user's own: folders of images, or a file that the reader knows (data.user_sources)."""

    reader: Literal["folder", "manifest", "vectors", "tokens"]
    path: str

    @property
    def name(self) -> str:
        """Reader and place: the same by whatever path."""
        return f"{self.reader} {Path(self.path).resolve()}"


_Mean = Annotated[float, Field(allow_inf_nan=False)]
_Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Size = Annotated[int, Field(ge=1, le=1_000_000)]


def holds_rows(kind: str, task: "Task") -> bool:
    """Return whether clients hold rows of their own, which may come and go, rather than slots of a simulation.

    Args:
        kind: population.kind; `real` in a federation, where a client's data are its own whatever the server's are.
        task: The data.
    """
    return kind == "real" or (kind == "natural" and isinstance(task.source, OwnSource))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Content of a task file: data source, form of the records, classes and preprocessing.

    Attributes:
        name: Name of the benchmark.
        source: Source of the records.
        split: A CSV file with the columns class,split beside the task file; for made images, the number of classes per
            split; for a folder, None: the folders train, val and test, or a hash of the name, decide.
        image_size: Height and width of images.
        channels: Channels of images, 1 or 3.
        features: Length of a vector: columns of a table.
        length: Tokens of a sequence; shorter sequences are padded.
        vocabulary: Number of token ids, including 0 for padding; a public constant.
        images_per_class: Images of every class; None: as many as there are.
        train_rotations: 4 turns every rotation of a training class by 90 degrees into a class of its own.
        train_flip: Whether training images are mirrored at random.
        mean: Mean that is subtracted, per channel (pixels in [0, 1]) or per number of a vector (one value: for all). A
            public constant that does not depend on the images.
        deviation: Standard deviation that is divided by, given like `mean`.
        pixel_range: Values of black and white for the user's own image files with more than 8 bits per pixel, such as
            [-1000, 1000] for CT; values beyond are clamped. A public constant. None: the range of the type.
        missing: Values of a vector's columns that say that nothing was measured, and what becomes of them.
        shared_classes: Number of classes that all splits and clients share: one classifier is learned from clients of
            two shards. None: few-shot, every split has classes of its own.
        kind: Kind of what is predicted (learning.targets): classification, or regression.
        labels: Public list of labels that all clients share, so that the head is learned with the body; empty (or
            own): every client numbers classes of its own.
        targets: Public constants of numbers to predict, with kind: regression.
        encoding: Public encoder whose features take the place of the images, from the settings of a run; no task file
            says it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    name: str
    source: Source
    split: str | dict[Split, Annotated[int, Field(ge=1)]] | None = None
    image_size: Annotated[int, Field(ge=8, le=512)] | None = None
    channels: Literal[1, 3] | None = None
    features: _Size | None = None
    length: _Size | None = None
    # float32 counts every whole number up to here.
    vocabulary: Annotated[int, Field(ge=3, le=2**24)] | None = None
    images_per_class: Annotated[int, Field(ge=2)] | None = None
    train_rotations: Literal[1, 4] = 1
    train_flip: bool = False
    mean: tuple[_Mean, ...] = ()
    deviation: tuple[_Deviation, ...] = ()
    pixel_range: tuple[_Mean, _Mean] | None = None
    missing: MissingValues | None = None
    shared_classes: Annotated[int, Field(ge=2)] | None = None
    kind: str = "classification"
    labels: tuple[str, ...] = ()
    targets: TargetRange | None = None
    encoding: Encoding | None = None

    @property
    def published(self) -> bool:
        """True of a built-in benchmark, whose records may be counted; a reader of one's own may read anybody's."""
        return not isinstance(self.source, OwnSource) and ":" not in self.source.reader

    @property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, deviation) by which records are standardised; those of images do not apply to their features.

        Columns that say where a value is missing stay 0 and 1.
        """
        if self.encoding is not None:
            return (), ()
        if self.missing is None or self.features is None:
            return self.mean, self.deviation
        width, added = self.features, self.missing.added(self.features)

        def widened(given: tuple[float, ...], usual: float) -> tuple[float, ...]:
            return given and ((*given * width,) if len(given) == 1 else given) + (usual,) * added

        return widened(self.mean, 0.0), widened(self.deviation, 1.0)

    @property
    def form(self) -> RecordForm:
        """Form of every record, as clients compute with it."""
        if self.encoding is not None:
            return RecordForm(shape=(self.encoding.card.features,))
        if self.features is not None:
            width, missing, numbers = self.features, self.missing, self.targets is not None
            if missing is None:
                return RecordForm(shape=(width,), targets=numbers)
            own = missing.in_raw(width, self.mean, self.deviation)
            return RecordForm(shape=(width + missing.added(width),), targets=numbers, missing=own)
        if self.length is not None:
            return RecordForm(shape=(self.length,), vocabulary=self.vocabulary)
        assert self.channels is not None  # the task file was checked
        assert self.image_size is not None
        return RecordForm(shape=(self.channels, self.image_size, self.image_size))
