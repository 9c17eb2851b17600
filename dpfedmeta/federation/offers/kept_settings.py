"""Closed list of the settings that a federation takes: by each, what a client does so that what is proved of it holds.

A setting without a row is refused, so that a new one is taken among real clients only when somebody says who keeps it.
`federation.offers.offered_settings` looks at it, at the server and again at every client; docs/federation.md shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Keeper = Literal["client", "server", "public", "unsent", "nobody"]


@dataclass(frozen=True, kw_only=True)
class TakenSetting:
    """Setting among real clients, and who keeps what is proved of it.

    Attributes:
        keeper: Who keeps what is proved of it. client: the client itself, whatever the server does. server: its word,
            on which the cells towards the public count. public: no promise counts on it. unsent: no offer states it.
            nobody: refused.
        why: How a client keeps it; or why no promise counts on it; or why it is refused.
        only: Values that are taken; None: all.
        others: Why others are not, where `why` does not say it, and what to give.
        most: Largest number that a client is asked for, or most entries of a list; None: no limit of its own.
        by: What keeps it, below dpfedmeta, where a client does.
        simulated: Whether it describes simulated clients.
    """

    keeper: Keeper
    why: str
    only: tuple[Any, ...] | None = None
    others: str = ""
    most: float | None = None
    by: str = ""
    simulated: bool = False

    def problem(self, name: str, value: Any) -> str | None:
        """Say what is wrong with a value among real clients; None: nothing is."""
        if self.only is not None and value not in self.only:
            return f"{name} = {value}: {self.others or self.why}"
        size = len(value) if isinstance(value, tuple) else value
        if self.most is not None and size is not None and size > self.most:
            return f"{name} = {size:,}: a client of a federation takes at most {self.most:,}; lower it"
        return None


_SOLVES = "federation.offers.signed_document.check_numbers"
_SENDS = "federation.client.training_participation.Joined.vector"
_DECLINES = "federation.offers.plan_limits.PlanLimits.open_rounds"


def _solved(**more: Any) -> TakenSetting:
    why = "the client solves the plan again from it, and declines a plan that states another number"
    return TakenSetting(keeper="client", why=why, by=_SOLVES, **more)


def _computed(**more: Any) -> TakenSetting:
    why = "the client computes its message with it, and clips that itself: a client moves a sum by no more than a bound"
    return TakenSetting(keeper="client", why=why, by=_SENDS, **more)


def _noised(**more: Any) -> TakenSetting:
    why = "the client adds its noise by it, and charges what a participation then costs"
    return TakenSetting(keeper="client", why=why, by=_SENDS, **more)


def _public(why: str, **more: Any) -> TakenSetting:
    return TakenSetting(keeper="public", why=why, **more)


def _released(**more: Any) -> TakenSetting:
    return TakenSetting(
        keeper="public", why="the server does it to what is released already, and to nothing else", **more
    )


def _evaluated(**more: Any) -> TakenSetting:
    why = "on public classes at the server, and on a client's own machine, from which nothing of it leaves"
    return _public(why, **more)


def _simulated(usual: object) -> TakenSetting:
    why = "is only for simulated clients; leave it out in a federation of real ones"
    return TakenSetting(keeper="nobody", why=why, only=(usual,), simulated=True)


def _word(why: str, **more: Any) -> TakenSetting:
    return TakenSetting(keeper="server", why=why, **more)


def _unsent(*sent: object) -> TakenSetting:
    return TakenSetting(keeper="unsent", why="no client needs it", only=sent)


MOST_CLIENTS, MOST_ROUNDS, MOST_CHANGES = 10_000_000, 100_000, 100
MOST_RECORDS, MOST_WAYS, MOST_STEPS, MOST_WIDTH = 10_000, 1_000, 1_000, 4_096
_SPACED = (
    "from its ledger the client knows the rounds that it joined, and declines one that comes sooner; with the cyclic "
    "sampler also one that is not its turn"
)
_CAPPED = (
    "from its ledger the client knows how often it took part, in all runs of one plan, and declines what is more; "
    "without a cap it declines more rounds than the plan's own cells towards the server count with"
)
_CHECK_INS = (
    "check-ins are proved for clients that draw their own round and tell nobody, and here the server would draw it; "
    "use --population.sampler poisson or fixed"
)
_ABORTS = (
    "publishes in which rounds a late client was drawn, and real clients are not late by equal coins; use "
    "--server.abort_on_failure false: the server then adds the missing noise"
)

SETTINGS: dict[str, TakenSetting] = {
    "algo": _public("a name; what it stands for is in the other settings"),
    "dataset": _public("a label; a client reads no file of this name"),
    # -- who takes part --
    "population.clients": _word(
        "N of the sampling rate; under secure aggregation the client counts the roster itself", most=MOST_CLIENTS
    ),
    "population.cohort": _word("L of the sampling rate; no cell towards the server is amplified by it"),
    "population.sampler": _word(
        "the server draws cohorts and keeps them secret; no cell towards itself is amplified by that",
        only=("poisson", "fixed", "cyclic"),
        others=_CHECK_INS,
    ),
    "population.max_participations": TakenSetting(keeper="client", why=_CAPPED, by=_DECLINES),
    "population.separation": TakenSetting(keeper="client", why=_SPACED, by=_DECLINES),
    "population.records": _public("of benchmarks that are cut into shards, which no federation takes"),
    "population.kind": TakenSetting(
        keeper="client",
        why="under promises for records the client takes no plan of slots: its rows may come and go",
        by="federation.offers.signed_plan.opened_plan",
    ),
    "population.episodes": _simulated("fixed"),
    "population.register": _simulated(None),
    "population.most_shots": _simulated(None),
    "population.own_test": _simulated(0.0),
    "population.dropout": _simulated(0.0),
    "population.availability": _simulated("independent"),
    "population.latency_spread": _simulated(0.0),
    # -- what the server does --
    "server.rounds": TakenSetting(
        keeper="client",
        why="the client declines a round behind the last one, and an old one",
        by="federation.client.client.RealClient.answer",
        most=MOST_ROUNDS,
    ),
    "server.noise_multiplier": _word("the server adds this noise; under secure aggregation the clients do"),
    "server.schedule": _word("noise and cohorts of later rounds", most=MOST_CHANGES),
    "server.noise_mode": _word("the server tops the clients' own noise up"),
    "server.noise_site": _noised(),
    "server.noise": TakenSetting(
        keeper="client",
        why="the server adds it; the rounds of a client that it counts with are kept apart by the client",
        only=("independent", "toeplitz", "blt", "banded"),
        others="no client knows what such noise counts with; use --server.noise independent",
        by=_DECLINES,
    ),
    "server.buffers": _solved(most=1_000),
    "server.abort_on_failure": TakenSetting(keeper="nobody", why=_ABORTS, only=(False,)),
    "server.optimizer": _released(),
    "server.lr": _released(),
    "server.final_lr": _released(),
    "server.timeout": _simulated(None),
    "server.unit": _released(),
    "server.beta1": _released(),
    "server.beta2": _released(),
    "server.average": _released(),
    # -- who adds up --
    "aggregation.mode": TakenSetting(
        keeper="client",
        why="the client answers no question for a vector in the clear where the plan says secure",
        only=("messages", "secure"),
        others="no client knows what such a server sees; use --aggregation messages or secure",
        by="federation.client.client.RealClient.answer",
    ),
    "aggregation.bits": _solved(),
    "aggregation.dropout": TakenSetting(
        keeper="client",
        why="the client sizes its share of the noise by the fewest that may stay, and unmasks no sum of fewer",
        by="federation.offers.signed_plan.SignedPlan.agreement",
    ),
    "aggregation.protocol": _simulated(False),
    "aggregation.adversarial": TakenSetting(
        keeper="client",
        why="the client chooses its masks by it, and declines less than its own floor (--adversarial)",
        by="federation.client.client_budget.Floors.check",
    ),
    "aggregation.company": TakenSetting(
        keeper="client",
        why="picked: the client counts with whom the server can place beside it. drawn: the server's word, and said",
        by="federation.offers.signed_plan.opened_plan",
    ),
    "aggregation.rough": TakenSetting(
        keeper="nobody",
        why="a client takes no plan with so few bits that rounding costs a lot; raise aggregation.bits",
        only=(False,),
    ),
    "aggregation.dimension": TakenSetting(
        keeper="nobody",
        why="the client counts the weights of the network itself, and noise is paid for by each; leave it out",
        only=(None,),
    ),
    # -- bounds --
    "clip.policy": _computed(),
    "clip.initial": _computed(),
    "clip.start": TakenSetting(
        keeper="nobody",
        why="an analysis among real clients is a run of its own; give clip.initial, and privacy.spent_before",
        only=("given",),
    ),
    "clip.window": _released(),
    "clip.percentile": _released(),
    "clip.quantile": _released(),
    "clip.rate": _released(),
    "clip.count_noise": _solved(),
    "clip.lowest": _released(),
    "clip.highest": _released(),
    "clip.scope": _computed(),
    "clip.own": TakenSetting(
        keeper="nobody",
        why="arguments of a clip policy of one's own, and clients take no code from a server; leave it out",
        only=({},),
    ),
    # -- what a client computes --
    "meta.method": _computed(),
    "meta.order": _computed(),
    "meta.adapt": _computed(),
    "meta.learn": _computed(),
    "meta.steps": _computed(most=MOST_STEPS),
    "meta.batch": _computed(),
    "meta.lr": _computed(),
    "meta.divisions": _computed(most=MOST_STEPS),
    "meta.division_shots": _computed(most=MOST_RECORDS),
    "meta.own": TakenSetting(
        keeper="client",
        why="public constants of a built-in method, within its own limits: the client makes the method with them, "
        "bounds each record and its message by them itself, and charges what that costs. Those of other code are "
        "refused with the code",
        by=_SENDS,
    ),
    "record.enabled": _noised(),
    "record.release": _noised(),
    "record.micro_ways": _computed(most=MOST_WAYS),
    "record.micro_shots": _computed(most=MOST_RECORDS),
    "record.micro_queries": _computed(most=MOST_RECORDS),
    "record.support_clip": _noised(),
    "record.support_clip_ratio": _noised(),
    "record.message_clip_ratio": _word("the server clips a noisy message again"),
    "record.support_noise": _noised(),
    "record.query_noise": _noised(),
    "record.accountant": _solved(),
    "record.client_ledgers": _simulated(False),
    "record.engine": _computed(),
    # -- targets --
    "privacy.client.epsilon": _solved(),
    "privacy.client.limit": _solved(),
    "privacy.client.delta": _solved(),
    "privacy.client.observer": _solved(),
    "privacy.client.colluding": TakenSetting(
        keeper="client",
        why="the client counts without their noise, and declines less than its own floor (--colluding)",
        by="federation.client.client_budget.Floors.check",
    ),
    "privacy.client.hostile": _solved(),
    "privacy.record.relation": TakenSetting(
        keeper="client",
        why="the client places its rows by their hash, with a key of its own, and charges what this relation costs",
        by="federation.client.client_state.row_key",
    ),
    "privacy.record.epsilon": _solved(),
    "privacy.record.delta": _solved(),
    "privacy.record.observer": _solved(),
    "privacy.spent_before": _unsent(()),
    # -- records and network --
    "task.ways": _computed(most=MOST_WAYS),
    "task.shots": _computed(most=MOST_RECORDS),
    "task.queries": _computed(most=MOST_RECORDS),
    "task.shift": _computed(most=64),
    "task.support_share": _simulated(0.5),
    "task.most_ways": _simulated(20),
    "task.most_records": _simulated(400),
    "task.balance": _simulated("classes"),
    "model.name": _computed(),
    "model.width": _computed(most=MOST_WIDTH),
    "model.downscale": _computed(),
    "model.norm": _computed(),
    "model.groups": _computed(),
    "model.activation": _computed(),
    "model.features": _computed(),
    "model.first_gain": _computed(),
    "model.feature_scale": _computed(),
    "model.initial": _public("public weights that come with the package; a client reads no other"),
    "model.encoder": TakenSetting(
        keeper="client",
        why="the client's own package brings it, with the weights whose digest the plan states",
        by="federation.offers.offered_settings.with_own_encoder",
    ),
    "model.encoder_weights": TakenSetting(
        keeper="nobody", why="clients read no file that a server names; leave it out", only=(None,)
    ),
    "model.encoder_size": _computed(),
    "model.encoder_overlap": TakenSetting(
        keeper="client",
        why="the client looks up itself what the encoder learned from",
        by="federation.offers.offered_settings.with_own_encoder",
    ),
    # -- at the end --
    "evaluation.episodes": _evaluated(),
    "evaluation.queries": _evaluated(),
    "evaluation.ways": _evaluated(),
    "evaluation.shots": _evaluated(),
    "evaluation.every": _evaluated(),
    "evaluation.validation_episodes": _evaluated(),
    "evaluation.adapt": _evaluated(),
    "evaluation.steps": _evaluated(most=MOST_STEPS),
    "evaluation.lr": _evaluated(),
    "track.public_clients": _unsent(0),
    "track.to": _unsent(()),
    "track.wandb": _unsent("off"),
    "track.project": _unsent(None),
    "track.entity": _unsent(None),
    "track.group": _unsent(None),
    "track.tags": _unsent(()),
    "track.model": _unsent(False),
    "track.tensorboard": _unsent(False),
    "run.name": _unsent("federation"),
    "run.dir": _unsent(""),
    "run.seed": _public("which records of its own a client draws, by numbers and not by content"),
    "run.noise_seed": _unsent(None),
    "run.device": _unsent("cpu"),
    "run.chunk": _unsent(None),
    "run.precision": _computed(),
    "run.workers": _unsent(None),
    "run.checkpoint_every": _unsent(20),
    "run.keep_checkpoints": _unsent(2),
}
