"""SECRET: what a mechanism remembers between rounds, kept beside the noise seed, for the checkpoints that are kept."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from dpfedmeta.durable import SECRET, replace_file
from dpfedmeta.errors import InputError
from dpfedmeta.parameters import Params
from dpfedmeta.run_directory import RunDirectory, load_weights


def keep_noise_state(run: RunDirectory, round_: int, state: Params, keep: int) -> None:
    """Write the state before round `round_`, and drop all but the last `keep`; nothing for a mechanism without one."""
    if not state:
        return
    _folder(run).mkdir(mode=0o700, exist_ok=True)
    content = save({name: value.contiguous().cpu() for name, value in state.items()})
    replace_file(_file(run, round_), content, SECRET)
    for path in sorted(_folder(run).glob("round-*.safetensors"))[:-keep]:
        path.unlink(missing_ok=True)


def kept_noise_state(run: RunDirectory, round_: int, initial: Params) -> Params:
    """The state before round `round_`, of the form of `initial`.

    Raises:
        InputError: It is lost or damaged, so the noise of the rounds to come would not be the one that was planned.
    """
    if not initial or not round_:
        return initial
    path = _file(run, round_)
    state = load_weights(path)
    if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in initial.items()}:
        raise InputError(f"{path}: is not the state of this run's mechanism; restore it from a backup")
    return state


def _folder(run: RunDirectory) -> Path:
    return run.secret / "noise"


def _file(run: RunDirectory, round_: int) -> Path:
    return _folder(run) / f"round-{round_:06d}.safetensors"
