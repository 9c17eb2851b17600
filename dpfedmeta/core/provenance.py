"""Provenance of a run: the code, machine and libraries that made it, for people and for rounds done again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import dpfedmeta
from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.core.plugins.user_code import unseen

if TYPE_CHECKING:
    import torch

# git answers at once or something is wrong with it; a run does not wait for it.
_PATIENCE = 5.0
_LIBRARIES = ("torch", "numpy", "scipy", "opacus", "numba", "llvmlite", "cryptography")
SWITCHES = ("MKL_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_JIT")


def made_by() -> dict[str, str | int | None]:
    """Return the provenance that summary.json keeps: code, day and machine.

    Guarantee:
        A property of the installation, not of anybody's data. The day is that on which the summary was written; no
        time of the day, which would tell more of how long a private run took than its coarse times do.
    """
    return {
        "commit": commit(),
        "source": source_digest()[:16],
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor().partition(";")[0],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The git commit of the package's own source, with " + changes" where files differ from it.

    None: the package is no checkout of its own (installed, for instance), or git is not there. A package that lies
    inside of somebody else's repository, as in a virtual environment, is not that repository's code.
    """
    folder = Path(dpfedmeta.__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "--", "__init__.py") is None:
        return None
    head = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".", "../configs", "../tasks")
    if head is None or changes is None:
        return None
    return head + (" + changes" if changes else "")


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command; None where it fails."""
    # A hook's variables would name another repository.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True, check=True, timeout=_PATIENCE, env=plain,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


@lru_cache(maxsize=1)
def source_digest() -> str:
    """SHA-256 over the package's modules: which code ran, also where no commit says it."""
    folder = Path(dpfedmeta.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)} {digest_of(path)}\n".encode())
    return digest.hexdigest()


def processor() -> str:
    """Name and instructions: a virtual machine may hide some that the name promises, and kernels choose by them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "; ".join(
        next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
        for key in ("model name", "flags")
    )


def environment_of(device: torch.device, chunk: int | None = None, own: Mapping[str, str] | None = None) -> str | None:
    """Digest of everything that could change a result; None where that is never certain: on a GPU, or with code unseen.

    Args:
        device: Where clients are computed.
        chunk: run.chunk.
        own: Code of the user's own (own_sources).

    Guarantee:
        Two attempts at a round with one digest run the same code on the same kind of machine: code of the user's own
        is part of it, so that an edited module never answers another question with the noise of an earlier attempt.
    """
    own = own or {}
    if device.type != "cpu" or unseen(own):
        return None
    import torch  # here, since most of what asks for a provenance needs none of it

    parts = {
        "source": source_digest(),
        "versions": list(versions().values()),
        "machine": [platform.system(), platform.machine(), processor(), torch.backends.cpu.get_cpu_capability()],
        "switches": {name: value for name, value in os.environ.items() if name.startswith(SWITCHES)},
        "chunk": chunk or 1,
        **({"own": dict(own)} if own else {}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that compute the numbers."""
    return {"Python": platform.python_version(), **{name: metadata.version(name) for name in _LIBRARIES}}
