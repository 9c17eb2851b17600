"""A Flower strategy of one's own with a guarantee: the kernel draws the cohort, clips, adds up and releases.

    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = dp.flower.PrivateStrategy(FedAdam(), dp.PrivateRounds(...))
        strategy.start(grid, initial_arrays, num_rounds=30)

and at the clients `ClientApp(mods=[dp.flower.clip_mod])`, so that no longer update leaves them. As in every loop of
one's own, the process of the ServerApp sees each update: the promise is towards everybody else.
"""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, cut_torn_line
from dpfedmeta.core.files.run_directory import append_lines
from dpfedmeta.core.still_working import EVERY_SECONDS
from dpfedmeta.federation.flower.flower_environment import check_flower
from dpfedmeta.privacy.clipping import clip
from dpfedmeta.privacy.rounds.private_round import PrivateRound
from dpfedmeta.privacy.rounds.private_rounds import PrivateRounds

check_flower()

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp.typing import ClientAppCallable  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Strategy  # noqa: E402

BOUND = "dpfedmeta-clip-bound"
_NODES = "nodes.jsonl"
_LOG = logging.getLogger("flwr")
_POLL_SECONDS = 1.0
# Flower's strategies ask twice a round; one that goes on asking waits for nodes that never come.
_MOST_LOOKS = 10
Arrays = dict[str, npt.NDArray[Any]]


class PrivateStrategy(Strategy):
    """A Flower strategy whose training rounds are private rounds.

    Guarantee:
        `private.guarantees`, about one node. The strategy inside sees one result, the model moved by the noisy mean:
        never a reply, a count of examples or a metric. Who is asked is drawn by the kernel among all N clients that the
        plan counts with, not by the strategy among those that are connected. Metrics of training are dropped, and
        clients are not asked to evaluate, since neither is charged: evaluate on public data (`evaluate_fn`). What
        Flower would log of the cohort is not logged. A node is one client: whoever registers twice is two. Which nodes
        are connected is not secret: Flower shows it, and rounds wait for nodes, whoever is in the cohort.
    """

    def __init__(self, strategy: Strategy, private: PrivateRounds, *, fewest: int | None = None) -> None:
        """Wrap a strategy.

        Args:
            strategy: What makes the next model of a result: FedAvg, FedAdam, ...
            private: The rounds; `clients` is the most nodes that ever take part.
            fewest: Nodes that have to be connected before a round is charged; by default those that Flower would wait
                for, the strategy's `min_available_nodes` and `min_train_nodes`.

        Raises:
            InputError: More nodes are waited for than take part.
        """
        self.strategy, self.private = strategy, private
        self.fewest = _fewest(strategy, private.clients, fewest)
        self._nodes = _Nodes(private)
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
            asked = list(self.strategy.configure_train(server_round, arrays, config, _Everybody(self._nodes.most)))
        if not asked:
            _LOG.info("PrivateStrategy: the strategy asks nobody in round %d, which is not charged", server_round)
            return []
        # A round that is released already asks nobody, so it waits for nobody.
        known = {} if self._begun < self.private.released or self.private.ended else self._connected(grid)
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

    def _connected(self, grid: Grid) -> dict[int, int]:
        """Node of each client that is connected, once there are enough; it looks at no cohort."""
        told = -np.inf
        while True:
            there = list(grid.get_node_ids())
            known = self._nodes.known(there)
            if len(known) >= self.fewest:
                return known
            if time.monotonic() - told >= EVERY_SECONDS:
                told = time.monotonic()
                others = len(there) - len(known)
                more = f"; {others} others never take part, since clients={self._nodes.most} are numbered in the run"
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
                getattr(self.strategy, "arrayrecord_key", "arrays"): _record(moved),
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
    if BOUND not in config or not message.content.array_records:
        return call_next(message, context)
    model = _numbers(next(iter(message.content.array_records.values())))
    bound = config[BOUND]
    assert isinstance(bound, float)
    update: Any = None
    try:
        update = _update(call_next(message, context), model)
    except Exception:
        _LOG.exception("dpfedmeta: the ClientApp failed, so this client sends the model as it came")
    clipped: Any = clip(update, bound) if update is not None else dict.fromkeys(model, 0.0)
    moved = {name: (value + clipped[name]).astype(value.dtype) for name, value in model.items()}
    content = RecordDict({"arrays": _record(moved), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


class _Nodes:
    """SECRET: which node is which client; on disk before a node is asked, so that no node is two clients later."""

    def __init__(self, private: PrivateRounds) -> None:
        self.most = private.clients
        self._path = private.run.secret / _NODES
        self._numbers: dict[int, int] = {}
        if self._path.exists():
            cut_torn_line(self._path)
            try:
                lines = self._path.read_text(encoding="utf-8").splitlines()
                self._numbers = {int(json.loads(line)["node"]): place for place, line in enumerate(lines)}
            except DAMAGED_JSON as error:
                raise InputError(f'{self._path}: damaged: a line is not {{"node": ...}}') from error

    def known(self, there: Iterable[int]) -> dict[int, int]:
        """Node of each client that is there; new nodes get the next numbers, as long as there are any."""
        there = sorted(there)
        new = [node for node in there if node not in self._numbers][: self.most - len(self._numbers)]
        if new:
            append_lines(self._path, [{"node": node} for node in new], SECRET)
            self._numbers |= {node: len(self._numbers) + place for place, node in enumerate(new)}
        return {self._numbers[node]: node for node in there if node in self._numbers}

    def number(self, node: int) -> int | None:
        """Number of a node; None for one that never got any."""
        return self._numbers.get(node)


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


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def _update(reply: Message, model: Arrays) -> Arrays | None:
    """What a reply moves the model by; None where it does not have its form."""
    try:
        (record,) = reply.content.array_records.values()
        found = _numbers(record)
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
