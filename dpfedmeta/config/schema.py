"""Every setting, with its type, range, default and meaning. Dotted names are a contract (sweeps use them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from dpfedmeta.config.fields import (
    MOST,
    STRICT,
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


def _of_wandb(name: str | None) -> str | None:
    """W&B refuses these when the run is made; a setting is refused before."""
    odd = [letter for letter in "/\\#?%:" if name and letter in name]
    if odd or len(name or "") > 128:
        what = f"no {' '.join(odd)} may stand in a name of W&B" if odd else "a name of W&B has at most 128 letters"
        raise ValueError(f"{what}; give ENTITY and PROJECT apart: track.entity, track.project")
    return name


@explained("population.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PopulationSettings:
    """Clients of the population, and how cohorts are drawn."""

    clients: Annotated[
        Count,
        Field(description="N, number of clients in the population; for data that name clients: the number they name"),
    ] = 400_000
    cohort: Annotated[
        Positive,
        Field(
            description="L, expected number of clients per round; with sampler check-ins: the most that a round accepts"
        ),
    ] = 200.0
    sampler: Annotated[
        str,
        one_of("dpfedmeta.privacy.samplers"),
        Field(
            description="how cohorts are chosen. poisson: an independent coin for each client. fixed: exactly L of N, "
            "without replacement. check-ins: each client once, in a round of its own choice. cyclic: groups of clients "
            "take turns, one turn in population.separation rounds, with a coin for each client (banded noise). "
            "package.module:name: your own"
        ),
    ] = "poisson"
    max_participations: Annotated[Count | None, Field(description="R, most rounds that a client may join")] = None
    records: Annotated[
        int, Field(ge=2, description="records per client, for a benchmark that is split into shards, two per client")
    ] = 500
    kind: Annotated[
        Literal["virtual", "disjoint", "natural"],
        Field(
            description="virtual: clients draw from all training images. disjoint: each image belongs to at most one "
            "client. natural: disjoint, and grouped as in the data (the clients that your data name; on omniglot one "
            "alphabet by the same drawers)"
        ),
    ] = "virtual"
    episodes: Annotated[
        Literal["fixed", "whole"],
        Field(
            description="what a client uses of its records. fixed: task.ways classes with task.shots + task.queries "
            "records each; whole: all of them, up to task.most_ways classes and task.most_records records"
        ),
    ] = "fixed"
    register: Annotated[
        str | None,
        Field(description="file in which all runs over these clients are counted together, within its total promise"),
    ] = None
    separation: Annotated[
        Count | None,
        Field(
            description="b, least number of rounds between two participations of a client (correlated noise). null: "
            "the most that the population allows, clients / cohort"
        ),
    ] = None
    most_shots: Annotated[
        Count | None,
        Field(description="clients of unequal size: task.shots to this many support images a class; null: equal size"),
    ] = None
    own_test: Annotated[
        NotNegative,
        Field(
            lt=1,
            description="share of a client's records of each class that never train, the last in the data. `evaluate "
            "--own-test` judges on them (data that name clients)",
        ),
    ] = 0.0
    dropout: Annotated[NotNegative, Field(lt=1, description="share of invited clients that never answer")] = 0.0
    availability: Annotated[
        Literal["independent", "correlated", "diurnal"],
        Field(description="how clients drop out: each on its own, whole regions together, or by local time of day"),
    ] = "independent"
    latency_spread: Annotated[
        NotNegative, Field(description="spread of ln(time to answer); the median time is 1 (see server.timeout)")
    ] = 0.0


@explained("")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleSettings:
    """A change of noise or cohort, fixed before training."""

    from_round: Annotated[int, Field(ge=0, le=MOST, description="first round of the change")]
    noise_scale: Annotated[Positive, Field(description="factor on the noise multiplier z")] = 1.0
    cohort_scale: Annotated[Positive, Field(description="factor on the expected cohort L")] = 1.0


@explained("server.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerSettings:
    """Server's use of aggregates: rounds, noise and optimizer."""

    rounds: Annotated[Count, Field(description="T, number of rounds")] = 200
    noise_multiplier: Annotated[NotNegative | None, Field(description="z, solved from the target if null")] = None
    schedule: Annotated[
        tuple[ScheduleSettings, ...],
        Field(description="changes fixed in the plan, a list of {from_round, noise_scale, cohort_scale}"),
    ] = ()
    noise_mode: Annotated[
        Literal["shared", "stacked"],
        Field(
            description="shared: the clients' own noise counts towards the server's, which adds what is missing. "
            "stacked: the server adds its full noise besides"
        ),
    ] = "shared"
    noise_site: Annotated[
        Literal["server", "clients"],
        Field(
            description="who adds the client-level noise: the server, or the clients of a fixed-size cohort, each a "
            "share of it"
        ),
    ] = "server"
    noise: Annotated[
        str, one_of("dpfedmeta.privacy.noises"), Field(description="the noise mechanism; or package.module:name")
    ] = "independent"
    buffers: Annotated[
        Count | None,
        Field(
            description="number of past vectors that correlated noise keeps. null: 3 (blt), separation - 1 (banded); "
            "toeplitz keeps those of every round"
        ),
    ] = None
    abort_on_failure: Annotated[
        bool,
        Field(description="release nothing in a round in which an invited client failed; the round is still charged"),
    ] = False
    optimizer: Annotated[
        str,
        one_of("dpfedmeta.learning.server_optimizers"),
        Field(description="server optimizer: adam, sgd, muon (kernels by singular values), or package.module:name"),
    ] = "adam"
    lr: Annotated[Positive, Field(description="server step size")] = 0.003
    final_lr: Annotated[
        Positive | None,
        Field(description="step size of the last round (cosine from server.lr); null: constant"),
    ] = None
    timeout: Annotated[
        Positive | None,
        Field(description="clients that take longer than this many median times are left out; null: wait for all"),
    ] = None
    unit: Annotated[
        Literal["raw", "bound"],
        Field(description="what the optimizer sees: the aggregate, or the aggregate over its clip bound"),
    ] = "raw"
    beta1: Annotated[NotNegative, Field(lt=1, description="momentum; of adam: decay rate of the first moment")] = 0.9
    beta2: Annotated[NotNegative, Field(lt=1, description="decay rate of adam's second moment")] = 0.99
    average: Annotated[
        NotNegative,
        Field(le=1, description="the models of this last share of the rounds are averaged into the result; 0: off"),
    ] = 0.0


