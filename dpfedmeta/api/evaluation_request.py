"""Request for an evaluation, and the reasons to refuse it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.config.dataset_names import data_of_run, encoding_of_run
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run
from dpfedmeta.core.files.run_directory import CONFIG
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.data.populations.capacity_checks import check_said
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.client_spec import evaluation_shape, whole_shape

if TYPE_CHECKING:
    from dpfedmeta.training.results.trained_run import TrainedRun

ENOUGH_EPISODES = 600
COMPARISON = "evaluation-comparison.png"


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Request for an evaluation.

    Attributes:
        runs: Run directories of one benchmark.
        shots: Support images per class; empty: as trained.
        ways: Classes per episode; empty: as trained.
        steps: Numbers of gradient steps to evaluate after, besides 0 and K; empty: every number from 0 to K.
        seeds: One sequence of episodes each; empty: the seed of the (first) run.
        episodes: Episodes per evaluation and seed.
        transductive: Statistics from support and query images together.
        fine_tuning: Whether the untrained network is fine-tuned beside, which takes most of the time.
        out: A folder for everything that is written, or a .png file for the picture that compares the runs alone; None:
            each run directory, and evaluation-comparison.png for several runs.
        data_folder: Where the images are.
        workers: Worker processes; None: cores.
    """

    runs: tuple[Path, ...]
    shots: tuple[int, ...] = ()
    ways: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    episodes: int = ENOUGH_EPISODES
    transductive: bool = False
    fine_tuning: bool = True
    out: Path | None = None
    data_folder: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("shots", "ways", "steps", "seeds"):
            values = getattr(self, name)
            _check_whole(name, values)
            if len(set(values)) < len(values):
                raise InputError(f"{name}: expected whole numbers from 0 on, each at most once")
        _check_whole("episodes", (self.episodes,))
        _check_whole("workers", () if self.workers is None else (self.workers,))
        if self.episodes < 2:
            raise InputError(f"episodes = {self.episodes}: an interval needs at least 2")
        if any(shots < 1 for shots in self.shots):
            raise InputError(f"shots = {min(self.shots)}: a support set needs at least 1 record of each class")
        if any(ways < 2 for ways in self.ways):
            raise InputError(f"ways = {min(self.ways)}: an episode needs at least 2 classes")
        if any(steps < 0 for steps in self.steps):
            raise InputError(f"steps = {min(self.steps)}: a number of gradient steps is 0 or more")
        if any(seed < 0 for seed in self.seeds):
            raise InputError("seeds: expected whole numbers from 0 on, each at most once")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers = {self.workers}: must be at least 1")
        if len({path.resolve() for path in self.runs}) < len(self.runs):
            raise InputError("runs: the same run is given twice; give it once")
        if self.out is not None:
            self._check_out(self.out)

    def _check_out(self, out: Path) -> None:
        if out.suffix == ".png" and not out.is_dir():
            if not out.parent.is_dir():
                raise InputError(f"out = {out}: there is no folder {out.parent}")
        elif not out.is_dir() and (out.exists() or out.suffix):
            raise InputError(f"out = {out}: expected a folder, or a .png file in a folder that exists")
        there = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
        if not os.access(there, os.W_OK):
            raise InputError(f"out = {out}: {there} cannot be written; choose another folder")

    @property
    def folder(self) -> Path | None:
        """Folder of everything that is written; None: the run directories."""
        return None if self.out is None or (self.out.suffix == ".png" and not self.out.is_dir()) else self.out

    @property
    def picture(self) -> Path | None:
        """Path of the picture that compares the runs; None: not given."""
        return self.out if self.folder is None else self.folder / COMPARISON

    def at(self, trained: int) -> tuple[int, ...]:
        """Numbers of steps after which is asked, for every run alike, with 0 and its own K among them.

        Args:
            trained: K, steps that held-out clients of the run take.
        """
        return tuple(sorted({0, trained, *(self.steps or range(trained + 1))}))

    def shapes(self, settings: Settings) -> tuple[EpisodeShape, ...]:
        """Sizes of episodes for a run of these settings, every number of ways with every number of shots."""
        own = evaluation_shape(settings)
        sizes = product(dict.fromkeys(self.ways or (own.ways,)), dict.fromkeys(self.shots or (own.shots,)))
        return tuple(EpisodeShape(ways=ways, shots=shots, queries=own.queries) for ways, shots in sizes)

    def whole(self, settings: Settings) -> WholeShape | None:
        """Limits of whole clients, which judge a run of such; None: episodes of a given size do."""
        return None if self.ways or self.shots else whole_shape(settings)

    def note(self) -> str | None:
        """A label for results from fewer episodes than customary."""
        count = self.episodes * max(1, len(self.seeds))
        return None if count >= ENOUGH_EPISODES else f"only {count} episodes, not the usual {ENOUGH_EPISODES}"


def check_sizes(request: EvaluationRequest) -> None:
    """Refuse at once, before PyTorch and images, what the tasks say that their classes cannot fill.

    Raises:
        InputError: Not run directories, or more ways, shots and queries than a task has.
    """
    for path in request.runs:
        check_is_run(path)
        settings = resolve(None, None, path / CONFIG)
        dataset = data_of_run(settings.dataset, request.data_folder)
        task, splits = load_task(dataset, request.data_folder, encoding_of_run(settings))
        for shape in () if request.whole(settings) else request.shapes(settings):
            check_said(task, splits, shape, "test", asked=True)


def check_comparable(request: EvaluationRequest, runs: Sequence[TrainedRun]) -> None:
    """Refuse to compare what is not measured on the same episodes, or to ask a classifier for adaptation.

    Raises:
        InputError: Names what differs, or the option that has no meaning.
    """
    first = runs[0]
    for run in runs[1:]:
        both = f"{first.directory.path} and {run.directory.path}"
        if replace(run.task, encoding=None) != replace(first.task, encoding=None):
            raise InputError(
                f"{both} are of different benchmarks ({first.settings.dataset}, {run.settings.dataset}); "
                "compare runs of the same one"
            )
        if request.whole(run.settings) != request.whole(first.settings):
            raise InputError(
                f"{both}: their clients are not whole ones of the same limits; give ways and shots, for episodes of a "
                "fixed size"
            )
        if first.task.shared_classes is None and request.shapes(run.settings) != request.shapes(first.settings):
            raise InputError(
                f"{both} have episodes of different sizes; give ways and shots (their evaluation.queries must agree)"
            )
    if first.task.shared_classes is None:
        if request.whole(first.settings) is not None and (request.steps or len(request.seeds) > 1):
            raise InputError(
                f"{'steps' if request.steps else 'seeds'}: whole clients are judged once, before and after adaptation; "
                "leave it out, or give ways and shots too, for episodes of a fixed size"
            )
        return
    given = {
        "shots": request.shots,
        "ways": request.ways,
        "steps": request.steps,
        "seeds": request.seeds,
        "transductive": request.transductive,
    }
    if any(given.values()):
        name = next(name for name, value in given.items() if value)
        raise InputError(
            f"{name}: {first.settings.dataset} has one classifier for all, evaluated once on every held-out image; "
            f"there are no episodes and no adaptation; leave {name} out"
        )


def several(name: str, given: object) -> tuple[int, ...]:
    """One whole number, or several of them.

    Raises:
        InputError: It is something else.
    """
    found = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    _check_whole(name, found)
    return found


def _check_whole(name: str, values: Iterable[object]) -> None:
    odd = next((value for value in values if type(value) is bool or not isinstance(value, Integral)), None)
    if odd is not None:
        raise InputError(f"{name} = {odd!r}: expected whole numbers")
