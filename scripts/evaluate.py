"""Evaluate a run's initialisation on held-out test classes, by shots."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dpfedmeta.command_line import DONE, parser, run_command
from dpfedmeta.federation.evaluate_run import EvaluationRequest, evaluate_run


def main(console: Console) -> int:
    """Parse and evaluate."""
    arguments = parser("Evaluate personalised adaptation on held-out test classes.", settings=False)
    arguments.add_argument("run", type=Path, help="run directory")
    arguments.add_argument("--shots", type=int, nargs="+", help="support images per class (default: as trained)")
    arguments.add_argument("--episodes", type=int, default=600, help="episodes per setting")
    arguments.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    arguments.add_argument("--workers", type=int, help="worker processes (default: cores)")
    options = arguments.parse_args()
    request = EvaluationRequest(
        run=options.run,
        shots=tuple(options.shots or ()),
        episodes=options.episodes,
        data_folder=options.data_dir,
        workers=options.workers,
    )
    evaluate_run(request, console)
    return DONE


if __name__ == "__main__":
    run_command(main)
