"""Flower's strategies with the kernel around them, on ten clients in one process; Flower's own wrapper, attacked."""

import io
import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam, FedAvg, Krum
from flwr.supercore.task_identity import TaskIdentity

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.federation.flower import private_strategy
from dpfedmeta.federation.flower.node_replies import NUMBER, NodeNumbers, array_of
from dpfedmeta.federation.flower.private_strategy import BOUND, PrivateStrategy, clip_mod
from dpfedmeta.federation.identity.credentials import card_line, read_roster
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from tests.federation.silos import private_key

NODES, SIZE = tuple(range(101, 111)), 6


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    # As a process of the SuperLink's has it.
    for name, value in {"_run_id": 1, "_node_id": 1, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


def rounds(tmp_path, **changes):
    like = {"w": np.zeros(SIZE, dtype=np.float32)}
    given = {
        "clients": 10, "cohort": 5, "rounds": 3, "like": like, "run_dir": tmp_path / "mine",
        "promise": dp.Promise(epsilon=50.0, delta=1e-2), "clip": dp.clip.Constant(initial=1.0),
    }  # fmt: skip
    return dp.PrivateRounds(**{**given, **changes})


def app(length=5.0, examples=1, mods=()):
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        model = message.content["arrays"]["w"].numpy()
        sent = length(context.node_id) if callable(length) else length
        arrays = ArrayRecord({"w": Array((model + sent / np.sqrt(SIZE)).astype(np.float32))})
        metrics = MetricRecord({"num-examples": examples, "loss": 1234.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return made


class Loopback(Grid):
    """Ten nodes; what is sent to whom is noted."""

    def __init__(self, client, nodes=NODES):
        self.client, self.nodes, self.asked, self.numbered = client, nodes, [], []

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            config = {"partition-id": list(self.nodes).index(node)}
            context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            if any(NUMBER in each for each in message.content.config_records.values()):
                self.numbered.append(node)
                replies.append(clip_mod(message, context, None))
                continue
            self.asked.append((message.metadata.message_type, node))
            replies.append(self.client(message, context))
        return replies

    run = property()

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


def start(tmp_path, grid, inner=None, rounds_=3, **changes):
    with rounds(tmp_path, **changes) as private:
        strategy = PrivateStrategy(inner or FedAvg(), private)
        return private, strategy.start(grid, ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))}), rounds_)


def test_ten_clients_train_and_the_ledger_verifies(tmp_path):
    grid = Loopback(app(mods=[clip_mod]))
    private, result = start(tmp_path, grid)
    assert private.ended == "completed"
    verify_rounds(RunDirectory(tmp_path / "mine"))
    assert {kind for kind, _ in grid.asked} == {"train"}
    assert 0 < len(grid.asked) < 30
    assert result.arrays["w"].numpy().shape == (SIZE,)
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    # Started again, the rounds are there, nobody is asked, and the model is the same.
    again = Loopback(app())
    assert np.array_equal(start(tmp_path, again)[1].arrays["w"].numpy(), result.arrays["w"].numpy())
    assert again.asked == []
    assert len(read_content(tmp_path / "mine/ledger.jsonl").charges) == 3


@pytest.mark.parametrize("mods", [(), (clip_mod,)])
def test_the_model_moves_by_the_release_and_the_server_clips_whoever_did_not(tmp_path, mods):
    seen = {}
    grid = Loopback(app(length=1e6, examples=10**9, mods=mods))
    private = rounds(tmp_path, rounds=1, noise_seed=3)
    strategy = PrivateStrategy(FedAvg(), private)
    released = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))}), 1)
    private.close()
    with rounds(tmp_path / "other", rounds=1, noise_seed=3) as alone:
        for round_ in alone:
            for client in round_.cohort:
                round_.add(client, {"w": np.full(SIZE, 1.0 / np.sqrt(SIZE), dtype=np.float32)})
            seen = round_.release()
    assert np.allclose(released.arrays["w"].numpy(), seen["w"], atol=1e-5)


