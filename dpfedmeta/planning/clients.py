"""From settings to what every client computes: episode, method, inner loop, network."""

from __future__ import annotations

from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.meta import Adaptation, Divisions, Message, MetaSpec, micro_slots
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.settings import Settings

# method -> (message, order, adapt) where the settings leave them open.
_METHODS: dict[str, tuple[Message, int, str]] = {
    "maml": ("query", 2, "all"),
    "fomaml": ("query", 1, "all"),
    "anil": ("query", 2, "head"),
    "reptile": ("update", 1, "all"),
    "fedavg": ("local", 1, "all"),
}


def meta_spec(settings: Settings) -> MetaSpec:
    """The method, with what it leaves open filled in.

    Raises:
        InputError: Order or adaptation do not fit the method.
        RefusedPlan: Record-level privacy would not cover it.
    """
    method, record = settings.meta.method, settings.record.enabled
    message, order, adapt = _METHODS[method]
    wanted_order = settings.meta.order or order
    wanted_adapt = settings.meta.adapt or adapt
    micro = settings.record.release == "micro-episodes"
    if record and micro and message != "query":
        raise RefusedPlan(
            f"meta.method = {method} with record.release = micro-episodes: their guarantee is for meta-gradients "
            "(maml, fomaml, anil); use --record.release steps"
        )
    if record and not micro and wanted_order == 2:
        raise RefusedPlan(
            "meta.order = 2 with record-level privacy: the meta-gradient would read the support records again "
            "through Hessian terms that no noise covers; use --order 1, or --record.release micro-episodes"
        )
    if record and message == "update" and settings.server.noise_mode == "shared":
        raise RefusedPlan(
            "meta.method = reptile with server.noise_mode = shared: a Reptile message is unbounded before its "
            "last noise, so sharing that noise would promise too much; use --server.noise_mode stacked"
        )
    if method != "fedavg" and settings.meta.batch is not None:
        raise InputError(f"meta.batch = {settings.meta.batch}: {method} uses all support records in a step; drop it")
    if method in ("fomaml", "reptile", "fedavg") and wanted_order == 2:
        raise InputError(f"meta.order = 2: {method} is a first-order method; use meta.method = maml")
    if method == "anil" and wanted_adapt == "all":
        raise InputError("meta.adapt = all: ANIL adapts the head only; use meta.method = maml")
    if method == "fedavg" and wanted_adapt == "head":
        raise InputError("meta.adapt = head: federated averaging trains what is learned; use meta.learn, or anil")
    return MetaSpec(
        message=message,
        order=2 if wanted_order == 2 else 1,
        divisions=_divisions(settings, message, wanted_adapt),
        batch=settings.meta.batch,
        adaptation=Adaptation(
            adapt="head" if wanted_adapt == "head" else "all", steps=settings.meta.steps, lr=settings.meta.lr
        ),
    )


def _divisions(settings: Settings, message: Message, adapt: str) -> Divisions | None:
    count, shots = settings.meta.divisions, settings.meta.division_shots
    if count == 1 and shots is None:
        return None
    if settings.record.enabled:
        raise RefusedPlan(
            f"meta.divisions = {count} with record-level privacy: a record would enter every division's gradient, "
            "and the noise is for one; use --meta.divisions 1, or --record.release micro-episodes, "
            "which divides records so that each enters once"
        )
    if message != "query" or adapt != "head":
        raise InputError(
            f"meta.divisions = {count}: divisions share one pass through the body, so they need a meta-gradient that "
            "adapts the head (--meta.adapt head, and maml, fomaml or anil); or use --meta.divisions 1"
        )
    held, shots = settings.task.shots + settings.task.queries, shots or settings.task.shots
    if shots >= held:
        raise InputError(
            f"meta.division_shots = {shots}: a client holds {held} records of each class, and a query set needs one"
        )
    # A window that moves round has no more than `held` places.
    return Divisions(count=min(count, held), shots=shots)


def evaluation_adaptation(settings: Settings) -> Adaptation:
    """How held-out clients adapt; as in training where the settings leave it open."""
    trained, chosen = meta_spec(settings).adaptation, settings.evaluation
    return Adaptation(
        adapt=chosen.adapt or trained.adapt,
        steps=chosen.steps or trained.steps,
        lr=chosen.lr or trained.lr,
    )


def network_spec(settings: Settings, task: Task) -> NetworkSpec:
    """The network for the task's images."""
    return NetworkSpec(
        name=settings.model.name,
        channels=task.channels,
        image_size=task.image_size,
        ways=task.shared_classes or settings.task.ways,
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
    )


def check_protocol(settings: Settings, task: Task) -> None:
    """Whether the method fits the benchmark.

    Raises:
        InputError: One classifier for all has no support and query sets to learn an initialisation from.
    """
    if task.shared_classes is not None and settings.meta.method != "fedavg":
        raise InputError(
            f"--dataset {task.name}: all clients share {task.shared_classes} classes and hold no query sets, so there "
            f"is no adaptation to learn; {settings.algo} (meta.method = {settings.meta.method}) needs a few-shot "
            "benchmark, or use --meta.method fedavg"
        )


def local_records(settings: Settings, task: Task) -> int:
    """n, records that a client of federated averaging trains on; a public constant."""
    shape = episode_shape(settings)
    return settings.population.records if task.shared_classes else shape.support_records + shape.query_records


def micro_shape(settings: Settings) -> EpisodeShape:
    """A micro-episode of a client's records.

    Raises:
        InputError: A client's records do not make even one.
        RefusedPlan: Setting of another kind of release.
    """
    record, client = settings.record, episode_shape(settings)
    shape = EpisodeShape(ways=record.micro_ways or client.ways, shots=record.micro_shots, queries=record.micro_queries)
    if record.support_noise is not None:
        raise RefusedPlan(
            "record.support_noise with record.release = micro-episodes: they have no support release; give "
            "record.query_noise"
        )
    if record.engine == "opacus":
        raise InputError("record.engine = opacus: its hooks know records, not micro-episodes; use auto or vmap")
    if settings.meta.learn == "all" and shape.ways != client.ways:
        raise InputError(
            f"record.micro_ways = {shape.ways}: a head for task.ways = {client.ways} classes is learned "
            "(meta.learn = all); use --meta.learn body, or --record.micro_ways null"
        )
    if not len(micro_slots(client, shape)):
        raise InputError(
            f"record.micro_ways, micro_shots, micro_queries: {shape.ways} classes of {shape.shots} + {shape.queries} "
            f"images do not fit into a client with {client.ways} classes of {client.shots} + {client.queries}"
        )
    return shape


def episode_shape(settings: Settings) -> EpisodeShape:
    """A client's training episode."""
    return EpisodeShape(ways=settings.task.ways, shots=settings.task.shots, queries=settings.task.queries)
