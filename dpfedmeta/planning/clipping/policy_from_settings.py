"""Clip policy that the settings describe, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.planning.clipping.policy_checks import check_policy
from dpfedmeta.privacy.clip_policy import ClipPolicy, Surroundings

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

_SETTING, _FOLDER = "clip.policy", "dpfedmeta.privacy.clip_policies"


def bounds_clients(settings: Settings) -> bool:
    """Return whether a client's message is clipped at all; only then can there be a client-level guarantee.

    Raises:
        InputError: There is no policy of this name.
    """
    return bool(getattr(_member(settings), "bounded", True))


def clip_policy(settings: Settings, privacy: PrivacyPlan) -> ClipPolicy[Any]:
    """Return the clip policy, which sets the clip bound of each round from earlier releases.

    Raises:
        InputError: The clip settings do not fit each other or the run, or the policy breaks its protocol.
        RefusedPlan: The policy needs what the algorithm does not release.
    """
    member, clip = _member(settings), settings.clip
    around = Surroundings(
        algo=settings.algo,
        rounds=settings.server.rounds,
        cohort=privacy.cohort,
        noise=max(phase.event.total_noise or 0.0 for phase in privacy.phases),
        exact=not settings.record.enabled,
        independent=privacy.noise == "independent",
    )
    if clip.scope == "per-layer" and settings.record.enabled:
        raise RefusedPlan(f"clip.scope = per-layer: {settings.algo} clips records, not messages; use --clip.scope flat")
    own = members.own_settings("clip", clip.policy, member, clip.own)
    members.check_takes(_SETTING, clip.policy, member.planned, clip, around, **own)
    policy: ClipPolicy[Any] = member.planned(clip, around, **own)
    members.check_protocol(_SETTING, clip.policy, policy, "initial", "next_bound", "attachment")
    members.check_protocol(_SETTING, clip.policy, policy.initial(), "bound", "mode")
    check_policy(settings, policy, f"{_SETTING} = {clip.policy}", bounded=bounds_clients(settings))
    return policy


def check_clip(settings: Settings) -> None:
    """Refuse clip settings that do not fit each other or the run, before the noise is solved.

    Raises:
        InputError: They do not; of the package's own policies.
    """
    member = _member(settings)
    share = settings.clip.percentile
    if 0 < share < 1:
        raise InputError(f"clip.percentile = {share:g}: a percentile is from 0 to 100; write {100 * share:g}")
    if ":" in settings.clip.policy or settings.clip.policy == "own":
        return  # code of the user's own is planned once, with the noise that it will see
    around = Surroundings(
        algo=settings.algo,
        rounds=settings.server.rounds,
        cohort=settings.population.cohort,
        noise=1.0,
        exact=not settings.record.enabled,
        independent=True,
    )
    member.planned(settings.clip, around)


def _member(settings: Settings) -> Any:
    member = members.find(_SETTING, settings.clip.policy, _FOLDER)
    members.check_protocol(_SETTING, settings.clip.policy, member, "planned")
    return member