class Recorder(FedAvg):
    """A strategy that keeps what it is shown."""

    def aggregate_train(self, server_round, replies):
        self.replies = list(replies)
        return super().aggregate_train(server_round, self.replies)


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, Recorder])
def test_the_strategy_inside_sees_one_result_and_no_reply(tmp_path, inner):
    inner = inner()
    seen = []
    true = inner.aggregate_train
    inner.aggregate_train = lambda number, replies: (seen.append(list(replies)), true(number, seen[-1]))[1]
    start(tmp_path, Loopback(app()), inner)
    assert [len(replies) for replies in seen] == [1, 1, 1]
    metrics = [dict(reply.content["metrics"]) for replies in seen for reply in replies]
    assert metrics == [{"num-examples": 1}] * 3


def test_the_kernel_draws_whom_to_ask_and_flower_logs_nothing_of_it(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, logger="flwr")
    grid = Loopback(app())
    start(tmp_path, grid, rounds_=3)
    drawn = (tmp_path / "mine/secret/participations.jsonl").read_text()
    assert len(grid.asked) == sum(len(json.loads(line)["clients"]) for line in drawn.splitlines())
    text = "\n".join(record.getMessage() for record in caplog.records)
    for words in ("Sampled", "Received", "1234.5", "num-examples"):
        assert words not in text


def test_a_node_keeps_its_number_and_more_nodes_than_clients_are_never_asked(tmp_path):
    late = tuple(range(50, 60))
    start(tmp_path, Loopback(app()), rounds_=1, cohort=10, rounds=3)
    grid = Loopback(app(), nodes=NODES + late)
    start(tmp_path, grid, cohort=10, rounds=3)
    assert {node for _, node in grid.asked} <= set(NODES)
    assert grid.asked


def test_what_is_no_update_counts_as_zero_and_stops_nothing(tmp_path):
    def broken(message, context):
        raise AssertionError

    def odd(message, context):
        return Message(RecordDict({"arrays": ArrayRecord({"v": Array(np.zeros(2))})}), reply_to=message)

    class Failing(Loopback):
        def send_and_receive(self, messages, *, timeout=None):
            if any(NUMBER in c for each in messages for c in each.content.config_records.values()):
                return super().send_and_receive(messages)
            kept = []
            for place, message in enumerate(messages):
                kinds = [
                    lambda m: odd(m, None),
                    lambda m: Message(Error(code=1, reason="secret"), reply_to=m),
                    lambda m: Message(RecordDict(), reply_to=m),
                ]
                kept.append(kinds[place % 3](message))
            return kept

    private, result = start(tmp_path, Failing(broken))
    assert private.ended == "completed"
    assert np.all(np.isfinite(result.arrays["w"].numpy()))


def test_the_mod_sends_no_more_than_the_bound_and_no_metric():
    arrays = ArrayRecord({"w": Array(np.ones(SIZE, dtype=np.float32))})
    for length in (0.25, 5.0, np.nan):
        asked = Message(RecordDict({"arrays": arrays, "config": ConfigRecord({BOUND: 0.5})}), 101, "train")
        context = Context(run_id=1, node_id=101, node_config={}, state=RecordDict(), run_config={})
        sent = app(length=length, examples=77, mods=[clip_mod])(asked, context).content
        moved = np.linalg.norm(sent["arrays"]["w"].numpy().astype(float) - 1.0)
        assert moved == pytest.approx(0.0 if np.isnan(length) else min(length, 0.5), rel=1e-4)
        assert dict(sent["metrics"]) == {"num-examples": 1}


def test_what_does_not_fit_is_said_in_a_line(tmp_path):
    with rounds(tmp_path, rounds=1) as private:
        strategy = PrivateStrategy(FedAvg(), private)
        with pytest.raises(dp.InputError, match=r"n of the model is of int64: only real numbers"):
            strategy.start(Loopback(app()), ArrayRecord({"n": Array(np.zeros(2, dtype=np.int64))}), 1)
        with pytest.raises(dp.InputError, match="round 2 is not planned; give num_rounds=1"):
            strategy.start(Loopback(app()), ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))}), 2)


def test_krum_inside_undoes_nothing(tmp_path):
    private, _ = start(tmp_path, Loopback(app()), Krum(num_malicious_nodes=0))
    assert private.ended == "completed"


