"""The ledger's plan once more, from the settings that the ledger holds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.ledger import LedgerContent
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.load import resolve_text
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_checks import check_no_analysis
from dpfedmeta.planning.privacy.solve import make_privacy

# What calibration solves from targets; a target's solution may differ in its last digits from machine to machine.
_SOLVED = ("noise_multiplier", "record.support_noise", "record.query_noise")
_ALIKE = 1e-6
# What a fit of correlated noise finds may differ by more; the ledger's own numbers are the ones that are accounted for.
_FITTED, _FLAT = "correlation.numbers", 1e-3
# Real clients mask against a server that breaks the protocol, simulated ones need not; no setting says who they are.
_OF_THE_CLIENTS = "secure.malicious"


def settings_of_ledger(path: Path, content: LedgerContent) -> Settings:
    """Read the settings of a run: the config.yaml in the ledger's first line.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    where = f"{path}, line 1: identity.config"
    check_no_analysis(path.parent, content.identity.config)
    if not content.identity.config:
        raise InputError(f"{where}: is empty, so the settings of the run are not known")
    return resolve_text(content.identity.config, where)


def check_plan(path: Path, content: LedgerContent, settings: Settings) -> str:
    """Solve the plan again from the settings, and compare.

    Returns:
        What was found, in a few words.

    Raises:
        InputError: The ledger states other constants; names the first of them, and both values.
        RefusedPlan: These settings are refused today: what the run promised does not hold.
    """
    try:
        task, _ = task_of(settings)
    except InputError as error:
        return f"its plan could not be derived again from its settings: {error}"
    try:
        plan = make_privacy(settings, task, earlier=content.plan.earlier)
    except RefusedPlan as error:
        raise RefusedPlan(f"{path}: this version refuses the settings of this run: {error}") from error
    solved = _SOLVED if settings.privacy.client.epsilon or settings.privacy.record.epsilon else ()
    for name, stated, derived in _pairs(content.plan.begun, plan):
        alike = name in solved and None not in (stated, derived) and math.isclose(stated, derived, rel_tol=_ALIKE)
        if stated != derived and not alike and not (name == _FITTED and _close(stated, derived)):
            raise InputError(f"{path}, line 1: plan.{name}: states {stated!r}, but its settings give {derived!r}")
    return "its settings give its plan"


def _close(stated: Sequence[float], derived: Sequence[float]) -> bool:
    pairs = zip(stated, derived, strict=False)
    return len(stated) == len(derived) and all(math.isclose(a, b, rel_tol=_FLAT) for a, b in pairs)


def _pairs(stated: PrivacyPlan, derived: PrivacyPlan) -> Iterator[tuple[str, Any, Any]]:
    """(name, in the ledger, derived) of every constant."""
    # What was spent before is compared with the ledgers that it was read from (prior_spending).
    left, right = (_flat(asdict(replace(plan, earlier=()))) for plan in (stated, derived))
    for name in sorted({*left, *right} - {_OF_THE_CLIENTS}):
        yield name, left.get(name), right.get(name)


def _flat(constants: Mapping[str, Any]) -> dict[str, Any]:
    record = constants["record"] or {}
    secure = constants["secure"] or {}
    correlation = constants["correlation"] or {}
    parts = {"record": record, "secure": secure, "correlation": correlation}
    plain = {name: value for name, value in constants.items() if name not in parts}
    inner = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
    return {**plain, **{name: bool(part) for name, part in parts.items()}, **inner}
