"""Facts about a launch by torchrun, read from the environment; imports no heavy library."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpfedmeta.core.errors import InputError

TIMEOUT = "DPFEDMETA_RANK_TIMEOUT"
_SECONDS = 300.0
# torchrun's name of a launch that was given none.
_NAMELESS = ("", "none")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Process of a launch by torchrun.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        local_rank: Number of this process on its machine, and of its GPU.
        restarts: Times that torchrun has restarted all processes.
        may_restart: Times that torchrun may restart them.
        name: Name that only this launch and its restarts have.
        timeout: Seconds without a message after which a process counts as hung.
    """

    rank: int
    size: int
    local_rank: int = 0
    restarts: int = 0
    may_restart: int = 0
    name: str = ""
    timeout: float = _SECONDS


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch that this process is of; None: it was started as usual.

    Raises:
        InputError: The environment contradicts itself.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None

    def number(name: str, default: int | None = None) -> int:
        text = environment.get(name, "" if default is None else str(default))
        if not text.isascii() or not text.isdigit():
            raise InputError(f"{name} = {text!r} in the environment: expected a whole number; start with torchrun")
        return int(text)

    rank, size = number("RANK"), number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise InputError(
            f"RANK = {rank}, WORLD_SIZE = {size} in the environment: expected 0 <= RANK < WORLD_SIZE; start with "
            "torchrun"
        )
    return Launch(
        rank=rank,
        size=size,
        local_rank=number("LOCAL_RANK", 0),
        restarts=number("TORCHELASTIC_RESTART_COUNT", 0),
        may_restart=number("TORCHELASTIC_MAX_RESTARTS", 0),
        name=_name(environment),
        timeout=_timeout(environment),
    )


def _name(environment: Mapping[str, str]) -> str:
    """--rdzv-id (--standalone draws one); without it the launcher's own process, which survives its restarts."""
    given = environment.get("TORCHELASTIC_RUN_ID", "")
    if given not in _NAMELESS:
        return given
    parent = os.getppid()
    try:
        # Numbers of processes are given again; the time they started at is not.
        begun = (
            Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except (OSError, IndexError):
        begun, machine = "", os.uname().nodename
    return f"process {parent} {begun} {machine}"


def _timeout(environment: Mapping[str, str]) -> float:
    text = environment.get(TIMEOUT, str(_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 5.0 <= seconds <= 1e6:
        raise InputError(f"{TIMEOUT} = {text!r} in the environment: expected seconds, from 5 to 1000000")
    return seconds