# Nothing is spent on nobody.


def charges(tmp_path):
    return len(read_content(tmp_path / "mine/ledger.jsonl").charges)


class Waited(Exception):
    """Ends a wait that goes on for ever."""


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves; `then` is called at each tick."""

    class Clock:
        now, then = 0.0, staticmethod(lambda now: None)

        def sleep(self, seconds):
            self.now += seconds
            self.then(self.now)

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(private_strategy, "time", made)
    return made


@pytest.mark.parametrize(("given", "due"), [({}, 2), ({"fewest": 1}, 1), ({"fewest": 10}, 10)])
def test_no_round_is_charged_until_nodes_are_connected(tmp_path, clock, caplog, given, due):
    caplog.set_level(logging.INFO, logger="flwr")
    grid, seen = Loopback(app(), nodes=()), []

    def then(now):
        seen.append(charges(tmp_path))
        grid.nodes = NODES[: due - 1] if now < 25 else NODES[:due]

    clock.then = then
    model = ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))})
    with rounds(tmp_path, rounds=1) as private:
        PrivateStrategy(FedAvg(), private, **given).start(grid, model, 1)
    assert seen == [0] * 25
    assert charges(tmp_path) == 1
    told = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert told == [f"PrivateStrategy: waiting before the next round is charged: {there} of {due} nodes are connected"
                    for there in (0, due - 1, due - 1)]  # fmt: skip


def test_each_round_waits_and_released_rounds_do_not(tmp_path, clock):
    grid = Loopback(app())

    def then(now):
        raise Waited

    clock.then = then
    start(tmp_path, grid, rounds_=1)
    grid.nodes = NODES[:1]
    with pytest.raises(Waited):
        start(tmp_path, grid)
    assert charges(tmp_path) == 1
    grid.nodes = NODES
    start(tmp_path, grid)
    grid.nodes = ()
    start(tmp_path, grid)
    assert charges(tmp_path) == 3


def test_nodes_that_are_never_asked_do_not_count_as_connected(tmp_path, clock, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    start(tmp_path, Loopback(app()), rounds_=1)

    def then(now):
        raise Waited

    class Strangers(Loopback):
        """Nodes without the mod, and without a partition of the plan."""

        def send_and_receive(self, messages, *, timeout=None):
            return [Message(RecordDict({"config": ConfigRecord({NUMBER: 10})}), reply_to=each) for each in messages]

    clock.then = then
    with pytest.raises(Waited):
        start(tmp_path, Strangers(app()))
    assert charges(tmp_path) == 1
    assert (
        "0 of 2 nodes are connected; 10 others take no part: the mod of dpfedmeta and a free partition-id"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("inner", "given", "words"),
    [
        ({"min_available_nodes": 11}, {}, "min_available_nodes = 11, but clients = 10; give at most 10"),
        ({"min_train_nodes": 11}, {}, "min_train_nodes = 11, but clients = 10; give at most 10"),
        ({"min_available_nodes": 11}, {"fewest": 2}, "min_available_nodes = 11, but clients = 10"),
        ({}, {"fewest": 11}, "fewest = 11, but clients = 10; give at most 10"),
        ({}, {"fewest": 0}, "fewest = 0, expected a whole number from 1 to 10"),
        ({}, {"fewest": "2"}, "fewest = '2', expected a whole number from 1 to 10"),
    ],
)
def test_more_nodes_than_take_part_are_refused_and_nothing_is_charged(tmp_path, inner, given, words):
    with rounds(tmp_path) as private, pytest.raises(dp.InputError, match=words):
        PrivateStrategy(FedAvg(**inner), private, **given)
    assert charges(tmp_path) == 0


class Endless(FedAvg):
    """Waits for an eleventh node."""

    def configure_train(self, server_round, arrays, config, grid):
        for _ in range(100):
            if len(list(grid.get_node_ids())) > 10:
                return []
        raise AssertionError("it went on asking")


class Talking(FedAvg):
    """Sends messages by itself."""

    def configure_train(self, server_round, arrays, config, grid):
        return grid.send_and_receive([])


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (Endless, "waits for more than the 10 nodes that take part.*let it ask for at most 10"),
        (Talking, "talks to nodes by itself in configure_train"),
    ],
)
def test_a_strategy_that_waits_for_ever_or_talks_by_itself_is_refused_before_any_charge(tmp_path, inner, words):
    with pytest.raises(dp.InputError, match=words):
        start(tmp_path, Loopback(app()), inner())
    assert charges(tmp_path) == 0


def test_a_round_in_which_the_strategy_asks_nobody_is_not_charged(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    grid = Loopback(app())
    start(tmp_path, grid, FedAvg(fraction_train=0.0))
    assert grid.asked == []
    assert charges(tmp_path) == 0
    assert "asks nobody in round 3, which is not charged" in caplog.text


class Bare(FedAvg):
    """Sends no config."""

    def configure_train(self, server_round, arrays, config, grid):
        return [Message(RecordDict({"arrays": arrays}), 1, "train")]


@pytest.mark.parametrize("inner", [FedAvg, Bare])
def test_each_client_is_told_the_bound_of_its_round(tmp_path, inner):
    told = []

    def note(message, context, call_next):
        told.extend(config[BOUND] for config in message.content.config_records.values())
        return call_next(message, context)

    start(tmp_path, Loopback(app(mods=[note])), inner(), cohort=10)
    assert set(told) == {1.0}


def test_an_app_that_raises_sends_the_model_and_its_words_stay_at_the_client(caplog, monkeypatch):
    # Other tests of this process have Flower say less, and to nobody else.
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", False)
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [caplog.handler])
    caplog.set_level(logging.ERROR, "flwr")
    made = ClientApp(mods=[clip_mod])

    @made.train()
    def train(message, context):
        raise ValueError("patient 17 has no label")

    arrays = ArrayRecord({"w": Array(np.ones(SIZE, dtype=np.float32))})
    asked = Message(RecordDict({"arrays": arrays, "config": ConfigRecord({BOUND: 0.5})}), 101, "train")
    reply = made(asked, Context(run_id=1, node_id=101, node_config={}, state=RecordDict(), run_config={}))
    assert not reply.has_error()
    assert np.array_equal(reply.content["arrays"]["w"].numpy(), np.ones(SIZE))
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert "patient 17" in caplog.text


# Flower's own wrapper, attacked as ours is.


def flowers(noise=5.0):
    inner = FedAvg()
    return DifferentialPrivacyServerSideAdaptiveClipping(inner, noise, 10, 1.0, clipped_count_stddev=5.0)


def one_round_of(wrapped, examples):
    """One round of a wrapper, as `audit_rounds` calls it; the canary weighs as many examples as it says."""

    def one_round(state, updates, generator):
        np.random.seed(int(generator.integers(2**32)))  # noqa: NPY002
        grid = Loopback(None)
        model = ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))})
        strategy = wrapped()
        list(strategy.configure_train(1, model, ConfigRecord(), grid))
        replies = []
        for client in range(10):
            update = updates.get(client, {"w": np.zeros(SIZE)})["w"]
            metrics = MetricRecord({"num-examples": examples if np.any(update) else 1})
            # Flower's wrapper divides by the norm: an update of zeros would end the run.
            update = update + 1e-9
            content = RecordDict({"arrays": ArrayRecord({"w": Array(update.astype(np.float32))}), "metrics": metrics})
            message = Message(content, 0, "train")
            message.metadata.__dict__["_src_node_id"] = NODES[client]
            replies.append(message)
        arrays, _ = strategy.aggregate_train(1, replies)
        return state, {"w": arrays["w"].numpy()}

    return one_round


def test_counts_of_examples_move_flowers_own_mean_by_the_whole_bound_and_ours_by_its_share(tmp_path):
    canary = {0: {"w": np.full(SIZE, 50.0)}}
    _, moved = one_round_of(lambda: flowers(noise=1e-9), 10**6)(None, canary, np.random.default_rng(1))
    assert np.linalg.norm(moved["w"]) == pytest.approx(1.0, rel=1e-3)

    class One(Loopback):
        """Nodes that send zeros, but for one that sends much and counts much."""

        def __init__(self):
            super().__init__(app(length=lambda node: 1e6 if node == NODES[0] else 0.0, examples=10**6))

    means = []
    for folder, client in (("with", One()), ("without", Loopback(app(length=0.0)))):
        _, result = start(tmp_path / folder, client, rounds_=1, rounds=1, noise_seed=2, cohort=10)
        means.append(result.arrays["w"].numpy())
    # L is 10: a tenth of the bound.
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.slow
def test_flowers_own_wrapper_breaks_its_promise_by_counts_of_examples():
    """Noise for 1/10 of a clip bound; a client that says it has many examples moves the mean by all of it."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    # A Gaussian of multiplier 5 over one round keeps epsilon 0.8 at delta 1e-2 and less.
    promise, like = dp.Promise(epsilon=0.8, delta=1e-2), {"w": np.zeros(SIZE)}
    found = [
        dp.audit_rounds(
            one_round_of(flowers, count), promise=promise, like=like, rounds=1, runs=400, length=50.0, seed=4
        )
        for count in (10**6, 1)
    ]
    assert [verdict.refuted for verdict in found] == [True, False]


