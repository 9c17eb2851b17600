"""Other people's differential privacy, attacked as this project's is: Flower's wrappers, and Opacus' DP-SGD.

Flower needs other versions of packages than this project has pinned, so it lives in an environment of its own, which
sees this project's packages behind its own:

    python3.11 -m venv /tmp/others && /tmp/others/bin/pip install flwr==1.41.0 numpy==2.4.6
    echo "$PWD/.venv/lib/python3.11/site-packages" > /tmp/others/lib/python3.11/site-packages/project.pth
    /tmp/others/bin/python -m benchmarks.audit_of_others --runs 3000 --json others.json

Without Flower its cases are left out, and that is said. Of each case: what is claimed and by whom, what the code truly
gives by this project's accountant, and what the audit shows at 95%. Nothing here gives a guarantee.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import flower_cases, opacus_cases
from benchmarks.audited_case import Case, audited


def cases(of: Sequence[str], runs: int) -> Iterator[Case]:
    """Of all that is asked for and installed."""
    if "opacus" in of:
        yield from opacus_cases.cases(runs)
    if "flower" not in of:
        return
    try:
        flower_cases.flower()
    except ImportError as missing:
        print(f"Flower is not audited: {missing}")
        return
    for remark in flower_cases.remarks():
        print(f"Flower, {remark}")
    yield from flower_cases.cases(runs)


def main() -> None:
    """One row after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3000, help="of a case; slow ones take fewer")
    parser.add_argument("--of", nargs="+", choices=("opacus", "flower"), default=("opacus", "flower"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also keep the rows")
    words = parser.parse_args()
    for package in ("flwr", "opacus", "torch", "numpy"):
        print(f"{package} {_version(package)}", end="; ")
    print("| case | worlds | claimed | by | true | audited | runs |")
    rows: list[dict[str, Any]] = []
    for case in cases(words.of, words.runs):
        rows.append(row := audited(case, words.seed))
        shown = (f"{row[name]:.4g}" for name in ("claimed", "true", "audited"))
        claimed, true, found = shown
        print(
            f"| {case.name} | {case.worlds} | {claimed} | {case.by} | {true} | {found} | {row['runs']:,} |", flush=True
        )
    if words.json is not None:
        words.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
