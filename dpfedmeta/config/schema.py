"""Every setting, with its type, range, default and meaning. Dotted names are a contract (sweeps use them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dpfedmeta.config.fields import (
    MOST,
    STRICT,
    ClipBound,
    Count,
    Epsilon,
    Folders,
    NotNegative,
    Positive,
    Probability,
    Words,
    explained,
)
from dpfedmeta.core.plugins.plugin_registry import one_of, one_of_each


@explained("population.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PopulationSettings:
    """Clients of the population, and how cohorts are drawn."""

    clients: Annotated[
        Count, Field(description="N, clients in the population; of data that name clients: as many as they name")
    ] = 400_000
    cohort: Annotated[
        Positive, Field(description="L, expected clients per round; the most that one takes under sampler check-ins")
    ] = 200.0
    sampler: Annotated[
        str,
        one_of("dpfedmeta.privacy.samplers"),
        Field(
            description="who takes part: by independent coins, L of N without replacement, each client once, in a "
            "round of its own choice, or by coins among the clients whose turn it is, every population.separation "
            "rounds (banded noise); or package.module:name"
        ),
    ] = "poisson"
    max_participations: Annotated[Count | None, Field(description="R, rounds a client may join")] = None
    records: Annotated[
        int, Field(ge=2, description="records per client of a benchmark that is dealt out in two shards")
    ] = 500
    kind: Annotated[
        Literal["virtual", "disjoint", "natural"],
        Field(
            description="clients draw from all training images; or each image is in one client at most; or also, on "
            "omniglot, a client holds one alphabet by the same drawers; natural, too: the clients that your data name"
        ),
    ] = "virtual"
    separation: Annotated[
        Count | None,
        Field(
            description="b, rounds between two participations of a client, at least (correlated noise); null: as many "
            "as the population allows, clients / cohort"
        ),
    ] = None
    most_shots: Annotated[
        Count | None,
        Field(description="clients of unequal size: task.shots to this many support images per class; null: equal"),
    ] = None
    dropout: Annotated[NotNegative, Field(lt=1, description="share of invited clients that never answer")] = 0.0
    availability: Annotated[
        Literal["independent", "correlated", "diurnal"],
        Field(description="who drops out: each alone, whole regions, or by local time of day"),
    ] = "independent"
    latency_spread: Annotated[
        NotNegative, Field(description="deviation of ln(time to answer); its median is 1 (see server.timeout)")
    ] = 0.0


@explained("")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleSettings:
    """A change of noise or cohort, fixed before training."""

    from_round: Annotated[int, Field(ge=0, le=MOST, description="first round it holds for")]
    noise_scale: Annotated[Positive, Field(description="noise multiplier over z")] = 1.0
    cohort_scale: Annotated[Positive, Field(description="expected cohort over L")] = 1.0


@explained("server.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerSettings:
    """Server's use of aggregates: rounds, noise and optimizer."""

    rounds: Annotated[Count, Field(description="T")] = 200
    noise_multiplier: Annotated[NotNegative | None, Field(description="z; null: solved from the target")] = None
    schedule: Annotated[
        tuple[ScheduleSettings, ...],
        Field(description="changes fixed in the plan, a list of {from_round, noise_scale, cohort_scale}"),
    ] = ()
    noise_mode: Annotated[Literal["shared", "stacked"], Field(description="how client noise counts at the server")] = (
        "shared"
    )
    noise_site: Annotated[
        Literal["server", "clients"],
        Field(
            description="who adds the client-level noise: the server, or each client of a fixed-size cohort its share"
        ),
    ] = "server"
    noise: Annotated[
        str, one_of("dpfedmeta.privacy.noises"), Field(description="the mechanism; or package.module:name")
    ] = "independent"
    buffers: Annotated[
        Count | None,
        Field(
            description="vectors that correlated noise remembers: blt, null: 3; banded, null: separation - 1; "
            "toeplitz remembers every round"
        ),
    ] = None
    abort_on_failure: Annotated[
        bool,
        Field(description="release nothing of a round in which an invited client failed; it is charged all the same"),
    ] = False
    optimizer: Annotated[
        str,
        one_of("dpfedmeta.learning.server_optimizers"),
        Field(description="how the server steps: adam, sgd, or muon (kernels by singular values); package.module:name"),
    ] = "adam"
    lr: Annotated[Positive, Field(description="server step size")] = 0.003
    final_lr: Annotated[
        Positive | None,
        Field(description="step size of the last round (cosine from server.lr); null: constant"),
    ] = None
    timeout: Annotated[
        Positive | None, Field(description="who takes longer to answer, in medians, is left out; null: wait")
    ] = None
    unit: Annotated[
        Literal["raw", "bound"],
        Field(description="what the optimizer sees: the aggregate, or the aggregate over its clip bound"),
    ] = "raw"
    beta1: Annotated[NotNegative, Field(lt=1, description="momentum")] = 0.9
    beta2: Annotated[NotNegative, Field(lt=1, description="second moment of adam")] = 0.99
    average: Annotated[
        NotNegative,
        Field(le=1, description="last share of the rounds whose models are averaged into the result"),
    ] = 0.0


