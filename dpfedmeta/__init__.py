"""Federated meta-learning with layered differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedmeta.personal import Initialisation, PersonalModel, load, load_personal

from dpfedmeta.version import __version__

__all__ = ["Initialisation", "PersonalModel", "__version__", "load", "load_personal"]


def __getattr__(name: str) -> Any:
    # On first use: PyTorch takes seconds to import, and setup.cfg reads the version from here.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dpfedmeta.personal"), name)
