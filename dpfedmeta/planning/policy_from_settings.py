"""Clip policy of a run: from its settings, or an object that the caller hands over; or the reason why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import PLAN, RunDirectory
from dpfedmeta.core.plugins.plugin_registry import planned
from dpfedmeta.privacy.clip_policies.policy_checks import check_policy, named_policy, planned_policy
from dpfedmeta.privacy.clip_policies.policy_checks import own_policy_name as own_policy_name
from dpfedmeta.privacy.clip_policy import ClipPolicy, Surroundings

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

# What clip.policy says of a policy that was handed over as an object.
OWN = "own"


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
    planned("clip.policy", settings.clip.policy, member.planned, settings.clip, around)


def _check_unit(settings: Settings) -> None:
    if settings.server.unit == "bound" and not bounds_clients(settings):
        raise InputError(
            f"server.unit = bound: clip.policy = {settings.clip.policy} sets no bound to divide by, so no weight would "
            "move; use --server.unit raw, or a policy that bounds messages"
        )


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
