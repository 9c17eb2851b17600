"""Settings of a run: privacy targets, evaluation, trackers, files. Dotted names are a contract (sweeps use them)."""

from dataclasses import field
from typing import Annotated, Literal

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
from dpfedmeta.core.plugins.plugin_registry import one_of_each


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
    relation: Annotated[
        Literal["zero-out", "row-deleted", "row-exchanged"] | None,
        Field(
            description="what may happen to a record where the target is met. zero-out: it counts as nothing in its "
            "place. row-deleted: its row goes or comes. row-exchanged: it becomes any other one. null: row-deleted for "
            "rows of tables, else zero-out"
        ),
    ] = None


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


def _of_wandb(name: str | None) -> str | None:
    """W&B refuses these when the run is made; a setting is refused before."""
    odd = [letter for letter in "/\\#?%:" if name and letter in name]
    if odd or len(name or "") > 128:
        what = f"no {' '.join(odd)} may stand in a name of W&B" if odd else "a name of W&B has at most 128 letters"
        raise ValueError(f"{what}; give ENTITY and PROJECT apart: track.entity, track.project")
    return name


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
