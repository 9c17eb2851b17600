"""Train a run from Python, or go on with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dpfedmeta.api.plan import check_settings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.plugins.plugin_registry import name_of
from dpfedmeta.planning.early_checks import check_first
from dpfedmeta.training.tracking.callbacks import Callback, tell

if TYPE_CHECKING:
    from dpfedmeta.api.run import Run
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.data.populations.population import Population
    from dpfedmeta.privacy.clip_policy import ClipPolicy
    from dpfedmeta.privacy.mechanisms import Mechanism
    from dpfedmeta.simulation.backend import Aggregation

_RESUME = "dpfedmeta.train(resume={path!r})"


def train(
    settings: Settings | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    clip_policy: ClipPolicy[Any] | None = None,
    population: Population | Mapping[Any, Any] | None = None,
    aggregation: type[Aggregation] | None = None,
    mechanism: type[Mechanism] | None = None,
    data_folder: str | PathLike[str] | None = None,
    secure_rng: bool = False,
    resume: str | PathLike[str] | Run | None = None,
    extend_to: int | None = None,
    changed_code: bool = False,
    quiet: bool = False,
    workers: Workers | None = None,
) -> Run:
    """Train as the settings say, evaluate on held-out classes, and keep everything in a run directory.

    Ctrl-C (or interrupting the cell) ends it cleanly; its status is then `interrupted`, and `resume` goes on.

    Args:
        settings: As Settings.preset(...) makes them; with `resume` they may be left out.
        callbacks: Who is told of the plan, of every round, and of the end.
        clip_policy: A clip policy of your own, in place of clip.policy.
        population: Clients of your own (dpfedmeta.data.populations.from_pairs); or, with population.episodes = whole, a
            mapping from each client to (records, targets), of any numbers of records.
        aggregation: Who adds messages up, in place of aggregation.mode: a class with the protocol of
            dpfedmeta.simulation.backend.Aggregation, in a module of its own.
        mechanism: What releases the sums, in place of server.noise: a class with the protocol of
            dpfedmeta.privacy.mechanisms.Mechanism and `noise(multiplier)`, in a module of its own.
        data_folder: Folder with omniglot/ ...; None: DPFEDMETA_DATA.
        secure_rng: Noise and cohorts straight from the operating system.
        resume: A run to go on with.
        extend_to: With `resume`, of a completed run: how many rounds it shall have in all, within its promise.
        changed_code: With `resume`: rounds may be charged again because code of your own was changed since.
        quiet: Print nothing.
        workers: Workers in place of worker processes: on rank 0 of a process group of your own,
            dpfedmeta.simulation.distributed.launch.workers_of_group().

    Raises:
        InputError: Something that was given does not fit; nothing was written.
        RefusedPlan: A guarantee that is asked for would not hold.
        CallbackFailed: A callback raised; the run ended cleanly, its status is `interrupted`, and it can be resumed.
    """
    _check_arguments(settings, resume, extend_to, workers)
    folder = None if data_folder is None else Path(data_folder)
    brought = (clip_policy, population, aggregation, mechanism)
    if resume is None and settings is not None and all(each is None for each in brought):
        check_first(settings, folder)
    from dpfedmeta.api.run import Run
    from dpfedmeta.planning.client_population import population_of
    from dpfedmeta.reporting.html.pictures import draw_pictures
    from dpfedmeta.training.run_training import run_training
    from dpfedmeta.training.setup import RunOptions
    from dpfedmeta.training.state.how_to_resume import check_simulated
    from dpfedmeta.training.state.resume import go_on
    from dpfedmeta.training.terminal.progress import Terminal

    with Terminal(Console(emoji=False, markup=False), _RESUME) as terminal:
        told = (*(() if quiet else (terminal,)), *callbacks)
        options = RunOptions(
            data_folder=folder,
            clip_policy=clip_policy,
            pictures=draw_pictures,
            workers=workers,
            changed_code=changed_code,
        )
        if resume is None:
            if changed_code:
                raise InputError("changed_code: belongs to resume; a new run has charged nothing yet; leave it out")
            assert settings is not None
            settings = with_members(settings, aggregation, mechanism)
            if settings.clip.start == "quantile":
                settings = _started(settings, folder, population, told, secure_rng=secure_rng)
            options = replace(options, secure_rng=secure_rng, population=population_of(settings, population, folder))
            return Run(run_training(settings, options, told)[0].path)
        if secure_rng:
            raise InputError("secure_rng: a resumed run keeps the randomness that it began with; leave it out")
        run = RunDirectory(_path_of(resume))
        check_simulated(run)
        if aggregation is not None or mechanism is not None:
            raise InputError("aggregation, mechanism: a run remembers them by name; leave them out with resume")
        options = replace(options, resume=run, extend_to=extend_to)
        go_on(
            run,
            lambda: _kept_settings(run, settings, clip_policy, brought=workers is not None),
            lambda kept: run_training(kept, replace(options, population=population_of(kept, population, folder)), told),
            extend=extend_to is not None,
            told=partial(tell, told, "on_remark"),
        )
        return Run(run.path)


def _check_arguments(settings: object, resume: Any, extend_to: object, workers: object) -> None:
    """Check the types of arguments, before PyTorch is imported.

    Raises:
        InputError: One is of another type, or there is no run to go on with.
    """
    if extend_to is not None and (resume is None or type(extend_to) is not int):
        raise InputError("extend_to: expected a whole number of rounds, with resume = the completed run")
    if workers is not None and not callable(getattr(workers, "map", None)):
        raise InputError(
            f"workers = {workers!r}: expected workers_of_group() of your own process group; for a number of worker "
            "processes put run.workers into the settings"
        )
    if resume is None:
        check_settings(settings)
    elif not (path := _path_of(resume)).is_dir():
        raise InputError(f"resume = {path}: there is no such run directory")


def _path_of(run: str | PathLike[str] | Run) -> Path:
    given: Any = run
    return Path(fspath(getattr(given, "path", given)))


def _started(
    settings: Settings,
    folder: Path | None,
    population: Population | Mapping[Any, Any] | None,
    told: Sequence[Callback],
    *,
    secure_rng: bool,
) -> Settings:
    """Return the settings with the C_0 that a private start (clip.start) has found."""
    if population is not None:
        raise InputError("clip.start = quantile: cannot ask a population of your own; leave one of them out")
    from dpfedmeta.analytics.initial_clip_bound import with_private_start

    started, words = with_private_start(settings, folder, secure_rng=secure_rng)
    tell(told, "on_remark", words)
    return started


def with_members(
    settings: Settings, aggregation: type[Aggregation] | None, mechanism: type[Mechanism] | None
) -> Settings:
    """The settings with the names of what was handed over as a class.

    Raises:
        InputError: It could not be found again by its name.
    """
    if aggregation is not None:
        mode = name_of("aggregation", aggregation)
        settings = replace(settings, aggregation=replace(settings.aggregation, mode=mode))
    if mechanism is not None:
        settings = replace(settings, server=replace(settings.server, noise=name_of("mechanism", mechanism)))
    return settings


def _kept_settings(
    run: RunDirectory, given: Settings | None, clip_policy: ClipPolicy[Any] | None, *, brought: bool
) -> Settings:
    """Return the settings of a run that goes on: those it began with.

    Settings that are given may differ from them only in what changes no result.
    """
    from dpfedmeta.planning.policy_from_settings import with_own_policy
    from dpfedmeta.training.state.resume import check_same_settings, settings_of_run

    kept = settings_of_run(run, {}, brought=brought)
    if given is None:
        return kept
    check_settings(given)
    wanted = given if clip_policy is None else with_own_policy(given, clip_policy)
    check_same_settings(run, kept, wanted, ": leave the settings out, or start a new run")
    return wanted
