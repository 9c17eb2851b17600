"""Settings derived from data and encoder, the task of a run, and the path under which a run finds its data again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.config.dotted_keys import Given, flattened
from dpfedmeta.config.learning_settings import RecordSettings, TaskSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import read_yaml, shown

if TYPE_CHECKING:
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.data.encoders.encoding import Encoding
    from dpfedmeta.data.storage.decoded_cache import Split
    from dpfedmeta.data.task import Task

# Presets are for images; what they say of the network has no meaning for other records.
_NETWORKS: Mapping[str, str] = {"vectors": "mlp", "tokens": "text"}
_DECIDED = ("model.name", "model.encoder", "population.clients", "population.kind", "task.ways", "meta.learn")
# Settings that data of one's own may decide.
_OF_OWN_DATA = (
    *_DECIDED,
    *("meta.own.directions", "meta.own.between"),
    *("population.cohort", "population.sampler", "population.max_participations"),
)
# Methods whose model is solved for: its network for clients' own classes, and for shared labels or numbers.
_SOLVED: Mapping[str, tuple[str, str]] = {"moments": ("metric", "gaussian")}


def found_again(dataset: str) -> str:
    """The path of data, absolute, so that a run can be resumed and evaluated from any folder; a name as it is."""
    try:
        return dataset if _built_in(dataset) or not Path(dataset).exists() else str(Path(dataset).absolute())
    except OSError as error:  # too long a name, a folder that nobody may look into
        raise InputError(f"dataset = {shown(dataset)}: cannot be looked for ({error.strerror})") from None


def decided_by(dataset: str) -> tuple[str, ...]:
    """Names of the settings that these data may decide, where they are somebody's own."""
    return () if _built_in(dataset) else _OF_OWN_DATA


def data_of_run(dataset: str, data_folder: Path | None) -> str:
    """Return the place of a run's data: the folder that was named, else where the run found them.

    A task file of a published data set stays where it is: the folder holds its archives.

    Args:
        dataset: As the run's settings have it.
        data_folder: --data-dir; None: none was named.

    Raises:
        InputError: The folder does not hold them, and would be ignored.
    """
    path = Path(dataset)
    if data_folder is None:
        return dataset
    if path.is_absolute() and (data_folder / path.name).exists():
        return str((data_folder / path.name).absolute())
    if (reader := _drawn_by(dataset)) is not None:
        raise InputError(
            f"--data-dir {data_folder}: the images of this run are drawn by {reader}, and none are read; leave "
            "--data-dir out"
        )
    if not path.is_absolute():
        return dataset
    if path.exists() and _names_own_data(path):
        raise InputError(
            f"--data-dir {data_folder}: holds no {path.name}, the data of this run; put it there, or leave --data-dir "
            f"out to read {path}"
        )
    return dataset


def _drawn_by(dataset: str) -> str | None:
    from dpfedmeta.data.sources import DrawnSource
    from dpfedmeta.data.task_file import load_task, task_names

    path = Path(dataset)
    if dataset not in task_names() and not (path.suffix in (".yaml", ".yml") and path.exists()):
        return None
    source = load_task(dataset)[0].source
    return source.reader if isinstance(source, DrawnSource) else None


def _names_own_data(path: Path) -> bool:
    if path.suffix not in (".yaml", ".yml"):
        return True
    from dpfedmeta.data.task import OwnSource
    from dpfedmeta.data.task_file import load_task

    return isinstance(load_task(str(path))[0].source, OwnSource)


# Files of what holds of features, and the settings for which each is; the first that fits.
_OF_FEATURES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "encoder-moments.yaml": {"meta.method": ("moments", "moments-then-gradients")},
    "encoder-steps.yaml": {"record.enabled": (True,), "record.release": ("steps",)},
    "encoder.yaml": {},
}


def with_data_values(dataset: str, given: Mapping[str, Given], *, look: bool = True) -> dict[str, Given]:
    """Fill in what the data decide and nobody gave: as strong as a preset.

    Real clients are counted: how many there are is taken as public.

    Args:
        dataset: As --dataset.
        given: Dotted names to what was given so far.
        look: Whether data of one's own are looked at.

    Raises:
        InputError: The data cannot be listed.
    """
    made = _with_encoder(given)
    initial = made.get("model.initial")
    if initial is not None and isinstance(initial.value, str) and Path(initial.value).exists() and initial.level > 1:
        made["model.initial"] = replace(initial, value=str(Path(initial.value).absolute()))
    if not _has_own_values(dataset, look=look):
        return made
    if all(name in given and given[name].level > 1 for name in _DECIDED):
        return made
    method = made.get("meta.method")
    for name, value in _values(dataset, str(method.value) if method is not None else "").items():
        if name not in made or made[name].level <= 1:
            made[name] = Given(value=value, level=1, where=dataset)
    return made


