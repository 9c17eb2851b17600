"""What the numbers of a round depend on besides data and seeds: code, libraries, processor, device."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

import dpfedmeta
from dpfedmeta.data.archives import digest_of

_LIBRARIES = ("torch", "numpy", "scipy", "opacus", "numba", "llvmlite", "cryptography")
_SWITCHES = ("MKL_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_JIT")


def environment_of(device: torch.device, chunk: int | None = None) -> str | None:
    """Digest of everything that could change the last bits of a result; None where they are never certain (a GPU).

    Args:
        device: Where clients are computed.
        chunk: run.chunk.
    """
    if device.type != "cpu":
        return None
    parts = {
        "source": _source_digest(),
        "versions": [platform.python_version(), *(metadata.version(name) for name in _LIBRARIES)],
        "machine": [platform.system(), platform.machine(), _processor(), torch.backends.cpu.get_cpu_capability()],
        "switches": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SWITCHES)},
        "chunk": chunk or 1,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=1)
def _source_digest() -> str:
    folder = Path(dpfedmeta.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)} {digest_of(path)}\n".encode())
    return digest.hexdigest()


def _processor() -> str:
    """Name and instructions: a virtual machine may hide some that the name promises, and kernels choose by them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "; ".join(
        next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
        for key in ("model name", "flags")
    )