def test_a_policy_that_measures_updates_sees_them_before_clients_clip(tmp_path):
    reached = []
    for name, mods in (("plain", ()), ("mod", (clip_mod,))):
        policy = dp.clip.Quantile(initial=0.1, count_noise=2.0)
        given = {"run_dir": tmp_path / name, "clip": policy, "noise_seed": 3, "sampler": "fixed", "cohort": 10}
        private, result = start(tmp_path, Loopback(app(mods=mods)), **given)
        reached.append((private._rounds.bound, result.arrays["w"].numpy().tolist()))
    assert reached[0] == reached[1]
    # All of these updates are longer than the bound, so it rises.
    assert reached[0][0] > 0.1


@pytest.mark.parametrize(("inner", "given", "due"), [
    ({}, None, 1), ({"min_available_nodes": 3}, None, 3), ({"min_available_nodes": 3, "min_train_nodes": 5}, None, 5),
    ({"min_available_nodes": 6, "min_train_nodes": 2}, None, 6), ({"min_train_nodes": 5}, 2, 2), ({}, 10, 10),
    ({"min_available_nodes": 0}, None, 1), ({"min_available_nodes": None}, None, 1),
    ({"min_train_nodes": 10}, None, 10),
])  # fmt: skip
def test_as_many_nodes_are_waited_for_as_were_named_or_as_flower_would_wait_for(inner, given, due):
    assert private_strategy._fewest(SimpleNamespace(**inner), 10, given) == due