@explained("aggregation.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class AggregationSettings:
    """Aggregation: how messages are added up, and by whom."""

    mode: Annotated[
        str,
        one_of("dpfedmeta.simulation.aggregations"),
        Field(description="how messages are added up, and so what the server sees; or package.module:name"),
    ] = "messages"
    bits: Annotated[
        int, Field(ge=8, le=20, description="b, the server sees a sum of whole numbers modulo 2^b (secure)")
    ] = 16
    dropout: Annotated[
        float,
        Field(ge=0, lt=1, allow_inf_nan=False, description="share of an invited cohort that may not answer (secure)"),
    ] = 0.0
    protocol: Annotated[
        bool, Field(description="run the real protocol in every round; the sums are the same as without it (secure)")
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
            description="picked: the server may choose which real clients it asks, so min(cohort - 1, adversarial x "
            "clients) of a cohort are counted as colluding. drawn: clients trust it to draw cohorts as it says (secure)"
        ),
    ] = "picked"
    rough: Annotated[bool, Field(description="accept fewer bits, although rounding is then costly (secure)")] = False
    dimension: Annotated[
        Count | None,
        Field(description="number of learned weights; null: those of the network, which account.py then builds"),
    ] = None


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
        Field(description="2: differentiate through the inner steps; 1: do not; null: the method's own"),
    ] = None
    adapt: Annotated[
        Literal["all", "head"] | None, Field(description="which weights adapt; null: the method's own")
    ] = None
    learn: Annotated[
        Literal["all", "body", "scales"],
        Field(
            description="what is learned and sent. all: everything; body: the body, with a head that starts at zero; "
            "scales: the body's gains, biases and first layer, with the rest fixed at random values"
        ),
    ] = "all"
    steps: Annotated[Count, Field(description="K, number of inner or local steps")] = 5
    batch: Annotated[
        Count | None,
        Field(description="B, records per local step (fedavg), on average under record-level privacy; null: all"),
    ] = None
    lr: Annotated[Positive, Field(description="inner step size")] = 0.4
    divisions: Annotated[
        Count,
        Field(
            description="how often a client (or each micro-episode) divides its records into support and query. "
            "It is at most as often as it has records of a class. The mean over the divisions is sent"
        ),
    ] = 1
    division_shots: Annotated[
        Count | None,
        Field(description="support images per class in each division; null: task.shots, or record.micro_shots"),
    ] = None
    own: Annotated[Mapping[str, Any], Field(description="further arguments of your own method")] = field(
        default_factory=dict, hash=False
    )


