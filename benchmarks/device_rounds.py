"""`python -m benchmarks.device_rounds`: whole rounds on one device: data, meta-gradients, clipping and the sum.

The paper's network (Conv4-64, all parameters adapt in 5 steps) on `strokes`, which needs no file; and what 400,000
clients of the second order take: for real where the time allows it, else extrapolated, and then it says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.results import write
from benchmarks.rounds import PAPER
from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import Params
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.learning.server_step import initial_state
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import client_side, population
from dpfedmeta.training.setup import use_precision

# For a look at whether everything runs.
SMALL = {**PAPER, "model.width": "4", "meta.steps": "1"}
ALL_CLIENTS = 400_000
_COHORT = {"cuda": 2048, "cpu": 4}

# What is timed: (name, preset, options besides).
CASES: Sequence[tuple[str, str, Mapping[str, str]]] = (
    ("dp-agr, order 2", "dp-agr", {"meta.order": "2"}),
    ("dp-agr, order 1", "dp-agr", {"meta.order": "1"}),
    ("dp-agr, head adapts, 10 divisions", "dp-agr", {"meta.adapt": "head", "meta.divisions": "10"}),
    ("dp-agrlr-micro, head adapts", "dp-agrlr-micro", {"meta.adapt": "head", "model.norm": "group"}),
    ("dp-agrlr, head adapts", "dp-agrlr", {"meta.adapt": "head", "model.norm": "group"}),
)


def rows(
    device: torch.device,
    *,
    seconds: float,
    most: float,
    kept: Callable[[dict[str, Any]], None],
    cases: Sequence[tuple[str, str, Mapping[str, str]]] = CASES,
) -> dict[str, Any]:
    """{"rows", "all_clients", "left_out"}.

    Args:
        device: Where clients are computed.
        seconds: The least to spend on a case.
        most: Seconds after which nothing more is begun.
        kept: Told what there is after each case.
        cases: What is timed; the first is that of all clients.
    """
    begun, found = time.perf_counter(), list[dict[str, Any]]()
    made: dict[str, Any] = {"rows": found, "all_clients": None, "left_out": []}
    for name, algo, options in cases:
        if time.perf_counter() - begun >= most:
            made["left_out"].append(f"{name}: no time was left")
            continue
        try:
            found.append({"case": name, **_timed(device, algo, options, seconds)})
        except Exception as error:
            # One case that fails shall not cost the others.
            made["left_out"].append(f"{name}: {type(error).__name__}: {str(error).strip()[:300]}")
        kept(made)
    first = next((row for row in found if row["case"] == cases[0][0]), None)
    if first is not None:
        left = most - (time.perf_counter() - begun)
        made["all_clients"] = _all_clients(device, cases[0], first["clients_per_second"], left)
        kept(made)
    return made


def _backend(device: torch.device, algo: str, options: Mapping[str, str]) -> tuple[LocalBackend, Params, float]:
    dataset = open_dataset("strokes", None)
    network = PAPER if device.type == "cuda" else SMALL
    given = {**network, "population.cohort": str(_COHORT[device.type]), **options}
    if device.type == "cpu" and algo == "dp-agr":
        given["run.chunk"] = "2"  # side by side, as on a GPU
    settings = resolve(algo, "strokes", None, given)
    # PyTorch convolves in TF32 unless it is told otherwise; a run tells it.
    use_precision(settings, device)
    plan = make_plan(settings, dataset.task)
    clients = client_side(plan, population(plan, dataset), KeyedSource(1), device)
    state = initial_state(learned_part(plan.network, initial_weights(plan.network, 0)), plan.policy)
    return LocalBackend(clients=clients, workers=InProcess()), state.model, state.bound


def _timed(device: torch.device, algo: str, options: Mapping[str, str], seconds: float) -> dict[str, Any]:
    backend, model, bound = _backend(device, algo, options)
    cohort = _COHORT[device.type]
    # Compiles what is compiled, and finds a chunk: a quarter of the clients is enough for both.
    _seconds_of(backend, model, bound, range(max(cohort // 4, 1)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    done, spent = 0, 0.0
    while not done or spent < seconds:
        spent += _seconds_of(backend, model, bound, range(done, done + cohort))
        done += cohort
    drawing = _drawing(backend.clients, range(cohort))
    return {
        "clients_per_second": done / spent,
        "clients": done,
        "chunk": backend.clients.chunk_found,
        "share_of_drawing": drawing / (spent * cohort / done),
        "peak_memory_mb": torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None,
    }


def _seconds_of(backend: LocalBackend, model: Params, bound: float, clients: range) -> float:
    begun = time.perf_counter()
    backend.cohort_sum(model, bound, Cohort(round=0, clients=np.arange(clients.start, clients.stop)))
    return time.perf_counter() - begun


def _drawing(clients: ClientRunner, numbers: range) -> float:
    """Seconds that the clients' data take by themselves; in a round they are drawn while others are computed."""
    begun = time.perf_counter()
    clients.held_by(list(numbers))
    if clients.device.type == "cuda":
        torch.cuda.synchronize(clients.device)
    return time.perf_counter() - begun


def _all_clients(
    device: torch.device, case: tuple[str, str, Mapping[str, str]], rate: float, left: float
) -> dict[str, Any]:
    """Minutes that 400,000 clients take."""
    foretold = ALL_CLIENTS / rate
    if foretold > left:
        return {"minutes": foretold / 60, "how": f"extrapolated from {rate:.0f} clients/s; {left:.0f} s were left"}
    backend, model, bound = _backend(device, case[1], case[2])
    spent, step = 0.0, 20_000
    for start in range(0, ALL_CLIENTS, step):
        spent += _seconds_of(backend, model, bound, range(start, start + step))
    return {"minutes": spent / 60, "how": "all of them were computed"}


def main() -> None:
    """Measure, and write."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    made.add_argument("--seconds", type=float, default=5.0, help="the least to spend on a case")
    made.add_argument("--most", type=float, default=120.0, help="seconds after which nothing more is begun")
    made.add_argument("--json", type=Path, required=True)
    options = made.parse_args()
    found = rows(
        torch.device(options.device),
        seconds=options.seconds,
        most=options.most,
        kept=lambda found: write(options.json, found),
    )
    for row in found["rows"]:
        print(f"{row['case']}: {row['clients_per_second']:.1f} clients/s")
    if found["all_clients"] is not None:
        print(f"{ALL_CLIENTS:,} clients of the second order: {found['all_clients']['minutes']:.1f} minutes, "
              f"{found['all_clients']['how']}")  # fmt: skip
    for words in found["left_out"]:
        print(f"left out: {words}")


if __name__ == "__main__":
    main()