@pytest.mark.parametrize("sent", ["other names", "another shape", "two records", "nothing", "too little"])
def test_what_is_not_of_the_model_s_form_moves_nothing(sent):
    model = {"w": np.zeros(SIZE, dtype=np.float32), "b": np.ones(2, dtype=np.float32)}
    arrays = {name: Array(value + 1) for name, value in model.items()}
    content = {
        "other names": {"a": ArrayRecord({"w": arrays["w"], "c": arrays["b"]})},
        "another shape": {"a": ArrayRecord({"w": arrays["w"], "b": Array(np.ones(3, dtype=np.float32))})},
        "two records": {"a": ArrayRecord(arrays), "b": ArrayRecord(arrays)}, "nothing": {},
        "too little": {"a": ArrayRecord({"w": arrays["w"]})},
    }  # fmt: skip
    found = private_strategy._update(SimpleNamespace(content=RecordDict(content[sent])), model)
    assert found is None
    whole = private_strategy._update(SimpleNamespace(content=RecordDict({"a": ArrayRecord(arrays)})), model)
    assert {name: value.tolist() for name, value in whole.items()} == {"w": [1.0] * SIZE, "b": [1.0] * 2}


@pytest.mark.parametrize("kind", ["<f4", "<f8", "<f2", "<i4", "|b1"])
def test_a_model_of_whole_numbers_is_refused_by_the_name_of_its_array(kind):
    arrays = ArrayRecord({"fine": Array(np.zeros(2, dtype=np.float32)), "mine": Array(np.zeros(2, dtype=kind))})
    with nullcontext() if "f" in kind else pytest.raises(dp.InputError, match="mine of the model is of"):
        private_strategy._check_real(arrays)


