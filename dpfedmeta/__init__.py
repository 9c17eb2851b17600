"""Federated meta-learning with layered differential privacy."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036
    # An older Python reads this file, and no further one.
    _OLD = "dpfedmeta needs Python 3.11 or later, and {} is {}.{}; docs/how-to/install.md says how to get it".format(
        sys.executable, *sys.version_info[:2]
    )
    if sys.argv[:1] == ["-m"]:
        print("error: " + _OLD, file=sys.stderr)
        sys.exit(2)
    raise ImportError(_OLD)

if TYPE_CHECKING:
    from dpfedmeta.api.audit import Audit, audit
    from dpfedmeta.api.evaluate import Evaluation, evaluate
    from dpfedmeta.api.plan import plan
    from dpfedmeta.api.run import Run
    from dpfedmeta.api.train import train
    from dpfedmeta.auditing.rounds.audit_rounds import audit_rounds
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.errors import InputError, RefusedPlan
    from dpfedmeta.federation.client_rounds import ClientRounds, RecordRelease, sign_rounds
    from dpfedmeta.federation.flower import private_strategy as flower
    from dpfedmeta.privacy.clip_policies import choices as clip
    from dpfedmeta.privacy.rounds.private_rounds import PrivateRounds
    from dpfedmeta.privacy.rounds.promise import Promise
    from dpfedmeta.training.personal.personal_model import Initialisation, PersonalModel, load, load_personal
    from dpfedmeta.training.personal.solved_model import SolvedRun, load_solved
    from dpfedmeta.training.personal.user_inputs import standardised
    from dpfedmeta.training.tracking.callbacks import Callback, CallbackFailed

from dpfedmeta.core.version import __version__

__all__ = [
    "Audit",
    "Callback",
    "CallbackFailed",
    "ClientRounds",
    "Evaluation",
    "Initialisation",
    "InputError",
    "PersonalModel",
    "PrivateRounds",
    "Promise",
    "RecordRelease",
    "RefusedPlan",
    "Run",
    "Settings",
    "SolvedRun",
    "__version__",
    "audit",
    "audit_rounds",
    "clip",
    "evaluate",
    "flower",
    "load",
    "load_personal",
    "load_solved",
    "plan",
    "sign_rounds",
    "standardised",
    "train",
]
_HOME = {
    "Audit": "api.audit",
    "Callback": "training.tracking.callbacks",
    "CallbackFailed": "training.tracking.callbacks",
    "ClientRounds": "federation.client_rounds",
    "Evaluation": "api.evaluate",
    "Initialisation": "training.personal.personal_model",
    "InputError": "core.errors",
    "PersonalModel": "training.personal.personal_model",
    "PrivateRounds": "privacy.rounds.private_rounds",
    "Promise": "privacy.rounds.promise",
    "RecordRelease": "federation.client_rounds",
    "RefusedPlan": "core.errors",
    "Run": "api.run",
    "Settings": "config.settings",
    "SolvedRun": "training.personal.solved_model",
    "audit": "api.audit",
    "audit_rounds": "auditing.rounds.audit_rounds",
    "evaluate": "api.evaluate",
    "load": "training.personal.personal_model",
    "load_personal": "training.personal.personal_model",
    "load_solved": "training.personal.solved_model",
    "plan": "api.plan",
    "sign_rounds": "federation.client_rounds",
    "standardised": "training.personal.user_inputs",
    "train": "api.train",
}
_PARTS = {"clip": "privacy.clip_policies.choices", "flower": "federation.flower.private_strategy"}


def __getattr__(name: str) -> Any:
    # On first use: PyTorch takes seconds to import, and setup.cfg reads the version from here.
    if name in _PARTS:
        return import_module(f"dpfedmeta.{_PARTS[name]}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"dpfedmeta.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        from dpfedmeta.core.dependencies import missing, remedy

        if error.name is None or error.name.partition(".")[0] not in missing():
            raise
        words = f"dpfedmeta is not installed for this Python: it lacks {error.name}; {remedy()}"
        raise ModuleNotFoundError(words, name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