def _with_encoder(given: Mapping[str, Given]) -> dict[str, Given]:
    """Replace what a preset says of images by what holds of features (configs/encoder*.yaml); as strong as a preset."""
    made = dict(given)
    encoder = made.get("model.encoder")
    if encoder is None or encoder.value is None:
        return made
    for name in ("model.encoder", "model.encoder_weights"):
        entry = made.get(name)
        if entry is not None and isinstance(entry.value, str) and Path(entry.value).is_file() and entry.level > 1:
            made[name] = replace(entry, value=str(Path(entry.value).absolute()))
    chosen = {name: entry.value for name, entry in made.items()}
    chosen.setdefault("record.release", RecordSettings().release)
    file = next(name for name, due in _OF_FEATURES.items() if all(chosen.get(key) in due[key] for key in due))
    where, content = f"configs/{file}", read_yaml((resources.files("dpfedmeta.configs") / file).read_text("utf-8"))
    for name, value in flattened(content):
        if name not in made or made[name].level <= 1:
            made[name] = Given(value=value, level=1, where=where)
    return made


def task_of(settings: Settings, data_folder: Path | None = None) -> tuple[Task, dict[str, Split]]:
    """The task of a run, with its encoder, and the splits of its classes.

    Args:
        settings: Of the run.
        data_folder: --data-dir; None as in `open_dataset`.

    Raises:
        InputError: The task, the encoder or its weights are missing or wrong.
        RefusedPlan: The encoder learned from the images of the task.
    """
    from dpfedmeta.data.task_file import load_task

    return load_task(settings.dataset, data_folder, encoding_of_run(settings))


def shipped_task(dataset: str) -> str:
    """Name of the shipped task with the same images, whatever a task file of them is called; else the file's name."""
    from dpfedmeta.data.task_file import load_task, task_names

    if dataset in task_names():
        return dataset
    try:
        source = load_task(dataset)[0].source.name
    except InputError:  # data that moved since the run began, and were looked at then
        return Path(dataset).stem
    return next((name for name in task_names() if load_task(name)[0].source.name == source), Path(dataset).stem)


def encoding_of_run(settings: Settings, label: str | None = None) -> Encoding | None:
    """The public encoder of a run; None: it has none.

    Args:
        settings: Of the run.
        label: Name of its data, where `dataset` is a server's word, by which nothing may be opened; None: it is a name.

    Raises:
        InputError: The encoder or its weights are missing or wrong.
        RefusedPlan: The encoder learned from the images of the task.
    """
    chosen = settings.model
    if chosen.encoder is None:
        if chosen.encoder_weights is not None:
            raise InputError(
                f"model.encoder_weights = {chosen.encoder_weights}: name the encoder too (--model.encoder), or drop it"
            )
        return None
    from dpfedmeta.data.encoders.encoding import check_overlap, encoding_of

    found = encoding_of(chosen.encoder, chosen.encoder_weights, chosen.encoder_size)
    check_overlap(found, label or shipped_task(settings.dataset), accepted=chosen.encoder_overlap == "accept")
    return found


def _values(dataset: str, method: str) -> dict[str, object]:
    from dpfedmeta.data.task import OwnSource
    from dpfedmeta.data.task_file import load_task
    from dpfedmeta.data.user_sources.readers import clients_in

    task, splits = load_task(dataset)
    values: dict[str, object] = {}
    if task.form.kind in _NETWORKS:
        values["model.name"] = _NETWORKS[task.form.kind]
    shared = bool(task.labels) or task.targets is not None
    if task.form.kind != "images":
        values["model.encoder"] = None
    if method in _SOLVED and task.form.kind == "vectors":
        values |= {"model.name": _SOLVED[method][shared], "meta.own.directions": None, "meta.own.between": 0.0}
    if shared:
        # One head for all clients is learned with the body.
        values["meta.learn"] = "all"
    if task.targets is not None:
        values["task.ways"] = 1
    elif 1 < len(task.labels) < TaskSettings().ways:
        values["task.ways"] = len(task.labels)
    if not isinstance(task.source, OwnSource) and task.targets is not None and isinstance(task.split, dict):
        values |= {"population.clients": task.split["train"], "population.kind": "natural"}
    if isinstance(task.source, OwnSource):
        clients = clients_in(Path(task.source.path), task.source.reader, splits)
        if clients:
            values |= {"population.clients": clients, "population.kind": "natural"}
            if method in _SOLVED:
                # One round, for which everybody is asked.
                values |= {"population.cohort": clients, "population.sampler": "fixed"}
                values["population.max_participations"] = None
    return values


def _has_own_values(dataset: str, *, look: bool) -> bool:
    """Return true of data that decide over settings: the user's own, and built-in ones that are no images."""
    if not _built_in(dataset):
        return look and Path(dataset).exists()
    from dpfedmeta.data.task_file import load_task

    return load_task(dataset)[0].form.kind != "images"


def _built_in(dataset: str) -> bool:
    return "/" not in dataset and (resources.files("dpfedmeta.tasks") / f"{dataset}.yaml").is_file()
