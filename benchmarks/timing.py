"""Clients per second and peak memory, all engines in the same kind of processes, in turns."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TypeVar

import torch

from benchmarks.engines import engine
from benchmarks.machine import convolution_seconds
from benchmarks.settings import SETTINGS, Algorithm, episodes
from dpfedmeta.core.peak_memory import own_peak_mb
from dpfedmeta.core.worker_pool import keep_freed_memory, open_workers

T = TypeVar("T")

CONVOLUTIONS = "its convolutions alone"
_EPISODES = 8


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One thing to measure."""

    setting: str
    algorithm: Algorithm
    name: str


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Clients per second of all processes together, in each repetition."""

    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the repetitions."""
        return statistics.median(self.rates)


def speeds(cells: Sequence[Cell], processes: int, repetitions: int, seconds: float) -> dict[Cell, Speed]:
    """Each cell in turn, again and again: what disturbs the machine disturbs all alike.

    Args:
        cells: What to measure.
        processes: One thread each, all busy with the same cell at a time.
        repetitions: Rounds through all cells, after one that is not counted.
        seconds: The least that a process spends on a cell in a repetition.
    """
    rates: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with open_workers(processes) as workers:
        for repetition in range(repetitions + 1):
            for cell in cells:
                task = (cell, seconds if repetition else 0.0)
                found = list(workers.map(_rate, [task] * processes))
                if repetition:
                    rates[cell].append(sum(found))
    return {cell: Speed(rates=tuple(own)) for cell, own in rates.items()}


def _rate(cell: Cell, seconds: float) -> float:
    """Of this process."""
    setting = SETTINGS[cell.setting]
    if cell.name == CONVOLUTIONS:
        return 1.0 / convolution_seconds(setting, seconds)
    run, held = engine(cell.setting, cell.algorithm, cell.name), episodes(setting, _EPISODES)
    begun = time.perf_counter()
    for done, episode in enumerate(cycle(held), start=1):
        run(episode)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            return done / elapsed
    raise AssertionError


def peak_memory(cells: Sequence[Cell], processes: int) -> dict[Cell, float]:
    """Megabytes that computing a few clients adds to a fresh process that has everything ready for it."""
    with ThreadPoolExecutor(processes) as side_by_side:
        return dict(zip(cells, side_by_side.map(partial(in_fresh_process, _peak), cells), strict=True))


def _peak(cell: Cell) -> float:
    torch.set_num_threads(1)
    keep_freed_memory()
    run = engine(cell.setting, cell.algorithm, cell.name)
    held = episodes(SETTINGS[cell.setting], 2)
    before = own_peak_mb()
    for episode in held:
        run(episode)
    return own_peak_mb() - before


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """In a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
