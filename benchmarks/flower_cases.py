"""Flower's wrappers for differential privacy, through its own loop (`Strategy.start`) and its own messages.

A grid in memory stands in for the network; sampling, clipping, averaging, noise and accountant are Flower's. Nothing
here gives a guarantee.
"""

from __future__ import annotations

import importlib
import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.audited_case import Case
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

DIMENSION, CLIENTS, DELTA = 16, 20, 1e-6
# Ten times any bound in use. What "nothing" sends is not zero: there the wrappers divide by zero.
_LONG, _NOTHING = 10.0, 1e-4
_DIRECTION = np.full(DIMENSION, 1.0 / math.sqrt(DIMENSION), np.float32)
_KEY = "weights"


def flower() -> tuple[Any, Any, Any]:
    """(flwr.app, flwr.serverapp.strategy, flwr.clientapp.mod), which say nothing.

    Raises:
        ImportError: Not installed.
    """
    app, strategies, mods = (
        importlib.import_module(name) for name in ("flwr.app", "flwr.serverapp.strategy", "flwr.clientapp.mod")
    )
    # What a server that Flower starts has: messages carry them.
    identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    identity.run_id, identity.node_id, identity.task_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return app, strategies, mods


@dataclass(frozen=True, kw_only=True)
class World:
    """Who sends what.

    Attributes:
        lengths: Of each client's update before it is clipped, along one direction; that of the canary is the first.
        examples: By which each is weighted.
    """

    lengths: tuple[float, ...]
    examples: tuple[int, ...]

    def outcomes(self, sampled: int) -> list[tuple[float, float, int]]:
        """(Probability, sum in clip bounds, how many were clipped), where all but one client at most are sampled."""
        everybody = range(len(self.lengths))
        left_out = [None] if sampled == len(self.lengths) else list(everybody)
        found: dict[tuple[float, int], float] = {}
        for gone in left_out:
            there = [client for client in everybody if client != gone]
            whole = sum(self.examples[client] for client in there)
            moved = sum(self.examples[c] * max(min(self.lengths[c], 1.0), -1.0) for c in there)
            key = sampled * moved / whole, sum(abs(self.lengths[client]) > 1 for client in there)
            found[key] = found.get(key, 0.0) + 1 / len(left_out)
        return [(share, mean, clipped) for (mean, clipped), share in found.items()]


def world(canary: float | None, others: float, count: int = CLIENTS, examples: int = 1) -> World:
    """A canary, or none, among `count` clients."""
    ahead = () if canary is None else (canary,)
    rest = count - len(ahead)
    return World(lengths=(*ahead, *[others] * rest), examples=(*[examples for _ in ahead], *[1] * rest))


