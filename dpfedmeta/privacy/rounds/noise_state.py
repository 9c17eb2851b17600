"""SECRET: what a mechanism remembers between rounds, kept beside the noise seed, for the checkpoints that are kept."""

import re
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.params import digest, host, same_kind
from dpfedmeta.privacy.mechanisms import MechanismState

_FILE = re.compile(r"round-(\d{6,})-[0-9a-f]+\.safetensors")


def keep_noise_state(run: RunDirectory, round_: int, state: MechanismState, head: str) -> None:
    """Write the state before round `round_`, before its checkpoint is; nothing for a mechanism without one.

    Args:
        run: Where.
        round_: The next round.
        state: SECRET: of the mechanism.
        head: Hash of the ledger's last line: the file says which course of which run it belongs to.
    """
    if not state:
        return
    _folder(run).mkdir(mode=0o700, exist_ok=True)
    tensors = {name: host(value) for name, value in state.items()}
    content = save(tensors, {"head": head, "digest": digest(state)})
    replace_file(_file(run, round_, head), content, SECRET)


def drop_noise_states(run: RunDirectory, rounds: Collection[int]) -> None:
    """Remove the states that no checkpoint goes on from; call it once the latest checkpoint is written.

    Args:
        run: Where.
        rounds: Those that have a checkpoint. All attempts at such a round stay: the file does not say whose it is.
    """
    folder = _folder(run)
    for path in folder.iterdir() if folder.exists() else ():
        match = _FILE.fullmatch(path.name)
        if match and int(match[1]) not in rounds:
            path.unlink(missing_ok=True)


def kept_noise_state(run: RunDirectory, round_: int, initial: MechanismState, head: str) -> MechanismState:
    """The state before round `round_`, of the form of `initial`.

    Args:
        run: Where.
        round_: The next round.
        initial: The state before the first round.
        head: Hash of the ledger's last line when the round was reached.

    Raises:
        InputError: It is lost, damaged, or that of another run or another attempt, so the noise of the rounds to come
            would not be the one that was planned.
    """
    if not initial or not round_:
        return initial
    path = _file(run, round_, head)
    try:
        arrays = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path}: no readable state of the noise ({error})") from error
    state: MechanismState = {}
    state |= {name: same_kind(value, initial[name]) if name in initial else value for name, value in arrays.items()}
    if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in initial.items()}:
        raise InputError(f"{path}: is not the state of this run's mechanism; restore it from a backup")
    words = _words(path)
    if words.get("head") != head:
        raise InputError(
            f"{path}: is the noise of another run, or of another attempt at this one; later rounds would subtract "
            "noise that was never added; restore it from a backup"
        )
    if words.get("digest") != digest(state):
        raise InputError(f"{path}: is damaged: its digest does not match its numbers; restore it from a backup")
    return state


def _words(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return file.metadata() or {}


def _folder(run: RunDirectory) -> Path:
    return run.secret / "noise"


def _file(run: RunDirectory, round_: int, head: str) -> Path:
    # Two attempts at a round never share a file: a crash may leave the checkpoint of either.
    return _folder(run) / f"round-{round_:06d}-{head[:16]}.safetensors"
