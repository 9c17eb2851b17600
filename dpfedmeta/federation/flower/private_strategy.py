"""A Flower strategy of one's own with a guarantee: the kernel draws the cohort, clips, adds up and releases.

    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = dp.flower.PrivateStrategy(FedAdam(), dp.PrivateRounds(...))
        strategy.start(grid, initial_arrays, num_rounds=30)

and at the clients `ClientApp(mods=[dp.flower.clip_mod])`, so that no longer update leaves them. As in every loop of
one's own, the process of the ServerApp sees each update: the promise is towards everybody else.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.still_working import EVERY_SECONDS
from dpfedmeta.federation.flower.flower_environment import check_flower
from dpfedmeta.federation.identity.credentials import read_roster
from dpfedmeta.privacy.clipping import clip
from dpfedmeta.privacy.rounds.private_round import PrivateRound
from dpfedmeta.privacy.rounds.private_rounds import PrivateRounds

check_flower()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp.typing import ClientAppCallable  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Strategy  # noqa: E402

from dpfedmeta.federation.flower.node_replies import (  # noqa: E402
    PARTITION,
    Arrays,
    NodeNumbers,
    arrays_of,
    record_of_arrays,
    said_number,
)

BOUND = "dpfedmeta-clip-bound"
_LOG = logging.getLogger("flwr")
_POLL_SECONDS = 1.0
# Flower's strategies ask twice a round; one that goes on asking waits for nodes that never come.
_MOST_LOOKS = 10


class PrivateStrategy(Strategy):
    """A Flower strategy whose training rounds are private rounds.

    Guarantee:
        `private.guarantees`, about one node. The strategy inside sees one result, the model moved by the noisy mean:
        never a reply, a count of examples or a metric. Who is asked is drawn by the kernel among all N clients that the
        plan counts with, not by the strategy among those that are connected. Metrics of training are dropped, and
        clients are not asked to evaluate, since neither is charged: evaluate on public data (`evaluate_fn`). What
        Flower would log of the cohort is not logged. A client is a key of the roster or, without one, a partition: its
        number does not hang on the id that Flower gives its node, so a run that is started again finds it. Without a
        roster a node is believed what it says. Which nodes are connected is not secret: Flower shows it, and rounds
        wait for nodes, whoever is in the cohort.
    """

    def __init__(
        self,
        strategy: Strategy,
        private: PrivateRounds,
        *,
        fewest: int | None = None,
        roster: str | PathLike[str] | None = None,
    ) -> None:
        """Wrap a strategy.

        Args:
            strategy: What makes the next model of a result: FedAvg, FedAdam, ...
            private: The rounds; `clients` is the most nodes that ever take part.
            fewest: Nodes that have to be connected before a round is charged; by default those that Flower would wait
                for, the strategy's `min_available_nodes` and `min_train_nodes`.
            roster: File of the clients' cards, as `dpfedmeta federate keys --flower` makes them, in a fixed order:
                client i is who authenticates with the i-th key. None: `clip_mod` says each node's `partition-id`.

        Raises:
            InputError: More nodes are waited for than take part, or the roster names more or fewer clients.
        """
        self.strategy, self.private = strategy, private
        self.fewest = _fewest(strategy, private.clients, fewest)
        self._named = roster is not None
        self._nodes = NodeNumbers(private.clients, _keys(private, roster))
        self._rounds, self._begun = iter(private), 0
        self._round: PrivateRound | None = None
        self._arrays = ArrayRecord()

    def summary(self) -> None:
        """Log what is promised."""
        for line in str(self.private.guarantees).splitlines():
            _LOG.info("\t%s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the strategy inside, wait for nodes, then charge the round and ask the kernel's cohort.

        A round in which the strategy inside asks nobody (`fraction_train=0`) is not charged.

        Raises:
            InputError: More rounds than planned, a model that is not of real numbers, or a strategy inside that waits
                for more nodes than take part.
        """
        _check_real(arrays)
        self._round, self._arrays = None, arrays
        with _quiet():
            asked = list(self.strategy.configure_train(server_round, arrays, config, _Everybody(self.private.clients)))
        if not asked:
            _LOG.info("PrivateStrategy: the strategy asks nobody in round %d, which is not charged", server_round)
            return []
        # A round that is released already asks nobody, so it waits for nobody.
        known = {} if self._begun < self.private.released or self.private.ended else self._connected(grid, asked[0])
        self._round = next(self._rounds, None)
        if self._round is None:
            if self.private.ended == "budget":
                return []
            raise InputError(
                f"PrivateStrategy: round {server_round} is not planned; give num_rounds={self.private.released}, or "
                "plan more rounds"
            )
        self._begun += 1
        # Clients that clip would hide from such a policy how long their updates are.
        told = math.inf if self.private.measures else self._round.bound
        content, kind = _bounded(asked[0].content, told), asked[0].metadata.message_type
        return [Message(content, known[client], kind) for client in self._round.cohort if client in known]

    def _connected(self, grid: Grid, asked: Message) -> dict[int, int]:
        """Node of each client that is connected, once there are enough; it looks at no cohort."""
        told = -np.inf
        while True:
            there = list(grid.get_node_ids())
            known = self._nodes.known(grid, asked.metadata.message_type)
            if len(known) >= self.fewest:
                return known
            if time.monotonic() - told >= EVERY_SECONDS:
                told = time.monotonic()
                others = len(there) - len(known)
                due = "a key of the roster" if self._named else f"the mod of dpfedmeta and a free {PARTITION}"
                more = f"; {others} others take no part: {due} is what they need, from 0 to {self.private.clients - 1}"
                _LOG.info(
                    "PrivateStrategy: waiting before the next round is charged: %d of %d nodes are connected%s",
                    len(known),
                    self.fewest,
                    more if others else "",
                )
            time.sleep(_POLL_SECONDS)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the replies, release, and hand the strategy inside the model moved by the noisy mean."""
        if self._round is None:
            return None, None
        model = _numbers(self._arrays)
        for reply in replies:
            client = self._nodes.number(reply.metadata.src_node_id)
            self._round.add(-1 if client is None else client, _update(reply, model))
        mean = self._round.release()
        moved = {name: (value + mean[name]).astype(value.dtype) for name, value in model.items()}
        result = RecordDict(
            {
                getattr(self.strategy, "arrayrecord_key", "arrays"): record_of_arrays(moved),
                "metrics": MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1}),
            }
        )
        with _quiet():
            arrays, _ = self.strategy.aggregate_train(server_round, [Message(result, 0, "train")])
        return arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: what clients measured would be a release that is not charged."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing."""
        return None


