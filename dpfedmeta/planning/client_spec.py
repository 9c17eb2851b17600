"""Client computation that the settings describe: episode, method, inner loop and network."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dpfedmeta.config.learning_settings import TaskSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.data.episodes.shape import LEAST_RECORDS, EpisodeShape, WholeShape
from dpfedmeta.data.task import Task
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, Method
from dpfedmeta.learning.meta.overridden import check_called
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.learning.meta.whole_clients import WholeClients
from dpfedmeta.planning.privacy.aggregation import clients_make_the_noise

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import NoiseMode
    from dpfedmeta.data.episodes.row_layout import Layout
    from dpfedmeta.learning.models.spec import NetworkSpec

_METHODS, _RELEASES = "dpfedmeta.learning.algorithms", "dpfedmeta.learning.releases"


def algorithm_of(settings: Settings, task: Task) -> ClientAlgorithm:
    """Return the client algorithm: the method, with a record-level release on top if records are protected.

    Noise that is solved from the targets is not in it yet.

    Raises:
        InputError: There is no such algorithm, it breaks its protocol, or a setting does not fit it.
        RefusedPlan: Record-level privacy would not cover it.
    """
    method, whole = method_of(settings, task), whole_shape(settings)
    if whole is not None:
        _check_whole(settings, task)
        return method if getattr(method, "takes_whole", False) else WholeClients(method=method, shape=whole)
    if not settings.record.enabled or method.record_layer() is not None:
        return method
    name = settings.record.release
    release = members.find("record.release", name, _RELEASES)
    members.check_protocol("record.release", name, release, "planned")
    if isinstance(method.needs.division, Divisions) and not getattr(release, "divides", False):
        raise RefusedPlan(
            f"meta.divisions = {settings.meta.divisions} with record.release = {name}: a record would enter the "
            "gradient of every division, but the noise covers only one; use --meta.divisions 1, or --record.release "
            "micro-episodes, which clips each part's mean over the divisions as one"
        )
    made: Any = members.planned("record.release", name, release.planned, settings, task, method)
    members.check_protocol("record.release", name, made, *_COMMON, "towards_a_sum")
    algorithm: ClientAlgorithm = made.towards_a_sum() if clients_make_the_noise(settings) else made
    return algorithm


def layout_of(settings: Settings, task: Task) -> Layout | None:
    """Places of clients' rows by their hash, as the accountant counts with them; None: nothing is promised of rows."""
    return algorithm_of(settings, task).needs.layout if settings.record.enabled else None


def whole_shape(settings: Settings) -> WholeShape | None:
    """Return the public limits of clients that use all their records; None: they hold episodes of a fixed size.

    Raises:
        InputError: A limit is given for nothing, or the limits contradict each other.
    """
    sizes, usual = settings.task, TaskSettings()
    if settings.population.episodes == "fixed":
        for name in ("support_share", "most_ways", "most_records", "balance"):
            if getattr(sizes, name) != getattr(usual, name):
                raise InputError(
                    f"task.{name} = {getattr(sizes, name)}: has no effect on episodes of a fixed size; leave it out, "
                    "or give --population.episodes whole"
                )
        return None
    if sizes.most_records < LEAST_RECORDS * sizes.most_ways:
        raise InputError(
            f"task.most_records = {sizes.most_records}: a client of task.most_ways = {sizes.most_ways} classes needs "
            f"{LEAST_RECORDS} records of each; give at least {LEAST_RECORDS * sizes.most_ways}, or lower task.most_ways"
        )
    return WholeShape(support_share=sizes.support_share, most_ways=sizes.most_ways, most_records=sizes.most_records)


