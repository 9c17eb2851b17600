"""How long things take. Timings are noisy: compare numbers of one run only."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dpfedmeta.command_line import DONE, parser, run_command
from dpfedmeta.config import resolve
from dpfedmeta.data import open_dataset
from dpfedmeta.errors import InputError
from dpfedmeta.federation.backend import InProcess, LocalBackend, keep_freed_memory
from dpfedmeta.federation.checkpoint import Checkpoint, save_checkpoint
from dpfedmeta.federation.data_plan import population
from dpfedmeta.federation.journal import Journal, release_digest
from dpfedmeta.federation.plan import make_plan
from dpfedmeta.federation.reopen import reopen
from dpfedmeta.federation.run import client_side
from dpfedmeta.federation.server import ServerState, initial_state
from dpfedmeta.models import initial_weights, learned_part
from dpfedmeta.privacy import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.privacy.charges import planned_event
from dpfedmeta.privacy.hash_chain import HashChain
from dpfedmeta.privacy.ledger import Budget, Ledger, head, opening_line, read, spent
from dpfedmeta.privacy.sampled_gaussian import forget
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.randomness import KeyedSource, draw_secret_seed
from dpfedmeta.tracking.run_directory import RunDirectory, append_lines, create


def seconds(action: Callable[[], object]) -> float:
    """Wall clock of one call, with nothing remembered from earlier ones."""
    forget()
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def accountant_rows() -> list[dict[str, float]]:
    """Seconds for the four cells, for solving the noise, and for verifying a ledger, by number of rounds."""
    rows = []
    for rounds in (100, 1000, 10_000, 100_000):
        open_plan = PrivacyPlan(clients=400_000, cohort=1500, rounds=rounds, noise_multiplier=0.0)
        plan = calibrate(open_plan, Targets(client_epsilon=1.5))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.jsonl"
            _write_ledger(path, plan)
            verifying = seconds(partial(_verify, path))
        few, target = replace(open_plan, cohort=100), Targets(client_epsilon=1.5)
        rows.append(
            {
                "rounds": rounds,
                "noise_multiplier": plan.noise_multiplier or 0.0,
                "epsilon": guarantees(plan)[0].epsilon,
                "calibrate": seconds(partial(calibrate, open_plan, target)),
                "calibrate_cohort_100": seconds(partial(calibrate, few, target)),
                "four_cells": seconds(partial(guarantees, plan)),
                "verify": verifying,
            }
        )
    return rows


def _verify(path: Path) -> None:
    spent(*read(path))
    head(path)


def _write_ledger(path: Path, plan: PrivacyPlan) -> None:
    """A whole ledger at once; one flush to disk for each line would measure the disk."""
    chain = HashChain.start(path, opening_line(plan))
    chain.append_all(vars(planned_event(plan, round_)) for round_ in range(plan.rounds))


def durability_rows() -> list[dict[str, float | str]]:
    """Seconds of a 200-client round, and of everything that makes a round survive a crash; no worker processes."""
    rows: list[dict[str, float | str]] = []
    for algo in ("dp-agr", "dp-agrlr"):
        dataset = open_dataset("strokes")
        plan = make_plan(resolve(algo, "strokes", None, {"population.cohort": "200"}), dataset.task)
        source, device = KeyedSource(draw_secret_seed()), torch.device("cpu")
        torch.set_num_threads(1)
        keep_freed_memory()
        backend = LocalBackend(
            clients=client_side(plan, population(plan, dataset), source, device), workers=InProcess()
        )
        weights = learned_part(plan.network, initial_weights(plan.network, 0))
        state, cohort = initial_state(weights, plan.policy), Cohort(round=0, clients=np.arange(200))
        backend.cohort_sum(state.model, state.bound, cohort)
        computing = seconds(partial(backend.cohort_sum, state.model, state.bound, cohort))
        with tempfile.TemporaryDirectory(dir=".") as folder:
            run = create(Path(folder), "run")
            Ledger(run.ledger, plan.privacy)
            journal = reopen(run, plan, state, Budget.of(plan.planned), source, "bench", None).journal
            journal.begin(state)  # asks once how many rounds the budget allows
            charging = seconds(partial(_charge_rounds, journal, run, state)) / ROUNDS
            checkpoint = Checkpoint(state=state, lines=journal.ledger.lines, head=journal.ledger.head)
            saving = seconds(partial(save_checkpoint, run.path / "checkpoint", checkpoint, 2))
        shares = {"charging": charging / computing, "with a checkpoint": (charging + saving) / computing}
        rows.append({"algo": algo, "round": computing, "charge": charging, "checkpoint": saving, **shares})
    return rows


ROUNDS = 20


def _charge_rounds(journal: Journal, run: RunDirectory, state: ServerState) -> None:
    for round_ in range(1, ROUNDS + 1):
        journal.begin(replace(state, round=round_))
        append_lines(run.rounds_file, [{"round": round_, "release": release_digest(state.model), "clip": state.bound}])


def main(console: Console) -> int:
    """Parse, measure, print."""
    made = parser("Measure this machine.", settings=False)
    made.add_argument("--accountant", action="store_true", help="planning, calibration and verification")
    made.add_argument("--durability", action="store_true", help="ledger and checkpoint beside a 200-client round")
    made.add_argument("--json", type=Path, metavar="F", help="also write the numbers to a file")
    options = made.parse_args()
    if not options.accountant and not options.durability:
        raise InputError("choose what to measure: --accountant or --durability")
    measured: dict[str, Sequence[Mapping[str, float | str]]] = {}
    if options.accountant:
        measured["accountant"] = accountant_rows()
        _show(console, "Seconds; N = 400,000, (client, public) = (1.5, 1e-6)", measured["accountant"])
    if options.durability:
        measured["durability"] = durability_rows()
        _show(console, "Seconds, and shares of a round of 200 clients in one process", measured["durability"])
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    return DONE


def _show(console: Console, title: str, rows: Sequence[Mapping[str, float | str]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_shown(name, value) for name, value in row.items()))
    console.print(table)


def _shown(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if name == "rounds" else f"{value:.3g}"


if __name__ == "__main__":
    run_command(main)
