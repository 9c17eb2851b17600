"""Specification of a network."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Literal

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import Kind, RecordForm

if TYPE_CHECKING:
    from dpfedmeta.data.encoders.encoding import EncoderFacts

Norm = Literal["group", "batch", "none"]
Precision = Literal["float32", "tf32", "bfloat16"]
"""What operands and result of a convolution are rounded to; its sums, and all else, are float32."""
# With fewer input channels, as images have, bfloat16 is no faster.
LEAST_SHORT_CHANNELS = 4


# How the names of a network's weights begin, of those that have a body and a head.
BODY = "body."
HEAD = "head."
# The built-in ones (models.registry); here, so that a name can be checked without PyTorch.
NETWORKS = (
    *("affine", "conv3-blur", "conv4", "conv4-strided", "gaussian", "identity", "linear", "low-rank", "metric", "mlp"),
    "text",
)
# Bodies that learned from the procedural images of the task of that name, nobody's data (models/initial_bodies).
BUILT_IN = ("textures", "strokes")


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """Everything that determines a network; picklable, so that workers build their own.

    Vectors and sequences of tokens are `channels` long, and their image_size is 1.
    """

    name: str
    channels: int
    image_size: int
    downscale: int | None = None
    ways: int
    width: int
    norm: Norm
    groups: int | None = 4
    activation: Literal["relu", "tanh"] = "relu"
    features: Literal["raw", "record", "support"] = "raw"
    feature_scale: float = 1.0
    learn: Literal["all", "body", "scales"] = "all"
    initial: str | None = None
    first_gain: float = 1.0
    precision: Precision = "float32"
    records: Kind = "images"
    vocabulary: int | None = None

    @property
    def form(self) -> RecordForm:
        """Form of every record."""
        if self.records != "images":
            return RecordForm(shape=(self.channels,), vocabulary=self.vocabulary)
        return RecordForm(shape=(self.channels, self.image_size, self.image_size))


def built_in_body(spec: NetworkSpec) -> Traversable:
    """File of the built-in body that `spec.initial` names.

    Raises:
        InputError: There is none of such a network.
    """
    folder = resources.files("dpfedmeta.learning.models") / "initial_bodies"
    file = folder / f"{spec.initial}-{spec.name}-{spec.width}-{spec.norm}.safetensors"
    if not file.is_file():
        known = ", ".join(sorted(file.name for file in folder.iterdir()))
        raise InputError(
            f"model.initial = {spec.initial}: there are no such weights for {spec.name} with model.width = "
            f"{spec.width} and model.norm = {spec.norm}, only {known}; use --model.initial null (random), or train "
            f"with --algo maml --dataset {spec.initial} and give the directory of that run"
        )
    return file


def beginning_words(initial: str | None, encoder: EncoderFacts | None) -> str | None:
    """Note on the encoder and the initial weights; None where all begins at random."""
    said = [] if encoder is None else [encoder.words]
    if initial is not None:
        known = "generated images, not personal data" if initial in BUILT_IN else "taken as public"
        said.append(f"begins with the body of {initial} ({known})")
    return "; ".join([*said, "no guarantee covers the data it was learned from"]) if said else None
