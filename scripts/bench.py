"""How long things take. Timings are noisy: compare numbers of one run only."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfedmeta.command_line import DONE, parser, run_command
from dpfedmeta.errors import InputError
from dpfedmeta.privacy import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.privacy.charges import planned_event
from dpfedmeta.privacy.hash_chain import HashChain
from dpfedmeta.privacy.ledger import head, opening_line, read, spent
from dpfedmeta.privacy.sampled_gaussian import forget


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


def main(console: Console) -> int:
    """Parse, measure, print."""
    made = parser("Measure this machine.", settings=False)
    made.add_argument("--accountant", action="store_true", help="planning, calibration and verification")
    made.add_argument("--json", type=Path, metavar="F", help="also write the numbers to a file")
    options = made.parse_args()
    if not options.accountant:
        raise InputError("choose what to measure: --accountant")
    rows = accountant_rows()
    table = Table(title="Seconds; N = 400,000, (client, public) = (1.5, 1e-6)", title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" if name == "rounds" else f"{value:.3g}" for name, value in row.items()))
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps({"accountant": rows}, indent=2) + "\n", encoding="utf-8")
    return DONE


if __name__ == "__main__":
    run_command(main)
