"""`dpfedmeta COMMAND ...` and `python -m dpfedmeta COMMAND ...`; nothing is imported that the command does not need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from dpfedmeta.cli.commands import OF_A_CHECKOUT, command_module, command_names, command_summary

if TYPE_CHECKING:
    from rich.console import Console

    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.simulation.distributed.torchrun_env import Launch


def main(words: Sequence[str] | None = None) -> None:
    """Call the command that is named first with the words behind it, and leave with its exit code.

    Args:
        words: Without the program's name; None: those of the process.
    """
    try:
        _run(sys.argv[1:] if words is None else words)
    except KeyboardInterrupt:
        # While the first libraries are imported, or the last ones are put away.
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


def _run(words: Sequence[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        sys.exit(0 if words else 2)
    if words[0] == "--version":
        from dpfedmeta.core.version import __version__

        print(f"dpfedmeta {__version__}")
        sys.exit(0)
    from dpfedmeta.core.dependencies import check_dependencies

    check_dependencies(words[0])
    from dpfedmeta.cli.arguments import run_command

    # Inside, so that Ctrl-C while libraries are imported is an interruption as well.
    run_command(lambda console: _called(_command(words[0]), words, console))


def _called(command: ModuleType, words: Sequence[str], console: Console) -> int:
    """Call a command as usual, or on the ranks that torchrun has started."""
    from dpfedmeta.simulation.distributed.torchrun_env import launched

    launch = launched()
    if launch is None:
        code: int = command.main(words[1:], console)
        return code
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # before PyTorch is there: its words would stand before ours
    from dpfedmeta.simulation.distributed.launch import on_ranks

    return on_ranks(launch, words, lambda workers: _on_workers(command, words, console, workers, launch))


def _on_workers(command: ModuleType, words: Sequence[str], console: Console, workers: Workers, launch: Launch) -> int:
    if not hasattr(command, "on_workers"):
        from dpfedmeta.core.errors import InputError

        raise InputError(f"{words[0]}: has no work for several ranks; start it without torchrun")
    code: int = command.on_workers(words[1:], console, workers, launch)
    return code


def _command(name: str) -> ModuleType:
    known = [*command_names(), *OF_A_CHECKOUT]
    if name not in known:
        from dpfedmeta.cli.words_of_others import command_meant
        from dpfedmeta.core.errors import InputError
        from dpfedmeta.core.pydantic_errors import nearest

        raise InputError(
            f"{name}: no such command{command_meant(name) or nearest(name, known)}; known are {', '.join(known)}"
        )
    return command_module(name)


def _overview() -> str:
    known = command_names()
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {command_summary(name)}" for name in known]
    usage = "usage: dpfedmeta COMMAND ...\n\nFederated meta-learning with layered differential privacy.\n"
    return "\n".join([usage, *lines, "", "dpfedmeta COMMAND --help lists what a command takes."])


if __name__ == "__main__":
    main()