def _check_whole(settings: Settings, task: Task) -> None:
    """Refuse what whole clients cannot compute, and every promise for records, which is not proved for them.

    Raises:
        InputError: A setting does not fit.
        RefusedPlan: Records are promised something.
    """
    where, meta = "population.episodes = whole", settings.meta
    if settings.record.enabled or settings.privacy.record.epsilon is not None:
        asked = "record.enabled" if settings.record.enabled else "privacy.record.epsilon"
        raise RefusedPlan(
            f"{where} with {asked}: how records are grouped then depends on how many a client holds, so one record "
            "would move more than the noise covers; use --population.episodes fixed for record-level privacy"
        )
    if task.shared_classes is not None:
        raise InputError(f"{where}: the clients of {task.name} are shards of equal size; leave it out")
    if settings.population.most_shots is not None:
        raise InputError(f"{where}: population.most_shots is for fixed episodes; leave out one of them")
    if meta.learn == "all" and targets_of(task).masked:
        raise InputError(
            f"{where} with meta.learn = all: a learned head has a row for each of a fixed number of classes; use "
            "--meta.learn body, whose head begins at zero for any number of them"
        )
    if meta.divisions > 1 or meta.division_shots is not None:
        raise InputError(
            f"{where} with meta.divisions: these need as many records of each class; leave out meta.divisions and "
            "meta.division_shots"
        )


def clients_at_once(settings: Settings, network: NetworkSpec, algorithm: ClientAlgorithm, device: str) -> int | None:
    """Clients of one call: run.chunk; else what the method finds fastest on a CPU, or as many as a GPU holds (None).

    Args:
        settings: For run.chunk.
        network: The network.
        algorithm: What clients compute; a release on top of a method has its own way.
        device: cpu or cuda.
    """
    own = getattr(algorithm, "side_by_side", None)
    chosen: int | None = own(network) if own is not None and device == "cpu" else None
    return settings.run.chunk or chosen


def method_of(settings: Settings, task: Task) -> Method:
    """The method alone.

    Raises:
        InputError: There is no such method, it breaks its protocol, or a setting does not fit it.
    """
    name = settings.meta.method
    member = members.find("meta.method", name, _METHODS)
    members.check_protocol("meta.method", name, member, "planned", "plain_steps", "sends", "few_shot")
    own = members.own_settings("meta", name, member, settings.meta.own)
    _check_same_head(settings, task, member)
    made: Method = members.planned("meta.method", name, member.planned, settings, task, **own)
    members.check_protocol("meta.method", name, made, *_COMMON)
    check_called(name, made)
    _check_undivided(settings, made)
    return made


_COMMON = (
    *("adaptation", "needs", "message_deviation", "parts", "releases", "record_layer", "with_noise", "quiet"),
    *("initial", "learned", "together", "messages", "shortened", "trial", "units"),
)


def message_clip_ratio(settings: Settings, algorithm: ClientAlgorithm, noise_mode: NoiseMode) -> float | None:
    """C/C_q in stacked mode, where the server clips a message again; else None."""
    return settings.record.message_clip_ratio if algorithm.releases and noise_mode == "stacked" else None


def evaluation_adaptation(settings: Settings, method: ClientAlgorithm) -> Adaptation:
    """Return how held-out clients adapt: as in training, except where the evaluation settings say otherwise."""
    trained, chosen = method.adaptation, settings.evaluation
    return Adaptation(
        adapt=chosen.adapt or trained.adapt,
        steps=chosen.steps or trained.steps,
        lr=chosen.lr or trained.lr,
        rule=trained.rule,
        targets=trained.targets,
        balance=trained.balance,
    )


def network_spec(settings: Settings, task: Task) -> NetworkSpec:
    """The network for the task's images."""
    from dpfedmeta.learning.models.spec import NetworkSpec

    return NetworkSpec(
        name=settings.model.name,
        channels=task.form.shape[0],
        image_size=task.form.shape[1] if task.form.kind == "images" else 1,
        ways=targets_of(task).outputs(task.shared_classes or most_ways(settings)),
        width=settings.model.width,
        norm=settings.model.norm,
        groups=settings.model.groups,
        activation=settings.model.activation,
        features=settings.model.features,
        feature_scale=settings.model.feature_scale,
        downscale=settings.model.downscale,
        learn=settings.meta.learn,
        initial=settings.model.initial,
        first_gain=settings.model.first_gain,
        precision=settings.run.precision,
        records=task.form.kind,
        vocabulary=task.form.vocabulary,
    )


