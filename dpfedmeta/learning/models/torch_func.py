"""`torch.func` without torch._dynamo, which its first gradient would import for 1.5 seconds, and hold 70 MB of.

A gradient of torch.func disables compiled autograd while it runs. Nobody can have enabled that before torch._dynamo is
imported. So until somebody imports it, a stand-in answers for it, and imports it for anything else.
"""

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch.func import functional_call, grad, vmap

__all__ = ["functional_call", "grad", "vmap"]

_REAL = "torch._dynamo"


class _NeverEnabled:
    """Compiled autograd of a process that has not imported it."""

    _disable = staticmethod(nullcontext)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(f"{_REAL}.compiled_autograd"), name)


class _NotImported:
    """Stand-in for torch._dynamo; importing that puts the module in its place."""

    def __getattr__(self, name: str) -> Any:
        if name == "compiled_autograd" and _REAL not in sys.modules:
            return _NeverEnabled()
        return getattr(import_module(_REAL), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(import_module(_REAL), name, value)


if _REAL not in sys.modules:
    # Where it is imported later, Python sets this attribute to the module.
    setattr(torch, "_dynamo", _NotImported())  # noqa: B010
