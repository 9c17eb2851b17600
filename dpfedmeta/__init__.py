"""Federated meta-learning with layered differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedmeta.api.audit import Audit, audit
    from dpfedmeta.api.evaluate import Evaluation, evaluate
    from dpfedmeta.api.plan import plan
    from dpfedmeta.api.run import Run
    from dpfedmeta.api.train import train
    from dpfedmeta.errors import InputError, RefusedPlan
    from dpfedmeta.personal import Initialisation, PersonalModel, load, load_personal
    from dpfedmeta.settings import Settings
    from dpfedmeta.tracking.callbacks import Callback, CallbackFailed

from dpfedmeta.version import __version__

__all__ = [
    "Audit",
    "Callback",
    "CallbackFailed",
    "Evaluation",
    "Initialisation",
    "InputError",
    "PersonalModel",
    "RefusedPlan",
    "Run",
    "Settings",
    "__version__",
    "audit",
    "evaluate",
    "load",
    "load_personal",
    "plan",
    "train",
]
_HOME = {
    "Audit": "api.audit",
    "Callback": "tracking.callbacks",
    "CallbackFailed": "tracking.callbacks",
    "Evaluation": "api.evaluate",
    "Initialisation": "personal",
    "InputError": "errors",
    "PersonalModel": "personal",
    "RefusedPlan": "errors",
    "Run": "api.run",
    "Settings": "settings",
    "audit": "api.audit",
    "evaluate": "api.evaluate",
    "load": "personal",
    "load_personal": "personal",
    "plan": "api.plan",
    "train": "api.train",
}


def __getattr__(name: str) -> Any:
    # On first use: PyTorch takes seconds to import, and setup.cfg reads the version from here.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"dpfedmeta.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        from dpfedmeta.installed import missing, remedy

        if error.name is None or error.name.partition(".")[0] not in missing():
            raise
        words = f"dpfedmeta is not installed for this Python: it lacks {error.name}; {remedy()}"
        raise ModuleNotFoundError(words, name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