@pytest.mark.parametrize("config", [{BOUND: 0.5}, {}, {"other": 0.5}])
@pytest.mark.parametrize("arrays", [False, True])
def test_the_mod_changes_replies_to_updates_with_a_bound_alone(config, arrays):
    """Flower asks for properties, too, and other strategies send no bound."""
    asked, answered = RecordDict({"config": ConfigRecord(config)}), []
    if arrays:
        asked["arrays"] = ArrayRecord({"w": Array(np.ones(SIZE, dtype=np.float32))})
    reply = Message(RecordDict({"arrays": ArrayRecord({"w": Array(np.full(SIZE, 9.0, dtype=np.float32))})}), 1, "train")
    message = Message(asked, 101, "train")
    found = clip_mod(message, None, lambda *given: answered.append(given) or reply)
    assert answered == [(message, None)]
    assert (found is reply) == (not (arrays and BOUND in config))


def test_the_mod_changes_nothing_of_a_reply_to_a_message_without_a_config():
    reply = object()
    assert clip_mod(Message(RecordDict(), 101, "train"), None, lambda *given: reply) is reply


def test_a_run_that_is_started_again_finds_its_clients_under_other_ids(tmp_path):
    """Flower gives each node another id at each start; its partition stays."""
    sent = {}
    for start_, nodes in enumerate((NODES, tuple(range(501, 511)), tuple(range(910, 900, -1)))):
        grid = Loopback(app(mods=[clip_mod]), nodes=nodes)
        private, _ = start(tmp_path, grid, FedAvg(min_available_nodes=10), start_ + 1, cohort=5, noise_seed=4)
        sent[start_] = {nodes.index(node) for _, node in grid.asked}
        assert private.released == start_ + 1
    drawn = [json.loads(line) for line in (tmp_path / "mine/secret/participations.jsonl").read_text().splitlines()]
    assert [set(line["clients"]) for line in drawn] == [sent[0], sent[1], sent[2]]


def bombs():
    """Arrays of few bytes whose headers claim much, or are no header of numbers."""
    for shape in ((10**13,), (10**6, 10**7), (SIZE + 1,), (2**63, 2**63), (-1,)):
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
        yield buffer.getvalue()
    deep = "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "-" * 9000 + "1,), }\n"
    for text in (deep, deep.replace("-", "("), "", "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }\n"):
        yield b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    yield b"\x93NUMPY\x03\x00\xff\xff\xff\xff"
    yield b"\x93NUMPY\x09\x00"
    yield b"\x93NUMPY"
    yield b""


def bomb_of(content, stype="numpy.ndarray"):
    return ArrayRecord({"w": Array(dtype="float64", shape=(SIZE,), stype=stype, data=content)})


@pytest.mark.parametrize("contents", [list(bombs())[:7], list(bombs())[7:]])
def test_arrays_that_claim_more_than_came_move_nothing(tmp_path, contents):
    """Nothing is made room for; and the round is that of nodes that send their model as it came."""
    of_node = dict(zip(NODES, contents, strict=False))

    class Bombing(Loopback):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages)
            for place, reply in enumerate(replies):
                node = reply.metadata.src_node_id
                if node in of_node and "arrays" in reply.content:
                    sent = RecordDict({"arrays": bomb_of(of_node[node])})
                    replies[place] = Message(sent, reply_to=messages[place])
            return replies

    _, result = start(tmp_path, Bombing(app(length=1.0)), rounds_=1, cohort=10, rounds=1, noise_seed=2)
    silent = Loopback(app(length=lambda node: 0.0 if node in of_node else 1.0))
    _, expected = start(tmp_path / "silent", silent, rounds_=1, cohort=10, rounds=1, noise_seed=2)
    assert np.allclose(result.arrays["w"].numpy(), expected.arrays["w"].numpy(), atol=1e-6)
    # A server's bytes at a client.
    for content in contents:
        asked = Message(RecordDict({"arrays": bomb_of(content), "config": ConfigRecord({BOUND: 0.5})}), 101, "train")
        with pytest.raises(ValueError, match="array"):
            clip_mod(asked, None, None)


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", "<i8", "|u1", "|b1"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4), (1, 2, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_read_bit_for_bit(kind, shape, order):
    value = np.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype=kind, order=order)
    found = array_of(Array(value))
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert np.array_equal(found, value)
    with pytest.raises(ValueError, match="not in numpy's format"):
        array_of(bomb_of(Array(value).data, stype="torch.Tensor")["w"])


