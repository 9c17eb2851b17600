"""Public, frozen encoders: what a run says of one, and the interface of a member of this folder. Needs no PyTorch."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.core.plugins.plugin_names import names
from dpfedmeta.core.plugins.plugin_registry import find
from dpfedmeta.core.plugins.user_code import own_object, own_sources, raised
from dpfedmeta.core.pydantic_errors import shown

if TYPE_CHECKING:
    from torch import nn

FOLDER = "dpfedmeta.data.encoders"
# Part of every encoder's digest: raise it when images reach the network in another way.
_FORMAT = 2
# Runs quote what a card says, and nobody proves it.
CARD_WORDS = r"(?!(?i:.*(epsilon|guarantee|promise)))[^<>\n]{0,200}"


@dataclass(frozen=True, kw_only=True)
class EncoderCard:
    """Public facts about an encoder.

    Attributes:
        licence: Licence of the weights.
        trained_on: Data that the encoder learned from, in words.
        same_images: Tasks whose own images it learned from: their test classes are not new to it.
        same_classes: Tasks with classes that it learned from other images.
        features: Length d of a feature vector.
        mean: Per channel, subtracted from pixels in [0, 1].
        deviation: Per channel, divided by afterwards.
        digest: SHA-256 of the weights and of what else decides over the features.
    """

    licence: str
    trained_on: str
    same_images: tuple[str, ...] = ()
    same_classes: tuple[str, ...] = ()
    features: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    digest: str

    def __post_init__(self) -> None:
        for name in ("licence", "trained_on"):
            if not re.fullmatch(CARD_WORDS, str(getattr(self, name))):
                raise InputError(
                    f"the card of an encoder: {name} = {getattr(self, name)!r}: expected the name of a licence or of "
                    "data in at most 200 characters, without < and >, and without a claim of privacy"
                )


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Facts that the sentence about an encoder is made of.

    Attributes:
        name: Of the encoder.
        size: Height and width of the images that it sees.
        licence: Licence of its weights.
        trained_on: Data that it learned from, in words.
        task: Name of the task that it encodes.
        overlap: "images" or "classes" of the task that it learned from; "" for neither.
    """

    name: str
    size: int
    licence: str
    trained_on: str
    task: str
    overlap: str

    @property
    def words(self) -> str:
        """The encoder in one line."""
        said = f"encoder {self.name} at {self.size} pixels ({self.licence}; trained on {self.trained_on})"
        if self.overlap == "images":
            return f"{said}; it learned from images of {self.task} itself, test classes among them (overlap accepted)"
        if self.overlap == "classes":
            return f"{said}; many test classes of {self.task} are classes that it learned from other images"
        return said


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Encoder of a task's images, with the size at which it sees them.

    Attributes:
        name: lite0, timm:NAME, or package.module:factory.
        weights: File of weights; None: those that the encoder's package brings.
        size: Height and width of the images that the encoder sees.
        card: Public facts.
    """

    name: str
    weights: str | None = None
    size: int
    card: EncoderCard

    @property
    def digest(self) -> str:
        """Digest of everything that decides over the features of an image."""
        text = f"{_FORMAT} {self.name} {self.size} {self.card.mean} {self.card.deviation} {self.card.digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def facts(self, task: str) -> EncoderFacts:
        """What a run says of the encoder, with the overlap of its training data and a task."""
        overlap = "images" if task in self.card.same_images else "classes" if task in self.card.same_classes else ""
        return EncoderFacts(
            name=self.name,
            size=self.size,
            licence=self.card.licence,
            trained_on=self.card.trained_on,
            task=task,
            overlap=overlap,
        )


class Encoder(Protocol):
    """Member of this folder."""

    def card(self, name: str, weights: str | None, /) -> EncoderCard:
        """Return the facts of the encoder.

        Args:
            name: What the settings say behind the member's name ("timm:NAME"), or "".
            weights: File of weights, or None.

        Raises:
            InputError: Its package or its weights are missing, or do not fit.
        """
        ...

    def network(self, name: str, weights: str | None, /) -> nn.Module:
        """Build the network: standardised images [n, 3, size, size] to features [n, d]."""
        ...


def encoding_of(name: str, weights: str | None, size: int) -> Encoding:
    """Find an encoder by the name in the settings.

    Args:
        name: lite0, timm:NAME, or package.module:factory.
        weights: File of weights; None: those that the encoder's package brings.
        size: Height and width of the images that it sees.

    Raises:
        InputError: There is no such encoder, its package is not installed, or its weights do not fit.
    """
    member, rest = _member(name)
    return Encoding(name=name, weights=weights, size=size, card=member.card(rest, weights))


def encoder_network(encoding: Encoding) -> nn.Module:
    """Build the frozen network of an encoder, in evaluation mode.

    Raises:
        InputError: It cannot be built, or its weights are no longer those of the card.
    """
    member, rest = _member(encoding.name)
    if member.card(rest, encoding.weights).digest != encoding.card.digest:
        raise InputError(f"model.encoder = {encoding.name}: its weights changed since the run was planned")
    return member.network(rest, encoding.weights).eval().requires_grad_(False)


def check_overlap(encoding: Encoding, task: str, *, accepted: bool) -> None:
    """Refuse an encoder that learned from the images of a task: its test classes would not be new.

    Raises:
        RefusedPlan: It did, and nobody accepted it.
    """
    if task in encoding.card.same_images and not accepted:
        raise RefusedPlan(
            f"model.encoder = {encoding.name}: it was trained on {encoding.card.trained_on}, which the images of "
            f"{task} are part of, so accuracy on its test classes would say nothing; use another data set, or "
            "--model.encoder_overlap accept, which every output then says"
        )


def weights_digest(setting: str, path: Path) -> str:
    """SHA-256 of a file of weights.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return digest_of(path)
    except OSError as error:
        raise InputError(f"{setting} = {path}: cannot be read ({error.strerror})") from error


