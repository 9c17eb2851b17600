"""Readers of settings that several methods share."""

from __future__ import annotations

from typing import Literal

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.meta.adaptation import PLAIN, Adaptation, Adapts, InnerRule

Order = Literal[1, 2]


def adaptation_of(settings: Settings, adapt: Adapts, rule: InnerRule = PLAIN) -> Adaptation:
    """The inner loop; `adapt` where the settings leave it open."""
    chosen = settings.meta
    return Adaptation(adapt=chosen.adapt or adapt, steps=chosen.steps, lr=chosen.lr, rule=rule)


def first_order_only(settings: Settings) -> None:
    """Refuse second derivatives.

    Raises:
        InputError: They are asked for.
    """
    if settings.meta.order == 2:
        raise InputError(f"meta.order = 2: {settings.meta.method} is a first-order method; use meta.method = maml")


def whole_batches_only(settings: Settings) -> None:
    """Refuse mini-batches.

    Raises:
        InputError: They are asked for.
    """
    if settings.meta.batch is not None:
        raise InputError(
            f"meta.batch = {settings.meta.batch}: {settings.meta.method} uses all support records in a step; drop it"
        )


def undivided_only(settings: Settings) -> None:
    """Refuse to divide a client's records again and again.

    Raises:
        InputError: It is asked for.
    """
    if settings.meta.divisions > 1 or settings.meta.division_shots is not None:
        raise InputError(
            f"meta.divisions = {settings.meta.divisions}: divisions share one pass through the body, so they need a "
            "meta-gradient that adapts the head (--meta.adapt head, and maml, fomaml or anil); or use "
            "--meta.divisions 1"
        )