@explained("aggregation.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class AggregationSettings:
    """Aggregation: how messages are added up, and by whom."""

    mode: Annotated[
        str,
        one_of("dpfedmeta.simulation.aggregations"),
        Field(description="what the server sees follows from it; or package.module:name"),
    ] = "messages"
    bits: Annotated[
        int, Field(ge=8, le=20, description="b, the server sees a sum of whole numbers modulo 2^b (secure)")
    ] = 16
    dropout: Annotated[
        float,
        Field(ge=0, lt=1, allow_inf_nan=False, description="share of an invited cohort that may be missing (secure)"),
    ] = 0.0
    protocol: Annotated[
        bool, Field(description="run the real protocol in every round; the sums are those of the ideal result (secure)")
    ] = False
    adversarial: Annotated[
        float,
        Field(
            ge=0, lt=1, allow_inf_nan=False, description="share of a cohort that may collude with the server (secure)"
        ),
    ] = 0.05
    company: Annotated[
        Literal["picked", "drawn"],
        Field(
            description="picked: a server of real clients may choose whom it asks, so min(cohort - 1, adversarial x "
            "clients) of a cohort are counted as colluding; drawn: clients trust it to draw cohorts as it says (secure)"
        ),
    ] = "picked"
    rough: Annotated[bool, Field(description="accept so few bits that rounding costs a lot (secure)")] = False
    dimension: Annotated[
        Count | None, Field(description="learned weights; null: those of the network, which account.py then builds")
    ] = None


@explained("clip.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClipSettings:
    """The clip bound of a client's message (C_q where records are clipped)."""

    policy: Annotated[
        str,
        one_of("dpfedmeta.privacy.clip_policies"),
        Field(
            description="how the bound follows past releases; package.module:name; own: an object that was handed "
            "over in Python"
        ),
    ] = "constant"
    initial: Annotated[ClipBound, Field(description="C_0")] = 0.3
    start: Annotated[
        Literal["given", "quantile"],
        Field(
            description="where C_0 comes from: clip.initial; or quantile: a private analysis before round 0 (the "
            "share of clients is clip.quantile, epsilon 0.1), which every cell counts"
        ),
    ] = "given"
    window: Annotated[Count, Field(description="W, past noisy aggregates the policy looks at")] = 4
    percentile: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False, description="k of the last W norms (window-literal)")
    ] = 90.0
    quantile: Annotated[Probability, Field(description="share of clients that shall stay unclipped (quantile)")] = 0.5
    rate: Annotated[Positive, Field(description="step of the geometric update (quantile)")] = 0.2
    count_noise: Annotated[
        Positive | None, Field(description="deviation of the noise on counts (quantile, median); null: L/20")
    ] = None
    lowest: Annotated[ClipBound | None, Field(description="C_min; null: C_0/300")] = None
    highest: Annotated[ClipBound | None, Field(description="C_max; null: 300 C_0")] = None
    scope: Annotated[
        Literal["flat", "per-layer"], Field(description="one bound for the message, or C/sqrt(layers) for each layer")
    ] = "flat"
    own: Annotated[Mapping[str, Any], Field(description="what a policy of your own takes besides")] = field(
        default_factory=dict, hash=False
    )


