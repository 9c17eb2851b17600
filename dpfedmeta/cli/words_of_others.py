"""Words and places that users try, and what to type in place of them."""

import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote

from dpfedmeta.core.errors import DAMAGED_JSON
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
    """'; for a run: ...' where the word is the folder of a run, or what else `account` takes, or holds some."""
    kind = _kind_of(Path(word))
    if kind == "a run":
        return f"; for a run: dpfedmeta account --run {word}, or --verify or --statement in place of --run"
    if kind not in _NO_LEDGER:
        what, remedy, _ = _KEPT[kind]
        return f"; it {what}: {remedy.format(path=quote(word), parent=quote(str(Path(word).parent)))}"
    inside = sorted(path.parent for path in Path(word).glob(f"*/{LEDGER}")) if kind == "a folder" else []
    return f"; it holds runs: name one, as dpfedmeta account --run {inside[-1]}" if inside else ""


# What may stand in the place of a run: what it is, what to type for it, and the options of `account` that take it. A
# folder without a ledger is told which runs it holds by whoever opens it.
_OF_RUNS = ("run", "verify", "statement", "realised")
_KEPT: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "a run": ("is the folder of a run", "dpfedmeta account --verify {path}", _OF_RUNS),
    "a folder": ("is a folder", "name the file of a register (--promise begins one)", _OF_RUNS),
    "a home": ("is a client's home", "dpfedmeta account --statement {path}", ("statement",)),
    "a register": (
        "is the register of a population",
        "dpfedmeta account --population {path}, or --statement {path}",
        ("population", "statement"),
    ),
    "a run's ledger": ("is the ledger of a run", "name its folder: dpfedmeta account --verify {parent}", ()),
    "a home's ledger": (
        "is the ledger of a client's home",
        "name its folder: dpfedmeta account --statement {parent}",
        (),
    ),
    "an archive": (
        "is an archive",
        "unpack it (python -m zipfile -e {path} FOLDER), and name the folder of the run in it",
        (),
    ),
    # A register whose first line is damaged is told so by whoever reads it.
    "a file": ("is a file", "name the folder of a run, as runs/NAME", ("population",)),
    "nothing": ("there is no such run directory", "", ("population",)),
}
_NO_LEDGER = ("a folder", "an archive", "a file", "nothing")


# Of the first line of a client's ledger, and of a register.
_HOME, _REGISTER = {"version", "budget"}, {"register", "epsilon", "order"}


def _kind_of(path: Path) -> str:
    """The kind of a path in `_KEPT`."""
    file = path / LEDGER if path.is_dir() else path
    if not file.is_file():
        return "a folder" if path.is_dir() else "nothing"
    if zipfile.is_zipfile(file):
        return "an archive"
    try:
        with file.open("rb") as lines:
            first = {*dict(json.loads(lines.readline()))}
    except (OSError, TypeError, *DAMAGED_JSON):
        first = set[str]()
    if file.name == LEDGER:
        kind = "a home" if first >= _HOME else "a run"
        return kind if path.is_dir() else f"{kind}'s ledger"
    return "a register" if first >= _REGISTER else "a file"


def misplaced(path: Path, option: str = "") -> str | None:
    """Say what a path is that an option of `account` does not take, and what to type; None: it takes that.

    Args:
        path: As it was typed.
        option: Its name, without dashes; empty: of another command, which takes no such path at all.
    """
    what, remedy, takes = _KEPT[_kind_of(path)]
    if option in takes:
        return None
    if not remedy:
        return f"{path}: {what}"
    return f"{path}: {what}; {remedy.format(path=quote(str(path)), parent=quote(str(path.parent)))}"


def no_run(path: Path) -> str:
    """Say what a path is that is no folder of a run."""
    return misplaced(path) or ""


def without_dashes(word: str, known: Collection[str]) -> str:
    """'; did you mean --X?' for an option that begins with one dash, or nothing."""
    name = word.lstrip("-").partition("=")[0]
    return f"; did you mean --{name}?" if word.startswith("-") and name in known else ""