@dataclass(frozen=True)
class _Own:
    """Encoder of the user's own: a factory `(*, weights) -> Module` that states `features`, perhaps more of a card."""

    name: str
    factory: Any

    def card(self, rest: str, weights: str | None, /) -> EncoderCard:
        """Facts that the factory states as attributes; only `features` has to be there."""
        if not callable(self.factory):
            raise InputError(
                f"model.encoder = {self.name}: is {type(self.factory).__name__}; expected a function or class that "
                "takes weights=None and returns a torch.nn.Module"
            )
        features = getattr(self.factory, "features", None)
        if not isinstance(features, int) or features < 1:
            raise InputError(
                f"model.encoder = {self.name}: state the length of a feature vector as an attribute of the factory "
                f"({self.name.partition(':')[2]}.features = 512)"
            )
        sources = repr(sorted(own_sources([self.name.partition(":")[0]]).items()))
        file = "" if weights is None else weights_digest("model.encoder_weights", Path(weights))
        return EncoderCard(
            licence=str(getattr(self.factory, "licence", "licence not stated")),
            trained_on=str(getattr(self.factory, "trained_on", "data that its author does not state")),
            same_images=tuple(getattr(self.factory, "same_images", ())),
            same_classes=tuple(getattr(self.factory, "same_classes", ())),
            features=features,
            mean=self._constants("mean", 0.0, -math.inf),
            deviation=self._constants("deviation", 1.0, 0.0),
            digest=hashlib.sha256(f"{sources} {file}".encode()).hexdigest(),
        )

    def network(self, rest: str, weights: str | None, /) -> nn.Module:
        """Call the factory.

        Raises:
            InputError: It fails, or returns something else.
        """
        from torch import nn

        try:
            made = self.factory(weights=weights)
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(
                f"model.encoder = {self.name}: the factory failed ({raised(error)}); called with weights=None or "
                "weights=FILE"
            ) from error
        if not isinstance(made, nn.Module):
            raise InputError(f"model.encoder = {self.name}: the factory returned {type(made).__name__}, not a Module")
        return made

    def _constants(self, name: str, default: float, above: float) -> tuple[float, float, float]:
        """Read a constant of each colour that the factory may state."""
        given = getattr(self.factory, name, (default,) * 3)
        try:
            found = tuple(float(value) for value in given)
        except (TypeError, ValueError):
            found = ()
        if len(found) != 3 or not all(math.isfinite(value) and value > above for value in found):
            needed = "3 numbers above 0" if above == 0 else "3 numbers"
            raise InputError(
                f"model.encoder = {self.name}: {self.name.partition(':')[2]}.{name}: expected {needed}, one for each "
                f"colour, got {shown(given)}"
            )
        return found[0], found[1], found[2]


def _member(name: str) -> tuple[Encoder, str]:
    known, _, rest = name.partition(":")
    if known in names(FOLDER):
        member: Encoder = find("model.encoder", known, FOLDER)
        return member, rest
    if ":" in name:
        return _Own(name, own_object("model.encoder", name)), ""
    found: Encoder = find("model.encoder", name, FOLDER)  # an error that names those that are known
    return found, ""