@explained("meta.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class MetaSettings:
    """The inner loop and the meta-gradient."""

    method: Annotated[
        str,
        one_of("dpfedmeta.learning.algorithms"),
        Field(
            description="what a client sends (fedavg: its update by local training on all its records); or "
            "package.module:name"
        ),
    ] = "maml"
    order: Annotated[
        Literal[1, 2] | None,
        Field(description="2 differentiates through the inner steps; null: the method's own"),
    ] = None
    adapt: Annotated[Literal["all", "head"] | None, Field(description="what adapts; null: the method's own")] = None
    learn: Annotated[
        Literal["all", "body", "scales"],
        Field(
            description="what is learned and sent: everything; the body, with a head that starts at zero; or the "
            "body's gains, biases and first layer, with the rest fixed at random"
        ),
    ] = "all"
    steps: Annotated[Count, Field(description="K, inner or local steps")] = 5
    batch: Annotated[
        Count | None,
        Field(description="B, records of a local step (fedavg); expected with record-level privacy; null: all"),
    ] = None
    lr: Annotated[Positive, Field(description="inner step size")] = 0.4
    divisions: Annotated[
        Count,
        Field(
            description="how often a client (each micro-episode, where there are some) divides its records into "
            "support and query, at most as often as it has records of a class; the mean is sent"
        ),
    ] = 1
    division_shots: Annotated[
        Count | None,
        Field(description="support images per class in each division; null: task.shots, or record.micro_shots"),
    ] = None
    own: Annotated[Mapping[str, Any], Field(description="what a method of your own takes besides")] = field(
        default_factory=dict, hash=False
    )


@explained("record.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecordSettings:
    """Record-level privacy inside the clients."""

    enabled: Annotated[bool, Field(description="noise inside the clients, by record")] = False
    release: Annotated[
        str,
        one_of("dpfedmeta.learning.releases"),
        Field(
            description="what a client releases: support steps and the query gradient, clipped record by record; or "
            "the meta-gradients of small disjoint episodes of its records, each clipped as one"
        ),
    ] = "steps"
    micro_ways: Annotated[int | None, Field(ge=2, description="classes of a micro-episode; null: task.ways")] = None
    micro_shots: Annotated[Count, Field(description="support images per class of a micro-episode")] = 1
    micro_queries: Annotated[Count, Field(description="query images per class of a micro-episode")] = 1
    support_clip: Annotated[
        Positive | None, Field(description="C_s of steps, in every round; null: support_clip_ratio times C_q")
    ] = None
    support_clip_ratio: Annotated[Positive, Field(description="C_s/C_q of steps, where support_clip is null")] = 1.0
    message_clip_ratio: Annotated[Positive, Field(description="C/C_q, in stacked mode")] = 12.0
    support_noise: Annotated[Positive | None, Field(description="z_s; null: solved or balanced")] = None
    query_noise: Annotated[Positive | None, Field(description="z_q; null: solved or balanced")] = None
    accountant: Annotated[
        Literal["pld", "rdp", "prv"], Field(description="what composes mini-batched local steps (fedavg)")
    ] = "pld"
    client_ledgers: Annotated[
        bool,
        Field(
            description="each client keeps a ledger of its own and declines beyond its promise: to its records, or, "
            "with correlated noise, of how often and how far apart it takes part"
        ),
    ] = False
    engine: Annotated[Literal["auto", "vmap", "opacus"], Field(description="how per-record gradients are computed")] = (
        "auto"
    )


@explained("privacy.client.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClientTarget:
    """Privacy target of a client."""

    epsilon: Annotated[Epsilon | None, Field(description="target; null: the noise is given")] = None
    limit: Annotated[
        Positive | None,
        Field(description="with a noise given: training ends before (client, public) exceeds it at delta"),
    ] = None
    delta: Annotated[Probability, Field(description="delta of the client cells")] = 1e-6
    observer: Annotated[
        Literal["server", "public"],
        Field(description="towards whom the target counts (server: with aggregation.mode secure)"),
    ] = "public"
    colluding: Annotated[Count, Field(description="c, clients that pool what they know of their own noise")] = 1
    hostile: Annotated[
        NotNegative,
        Field(
            lt=1,
            description="share of all clients whose own noise is not counted on, since they may send messages without "
            "it (server.noise_mode shared, server.noise_site clients)",
        ),
    ] = 0.0


@explained("privacy.record.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecordTarget:
    """Privacy target of a record."""

    epsilon: Annotated[Epsilon | None, Field(description="target; null: the noises are given")] = None
    delta: Annotated[Probability, Field(description="delta of the record cells")] = 1e-5
    observer: Annotated[Literal["server", "public"], Field(description="towards whom the target counts")] = "server"


@explained("privacy.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrivacySettings:
    """Targets: the noise is solved from them."""

    client: ClientTarget = field(default_factory=ClientTarget)
    record: RecordTarget = field(default_factory=RecordTarget)
    spent_before: Annotated[
        Folders,
        Field(description="folders of analyses of the same clients, commas between them: every cell counts them too"),
    ] = ()


@explained("task.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class TaskSettings:
    """A training episode."""

    ways: Annotated[int, Field(ge=2, le=MOST, description="classes per client")] = 5
    shots: Annotated[Count, Field(description="support images per class")] = 5
    queries: Annotated[Count, Field(description="query images per class in training")] = 5
    shift: Annotated[
        int,
        Field(
            ge=0,
            le=MOST,
            description="each image of a client is moved by up to so many pixels, up or down and sideways",
        ),
    ] = 0


@explained("model.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """The network."""

    name: Annotated[
        str,
        Field(
            description="conv4, conv4-strided, conv3-blur, linear, mlp (images, vectors), text (tokens), or "
            "package.module:factory"
        ),
    ] = "conv4-strided"
    width: Annotated[Count, Field(description="channels, hidden units, or the side of the averaged image (linear)")] = (
        32
    )
    downscale: Annotated[
        Count | None,
        Field(description="first average images over squares of this side; null: 2 for conv3-blur, else 1"),
    ] = None
    norm: Annotated[Literal["group", "batch", "none"], Field(description="normalisation")] = "batch"
    groups: Annotated[Count | None, Field(description="groups of norm: group; null: one per channel")] = 4
    activation: Annotated[Literal["relu", "tanh"], Field(description="nonlinearity of the convolutional networks")] = (
        "relu"
    )
    features: Annotated[
        Literal["raw", "record", "support"],
        Field(description="scale features to one length: each record's own, or about the support set's mean"),
    ] = "raw"
    first_gain: Annotated[
        Positive,
        Field(description="the first kernel begins so many times larger, and its gradients shorter (batch, group)"),
    ] = 1.0
    feature_scale: Annotated[Positive, Field(description="that length, unless features are raw")] = 1.0
    initial: Annotated[
        str | None,
        Field(
            description="public weights that the body begins with: textures or strokes (built in), a run directory, or "
            "a safetensors file; null: random"
        ),
    ] = None


@explained("evaluation.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluationSettings:
    """Adaptation on held-out public classes; it happens on the device, so without noise."""

    episodes: Annotated[int, Field(ge=2, le=MOST, description="test episodes at the end")] = 600
    queries: Annotated[Count, Field(description="query images per class")] = 15
    ways: Annotated[
        int | None, Field(ge=2, le=MOST, description="classes per episode; null: as clients hold (task.ways)")
    ] = None
    shots: Annotated[
        Count | None, Field(description="support images per class; null: as clients hold (task.shots)")
    ] = None
    every: Annotated[Count, Field(description="rounds between validations")] = 20
    validation_episodes: Annotated[int, Field(ge=2, le=MOST, description="episodes of a validation")] = 60
    adapt: Annotated[Literal["all", "head"] | None, Field(description="null: as in training")] = None
    steps: Annotated[Count | None, Field(description="null: as in training")] = None
    lr: Annotated[Positive | None, Field(description="null: as in training")] = None


@explained("track.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrackSettings:
    """Logging of released quantities, beside the run directory."""

    public_clients: Annotated[
        int, Field(ge=0, description="clients made of public data whose updates' variance and scale are logged")
    ] = 0
    to: Annotated[
        Words,
        one_of_each("dpfedmeta.training.trackers"),
        Field(description="trackers, commas between them; or package.module:name of your own"),
    ] = ()
    wandb: Annotated[
        Literal["off", "offline", "online"], Field(description="Weights & Biases; WANDB_MODE may make it quieter")
    ] = "off"
    project: Annotated[str | None, Field(min_length=1, description="on W&B; null: WANDB_PROJECT, else dpfedmeta")] = (
        None
    )
    entity: Annotated[str | None, Field(min_length=1, description="on W&B; null: WANDB_ENTITY, else your own")] = None
    group: Annotated[
        str | None, Field(min_length=1, description="on W&B; null: WANDB_RUN_GROUP, else algo-dataset")
    ] = None
    tags: Annotated[
        Words, Field(description="on W&B, commas between them; none: WANDB_TAGS, else algo and dataset")
    ] = ()
    model: Annotated[bool, Field(description="the final model as an artifact on W&B")] = False
    tensorboard: Annotated[bool, Field(description="event files in the run directory")] = False


@explained("run.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunSettings:
    """Name, place, seeds, machine."""

    name: Annotated[str | None, Field(description="null: algo-dataset-time")] = None
    dir: Annotated[str, Field(description="parent folder of run directories")] = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**128, description="data, population, initial weights")] = 0
    noise_seed: Annotated[
        int | None, Field(ge=0, lt=2**128, description="noise and cohorts; given, the run is a simulation")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto: cuda if there is one")] = "auto"
    chunk: Annotated[
        Count | None,
        Field(
            description="clients at once, for exact meta-gradients; null: 1 on a CPU, what fits on a GPU (at most 256)"
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16"],
        Field(description="to which convolutions round what they multiply; tf32: on GPUs; bfloat16: if in hardware"),
    ] = "float32"
    workers: Annotated[Count | None, Field(description="worker processes; null: cores")] = None
    checkpoint_every: Annotated[Count, Field(description="rounds between checkpoints")] = 20
    keep_checkpoints: Annotated[Count, Field(description="checkpoints that are kept")] = 2