def clip_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: clip the update to the round's bound, and send no metric; the server clips again.

    Guarantee:
        No update longer than the bound leaves (unless the clip policy measures updates), and of the metrics nothing.
        Where the app raises, or its reply is not of the model's form, the reply is the model itself, so a client's data
        decide over no error. What was raised is logged at the client alone; Flower would send its words to the server.
    """
    config = next(iter(message.content.config_records.values()), ConfigRecord())
    if (number := said_number(message, context)) is not None:
        return number
    if BOUND not in config or not message.content.array_records:
        return call_next(message, context)
    model = arrays_of(next(iter(message.content.array_records.values())))
    bound = config[BOUND]
    assert isinstance(bound, float)
    update: Any = None
    try:
        update = _update(call_next(message, context), model)
    except Exception:
        _LOG.exception("dpfedmeta: the ClientApp failed, so this client sends the model as it came")
    clipped: Any = clip(update, bound) if update is not None else dict.fromkeys(model, 0.0)
    moved = {name: (value + clipped[name]).astype(value.dtype) for name, value in model.items()}
    content = RecordDict({"arrays": record_of_arrays(moved), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


class _Everybody(Grid):
    """What the strategy inside samples from: made-up nodes, none of which is asked."""

    def __init__(self, nodes: int) -> None:
        self._nodes, self._looks = nodes, 0

    def get_node_ids(self) -> Iterable[int]:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise InputError(
                f"PrivateStrategy: the strategy inside waits for more than the {self._nodes} nodes that take part: it "
                f"asked {_MOST_LOOKS} times in one round; let it ask for at most {self._nodes} (clients), or plan more"
            )
        return range(1, self._nodes + 1)

    def _nobody(self, *given: Any, **named: Any) -> Any:
        raise InputError(
            "PrivateStrategy: the strategy inside talks to nodes by itself in configure_train, which is not charged; "
            "let it return messages alone"
        )

    run = property(_nobody)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _nobody


def _fewest(strategy: Strategy, clients: int, given: int | None) -> int:
    """Number of nodes to wait for, at least one; what can never be there is refused before anything is charged."""
    named = {name: getattr(strategy, name, None) for name in ("min_available_nodes", "min_train_nodes")}
    whole = {name: value for name, value in named.items() if isinstance(value, int)}
    if given is not None and (type(given) is not int or given < 1):
        raise InputError(f"PrivateStrategy: fewest = {given!r}, expected a whole number from 1 to {clients} (clients)")
    for name, value in {**whole, "fewest": given or 1}.items():
        if value > clients:
            raise InputError(f"PrivateStrategy: {name} = {value}, but clients = {clients}; give at most {clients}")
    return given or max(1, *whole.values(), 1)


def _keys(private: PrivateRounds, roster: str | PathLike[str] | None) -> list[bytes]:
    """Public keys of the roster's clients, as Flower compares them."""
    cards = () if roster is None else read_roster(Path(roster))
    if roster is not None and len(cards) != private.clients:
        raise InputError(
            f"PrivateStrategy: {roster}: names {len(cards)} clients, and clients = {private.clients}; name them all"
        )
    return [card.wire_pem for card in cards]


def _bounded(content: RecordDict, bound: float) -> RecordDict:
    """The message of the strategy inside with the bound of the round, which the mod of clients reads."""
    if not content.config_records:
        content["config"] = ConfigRecord()
    for config in content.config_records.values():
        config[BOUND] = bound
    return content


def _check_real(arrays: ArrayRecord) -> None:
    for name, value in _numbers(arrays).items():
        if value.dtype.kind != "f":
            raise InputError(
                f"PrivateStrategy: {name} of the model is of {value.dtype}: only real numbers are released; leave it "
                "out of the arrays (counters of batch normalisation: use layers without running statistics)"
            )


def _numbers(arrays: ArrayRecord) -> Arrays:
    return {name: value.numpy() for name, value in arrays.items()}


def _update(reply: Message, model: Arrays) -> Arrays | None:
    """What a reply moves the model by; None where it does not have its form."""
    try:
        (record,) = reply.content.array_records.values()
        found = arrays_of(record)
        if {name: value.shape for name, value in found.items()} != {name: v.shape for name, v in model.items()}:
            return None
        with np.errstate(all="ignore"):
            return {name: found[name].astype(np.float64) - value for name, value in model.items()}
    except MemoryError:
        raise
    except Exception:
        # Whatever a client sends, the round goes on: a stop would tell of its data.
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's strategies log whom they sampled and what came back."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before
