"""Check that every enabled privacy layer has a target epsilon or an explicit noise multiplier, and vice versa."""

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import TOWARDS_MESSAGES, RefusedPlan
from dpfedmeta.data.task import Task
from dpfedmeta.planning.client_spec import method_of
from dpfedmeta.planning.policy_from_settings import bounds_clients
from dpfedmeta.planning.privacy.aggregation import clients_make_the_noise

# A guarantee that fails more often is none, and hardly any noise would reach it.
_MOST_DELTA = 0.1


def check_promises(settings: Settings, task: Task) -> None:
    """Refuse a target or a noise that would promise nothing, and a promise without either.

    Raises:
        RefusedPlan: Says what is missing or too much, and what to give.
    """
    algo, promises = settings.algo, bounds_clients(settings)
    noise, target = settings.server.noise_multiplier, settings.privacy.client.epsilon
    record = settings.record
    _check_deltas(settings)
    if not promises:
        if _preset_promises(settings):
            raise RefusedPlan(
                f"clip.policy: {algo} promises client-level privacy, which needs a clip bound; choose constant or "
                "window, or --algo maml for training without privacy"
            )
        if record.enabled and method_of(settings, task).record_layer() is not None:
            _check_record_promise(settings)
            targets: tuple[float | None, ...] = (target,)
        else:
            targets = (target, settings.privacy.record.epsilon, True if record.enabled else None)
        if noise is not None or any(value is not None for value in targets):
            raise RefusedPlan(
                f"{algo} clips nothing, so a noise or a target would give no guarantee; leave them out, or use --algo "
                "dp-const, dp-agr or dp-agrlr-micro"
            )
        return
    # Where clients make the noise of a sum, it is the same noise that both units and both observers face.
    one_noise = clients_make_the_noise(settings) or settings.privacy.record.observer == "public"
    through_records = settings.privacy.record.epsilon is not None and one_noise
    if noise is None and target is None and not through_records:
        raise RefusedPlan(
            f"{_promising(settings)}, but neither a target (privacy.client.epsilon, --epsilon) nor a noise "
            f"(server.noise_multiplier, --noise-multiplier) is given; give one, or {_without_privacy(settings)}"
        )
    shares = record.enabled and settings.server.noise_mode == "shared" and not clients_make_the_noise(settings)
    if noise == 0 and not shares:
        raise RefusedPlan(
            f"server.noise_multiplier = 0: {_promising(settings)}, and without noise its epsilon is infinite; give a "
            f"noise above 0 or a target, or {_without_privacy(settings)}"
        )
    if settings.privacy.client.limit is not None and (noise is None or target is not None):
        raise RefusedPlan(
            f"privacy.client.limit = {settings.privacy.client.limit:g} is only for a noise that is given "
            "(server.noise_multiplier); with a target (privacy.client.epsilon) the noise is solved for all rounds: "
            "leave out one of them"
        )
    if target is not None and settings.privacy.client.observer == "server" and not clients_make_the_noise(settings):
        raise RefusedPlan(TOWARDS_MESSAGES)
    _check_record_promise(settings)


def _preset_promises(settings: Settings) -> bool:
    return bounds_clients(Settings.preset(settings.algo, settings.dataset))


def _promising(settings: Settings) -> str:
    if _preset_promises(settings):
        return f"{settings.algo} promises (client, public)"
    return f"clip.policy = {settings.clip.policy} bounds what a client can move, which promises (client, public)"


def _without_privacy(settings: Settings) -> str:
    """Remedy: the same training without clipping and noise."""
    if _preset_promises(settings):
        return "train without privacy: --algo maml"
    return f"leave clip.policy out to train without privacy ({settings.algo} then clips nothing and adds no noise)"


def _check_record_promise(settings: Settings) -> None:
    algo, record = settings.algo, settings.record
    given = (settings.privacy.record.epsilon, record.support_noise, record.query_noise)
    if record.enabled and all(value is None for value in given) and not clients_make_the_noise(settings):
        raise RefusedPlan(
            f"{algo} promises (record, {settings.privacy.record.observer}), but neither a target "
            "(privacy.record.epsilon) nor a noise (record.query_noise, record.support_noise) is given; give one"
        )


def _check_deltas(settings: Settings) -> None:
    for unit, target in (("client", settings.privacy.client), ("record", settings.privacy.record)):
        if target.epsilon is not None and target.delta > _MOST_DELTA:
            raise RefusedPlan(
                f"privacy.{unit}.delta = {target.delta!r}: a target may fail with at most {_MOST_DELTA}; give less "
                f"than one over the number of {unit}s"
            )
