"""Archive of a run for publication: one file, without secrets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, parser, print_line

# Names of files that are said.
_SHOWN = 10
SUMMARY = "an ended run as one file to publish, without secret/"


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Write an ended run as a zip file: all but secret/, with a manifest of SHA-256.",
        settings=False,
        program="dpfedmeta archive",
    )
    made.add_argument("run", type=Path, help="run directory")
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE.zip",
        help="the file (RUN.zip here); without .zip: a folder with a model card, as Hugging Face's hub reads it",
    )
    made.add_argument(
        "--license",
        metavar="ID",
        help="of the weights, for the card of a folder, as the hub names it: apache-2.0, mit, cc-by-4.0",
    )
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, verify, write."""
    options = options_of().parse_args(words)
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.training.results.run_archive import archive

    path = options.out or Path(f"{options.run.resolve().name}.zip")
    made = archive(RunDirectory(options.run), path, options.license)
    print_line(
        console, f"{made.path}: {len(made.files)} files, verified before; {made.left_out} secret files are not in it"
    )
    if made.unknown:
        shown = ", ".join(made.unknown[:_SHOWN]) + (", ..." if len(made.unknown) > _SHOWN else "")
        print_line(
            console,
            f"note: {len(made.unknown)} files are not in it, since no command wrote them: {shown}",
            style="yellow",
        )
    if made.places:
        print_line(
            console,
            f"note: {', '.join(made.places)}: is in the settings, so ledger.jsonl and others show it, and the "
            "hashes of the ledger hold it; for a run to publish, train from a folder whose name may be known",
            style="yellow",
        )
    return DONE
