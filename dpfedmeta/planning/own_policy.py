"""A clip policy that the caller hands over as an object: the reasons to refuse it, and what a run remembers of it."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass, replace
from typing import Any, get_args

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.planning.clip import bounds_clients
from dpfedmeta.privacy.clip_policy import ClipPolicy, Mode
from dpfedmeta.privacy.policies.median import Histogram
from dpfedmeta.privacy.policies.quantile import BelowBound
from dpfedmeta.run_directory import PLAN, RunDirectory
from dpfedmeta.settings import Settings

_METHODS = ("initial", "next_bound")


def with_own_policy(settings: Settings, policy: ClipPolicy[Any]) -> Settings:
    """The settings as a run with this object keeps them.

    Guarantee:
        A policy sees released values only, so its bounds enter no event. What clients add for it is counted by its
        stated sensitivity, which nobody checks for an attachment of the caller's own; so only this package's are taken.

    Raises:
        InputError: It is no clip policy, or there is nothing to clip.
        RefusedPlan: It asks clients for what no guarantee would cover.
    """
    name = own_policy_name(policy)
    if not bounds_clients(settings):
        raise InputError(
            f"clip_policy = {name}: {settings.algo} does not clip (clip.policy = {settings.clip.policy}), so a policy "
            "has no place; use an algorithm with client-level privacy"
        )
    for method in _METHODS:
        if not callable(getattr(policy, method, None)):
            raise InputError(f"clip_policy = {name}: has no {method}(); see dpfedmeta.privacy.clip_policy.ClipPolicy")
    if isinstance(policy, type):
        raise InputError(f"clip_policy = {name}: is a class; hand over an object of it")
    _check_attachment(settings, policy, name)
    _check_initial(policy, name)
    return replace(settings, clip=replace(settings.clip, policy="own"))


def _check_attachment(settings: Settings, policy: ClipPolicy[Any], name: str) -> None:
    if not hasattr(policy, "attachment"):
        raise InputError(f"clip_policy = {name}: has no attachment; None where clients send their message alone")
    if policy.attachment is None:
        return
    if not isinstance(policy.attachment, BelowBound | Histogram):
        raise RefusedPlan(
            f"clip_policy = {name}: its attachment is {type(policy.attachment).__qualname__}, whose sensitivity nobody "
            "has checked; use BelowBound or Histogram of dpfedmeta.privacy.policies.quantile and .median, or None"
        )
    if settings.record.enabled:
        raise RefusedPlan(
            f"clip_policy = {name}: it counts norms of the clients' exact messages, which {settings.algo} never "
            "computes: each record is clipped or noised there before a message is formed; let its attachment be None"
        )


def _check_initial(policy: ClipPolicy[Any], name: str) -> None:
    """Its state is kept in every checkpoint, as numbers and text."""
    state = policy.initial()
    bound, mode = getattr(state, "bound", None), getattr(state, "mode", None)
    if not isinstance(bound, float | int) or isinstance(bound, bool) or not 0 < bound < math.inf:
        raise InputError(f"clip_policy = {name}: initial().bound is {bound!r}, expected a number above 0")
    if mode not in get_args(Mode):
        raise InputError(
            f"clip_policy = {name}: initial().mode is {mode!r}, expected one of {', '.join(get_args(Mode))}"
        )
    if not is_dataclass(state) or isinstance(state, type) or not _survives(state):
        raise InputError(
            f"clip_policy = {name}: initial() is {type(state).__qualname__}; a checkpoint keeps dataclasses of "
            "numbers, text and tuples of them"
        )


def _survives(state: Any) -> bool:
    try:
        plain: Any = TypeAdapter(Any).dump_json(asdict(state))
        return bool(TypeAdapter(type(state)).validate_json(plain) == state)
    except (PydanticUserError, ValidationError, ValueError, TypeError):
        return False


def own_policy_name(policy: object) -> str:
    """What a run remembers of it: its values where it is a dataclass, else its class."""
    form = policy if isinstance(policy, type) else type(policy)
    where = f"{form.__module__}.{form.__qualname__}"
    return f"{where}: {policy!r}" if is_dataclass(policy) and not isinstance(policy, type) else where


def check_same_policy(run: RunDirectory, settings: Settings, policy: ClipPolicy[Any] | None) -> None:
    """Refuse to go on with another clip policy than the run began with.

    Raises:
        InputError: It was an object, and none or another one is handed over; or the other way round.
    """
    if settings.clip.policy != "own":
        if policy is not None:
            raise InputError(
                f"{run.path}: it began with clip.policy = {settings.clip.policy}; resume it without a clip policy of "
                "your own, or start a new run with it"
            )
        return
    kept = run.read_json(PLAN).get("clip_policy")
    if policy is None:
        raise InputError(
            f"{run.path}: its clip policy was an object of the caller's own ({kept}), and none was handed over; resume "
            "it from Python: dpfedmeta.train(resume=..., clip_policy=...)"
        )
    if own_policy_name(policy) != kept:
        raise InputError(
            f"{run.path}: it began with the clip policy {kept}; handed over is {own_policy_name(policy)}; hand over "
            "the same, or start a new run"
        )
