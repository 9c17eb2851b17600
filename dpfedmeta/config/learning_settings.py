"""Settings of what a client computes: task, network, meta-gradients, noise for records. Dotted names are a contract."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dpfedmeta.config.fields import MOST, STRICT, Count, Positive, explained
from dpfedmeta.core.plugins.plugin_registry import one_of


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
            "affine, identity, metric (on the features of model.encoder, or vectors). package.module:factory: your own"
        ),
    ] = "conv4-strided"
    width: Annotated[
        Count,
        Field(
            description="channels, hidden units, rank (low-rank), directions (metric), or the side of the averaged "
            "image (linear, of images)"
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
            description="public, frozen encoder whose features take the place of the images: lite0, strokes, "
            "timm:NAME, or package.module:factory; null: none"
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


@explained("meta.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class MetaSettings:
    """The inner loop and the meta-gradient."""

    method: Annotated[
        str,
        one_of("dpfedmeta.learning.algorithms"),
        Field(
            description="what a client sends. fedavg: its update by local training on all its records. moments: second "
            "moments of its records. Or package.module:name"
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
    own: Annotated[Mapping[str, Any], Field(description="further arguments of your own method, or of moments")] = field(
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
            "record; micro-episodes: the meta-gradients of small disjoint episodes of its records, each clipped as "
            "one; noisy-moments: the second moments of its records"
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
