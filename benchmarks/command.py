"""scripts/bench.py: how long things take. Timings are noisy: compare numbers of one run only."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bench_plot import save_bench_plot
from benchmarks.device import CLIENTS, Effort, device_rows
from benchmarks.measure import Options, measure
from benchmarks.results import write
from benchmarks.rounds import durability_rows, seconds
from benchmarks.secure_aggregation import Crowd, rows, save_plot
from benchmarks.settings import SETTINGS, TINY
from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.hash_chain import HashChain
from dpfedmeta.accounting.ledger.ledger import head, opening_line, read, spent
from dpfedmeta.cli.arguments import DONE, parser
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import available_cores


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
    chain.append_all(planned_charge(plan, round_).as_json() for round_ in range(plan.rounds))


def main(words: Sequence[str], console: Console) -> int:
    """Parse, measure, print."""
    made = parser("Measure this machine: the engines, by default.", settings=False)
    made.add_argument("--peers", action="store_true", help="other libraries beside the engines (make peers)")
    made.add_argument(
        "--setting", action="append", choices=[*SETTINGS, TINY.name], help="only this one; may be repeated"
    )
    made.add_argument("--workers", type=int, default=available_cores(), help="processes of one thread (all cores)")
    made.add_argument("--repetitions", type=int, default=3, help="of every cell, in turns (3)")
    made.add_argument("--accountant", action="store_true", help="instead: planning, calibration and verification")
    made.add_argument("--durability", action="store_true", help="instead: ledger and checkpoint beside a round")
    made.add_argument("--device", choices=["cpu", "cuda"], help="instead: the engines there, clients side by side")
    made.add_argument("--seconds", type=float, default=5.0, help="of --device: the least to spend on an engine (5)")
    made.add_argument("--most", type=float, help="of --device: seconds after which no further engine is begun")
    made.add_argument("--patient", action="store_true", help="of --device: an engine that fails is left out, and said")
    made.add_argument("--secure-aggregation", action="store_true", help="instead: rounds of 100 to 10,000 clients")
    made.add_argument("--federation", action="store_true", help="instead: 8 and 50 client processes, Flower and TLS")
    made.add_argument("--stubs", action="store_true", help="of a federation: clients that compute nothing (500)")
    made.add_argument("--clients", type=int, help="of secure aggregation or a federation: this number alone")
    made.add_argument("--dimension", type=int, default=Crowd.dimension, help="of its vectors (32,768)")
    made.add_argument("--bits", type=int, default=Crowd.bits, help="of a coordinate (16)")
    made.add_argument("--adversarial", type=float, default=Crowd.adversarial, help="share that colludes (0.1)")
    made.add_argument("--dropout", type=float, default=Crowd.dropout, help="share that falls silent (0.2)")
    made.add_argument("--complete", action="store_true", help="with --clients: everybody is everybody's neighbour")
    made.add_argument("--malicious", action="store_true", help="a server that may break the protocol")
    made.add_argument("--verify", action="store_true", help="all signatures towards a server that follows it too")
    made.add_argument("--json", type=Path, metavar="F", help="also write the numbers to a file")
    made.add_argument("--plot", type=Path, metavar="F.png", help="also draw them")
    options = made.parse_args(words)
    measured: dict[str, Any] = {}
    if options.accountant:
        measured["accountant"] = accountant_rows()
        _show(console, "Seconds; N = 400,000, (client, public) = (1.5, 1e-6)", measured["accountant"])
    if options.durability:
        measured["durability"] = durability_rows()
        _show(console, "Seconds, and shares of a round of 200 clients in one process", measured["durability"])
    if options.device:
        measured["device"] = _on_device(console, options)
    if options.secure_aggregation:
        measured["rows"] = _secure_aggregation(console, options)
    if options.federation:
        measured["federation"] = _federation(console, options)
    if not measured:
        measured = _engines(console, options)
    if options.json is not None:
        write(options.json, measured)
    return DONE


def _on_device(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    name = options.device
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no CUDA device here")
    device, made = torch.device(name), list[dict[str, Any]]()
    what = torch.cuda.get_device_name(device) if name == "cuda" else "this machine's CPU, one process"
    effort = Effort(
        # A CPU takes seconds for what a GPU does at once.
        clients=CLIENTS if name == "cuda" else 4,
        seconds=options.seconds,
        most=options.most,
        patient=options.patient,
    )

    def keep(found: dict[str, Any]) -> None:
        if options.json is not None:
            write(options.json, {"device": [*made, {"on": what, **found}]})

    for setting in options.setting or SETTINGS:
        found = device_rows({**SETTINGS, TINY.name: TINY}[setting], device, effort, keep)
        made.append({"on": what, **found})
        if found["rows"]:
            _show(console, f"Clients side by side on {what}", found["rows"])
        _show(console, "Ratios", [found["ratios"]])
        for words in found["left_out"]:
            console.print(f"left out: {words}", highlight=False)
    return made


def _secure_aggregation(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    crowd = Crowd(
        clients=options.clients,
        dimension=options.dimension,
        bits=options.bits,
        adversarial=options.adversarial,
        dropout=options.dropout,
        malicious=options.malicious,
        verify=options.verify,
        complete=options.complete,
        processes=max(1, options.workers),
    )
    found = rows(crowd, lambda text: console.print(text, highlight=False))
    _show(console, "Rounds of secure aggregation; bytes of one client, up and down", found)
    if options.plot is not None:
        save_plot(options.plot, found)
    return found


def _federation(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    # It sets Flower up, which the other measurements do not need.
    from benchmarks.federation import federation_rows

    if options.stubs:
        from benchmarks.load import load_row

        found = [load_row(500 if options.clients is None else options.clients, options.repetitions)]
        _show(console, "A server and clients that compute nothing", found)
        return found

    counts = (8, 50) if options.clients is None else (options.clients,)
    found = federation_rows(counts, options.repetitions, lambda text: console.print(text, highlight=False))
    _show(console, "Rounds of real clients; bytes of one client, up and down", found)
    return found


def _engines(console: Console, options: argparse.Namespace) -> dict[str, Any]:
    for name, value in (("--workers", options.workers), ("--repetitions", options.repetitions)):
        if value < 1:
            raise InputError(f"{name} {value}: at least 1")
    if options.workers > available_cores():
        raise InputError(f"--workers {options.workers}: this machine has {available_cores()} cores, one thread each")
    wanted = Options(
        peers=options.peers,
        processes=options.workers,
        repetitions=options.repetitions,
        settings=options.setting or list(SETTINGS),
    )
    measured = measure(wanted, lambda text: console.print(text, highlight=False))
    rows = [{key: value for key, value in row.items() if key != "repetitions"} for row in measured["rows"]]
    _show(console, "The same episodes and network for all; all parameters adapt, 5 steps", rows)
    _show(console, "Ratios on the setting paper", [{"ratio": k, "value": v} for k, v in measured["ratios"].items()])
    _show(
        console,
        "The machine",
        [{"setting": name, **edge} for name, edge in measured["machine"]["convolutions"].items()],
    )
    _show(console, "One round of dp-agr on strokes, one process", measured["rounds"]["cohorts"])
    for name, parts in measured["rounds"]["overhead"].items():
        console.print(f"round of 200, {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in parts.items()))
    if options.plot is not None:
        for setting in wanted.settings[:1]:
            save_bench_plot(options.plot, measured["rows"], setting)
    return measured


def _show(console: Console, title: str, rows: Sequence[Mapping[str, float | str | None]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_shown(name, value) for name, value in row.items()))
    console.print(table)


def _shown(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "not measured"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
