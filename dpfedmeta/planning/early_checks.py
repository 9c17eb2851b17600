"""Checks made before anything heavy is imported: names, folders, settings that do not fit each other."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings, clients_made_by
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.user_code import check_there
from dpfedmeta.core.pydantic_errors import nearest
from dpfedmeta.data.populations.capacity_checks import check_said
from dpfedmeta.data.storage.decoded_cache import Split
from dpfedmeta.data.storage.downloads import check_data_folder
from dpfedmeta.data.task import Task
from dpfedmeta.data.task_file import task_names
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.models.spec import BUILT_IN, NETWORKS
from dpfedmeta.learning.models.weight_shapes import (
    built_in_channels,
    check_convolutions,
    check_memory,
    learned_part,
    stand_ins,
    weight_shapes,
)
from dpfedmeta.planning.client_spec import algorithm_of, check_protocol, evaluation_shape, network_spec, whole_shape
from dpfedmeta.planning.network_trial.pretraining_overlap import check_built_in
from dpfedmeta.planning.policy_from_settings import check_clip
from dpfedmeta.planning.privacy.solve import check_asked, check_constants
from dpfedmeta.privacy.clip_policy import clip_limits

if TYPE_CHECKING:
    from dpfedmeta.accounting.ledger.population_register import Room
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


def check_first(settings: Settings, data_folder: Path | None = None, *, simulated: bool = True) -> None:
    """Refuse at once what the plan would refuse after seconds of imports; it checks all of it again, and more.

    Args:
        settings: What the user gave.
        data_folder: --data-dir.
        simulated: Whether clients are made of the training classes here; else these are not used.

    Raises:
        InputError: A name, a folder or a value cannot be used.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    check_data_folder(data_folder)
    if settings.dataset in task_names() and Path(settings.dataset).exists():
        warnings.warn(
            f"dataset = {settings.dataset}: the built-in task; for what lies here under this name give "
            f"./{settings.dataset}",
            stacklevel=2,
        )
    check_registered(settings)
    task, splits = task_of(settings)
    check_protocol(settings, task)
    _check_model(settings)
    _check_built_in_network(settings, task)
    clip_limits(settings.clip)
    check_clip(settings)
    if whole_shape(settings) is None:
        _check_episodes(settings, task, splits, simulated=simulated)
    population = settings.population
    sampling_of(population.sampler).check_new_run(
        cohort=population.cohort, separation=population.separation, rounds=settings.server.rounds
    )
    _check_asked(settings, task)


def check_registered(settings: Settings) -> None:
    """Refuse a run that no register of a population can count (population.register).

    Raises:
        InputError: It is a simulation, or begins with an analysis.
    """
    register, seed = settings.population.register, settings.run.noise_seed
    if register is None:
        return
    if seed is not None:
        raise InputError(
            f"population.register = {register}: run.noise_seed = {seed} makes the run a simulation, whose noise "
            "another run may share; leave out --run.noise_seed, or --population.register"
        )
    if settings.clip.start != "given":
        raise InputError(
            f"population.register = {register}: cannot count the analysis of clip.start = {settings.clip.start}; give "
            "--clip.start given --clip.initial NUMBER, or leave out --population.register"
        )


def _check_episodes(settings: Settings, task: Task, splits: Mapping[str, Split], *, simulated: bool) -> None:
    if simulated:
        check_said(task, splits, episode_shape(settings), "train")
    for split in ("val", "test"):
        check_said(task, splits, evaluation_shape(settings), split)


def _check_asked(settings: Settings, task: Task) -> None:
    # What is only said, the plan says as well.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_asked(settings, task)
        algorithm_of(settings, task)
        check_constants(settings, task)


def _check_built_in_network(settings: Settings, task: Task) -> None:
    if ":" in settings.model.name:
        return
    spec = network_spec(settings, task)
    check_memory(spec)
    learned_part(spec, stand_ins(weight_shapes(spec)))
    check_convolutions(spec, built_in_channels(spec))
    check_built_in(spec, task)


def _check_model(settings: Settings) -> None:
    name, initial = settings.model.name, settings.model.initial
    if ":" in name:
        check_there("model.name", name)
    elif name not in NETWORKS:
        raise InputError(
            f"model.name = {name}: unknown{nearest(name, NETWORKS)}; known are {', '.join(NETWORKS)}, or "
            "package.module:factory of your own"
        )
    if initial is not None and initial not in BUILT_IN and not Path(initial).exists():
        raise InputError(
            f"model.initial = {initial}: cannot be read (there is no such file or folder); expected "
            f"{', '.join(BUILT_IN)}, a run directory, or a safetensors file"
        )


def room_of(
    settings: Settings, privacy: PrivacyPlan, *, run: str = "", made_by: Mapping[str, str] | None = None
) -> Room | None:
    """Ask the register of the settings' population, where there is one, whether the plan has room in it.

    Args:
        settings: Settings of the plan.
        privacy: The plan.
        run: Name of a run that may be in it.
        made_by: Settings that made the clients; None: those of `settings`.

    Raises:
        InputError: It cannot be read, or is of other clients.
        RefusedPlan: Such a plan cannot be counted in it.
    """
    if settings.population.register is None:
        return None
    from dpfedmeta.accounting.ledger.population_register import room_for

    made_by = clients_made_by(settings) if made_by is None else made_by
    return room_for(Path(settings.population.register), privacy, run=run, made_by=made_by)


def check_room(settings: Settings, room: Room | None) -> None:
    """Refuse a plan that its register has no room for, once it was told why.

    Raises:
        RefusedPlan: It has none.
    """
    if room is not None and room.remedy is not None:
        raise RefusedPlan(f"population.register = {settings.population.register}: no room for this plan; {room.remedy}")
