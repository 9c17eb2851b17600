"""A clip policy that the caller hands over as an object: the reasons to refuse it, and what a run remembers of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import PLAN, RunDirectory
from dpfedmeta.planning.clipping.policy_from_settings import bounds_clients
from dpfedmeta.privacy.clip_policies.policy_checks import check_policy
from dpfedmeta.privacy.clip_policies.policy_checks import own_policy_name as own_policy_name
from dpfedmeta.privacy.clip_policy import ClipPolicy

# What clip.policy says of a policy that was handed over as an object.
OWN = "own"


def with_own_policy(settings: Settings, policy: ClipPolicy[Any]) -> Settings:
    """The settings as a run with this object keeps them.

    Raises:
        InputError: It is no clip policy, or there is nothing to clip.
        RefusedPlan: It asks clients for what no guarantee would cover.
    """
    name = own_policy_name(policy)
    if not bounds_clients(settings):
        raise InputError(
            f"clip_policy = {name}: {settings.algo} does not clip (clip.policy = {settings.clip.policy}), so a policy "
            "has no effect; use an algorithm with client-level privacy"
        )
    if isinstance(policy, type):
        raise InputError(f"clip_policy = {name}: this is a class; hand over an object of it")
    check_policy(policy, f"clip_policy = {name}", algo=settings.algo, exact=not settings.record.enabled)
    return replace(settings, clip=replace(settings.clip, policy=OWN))


def check_same_policy(run: RunDirectory, settings: Settings, policy: ClipPolicy[Any] | None) -> None:
    """Refuse to go on with another clip policy than the run began with.

    Raises:
        InputError: It was an object, and none or another one is handed over; or the other way round.
    """
    if settings.clip.policy != OWN:
        if policy is not None:
            raise InputError(
                f"{run.path}: it began with clip.policy = {settings.clip.policy}; resume it without a clip policy of "
                "your own, or start a new run with it"
            )
        return
    kept = run.read_json(PLAN).get("clip_policy")
    if policy is None:
        raise InputError(
            f"{run.path}: it began with a clip policy of your own ({kept}), and none was handed over; resume "
            "it from Python: dpfedmeta.train(resume=..., clip_policy=...)"
        )
    if own_policy_name(policy) != kept:
        raise InputError(
            f"{run.path}: it began with the clip policy {kept}; but {own_policy_name(policy)} was handed over; hand "
            "over the same, or start a new run"
        )
