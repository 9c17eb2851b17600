"""Whole rounds: what they take beside the clients' mathematics, and the memory of small and large cohorts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.accounting.divergences.pld_composition import forget
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines, create
from dpfedmeta.core.params import digest
from dpfedmeta.core.peak_memory import own_peak_mb
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose, SecretSource, draw_secret_seed
from dpfedmeta.core.worker_pool import InProcess, keep_freed_memory
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.learning.meta.algorithm import ClientNoise
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.learning.server_step import ServerState, initial_state
from dpfedmeta.planning.run_plan import Plan, make_plan
from dpfedmeta.privacy.rounds.round_journal import Journal, round_inputs
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import client_side, population
from dpfedmeta.training.state.checkpoint import Checkpoint, save_checkpoint
from dpfedmeta.training.state.recover import reopen

ROUNDS = 20
CLIENTS = 200
_TOGETHER = 20
# The setting "paper", as options of the preset dp-agr.
PAPER: Mapping[str, str] = MappingProxyType(
    {
        "model.name": "conv4",
        "model.width": "64",
        "model.features": "raw",
        "meta.learn": "all",
        "meta.adapt": "all",
        "meta.order": "1",
        "meta.steps": "5",
        "meta.lr": "0.05",
    }
)


def seconds(action: Callable[[], object]) -> float:
    """Wall clock of one call, with nothing remembered from earlier ones."""
    forget()
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """A federation in this process, before its first round."""

    plan: Plan
    backend: LocalBackend
    state: ServerState
    source: SecretSource

    @property
    def clients(self) -> ClientRunner:
        """What every client runs."""
        return self.backend.clients


def federation(
    algo: str, dataset_name: str, cohort: int, options: Mapping[str, str] = MappingProxyType({})
) -> Federation:
    """Of a preset with these options, before its first round."""
    dataset = open_dataset(dataset_name)
    settings = resolve(algo, dataset_name, None, {**options, "population.cohort": str(cohort)})
    plan = make_plan(settings, dataset.task)
    source = KeyedSource(draw_secret_seed())
    torch.set_num_threads(1)
    keep_freed_memory()
    clients = client_side(plan, population(plan, dataset), source, torch.device("cpu"))
    state = initial_state(learned_part(plan.network, initial_weights(plan.network, 0)), plan.policy)
    return Federation(plan=plan, backend=LocalBackend(clients=clients, workers=InProcess()), state=state, source=source)


def durability_rows() -> list[dict[str, float | str]]:
    """Seconds of a 200-client round, and of everything that makes a round survive a crash; no worker processes."""
    rows: list[dict[str, float | str]] = []
    for algo in ("dp-agr", "dp-agrlr"):
        bench, cohort = federation(algo, "strokes", CLIENTS), _cohort(CLIENTS)
        bench.backend.cohort_sum(bench.state.model, bench.state.bound, cohort)
        computing = seconds(partial(bench.backend.cohort_sum, bench.state.model, bench.state.bound, cohort))
        charging, saving = _durable_seconds(bench)
        shares = {"charging": charging / computing, "with a checkpoint": (charging + saving) / computing}
        rows.append({"algo": algo, "round": computing, "charge": charging, "checkpoint": saving, **shares})
    return rows


def _durable_seconds(bench: Federation) -> tuple[float, float]:
    """Of a charge with its row, and of a checkpoint."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run = create(Path(folder), "run")
        Ledger(run.ledger, bench.plan.privacy)
        budget = Budget.of(bench.plan.planned)
        journal = reopen(run, bench.plan, bench.state, budget, bench.source, "bench", None).journal
        _begin(journal, bench.state)  # asks once how many rounds the budget allows
        charging = seconds(lambda: _charge_rounds(journal, run, bench.state)) / ROUNDS
        checkpoint = Checkpoint(state=bench.state, lines=journal.ledger.lines, head=journal.ledger.head)
        saving = seconds(lambda: save_checkpoint(run.path / "checkpoint", checkpoint, 2))
    return charging, saving


def _begin(journal: Journal, state: ServerState) -> None:
    journal.begin(state.round, round_inputs(state.round, state.model, state.bound, journal.environment))


def _charge_rounds(journal: Journal, run: RunDirectory, state: ServerState) -> None:
    for round_ in range(1, ROUNDS + 1):
        _begin(journal, replace(state, round=round_))
        append_lines(run.rounds_file, [{"round": round_, "release": digest(state.model), "clip": state.bound}])


def overhead(dataset: str, options: Mapping[str, str], repetitions: int = 3) -> dict[str, float]:
    """Share of a 200-client round of dp-agr that is not the clients' meta-gradients of data in memory.

    The rest is data, clipping, adding up, the ledger, the row and checkpoints (spread over the rounds between two); the
    server's step, milliseconds a round, and pipes to worker processes are not in it. Seconds of the meta-gradients, of
    the cohort's sum, and of ledger and row; a few clients at a time, the least of some repetitions in turns.
    """
    bench = federation("dp-agr", dataset, CLIENTS, options)
    pieces = [np.arange(first, first + _TOGETHER) for first in range(0, CLIENTS, _TOGETHER)]
    parts = [_seconds_of_piece(bench, piece, repetitions) for piece in pieces]
    computing, summing = (sum(column) for column in zip(*parts, strict=True))
    charging, saving = _durable_seconds(bench)
    kept = charging + saving / bench.plan.settings.run.checkpoint_every
    return {
        "meta_gradients": computing,
        "cohort_sum": summing,
        "ledger_and_checkpoint": kept,
        "overhead": 1.0 - computing / (summing + kept),
    }


def _seconds_of_piece(bench: Federation, piece: npt.NDArray[np.int64], repetitions: int) -> tuple[float, float]:
    """Of a few clients' meta-gradients, and of their sum; in turns, so that a machine that slows down slows both."""
    clients, weights = bench.clients, bench.state.model
    context = clients.context(weights)
    draws = clients.source.generator(Purpose.LOCAL_BATCHES, 0, 0)
    noise = ClientNoise(support=draws, query=draws, batches=draws)
    episodes = [clients.population.episode(number) for number in piece.tolist()]

    def mathematics() -> None:
        for episode in episodes:
            list(clients.algorithm.messages(context, [episode], bench.state.bound, [noise]))

    cohort = Cohort(round=0, clients=piece)
    whole = partial(bench.backend.cohort_sum, weights, bench.state.bound, cohort)
    times = [(seconds(mathematics), seconds(whole)) for _ in range(repetitions)]
    return min(computing for computing, _ in times), min(summing for _, summing in times)


def whole_round(algo: str, dataset: str, cohort: int) -> dict[str, float]:
    """Seconds of one round in this process, every client of the cohort computed, and the most it has held by then."""
    bench = federation(algo, dataset, cohort)
    sizes = (1, cohort)  # the first client waits for compiled loops
    spent = [
        seconds(partial(bench.backend.cohort_sum, bench.state.model, bench.state.bound, _cohort(size)))
        for size in sizes
    ]
    return {"seconds": spent[-1], "clients_per_second": cohort / spent[-1], "peak_memory_mb": own_peak_mb()}


def _cohort(size: int) -> Cohort:
    return Cohort(round=0, clients=np.arange(size))
