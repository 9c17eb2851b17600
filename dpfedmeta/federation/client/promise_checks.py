"""Checks of the numbers that a client promises, made before the accountant is imported."""

import math

from dpfedmeta.core.errors import InputError


def check_promise(unit: str, epsilon: float | None, delta: float, participations: int | None) -> None:
    """Check the numbers of a promise.

    Raises:
        InputError: It promises nothing, or a value is out of its range.
    """
    if unit not in ("record", "client"):
        raise InputError(f"unit = {unit}: expected record or client")
    if epsilon is None and participations is None:
        raise InputError("epsilon and participations are both missing; give one of them or both")
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon}: expected a finite number above 0")
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta}: expected a number above 0 and below 1")
    if participations is not None and participations < 1:
        raise InputError(f"participations = {participations}: expected at least 1")


def check_floors(adversarial: float, colluding: int) -> None:
    """Check what a client demands of a plan besides.

    Raises:
        InputError: A value is out of its range.
    """
    if not 0 <= adversarial < 1:
        raise InputError(f"adversarial = {adversarial}: expected a share of a cohort, at least 0 and below 1")
    if colluding < 0:
        raise InputError(f"colluding = {colluding}: expected a number of clients, 0 or more")
