"""Plan of a run on its data without writing anything, and on request what it will take on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.settings import Settings
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.populations.population_statement import population_statement
from dpfedmeta.data.repeated_images import check_parts_apart
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.models.spec import BUILT_IN
from dpfedmeta.learning.models.weight_shapes import built_in_channels, check_convolutions
from dpfedmeta.planning.client_population import clients_of, training_part
from dpfedmeta.planning.client_spec import evaluation_shape, network_spec, whole_shape
from dpfedmeta.planning.early_checks import check_room, room_of
from dpfedmeta.planning.network_trial.pretraining_overlap import check_built_in
from dpfedmeta.planning.policy_from_settings import clip_policy
from dpfedmeta.training.tracking.callbacks import Callback, tell
from dpfedmeta.training.tracking.plan_summary import Planned, planned_with

if TYPE_CHECKING:
    from dpfedmeta.training.setup import RunOptions
    from dpfedmeta.training.throughput import Cost


def forecast(
    settings: Settings,
    options: RunOptions | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    seconds: float | None = 10.0,
    before: float = 0.0,
) -> Cost | None:
    """Prepare a run, tell what it promises, and measure what it will take.

    Args:
        settings: What the user gave.
        options: Besides.
        callbacks: Who is told of the plan.
        seconds: What to spend on the measurement, about; None: nothing is measured.
        before: What the process has spent so far, as the run will.

    Returns:
        What the run will take; None where it was not measured.
    """
    from dpfedmeta.training.setup import RunOptions, prepared
    from dpfedmeta.training.throughput import cost_of

    started = time.perf_counter()
    with prepared(settings, options or RunOptions(), lambda text: tell(callbacks, "on_remark", text)) as made:
        planned = made.planned()
        tell(callbacks, "on_plan", planned)
        if others := made.other_runs:
            tell(callbacks, "on_remark", others)
        check_room(settings, planned.room)
        if seconds is None or made.public is None:
            return None
        spent = before + time.perf_counter() - started
        held_out_evaluations = (made.validation, made.test)
        return cost_of(made.plan, made.public, held_out_evaluations, made.workers, seconds, spent)


def needs_no_network(settings: Settings) -> bool:
    """Return whether nothing of a run can be refused for what its network does, so that planning it needs no PyTorch.

    That is so of built-in parts, whose tests show it, with settings that every one of them takes. All else is tried
    out: code and clients of the user's own, weights from a file, a device or precision that may not be there.
    """
    model, record = settings.model, settings.record
    names = (
        *(model.name, model.encoder or "", settings.meta.method, record.release, settings.clip.policy),
        *(settings.server.noise, settings.server.optimizer, settings.population.sampler),
    )
    coupled = model.norm == "batch" or model.features == "support"
    # Steps on numbers to predict may diverge, and an update of what is not learned is zero (message_test).
    moved = settings.task.ways > 1 and (settings.meta.method != "reptile" or settings.meta.adapt == "all")
    return (
        moved
        and not any(":" in name for name in names)
        and model.initial in (None, *BUILT_IN)
        and (settings.run.device, settings.run.precision) in _EVERYWHERE
        # Adapters are tried out side by side by their tests.
        and (settings.run.chunk in (None, 1) or model.encoder is not None)
        and record.engine == "auto"
        # Inside a micro-episode records may influence each other, and moments of them pass no network.
        and not (record.enabled and coupled and record.release not in ("micro-episodes", "noisy-moments"))
    )


# (device, precision) that need no look at the machine.
_EVERYWHERE = tuple((device, "float32") for device in ("auto", "cpu"))


def plan_without_network(settings: Settings, data_folder: Path | None = None) -> Planned | None:
    """The plan on the data where `needs_no_network`; None where these name clients, whose records are then looked at.

    Raises:
        InputError: The settings or the data do not fit.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    from dpfedmeta.accounting.observers.four_guarantees import guarantees
    from dpfedmeta.planning.privacy.solve import make_privacy

    # Features are as many as images, so none is computed for a look at the plan.
    found = open_dataset(settings.dataset, data_folder, settings.task.ways)
    task = replace(found.task, encoding=encoding_of_run(settings))
    dataset = training_part(settings, replace(found, task=task))
    check_parts_apart(dataset)
    if dataset.train.clients or whole_shape(settings) is not None:
        return None
    network = network_spec(settings, task)
    check_convolutions(network, built_in_channels(network))
    check_built_in(network, task)
    privacy = make_privacy(settings, task)
    clip_policy(settings, privacy)  # its own checks
    clients = clients_of(settings, dataset, privacy.clients)
    if task.shared_classes is None:
        check_shape(dataset.val, episode_shape(settings), "val")
        for split, pool in (("val", dataset.val), ("test", dataset.test)):
            check_shape(pool, evaluation_shape(settings), split)
    planned = planned_with(settings, privacy, guarantees(privacy), task)
    stated = population_statement(clients, published=dataset.task.published).text
    return replace(planned, clients=stated, room=room_of(settings, privacy))