@dataclass(kw_only=True)
class Grid:
    """The clients of a world, as Flower's server sees them."""

    app: Any
    clients: World
    mod: Any = None
    run: None = None

    def get_node_ids(self) -> list[int]:
        """From 1."""
        return list(range(1, len(self.clients.lengths) + 1))

    def send_and_receive(self, messages: Any, **_: object) -> list[Any]:
        """Every client replies."""
        return [self._reply(message) for message in messages]

    def _reply(self, message: Any) -> Any:
        if self.mod is None:
            return self._client(message, None)
        return self.mod(message, None, self._client)

    def _client(self, message: Any, _: object) -> Any:
        app, number = self.app, message.metadata.dst_node_id - 1
        (sent,) = message.content["arrays"].to_numpy_ndarrays()
        arrays = app.ArrayRecord({_KEY: app.Array(sent + np.float32(self.clients.lengths[number]) * _DIRECTION)})
        metrics = app.MetricRecord({"num-examples": self.clients.examples[number]})
        return app.Message(app.RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@dataclass(kw_only=True)
class Seen:
    """What leaves a run: models, and the bound, which the server prints in its log and sends to clients."""

    strategy: Any
    models: list[Any] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def __call__(self, round_: int, arrays: Any) -> None:
        """As `evaluate_fn`, once before the first round and after each."""
        self.models.append(arrays.to_numpy_ndarrays()[0].astype(np.float64))
        self.bounds.append(self.strategy.clipping_norm)


def run(strategy: Any, clients: World, rounds: int, seed: int, mod: Any = None) -> Seen:
    """Rounds of Flower's loop. Its noise and its cohorts come from the global generators."""
    app, _, _ = flower()
    np.random.seed(seed)  # noqa: NPY002  Flower's own source of noise
    random.seed(seed)
    seen = Seen(strategy=strategy)
    first = app.ArrayRecord({_KEY: app.Array(np.zeros(DIMENSION, np.float32))})
    strategy.start(Grid(app=app, clients=clients, mod=mod), first, num_rounds=rounds, evaluate_fn=seen)
    return seen


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The likelihood ratio of what left a run.

    Attributes:
        make: A new strategy.
        one: The one world.
        other: The other.
        rounds: T.
        mod: Of Flower's clients.
    """

    make: Callable[[], Any]
    one: World
    other: World
    rounds: int = 1
    mod: Any = None

    def __call__(self, one: bool, seed: int) -> float:
        """Of one run."""
        strategy = self.make()
        seen = run(strategy, self.one if one else self.other, self.rounds, seed, self.mod)
        return sum(self._of_round(strategy, seen, round_) for round_ in range(self.rounds))

    def _of_round(self, strategy: Any, seen: Seen, round_: int) -> float:
        bound, following = seen.bounds[round_], seen.bounds[round_ + 1]
        sampled = strategy.num_sampled_clients
        moved = sampled * float((seen.models[round_ + 1] - seen.models[round_]) @ _DIRECTION)
        # As the code adds it: for the bound of the next round, where that is another one.
        deviation = strategy.noise_multiplier * following

        def log_density(clients: World) -> float:
            terms = []
            for share, mean, clipped in clients.outcomes(sampled):
                term = math.log(share) - 0.5 * ((moved - mean * bound) / deviation) ** 2
                if hasattr(strategy, "clipped_count_stddev"):
                    step = -math.log(following / bound) / strategy.clip_norm_lr + strategy.target_clipped_quantile
                    term -= 0.5 * ((step * sampled - clipped) / strategy.clipped_count_stddev) ** 2
                terms.append(term)
            return float(np.logaddexp.reduce(terms))

        return log_density(self.one) - log_density(self.other)


def cases(runs: int) -> Iterator[Case]:
    """All of them."""
    yield from _fixed(runs)
    yield from _adaptive(runs // 3)
    yield from _local(runs)


def _fixed(runs: int) -> Iterator[Case]:
    _, strategies, mods = flower()
    z, bound = 2.0, 1.0

    def server() -> Any:
        return strategies.DifferentialPrivacyServerSideFixedClipping(_averaging(), z, bound, CLIENTS)

    def client() -> Any:
        return strategies.DifferentialPrivacyClientSideFixedClipping(_averaging(), z, bound, CLIENTS)

    def one_fewer() -> Any:
        inner = strategies.FedAvg(fraction_train=0.01, fraction_evaluate=0.0, min_train_nodes=CLIENTS)
        return strategies.DifferentialPrivacyServerSideFixedClipping(inner, z, bound, CLIENTS)

    claimed, by = printed_epsilon(z, bound), "printed by Flower's own accountant (RDP)"
    here, gone, true = world(_LONG, _NOTHING), world(_NOTHING, _NOTHING), gaussian_epsilon(1 / z, DELTA)
    common: dict[str, Any] = {"claimed": claimed, "by": by, "delta": DELTA, "runs": runs}
    name = f"Flower, fixed clipping at the server, z = {z:g}, one round of {CLIENTS}"
    yield Case(
        name=name, worlds="a client sends all it may, or nothing; who takes part is public", true=true,
        ratio=Attack(make=server, one=here, other=gone), **common,
    )  # fmt: skip
    yield Case(
        name=name.replace("at the server", "in clients (fixedclipping_mod)"), worlds="the same", true=true,
        ratio=Attack(make=client, one=here, other=gone, mod=mods.fixedclipping_mod), **common,
    )  # fmt: skip
    # 20 of 21, or of 20: whoever is sampled in the place of the client that is gone sends the opposite.
    rounds = PrivacyPlan(
        clients=CLIENTS + 1, cohort=CLIENTS, rounds=1, noise_multiplier=z / 2, client_delta=DELTA
    ).phases
    yield Case(
        name=name, worlds=f"a client is added or removed: {CLIENTS} are sampled of {CLIENTS + 1}, or of {CLIENTS}",
        true=_sampled(rounds), ratio=Attack(make=one_fewer, one=world(_LONG, -_LONG, CLIENTS + 1),
        other=world(None, -_LONG)), **common,
    )  # fmt: skip
    examples = 10
    share = CLIENTS * examples / (examples + CLIENTS - 1)
    many, none = world(_LONG, _NOTHING, examples=examples), world(_NOTHING, _NOTHING, examples=examples)
    yield Case(
        name=name, worlds=f"all or nothing, from a client with {examples} examples; the others have 1 each",
        true=gaussian_epsilon(share / z, DELTA), ratio=Attack(make=server, one=many, other=none),
        **{**common, "by": "the noise multiplier, read by the same accountant; with its accountant on, Flower refuses"},
    )  # fmt: skip


def _adaptive(runs: int) -> Iterator[Case]:
    _, strategies, mods = flower()
    z, rounds = 1.5, 5

    def server() -> Any:
        return strategies.DifferentialPrivacyServerSideAdaptiveClipping(_averaging(), z, CLIENTS)

    def client() -> Any:
        return strategies.DifferentialPrivacyClientSideAdaptiveClipping(_averaging(), z, CLIENTS)

    made = server()
    count, share = made.clipped_count_stddev, made.noise_multiplier
    # Clipped at C_t with noise for C_(t+1), which is exp(0.1) times smaller where all are clipped; and the count of
    # clipped clients moves by 1 and not by the 1/2 that its noise was made for.
    lost = math.exp(made.clip_norm_lr * (1 - made.target_clipped_quantile))
    each = (lost / share) ** 2 + 1 / count**2
    common: dict[str, Any] = {
        "worlds": "a client sends all it may, or nothing; all others are clipped",
        "claimed": gaussian_epsilon(math.sqrt(rounds) / z, DELTA),
        "by": "the noise multiplier, which stands for updates and count together (Andrew et al.); Flower prints none",
        "true": gaussian_epsilon(math.sqrt(rounds * each), DELTA),
        "delta": DELTA,
        "runs": runs,
    }
    one, other = world(_LONG, _LONG), world(_NOTHING, _LONG)
    name = f"Flower, adaptive clipping at the server, z = {z:g}, else as it comes, {rounds} rounds of {CLIENTS}"
    yield Case(name=name, ratio=Attack(make=server, one=one, other=other, rounds=rounds), **common)
    yield Case(
        name=name.replace("at the server", "in clients (adaptiveclipping_mod)"),
        ratio=Attack(make=client, one=one, other=other, rounds=rounds, mod=mods.adaptiveclipping_mod), **common,
    )  # fmt: skip


def _local(runs: int) -> Iterator[Case]:
    _, _, mods = flower()
    bound, delta, epsilon = 1.0, 1e-5, 8.0
    for sensitivity in (2 * bound, bound):
        deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        mod = mods.LocalDpMod(bound, sensitivity, epsilon, delta)
        yield Case(
            name=f"Flower, LocalDpMod, clipping_norm {bound:g}, sensitivity {sensitivity:g}",
            worlds="a client sends all it may, or the opposite; its message is seen",
            claimed=epsilon, by="the epsilon that it is given", true=gaussian_epsilon(2 * bound / deviation, delta),
            delta=delta, runs=runs, ratio=_OneMessage(mod, deviation, bound),
        )  # fmt: skip


@dataclass(frozen=True)
class _OneMessage:
    mod: Any
    deviation: float
    bound: float

    def __call__(self, one: bool, seed: int) -> float:
        app, _, _ = flower()
        np.random.seed(seed)  # noqa: NPY002
        arrays = app.ArrayRecord({_KEY: app.Array(np.zeros(DIMENSION, np.float32))})
        content = app.RecordDict({"arrays": arrays, "config": app.ConfigRecord()})
        message = app.Message(content, dst_node_id=1, message_type="train")
        (reply,) = Grid(
            app=app, clients=World(lengths=(_LONG if one else -_LONG,), examples=(1,)), mod=self.mod
        ).send_and_receive([message])
        (sent,) = reply.content["arrays"].to_numpy_ndarrays()
        return 2 * self.bound * float(sent.astype(np.float64) @ _DIRECTION) / self.deviation**2


def printed_epsilon(z: float, bound: float, clients: World | None = None) -> float:
    """What Flower's accountant says of one round."""
    _, strategies, _ = flower()
    inner = strategies.FedAvg(fraction_train=0.01, fraction_evaluate=0.0, min_train_nodes=CLIENTS)
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
        inner, z, bound, CLIENTS, accountant=rdp_accountant(CLIENTS + 1, DELTA)
    )
    run(strategy, clients or world(_LONG, _NOTHING, CLIENTS + 1), 1, 0)
    return float(strategy.privacy_spent().epsilon)