def check_protocol(settings: Settings, task: Task) -> None:
    """Check that the method fits the benchmark.

    Raises:
        InputError: One classifier for all has no support and query sets to learn an initialisation from.
    """
    _check_targets(settings, task)
    if task.shared_classes is not None and members.find("meta.method", settings.meta.method, _METHODS).few_shot:
        raise InputError(
            f"--dataset {task.name}: all clients share {task.shared_classes} classes and hold no query sets, so there "
            f"is no adaptation to learn; {settings.algo} (meta.method = {settings.meta.method}) needs a few-shot data "
            "set; name one, or use --meta.method fedavg"
        )


def _check_targets(settings: Settings, task: Task) -> None:
    targets, ways = targets_of(task), settings.task.ways
    if whole_shape(settings) is not None:
        return
    if targets.numbers != (ways == 1):
        raise InputError(
            f"task.ways = {ways}: "
            + (
                f"{task.name} has numbers to predict and no classes; give task.ways=1 (--ways 1), and with task.shots "
                "and task.queries how many records a client adapts on and learns from"
                if targets.numbers
                else "a client needs classes to tell apart; give 2 or more"
            )
        )
    if not targets.numbers and not targets.masked and ways > targets.outputs(ways):
        most = targets.outputs(ways)
        raise InputError(
            f"task.ways = {ways}: the public list of {task.name} has only {most} labels; give --ways {most}"
        )


def _check_same_head(settings: Settings, task: Task, member: object) -> None:
    """Refuse what makes a head of a client's own classes where outputs mean the same for all clients."""
    if not targets_of(task).masked and getattr(member, "computes_head", False):
        raise InputError(
            f"meta.method = {settings.meta.method}: computes a head from the classes that a client holds, but with "
            "shared labels or numbers to predict one head is learned for all; use --meta.method maml, reptile or fedavg"
        )


def _check_undivided(settings: Settings, method: Method) -> None:
    """Refuse divisions, which are made within classes that a client numbers itself."""
    if not method.adaptation.targets.masked and isinstance(method.needs.division, Divisions):
        raise InputError(
            f"meta.divisions = {settings.meta.divisions}: cuts the classes of a client's own, numbered by the client; "
            "with shared labels or numbers to predict use --meta.divisions 1 and --meta.division_shots null"
        )


def records_of_a_client(settings: Settings, *, shared: bool) -> int:
    """Number of records that a client holds at most, whose labels are shared or its own; a public constant."""
    shape, whole = episode_shape(settings), whole_shape(settings)
    if whole is not None:
        return whole.most_records
    return settings.population.records if shared else shape.support_records + shape.query_records


def most_ways(settings: Settings) -> int:
    """Return the number of classes that a network has outputs for: those of a client, or the most of whole clients."""
    whole = whole_shape(settings)
    return settings.task.ways if whole is None else whole.most_ways


def sizes_of_clients(settings: Settings) -> dict[str, object]:
    """Return the sizes of a client's episode, for files."""
    whole, sizes = whole_shape(settings), settings.task
    if whole is None:
        return {"ways": sizes.ways, "shots": sizes.shots, "queries": sizes.queries}
    return {"episodes": "whole", **asdict(whole), "balance": sizes.balance}


def evaluation_shape(settings: Settings) -> EpisodeShape:
    """An episode of held-out classes: what somebody has who adapts the result, perhaps less than a client holds."""
    chosen, trained = settings.evaluation, settings.task
    return EpisodeShape(ways=chosen.ways or trained.ways, shots=chosen.shots or trained.shots, queries=chosen.queries)
