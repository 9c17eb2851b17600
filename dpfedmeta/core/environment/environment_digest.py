"""Environment that a round's numbers depend on besides data and seeds: code, libraries, processor, device."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata

import torch

from dpfedmeta.core.environment.provenance import processor, source_digest
from dpfedmeta.core.plugins.user_code_digest import unseen

_LIBRARIES = ("torch", "numpy", "scipy", "opacus", "numba", "llvmlite", "cryptography")
SWITCHES = ("MKL_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_JIT")


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
    parts = {
        "source": source_digest(),
        "versions": list(versions().values()),
        "machine": [platform.system(), platform.machine(), processor(), torch.backends.cpu.get_cpu_capability()],
        "switches": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SWITCHES)},
        "chunk": chunk or 1,
        **({"own": dict(own)} if own else {}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that compute the numbers."""
    return {"Python": platform.python_version(), **{name: metadata.version(name) for name in _LIBRARIES}}
