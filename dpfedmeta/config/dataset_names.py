"""Settings derived from the user's own data, and the path under which a run finds the data again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from dpfedmeta.config.dotted_keys import Given
from dpfedmeta.core.errors import InputError

# Presets are for images; what they say of the network has no meaning for other records.
_NETWORKS: Mapping[str, str] = {"vectors": "mlp", "tokens": "text"}
_DECIDED = ("model.name", "population.clients", "population.kind")


def found_again(dataset: str) -> str:
    """The path of data, absolute, so that a run can be resumed and evaluated from any folder; a name as it is."""
    return dataset if _built_in(dataset) or not Path(dataset).exists() else str(Path(dataset).absolute())


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
    from dpfedmeta.data.task import load_task, task_names

    path = Path(dataset)
    if dataset not in task_names() and not (path.suffix in (".yaml", ".yml") and path.exists()):
        return None
    source = load_task(dataset)[0].source
    return source.reader if isinstance(source, DrawnSource) else None


def _names_own_data(path: Path) -> bool:
    if path.suffix not in (".yaml", ".yml"):
        return True
    from dpfedmeta.data.task import OwnSource, load_task

    return isinstance(load_task(str(path))[0].source, OwnSource)


def with_data_values(dataset: str, given: Mapping[str, Given]) -> dict[str, Given]:
    """Fill in what the data decide and nobody gave: as strong as a preset.

    Real clients are counted: how many there are is taken as public.

    Args:
        dataset: As --dataset.
        given: Dotted names to what was given so far.

    Raises:
        InputError: The data cannot be listed.
    """
    made = dict(given)
    initial = made.get("model.initial")
    if initial is not None and isinstance(initial.value, str) and Path(initial.value).exists() and initial.level > 1:
        made["model.initial"] = replace(initial, value=str(Path(initial.value).absolute()))
    if _built_in(dataset) or not Path(dataset).exists():
        return made
    if all(name in given and given[name].level > 1 for name in _DECIDED):
        return made
    for name, value in _values(dataset).items():
        if name not in given or given[name].level == 1:
            made[name] = Given(value=value, level=1, where=dataset)
    return made


def _values(dataset: str) -> dict[str, object]:
    from dpfedmeta.data.task import OwnSource, load_task
    from dpfedmeta.data.user_sources.readers import clients_in

    task, splits = load_task(dataset)
    values: dict[str, object] = {}
    if task.form.kind in _NETWORKS:
        values["model.name"] = _NETWORKS[task.form.kind]
    if isinstance(task.source, OwnSource):
        clients = clients_in(Path(task.source.path), task.source.reader, splits)
        if clients:
            values |= {"population.clients": clients, "population.kind": "natural"}
    return values


def _built_in(dataset: str) -> bool:
    return "/" not in dataset and (resources.files("dpfedmeta.tasks") / f"{dataset}.yaml").is_file()
