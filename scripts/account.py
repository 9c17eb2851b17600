"""Who is promised what: the four cells for a plan, or from a run's ledger. Needs no data."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from dpfedmeta.command_line import DONE, parse_with_settings, parser, run_command
from dpfedmeta.errors import InputError
from dpfedmeta.federation.plan import make_privacy
from dpfedmeta.privacy.accounting import guarantees
from dpfedmeta.privacy.ledger import read, spent
from dpfedmeta.privacy.plan import PrivacyPlan
from dpfedmeta.tracking.run_directory import RunDirectory
from dpfedmeta.tracking.terminal import guarantee_table, noise_lines


def parameters(plan: PrivacyPlan) -> dict[str, object]:
    """The noise and sizes behind the table; null where an algorithm has none."""
    record = plan.record
    return {
        "noise_multiplier": plan.noise_multiplier,
        "support_noise": record.support_noise if record else None,
        "query_noise": record.query_noise if record else None,
        "total_noise": plan.total_noise,
        "rounds": plan.rounds,
        "clients": plan.clients,
        "cohort": plan.cohort,
        "max_participations": plan.max_participations,
    }


def main(console: Console) -> int:
    """Parse, account, print."""
    arguments = parser("Print the guarantees of a plan, or verify a run's ledger.", settings=True)
    arguments.add_argument("--json", action="store_true", help="print JSON and nothing else")
    arguments.add_argument("--verify", type=Path, metavar="RUN", help="recompute what a run spent from its ledger")
    known, _ = arguments.parse_known_args()
    if known.verify is not None:
        if known.algo or known.config:
            raise InputError("--verify reads the run's ledger; it takes no --algo or --config")
        options = arguments.parse_args()
        plan, events = read(RunDirectory(options.verify).ledger)
        cells, title = spent(plan, events), f"What was spent in {len(events)} rounds, from the ledger alone"
    else:
        options, settings = parse_with_settings(arguments, None, default_dataset="omniglot")
        plan = make_privacy(settings)
        cells, title = guarantees(plan), "What this plan promises"
    if options.json:
        content = {"guarantees": [cell.as_json() for cell in cells], "parameters": parameters(plan)}
        print(json.dumps(content, indent=2, allow_nan=False))
        return DONE
    for line in noise_lines(plan):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(guarantee_table(cells, title))
    return DONE


if __name__ == "__main__":
    run_command(main)
