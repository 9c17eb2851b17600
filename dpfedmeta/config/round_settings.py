"""Settings of who takes part in a round and what the server does with the answers. Dotted names are a contract."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dpfedmeta.config.fields import MOST, STRICT, Count, NotNegative, Positive, explained
from dpfedmeta.core.plugins.plugin_registry import one_of


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
        Literal["virtual", "disjoint", "natural", "real"],
        Field(
            description="virtual: clients draw from all training images. disjoint: each image belongs to at most one "
            "client. natural: disjoint, and grouped as in the data (the clients that your data name; on omniglot one "
            "alphabet by the same drawers). real: clients of a federation, which hold their own data"
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
        Field(
            description="server optimizer: adam, sgd, muon (kernels by singular values), solve (the metric that "
            "moments give), or package.module:name"
        ),
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
