"""Clip policy that the settings describe, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.privacy.clip_policies.policy_checks import named_policy, planned_policy
from dpfedmeta.privacy.clip_policy import ClipPolicy, Surroundings

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


def bounds_clients(settings: Settings) -> bool:
    """Return whether a client's message is clipped at all; only then can there be a client-level guarantee.

    Raises:
        InputError: There is no policy of this name.
    """
    return bool(getattr(named_policy(settings.clip.policy), "bounded", True))


def clip_policy(settings: Settings, privacy: PrivacyPlan) -> ClipPolicy[Any]:
    """Return the clip policy, which sets the clip bound of each round from earlier releases.

    Raises:
        InputError: The clip settings do not fit each other or the run, or the policy breaks its protocol.
        RefusedPlan: The policy needs what the algorithm does not release.
    """
    clip = settings.clip
    _check_unit(settings)
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
    return planned_policy(clip, around)


def check_clip(settings: Settings) -> None:
    """Refuse clip settings that do not fit each other or the run, before the noise is solved.

    Raises:
        InputError: They do not; of the package's own policies.
    """
    member = named_policy(settings.clip.policy)
    share = settings.clip.percentile
    if 0 < share < 1:
        raise InputError(f"clip.percentile = {share:g}: a percentile is from 0 to 100; write {100 * share:g}")
    _check_unit(settings)
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


def _check_unit(settings: Settings) -> None:
    if settings.server.unit == "bound" and not bounds_clients(settings):
        raise InputError(
            f"server.unit = bound: clip.policy = {settings.clip.policy} sets no bound to divide by, so no weight would "
            "move; use --server.unit raw, or a policy that bounds messages"
        )
