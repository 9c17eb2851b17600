"""Checks of the numbers that a client promises, made before the accountant is imported."""

import math
from types import UnionType

from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.errors import InputError


def check_promise(
    unit: str, epsilon: float | None, delta: float, participations: int | None, relation: str | None = None
) -> None:
    """Check the numbers of a promise.

    Raises:
        InputError: It promises nothing, or a value is out of its range.
    """
    if unit not in ("record", "client"):
        raise InputError(f"unit = {unit}: expected record or client")
    if epsilon is None and participations is None:
        raise InputError("epsilon and participations are both missing; give one of them or both")
    if epsilon is not None and not (_is(epsilon, int | float) and 0 < epsilon < math.inf):
        raise InputError(f"epsilon = {epsilon!r}: expected a finite number above 0 (int or float)")
    if not (_is(delta, int | float) and 0 < delta < 1):
        raise InputError(f"delta = {delta!r}: expected a number above 0 and below 1 (float)")
    if participations is not None and not (_is(participations, int) and participations >= 1):
        raise InputError(f"participations = {participations!r}: expected at least 1 (int)")
    if relation is not None and relation not in RELATIONS:
        raise InputError(f"relation = {relation}: expected one of {', '.join(RELATIONS)}")
    if relation is not None and unit == "client":
        raise InputError(f"relation = {relation}: says how a record differs, and unit = client; leave one of them out")


def check_floors(adversarial: float, colluding: int) -> None:
    """Check what a client demands of a plan besides.

    Raises:
        InputError: A value is out of its range.
    """
    if not (_is(adversarial, int | float) and 0 <= adversarial < 1):
        raise InputError(f"adversarial = {adversarial!r}: expected a share of a cohort, at least 0 and below 1")
    if not (_is(colluding, int) and colluding >= 0):
        raise InputError(f"colluding = {colluding!r}: expected a number of clients, 0 or more")


def _is(value: object, kind: type | UnionType) -> bool:
    """Return whether it is such a number; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)
