"""Forecast of a run's guarantees and cost on this machine, without writing anything."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dpfedmeta.config.settings import Settings
from dpfedmeta.training.setup import RunOptions, prepared
from dpfedmeta.training.throughput import Cost, cost_of
from dpfedmeta.training.tracking.callbacks import Callback, tell


def forecast(
    settings: Settings,
    options: RunOptions | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    seconds: float = 10.0,
    before: float = 0.0,
) -> Cost:
    """Prepare a run, tell what it promises, and measure what it will take.

    Args:
        settings: What the user gave.
        options: Besides.
        callbacks: Who is told of the plan.
        seconds: What to spend on the measurement, about.
        before: What the process has spent so far, as the run will.
    """
    started = time.perf_counter()
    with prepared(settings, options or RunOptions(), lambda text: tell(callbacks, "on_remark", text)) as made:
        tell(callbacks, "on_plan", made.planned())
        spent = before + time.perf_counter() - started
        held_out_evaluations = (made.validation, made.test)
        return cost_of(made.plan, made.public, held_out_evaluations, made.workers, seconds, spent)