class Nodes:
    """A grid of which only nodes and their answers matter: by id, (key, what it says of itself; None: nothing)."""

    def __init__(self, **there):
        self.there, self.asked = {int(name[1:]): told for name, told in there.items()}, []

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, public_key=key) for node, (key, _) in self.there.items()]

    def send_and_receive(self, messages, *, timeout):
        assert timeout > 0
        self.asked += [message.metadata.dst_node_id for message in messages]
        for message in messages:
            _, said = self.there[message.metadata.dst_node_id]
            if said is not None:
                yield Message(said, reply_to=message)


def says(number):
    return RecordDict({"config": ConfigRecord({NUMBER: number})})


def test_a_number_belongs_to_a_partition_and_to_one_node_at_a_time():
    nodes = NodeNumbers(4)
    one = {"n30": says(1), "n10": says(0), "n11": says(0), "n50": says(4), "n51": says(-1), "n52": says("2")}
    odd = {"n53": says(True), "n54": Error(code=1), "n55": RecordDict()}
    grid = Nodes(**{node: (b"", said) for node, said in {**one, **odd}.items()})
    assert nodes.known(grid, "train") == {0: 10, 1: 30}
    assert [nodes.number(node) for node in (10, 30, 11, 50, 99)] == [0, 1, None, None, None]
    # Asked once; who leaves gives its number back to whoever says it.
    del grid.there[10], grid.there[30]
    asked = len(grid.asked)
    assert nodes.known(grid, "train") == {0: 11}
    assert len(grid.asked) == asked == 9
    grid.there[900] = (b"", says(1))
    assert nodes.known(grid, "train") == {0: 11, 1: 900}
    assert [nodes.number(node) for node in (10, 30, 11, 900)] == [None, None, 0, 1]


def test_a_node_that_never_answers_is_asked_three_times():
    nodes, grid = NodeNumbers(4), Nodes(n7=(b"", None), n8=(b"", says(2)))
    for _ in range(5):
        assert nodes.known(grid, "train") == {2: 8}
    assert grid.asked == [7, 8, 7, 7]


def test_with_a_roster_a_key_is_a_number_and_nobody_is_asked():
    """Whoever comes first, and whatever it says: strangers lock nobody out."""
    grid = Nodes(n1=(b"stranger", says(0)), n2=(b"stranger too", says(1)), n9=(b"b", says(3)), n5=(b"a", None))
    nodes = NodeNumbers(3, [b"a", b"b", b"c"])
    assert nodes.known(grid, "train") == {0: 5, 1: 9}
    assert grid.asked == []
    grid.there = {77: (b"b", None), 78: (b"c", None)}
    assert nodes.known(grid, "train") == {1: 77, 2: 78}


def test_a_roster_has_a_card_for_each_client(tmp_path):
    path = tmp_path / "roster.txt"
    path.write_text("".join(card_line(private_key(name), f"site{name}") + "\n" for name in range(3)))
    with rounds(tmp_path) as private, pytest.raises(dp.InputError, match="names 3 clients, and clients = 10"):
        PrivateStrategy(FedAvg(), private, roster=path)
    with rounds(tmp_path / "three", clients=3, cohort=3, promise=dp.Promise(epsilon=50.0, delta=0.1)) as private:
        strategy = PrivateStrategy(FedAvg(), private, roster=path)
    keys = [card.wire_pem for card in read_roster(path)]
    grid = Nodes(**{f"n{node}": (key, None) for node, key in zip((9, 4, 6), keys, strict=True)})
    assert strategy._nodes.known(grid, "train") == {0: 9, 1: 4, 2: 6}
