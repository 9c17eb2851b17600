"""Words and places that users try, and what to type in place of them."""

import zipfile
from collections.abc import Collection
from pathlib import Path

from dpfedmeta.core.files.run_directory import LEDGER

_COMMANDS = {
    "adapt": "evaluate RUN --on FOLDER",
    "budget": "account --algo NAME --dataset NAME",
    "certify": "account --statement RUN",
    "client": "federate client",
    "compare": "report RUN RUN",
    "demo": "federate demo",
    "epsilon": "account --algo NAME --dataset NAME",
    "eval": "evaluate RUN",
    "export": "archive RUN",
    "keys": "federate keys",
    "plan": "train ... --dry-run",
    "privacy": "account --algo NAME --dataset NAME",
    "publish": "archive RUN",
    "resume": "train --resume RUN",
    "run": "train",
    "server": "federate server",
    "statement": "account --statement RUN",
    "test": "evaluate RUN",
    "verify": "account --verify RUN",
}
_OPTIONS = {
    "certify": "statement",
    "data": "dataset",
    "epochs": "rounds",
    "eps": "epsilon",
    "iterations": "rounds",
    "n": "clients",
    "name": "run.name",
    "noise": "noise-multiplier",
    "num-clients": "clients",
    "num-rounds": "rounds",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "output": "run.dir",
    "preset": "algo",
    "q": "cohort",
    "sigma": "noise-multiplier",
    "t": "rounds",
    "target-epsilon": "epsilon",
    "target_epsilon": "epsilon",
    "task": "dataset",
    "threads": "run.workers",
    "w": "window",
    "wandb": "track.wandb",
    "z": "noise-multiplier",
}


def command_meant(name: str) -> str:
    """'; did you mean X?' for a command of another program, or nothing."""
    meant = _COMMANDS.get(name.lower())
    return f"; did you mean dpfedmeta {meant}?" if meant else ""


def option_meant(name: str, known: Collection[str]) -> str:
    """'; did you mean --X?' for an option of another program that this command has by another name, or nothing."""
    meant = _OPTIONS.get(name.lower())
    return f"; did you mean --{meant}?" if meant in known else ""


def run_meant(word: str) -> str:
    """'; for a run: ...' where the word is the folder of a run, or holds some."""
    folder = Path(word)
    if (folder / LEDGER).exists():
        return f"; for a run: dpfedmeta account --run {word}, or --verify or --statement in place of --run"
    inside = sorted(path.parent for path in folder.glob(f"*/{LEDGER}")) if folder.is_dir() else []
    return f"; it holds runs: name one, as dpfedmeta account --run {inside[-1]}" if inside else ""


def no_run(path: Path) -> str:
    """Say what a path is that is no folder of a run."""
    if not path.is_file():
        return f"{path}: there is no such run directory"
    if zipfile.is_zipfile(path):
        unpack = f"python -m zipfile -e {path} FOLDER"
        return f"{path}: is an archive; unpack it ({unpack}), and name the folder of the run in it"
    return f"{path}: is a file; name the folder of a run, as runs/NAME"


def without_dashes(word: str, known: Collection[str]) -> str:
    """'; did you mean --X?' for an option that begins with one dash, or nothing."""
    name = word.lstrip("-").partition("=")[0]
    return f"; did you mean --{name}?" if word.startswith("-") and name in known else ""
