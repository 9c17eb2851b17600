"""What the numbers of a round depend on besides data and seeds: code, libraries, processor, device."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata

import torch

from dpfedmeta.runs.provenance import processor, source_digest

_LIBRARIES = ("torch", "numpy", "scipy", "opacus", "numba", "llvmlite", "cryptography")
SWITCHES = ("MKL_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_JIT")


def environment_of(device: torch.device, chunk: int | None = None) -> str | None:
    """Digest of everything that could change the last bits of a result; None where they are never certain (a GPU).

    Args:
        device: Where clients are computed.
        chunk: run.chunk.
    """
    if device.type != "cpu":
        return None
    parts = {
        "source": source_digest(),
        "versions": list(versions().values()),
        "machine": [platform.system(), platform.machine(), processor(), torch.backends.cpu.get_cpu_capability()],
        "switches": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SWITCHES)},
        "chunk": chunk or 1,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of Python and the libraries that the numbers come from."""
    return {"Python": platform.python_version(), **{name: metadata.version(name) for name in _LIBRARIES}}
