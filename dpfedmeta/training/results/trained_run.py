"""A run directory as what it holds for later: a network, its weights, and how clients adapt it."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.config.dataset_names import data_of_run, encoding_of_run
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import not_a_run
from dpfedmeta.core.files.run_directory import CONFIG, DIVERGED, SUMMARY, RunDirectory, load_weights
from dpfedmeta.core.params import Params
from dpfedmeta.data.task import Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.frozen import mixes_queries
from dpfedmeta.learning.models.initial_weights import check_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.planning.client_spec import evaluation_adaptation, method_of, network_spec
from dpfedmeta.training.results.snapshot import Stage, may_be_torn, stage_of
from dpfedmeta.training.results.summary import NOT_FINITE
from dpfedmeta.training.state.checkpoint import checkpoint_files
from dpfedmeta.training.state.resume import edited_since


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRun:
    """A run that can be evaluated.

    Attributes:
        directory: Where it is.
        settings: As in its config.yaml.
        task: Its benchmark; the images themselves are not needed.
        network: The network.
        adaptation: As held-out clients adapt.
        weights: After training, or the last checkpoint.
        rounds: After so many rounds.
        planned_rounds: Rounds of its plan: those of an extension count, those that a limit took away do not.
        stage: How the run ended, or that it did not.
        untrained: Before round 0.
        mixes_queries: Whether the network normalises over all images that it is given, so that no evaluation of it
            is inductive.
        has_body: Whether it is a body followed by a head.
    """

    directory: RunDirectory
    settings: Settings
    task: Task
    network: NetworkSpec
    adaptation: Adaptation
    weights: Params
    rounds: int
    planned_rounds: int
    stage: Stage
    untrained: Params
    mixes_queries: bool
    has_body: bool


def open_run(path: Path, data_folder: Path | None = None) -> TrainedRun:
    """Read a run directory.

    Args:
        path: The directory.
        data_folder: Where data are looked for that are not where they were.

    Raises:
        InputError: It is none, or its weights are missing, damaged or of another network.
    """
    directory = RunDirectory(path)
    stage = stage_of(directory)
    if not (path / CONFIG).is_file():
        raise not_a_run(path, CONFIG)
    settings = resolve(None, None, path / CONFIG)
    task, _ = load_task(data_of_run(settings.dataset, data_folder), data_folder, encoding_of_run(settings))
    spec = network_spec(settings, task)
    network = build_network(spec)
    if stage == DIVERGED:
        raise InputError(f"{path}: {NOT_FINITE}")
    if stage in ("running", "stopped") and not directory.weights.exists():
        raise InputError(f"{path}: {stage}, and has no checkpoint yet; evaluate it after its first one")
    weights, untrained = load_weights(directory.weights), load_weights(directory.initial_weights)
    method = method_of(settings, task)
    if edited := edited_since(directory, settings, task):
        warnings.warn(f"{path}: {edited}; what comes now is of the code of today", stacklevel=2)
    planned = _planned_rounds(directory, settings, stage)
    for found, path in ((weights, directory.weights), (untrained, directory.initial_weights)):
        check_weights(spec, method.adaptation.rule.network(found), str(path))
    return TrainedRun(
        directory=directory,
        settings=settings,
        task=task,
        network=spec,
        adaptation=evaluation_adaptation(settings, method),
        weights=weights,
        rounds=_rounds(directory, planned),
        planned_rounds=planned,
        stage=stage,
        untrained=untrained,
        mixes_queries=mixes_queries(network),
        has_body={name for name, _ in network.named_children()} == {"body", "head"},
    )


def _planned_rounds(directory: RunDirectory, settings: Settings, stage: Stage) -> int:
    """Rounds of the plan in the ledger; of the settings where only weights and settings were handed on."""
    if not directory.ledger.exists():
        return settings.server.rounds
    return read_content(directory.ledger, torn=may_be_torn(stage)).plan.rounds


def _rounds(directory: RunDirectory, planned: int) -> int:
    """Rounds behind the weights: those of the last checkpoint, else of the summary, else all that are planned."""
    found = checkpoint_files(directory.weights.parent)
    if found:
        return found[0][0]
    summary = directory.read_json(SUMMARY) if (directory.path / SUMMARY).is_file() else {}
    return int(summary.get("rounds", planned))