@explained("record.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecordSettings:
    """Record-level privacy inside the clients."""

    enabled: Annotated[bool, Field(description="clients add noise that protects single records")] = False
    release: Annotated[
        str,
        one_of("dpfedmeta.learning.releases"),
        Field(
            description="what a client releases. steps: support steps and the query gradient, clipped record by "
            "record; micro-episodes: the meta-gradients of small disjoint episodes of its records, each clipped as one"
        ),
    ] = "steps"
    micro_ways: Annotated[int | None, Field(ge=2, description="classes of a micro-episode; null: task.ways")] = None
    micro_shots: Annotated[Count, Field(description="support images per class of a micro-episode")] = 1
    micro_queries: Annotated[Count, Field(description="query images per class of a micro-episode")] = 1
    support_clip: Annotated[
        Positive | None, Field(description="C_s, clip bound of support steps; null: support_clip_ratio times C_q")
    ] = None
    support_clip_ratio: Annotated[Positive, Field(description="C_s/C_q of support steps (support_clip null)")] = 1.0
    message_clip_ratio: Annotated[Positive, Field(description="C/C_q, with server.noise_mode stacked")] = 12.0
    support_noise: Annotated[
        Positive | None, Field(description="z_s, noise multiplier of support steps; null: solved or balanced")
    ] = None
    query_noise: Annotated[
        Positive | None, Field(description="z_q, noise multiplier of query gradients; null: solved or balanced")
    ] = None
    accountant: Annotated[
        Literal["pld", "rdp", "prv"], Field(description="accountant of mini-batched local steps (fedavg)")
    ] = "pld"
    client_ledgers: Annotated[
        bool,
        Field(
            description="each client keeps its own ledger and declines rounds beyond its promise. The promise is the "
            "epsilon of its records, or, with correlated noise, how often and how far apart it takes part"
        ),
    ] = False
    engine: Annotated[Literal["auto", "vmap", "opacus"], Field(description="how per-record gradients are computed")] = (
        "auto"
    )


@explained("privacy.client.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClientTarget:
    """Privacy target of a client."""

    epsilon: Annotated[Epsilon | None, Field(description="target epsilon; null: the noise is given")] = None
    limit: Annotated[
        Positive | None,
        Field(description="with a given noise: training ends before epsilon of (client, public) exceeds this"),
    ] = None
    delta: Annotated[Probability, Field(description="delta of the guarantees for a client")] = 1e-6
    observer: Annotated[
        Literal["server", "public"],
        Field(description="observer that the target is for (server: only with aggregation.mode secure)"),
    ] = "public"
    colluding: Annotated[Count, Field(description="c, clients that share what they know of their own noise")] = 1
    hostile: Annotated[
        NotNegative,
        Field(
            lt=1,
            description="share of all clients whose own noise is not counted, since they may send messages without it "
            "(server.noise_mode shared, server.noise_site clients)",
        ),
    ] = 0.0


@explained("privacy.record.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecordTarget:
    """Privacy target of a record."""

    epsilon: Annotated[Epsilon | None, Field(description="target epsilon; null: the noises are given")] = None
    delta: Annotated[Probability, Field(description="delta of the guarantees for a record")] = 1e-5
    observer: Annotated[Literal["server", "public"], Field(description="observer that the target is for")] = "server"


@explained("privacy.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrivacySettings:
    """Targets: the noise is solved from them."""

    client: ClientTarget = field(default_factory=ClientTarget)
    record: RecordTarget = field(default_factory=RecordTarget)
    spent_before: Annotated[
        Folders,
        Field(description="folders of analyses of the same clients, comma-separated; every guarantee counts them"),
    ] = ()


@explained("task.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class TaskSettings:
    """A training episode."""

    ways: Annotated[
        int,
        Field(ge=1, le=MOST, description="classes per client; 1: numbers to predict (kind: regression of a task file)"),
    ] = 5
    shots: Annotated[Count, Field(description="support images per class")] = 5
    queries: Annotated[Count, Field(description="query images per class in training")] = 5
    shift: Annotated[
        int,
        Field(
            ge=0,
            le=MOST,
            description="each image of a client is moved by up to this many pixels, vertically and horizontally",
        ),
    ] = 0
    support_share: Annotated[
        float,
        Field(gt=0, lt=1, allow_inf_nan=False, description="share of each class that is support (whole episodes)"),
    ] = 0.5
    most_ways: Annotated[int, Field(ge=2, le=MOST, description="most classes of a client (whole episodes)")] = 20
    most_records: Annotated[int, Field(ge=4, le=MOST, description="most records of a client (whole episodes)")] = 400
    balance: Annotated[
        Literal["classes", "records"],
        Field(description="losses of a client are means over its classes, or over its records (whole episodes)"),
    ] = "classes"


@explained("model.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """The network."""

    name: Annotated[
        str,
        Field(
            description="conv4, conv4-strided, conv3-blur, linear and mlp (images, vectors), text (tokens). low-rank, "
            "affine, identity (on the features of model.encoder, or vectors). package.module:factory: your own"
        ),
    ] = "conv4-strided"
    width: Annotated[
        Count,
        Field(
            description="channels, hidden units, rank (low-rank), or the side of the averaged image (linear, of images)"
        ),
    ] = 32
    downscale: Annotated[
        Count | None,
        Field(description="average images over squares of this many pixels a side; null: 2 for conv3-blur, else 1"),
    ] = None
    norm: Annotated[Literal["group", "batch", "none"], Field(description="normalisation")] = "batch"
    groups: Annotated[Count | None, Field(description="groups of norm group; null: one per channel")] = 4
    activation: Annotated[Literal["relu", "tanh"], Field(description="nonlinearity of the convolutional networks")] = (
        "relu"
    )
    features: Annotated[
        Literal["raw", "record", "support"],
        Field(description="scale features to one length. record: each record alone; support: about the support mean"),
    ] = "raw"
    first_gain: Annotated[
        Positive,
        Field(description="factor by which the first kernel starts larger and its gradients smaller (batch, group)"),
    ] = 1.0
    feature_scale: Annotated[Positive, Field(description="length of scaled features (features record, support)")] = 1.0
    initial: Annotated[
        str | None,
        Field(
            description="public initial weights of the body: textures or strokes (built in), a run directory, or a "
            "safetensors file. null: random"
        ),
    ] = None
    encoder: Annotated[
        str | None,
        Field(
            description="public, frozen encoder whose features take the place of the images: lite0, timm:NAME, or "
            "package.module:factory; null: none"
        ),
    ] = None
    encoder_weights: Annotated[
        str | None, Field(description="file with the encoder's weights; null: those that its package brings")
    ] = None
    encoder_size: Annotated[
        int, Field(ge=8, le=1024, description="height and width, in pixels, of the images that the encoder sees")
    ] = 160
    encoder_overlap: Annotated[
        Literal["refuse", "accept"],
        Field(description="of an encoder that learned from images of this data set; accept: every output says so"),
    ] = "refuse"


@explained("evaluation.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluationSettings:
    """Adaptation on held-out public classes; it happens on the device, so without noise."""

    episodes: Annotated[int, Field(ge=2, le=MOST, description="test episodes at the end")] = 600
    queries: Annotated[Count, Field(description="query images per class")] = 15
    ways: Annotated[
        int | None, Field(ge=2, le=MOST, description="classes per episode; null: as in training (task.ways)")
    ] = None
    shots: Annotated[Count | None, Field(description="support images per class; null: as in training (task.shots)")] = (
        None
    )
    every: Annotated[Count, Field(description="rounds between validations")] = 20
    validation_episodes: Annotated[int, Field(ge=2, le=MOST, description="episodes of a validation")] = 60
    adapt: Annotated[Literal["all", "head"] | None, Field(description="which weights adapt; null: as in training")] = (
        None
    )
    steps: Annotated[Count | None, Field(description="adaptation steps; null: as in training")] = None
    lr: Annotated[Positive | None, Field(description="step size of the adaptation; null: as in training")] = None


@explained("track.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrackSettings:
    """Logging of released quantities, beside the run directory."""

    public_clients: Annotated[
        int, Field(ge=0, description="clients made of public data, to log the variance and scale of their updates")
    ] = 0
    to: Annotated[
        Words,
        one_of_each("dpfedmeta.training.trackers"),
        Field(description="trackers, comma-separated; or package.module:name of your own"),
    ] = ()
    wandb: Annotated[
        Literal["off", "offline", "online"], Field(description="Weights & Biases; WANDB_MODE can only restrict it")
    ] = "off"
    project: Annotated[
        str | None,
        Field(min_length=1, description="W&B project; null: WANDB_PROJECT or dpfedmeta"),
        AfterValidator(_of_wandb),
    ] = None
    entity: Annotated[
        str | None,
        Field(min_length=1, description="W&B entity; null: WANDB_ENTITY or your own"),
        AfterValidator(_of_wandb),
    ] = None
    group: Annotated[
        str | None, Field(min_length=1, description="W&B group; null: WANDB_RUN_GROUP, else algo-dataset")
    ] = None
    tags: Annotated[Words, Field(description="W&B tags, comma-separated; none: WANDB_TAGS, else algo and dataset")] = ()
    model: Annotated[bool, Field(description="upload the final model to W&B as an artifact")] = False
    tensorboard: Annotated[bool, Field(description="write TensorBoard event files to the run directory")] = False


@explained("run.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunSettings:
    """Name, place, seeds, machine."""

    name: Annotated[str | None, Field(description="name of the run directory; null: algo-dataset-time")] = None
    dir: Annotated[str, Field(description="parent folder of run directories")] = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**128, description="seed of data, population and initial weights")] = 0
    noise_seed: Annotated[
        int | None, Field(ge=0, lt=2**128, description="seed of noise and cohorts; if given, the run is a simulation")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto: cuda if there is one")] = "auto"
    chunk: Annotated[
        Count | None,
        Field(
            description="clients computed at once (exact meta-gradients). null: 1 on a CPU (16 with prototypes over an "
            "encoder), as many as fit on a GPU (at most 256)"
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16"],
        Field(description="what convolutions round their inputs to; tf32: only on GPUs; bfloat16: if in hardware"),
    ] = "float32"
    workers: Annotated[Count | None, Field(description="number of worker processes; null: number of cores")] = None
    checkpoint_every: Annotated[Count, Field(description="rounds between checkpoints")] = 20
    keep_checkpoints: Annotated[Count, Field(description="number of checkpoints to keep")] = 2