def rdp_accountant(clients: int, delta: float) -> Any:
    """Flower's accountant, as its wrapper takes it: it counts no sampling."""
    served = importlib.import_module("flwr.serverapp")
    config = served.PrivacyConfig(
        target_delta=delta, population_size=clients,
        neighboring_relation=served.NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=served.SamplingMethod.NO_AMPLIFICATION,
    )  # fmt: skip
    return served.RdpAccountant(config)


def remarks() -> Iterator[str]:
    """What else is seen of the wrappers, measured."""
    _, strategies, _ = flower()
    quiet = strategies.DifferentialPrivacyServerSideFixedClipping(_averaging(), 0.0, 1.0, CLIENTS)
    arrived = run(quiet, world(_LONG, _LONG), 1, 0).models[-1] @ _DIRECTION
    yield f"fixed: all updates {_LONG:g} bounds long arrive as {arrived:.3f} bounds: clipped as it should be"
    for what, lengths in (("all are clipped", _LONG), ("none is clipped", _NOTHING)):
        adaptive = strategies.DifferentialPrivacyServerSideAdaptiveClipping(_averaging(), 1.5, CLIENTS)
        bounds = run(adaptive, world(lengths, lengths), 20, 0).bounds
        yield f"adaptive: where {what}, the bound goes from {bounds[0]:g} to {bounds[-1]:.3g} in 20 rounds"
    try:
        run(quiet, world(0.0, _LONG), 1, 0)
        yield "an update of zeros is taken"
    except ZeroDivisionError:
        yield "an update that is exactly zero ends the server's run: ZeroDivisionError"
    try:
        printed_epsilon(2.0, 1.0, world(_LONG, _LONG, CLIENTS, examples=10))
        yield "its accountant takes clients of unequal weight"
    except ValueError as refused:
        yield f"with its accountant it refuses clients of unequal weight: {refused}"


def _averaging() -> Any:
    _, strategies, _ = flower()
    return strategies.FedAvg(fraction_evaluate=0.0)


def _sampled(phases: tuple[Phase, ...]) -> float:
    return sampled_epsilon(phases, "add-remove", DELTA)
