"""One row of a client's data more, less or other: what its exact message moves by, for real and simulated clients.

For each release of records, through a real home and through the simulation of the same data: every sum that a
participation releases moves by no more than the plan's cell was computed from.
"""

import csv
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose, public_generator
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.row_layout import HashedRows, chosen_rows
from dpfedmeta.data.populations.natural import simulated_key
from dpfedmeta.data.populations.population_statement import population_statement
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.offers import signed_plan
from dpfedmeta.federation.offers.signed_plan import sign_plan
from dpfedmeta.federation.server.training_server import _as_run
from dpfedmeta.federation.wire_format import Attempt, Offer, Question, QuestionKind, Said
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.training.build_data import client_side, population
from tests.exact_sums import BOUND, NoNoise, exact_sums, moved
from tests.federation.silos import SEED, private_key

COLUMNS = ("age", "pulse")
LABELS = ("ill", "unsure", "well")
CLIENTS, NUMBER = 5, 0
RUN = bytes(range(32))
SMALL = {
    "population.clients": str(CLIENTS), "population.cohort": str(CLIENTS), "population.sampler": "fixed",
    "population.max_participations": "null", "population.kind": "natural", "server.rounds": "2", "task.ways": "3",
    "task.shots": "4", "task.queries": "4", "model.name": "mlp", "run.device": "cpu", "run.precision": "float32",
    "run.seed": str(SEED), "evaluation.episodes": "2", "evaluation.validation_episodes": "2", "clip.window": "2",
    "privacy.client.delta": "1e-3", "privacy.client.hostile": "0.0", "privacy.client.epsilon": "null",
    "privacy.record.epsilon": "null", "server.noise_multiplier": "2.0",
}  # fmt: skip
MICRO = {"record.micro_shots": "1", "record.micro_queries": "1"}
NOISE = {"record.query_noise": "3.0"}
STEPS = {"record.support_noise": "3.0", "meta.steps": "2", "meta.adapt": "all"}
LOCAL = {"record.support_noise": "3.0", "meta.batch": "24", "server.noise_multiplier": "null"}
# The release of a name of the tests: algorithm, settings, kind of the labels.
CASES = {
    "micro, shared": ("dp-agrlr-micro", MICRO | NOISE, "shared"),
    "micro, own": ("dp-agrlr-micro", MICRO | NOISE, "own"),
    "micro of two classes, own": ("dp-agrlr-micro", MICRO | NOISE | {"record.micro_ways": "2"}, "own"),
    "micro, numbers": ("dp-agrlr-micro", MICRO | NOISE | {"meta.lr": "0.01"}, "numbers"),
    "sums, shared": ("dp-agrlr-secure", MICRO | {"meta.divisions": "1", "aggregation.dropout": "0.2"}, "shared"),
    "sums, divided": ("dp-agrlr-secure", {"aggregation.dropout": "0.2", "task.shots": "4", "task.queries": "2"}, "own"),
    "steps, shared": ("dp-agrlr", NOISE | STEPS | {"model.norm": "none", "model.features": "raw"}, "shared"),
    "local, shared": ("local-dp", LOCAL, "shared"),
    "local, mini-batches": ("local-dp", LOCAL | {"meta.batch": "6"}, "shared"),
}
MOMENTS = NOISE | {"meta.own.records": "200", "clip.initial": "1.0", "server.rounds": "1"}
CASES |= {
    f"moments, {kind}": ("moments-agrlr", MOMENTS | {"model.name": network}, kind)
    for kind, network in (("shared", "gaussian"), ("own", "metric"), ("numbers", "gaussian"))
}


def rows_of(seed, count=40, kind="shared"):
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = LABELS[draws.choice(3, p=[0.5, 0.3, 0.2])]
        values = (draws.normal(size=2) + LABELS.index(label)).round(2)
        # So few values that some rows are equal in all they hold.
        found.append(
            (
                label if kind != "numbers" else str(round(float(values.sum()), 1)),
                *(values.round(0) if draws.random() < 0.3 else values),
            )
        )
    return found


def write(path, rows, before=(), head=()):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([(*head,), *((*before, *row) for row in rows)])
    return path


@dataclass(kw_only=True)
class Case:
    """One plan, and the exact message of a client that holds these rows, real or simulated."""

    folder: object
    algo: str
    given: dict
    kind: str
    real: bool
    made: int = 0
    noise_seed: int | None = 7

    def __post_init__(self):
        target = "target" if self.kind == "numbers" else "class"
        self.head = (target, *COLUMNS)
        content = {"name": "clinics", "source": {"reader": "vectors", "path": "all.csv"}, "features": 2}
        if self.kind == "shared":
            content["labels"] = list(LABELS)
        if self.kind == "numbers":
            content |= {
                "kind": "regression",
                "targets": {"centre": 0.0, "scale": 1.0, "lowest": -20.0, "highest": 20.0},
            }
        (self.folder / "task.yaml").write_text(yaml.safe_dump(content))
        order = public_generator(SEED, Purpose.CLIENT_DATA, 1, 4).permutation(CLIENTS)
        self.names = [f"silo{place}" for place in order.tolist()]
        self.pool({}, self.folder)
        ways = {"task.ways": "1"} if self.kind == "numbers" else {}
        self.settings = resolve(self.algo, str(self.folder / "task.yaml"), command_line=SMALL | self.given | ways)
        dataset = open_dataset(self.settings.dataset, None, self.settings.task.ways)
        self.plan, self.task = make_plan(self.settings, dataset.task), dataset.task
        self.signed = sign_plan(
            self.plan,
            self.task,
            run=RUN,
            server=Identity(private_key("server")),
            roster=[Identity(private_key(n)).public for n in range(CLIENTS)],
        )
        weights = self.plan.algorithm.initial(self.plan.network, SEED)
        self.model = self.plan.algorithm.learned(self.plan.network, weights)

    def pool(self, rows, folder):
        """All clients of a simulation; `rows` are those of client NUMBER."""
        everybody = [
            (f"silo{place}", "train", *row)
            for place in range(CLIENTS)
            for row in (
                rows or rows_of(place, kind=self.kind)
                if self.names[NUMBER] == f"silo{place}"
                else rows_of(place, kind=self.kind)
            )
        ]
        public = [
            (name, split, *row)
            for name, split, seed in (("v", "val", 20), ("t", "test", 21))
            for row in rows_of(seed, kind=self.kind)
        ]
        return write(folder / "all.csv", [*everybody, *public], head=("client", "split", *self.head))

    def side(self, rows):
        self.made += 1
        if not self.real:
            self.pool(rows, self.folder)
            dataset = open_dataset(self.settings.dataset, None, self.settings.task.ways)
            return client_side(self.plan, population(self.plan, dataset), KeyedSource(1), torch.device("cpu"))
        home = self.folder / f"home{self.made}"
        path = write(self.folder / f"own{self.made}.csv", rows, head=self.head)
        key = private_key(NUMBER)
        client = RealClient(
            path,
            key,
            home / "ledger.jsonl",
            server=Identity(private_key("server")).public,
            promise=Promise(participations=9),
            noise_seed=self.noise_seed,
        )
        body = Offer(number=NUMBER, signature=self.signed.signature, text=self.signed.text).encode()
        asked = Question(
            asked=QuestionKind.PLAN,
            attempt=Attempt(run=RUN, round=0, again=()),
            plan=self.signed.digest,
            recipient=Identity(key).public,
            body=body,
        )
        assert client.answer(asked.signed(Identity(private_key("server"))))[6] == Said.ACCEPTED
        (joined,) = list[Any](client._joined.values())
        assert joined.why is None
        return joined.side

    def sums(self, rows, monkeypatch):
        return exact_sums(self.side(rows), self.model, NUMBER, monkeypatch)


@dataclass(frozen=True, kw_only=True)
class Nobody:
    clients: int
    held: object

    def episode(self, client):
        return self.held


def neighbours(rows, kind, most):
    draws = np.random.default_rng(3)
    for place in draws.permutation(len(rows))[:most].tolist():
        label, *values = rows[place]
        without = [*rows[:place], *rows[place + 1 :]]
        other = str(float(label) + 5) if kind == "numbers" else LABELS[(LABELS.index(label) + 1) % 3]
        yield "row-deleted", without
        yield "row-deleted", [*rows, (label, *(values[0] + 0.37, values[1]))]
        yield "row-deleted", [*rows, rows[place]]
        yield "row-relabelled", [*without, (other, *values)]
        yield "row-exchanged-same-label", [*without, (label, values[1] + 3.0, values[0])]
        yield "row-exchanged", [*without, (other, values[1] + 3.0, values[0])]


def check(case, monkeypatch, most):
    rows = rows_of(NUMBER + 50, kind=case.kind)
    before, largest, layer = case.sums(rows, monkeypatch), dict[str, float](), case.plan.algorithm.record_layer()
    assert all(np.linalg.norm(each) > 0 for sums in before.values() for each in sums)
    for relation, other in neighbours(rows, case.kind, most):
        distances = moved(before, case.sums(other, monkeypatch))
        for role, each in distances.items():
            # What is stated: 0 is no movement at all.
            due = max(move[0 if role == "support" else -1] for move in layer.moves(relation))
            assert each <= due * (1 + 1e-6), (relation, role)
        if relation == "row-deleted":
            # A row is in one role.
            assert sum(each > 1e-9 for each in distances.values()) <= 1
        largest[relation] = max(largest.get(relation, 0.0), *distances.values())
    # In every relation the rows do something. (Of numbers to predict all gradients point the same way here.)
    if case.kind == "numbers" and case.algo != "moments-agrlr":
        assert max(largest.values()) > 1e-6
    else:
        assert min(largest.values()) > 0.1, largest


# Real clients decline mini-batches: their ledgers add up whole steps.
WALKED = [(n, r) for n in CASES for r in (True, False) if not (r and n == "local, mini-batches")]
IDS = [f"{name}, {'real' if real else 'simulated'}" for name, real in WALKED]


@pytest.mark.parametrize(("name", "real"), WALKED, ids=IDS)
def test_a_row_moves_no_sum_by_more_than_is_charged(name, real, tmp_path, monkeypatch, own_cache):
    algo, given, kind = CASES[name]
    check(Case(folder=tmp_path, algo=algo, given=given, kind=kind, real=real), monkeypatch, 3)


@pytest.mark.parametrize("real", [True, False], ids=["real", "simulated"])
def test_groups_that_follow_counts_are_seen(real, tmp_path, monkeypatch, own_cache):
    """Planted: the mistake that was here, a choice that follows from how many rows there are."""
    honest = HashedRows.__dict__["group"].fget
    monkeypatch.setattr(HashedRows, "group", property(lambda self: honest(self) >> np.uint64(len(self.places) % 13)))
    algo, given, kind = CASES["micro, shared"]
    with pytest.raises(AssertionError):
        check(Case(folder=tmp_path, algo=algo, given=given, kind=kind, real=real), monkeypatch, 3)


@pytest.mark.parametrize(
    ("name", "kind", "labels", "said"),
    [
        ("micro, own", "virtual", "own", "population.kind = virtual"),
        ("micro, own", "disjoint", "own", "population.kind = disjoint"),
        ("steps, shared", "real", "own", "follow from how many a client holds"),
    ],
)
def test_no_client_takes_a_plan_that_counts_records(name, kind, labels, said, tmp_path, monkeypatch, own_cache):
    """A dishonest server could otherwise have a client choose its records by their numbers again."""
    algo, given, _ = CASES[name]
    with monkeypatch.context() as dishonest:
        dishonest.setattr(signed_plan, "check_rows", lambda privacy: None)
        case = Case(folder=tmp_path, algo=algo, given=given | {"population.kind": kind}, kind=labels, real=True)
    with pytest.raises(AssertionError):
        case.side(rows_of(0))
    (log,) = tmp_path.glob("home*/log.txt")
    assert said in log.read_text()


def test_a_server_of_real_clients_counts_with_rows_whatever_its_own_data_are(tmp_path):
    settings = resolve("dp-agrlr-micro", "strokes", command_line={"population.kind": "virtual"})
    assert _as_run(settings, tmp_path).population.kind == "real"


@pytest.mark.parametrize("real", [True, False], ids=["real", "simulated"])
def test_a_plan_lays_out_rows_however_a_population_was_built(real, tmp_path, own_cache):
    algo, given, labels = CASES["micro, shared"]
    case = Case(folder=tmp_path, algo=algo, given=given, kind=labels, real=real)
    side = case.side(rows_of(0))
    held: Any = side.population
    bare = replace(held, layout=None)
    rebuilt: Any = client_side(case.plan, bare, KeyedSource(1), torch.device("cpu"))
    assert rebuilt.population.layout == case.plan.algorithm.needs.layout is not None
    if not real:
        assert (
            "a keyed hash of each row alone says what it is used for" in population_statement(rebuilt.population).text
        )
        assert "one that has fewer counts as zero" in population_statement(bare).text


def test_the_key_of_rows_of_a_real_client_is_its_own_and_no_servers(tmp_path, own_cache):
    """Of public numbers it would follow for everybody which rows train together."""
    algo, given, labels = CASES["micro, shared"]
    case = Case(folder=tmp_path, algo=algo, given=given, kind=labels, real=True, noise_seed=None)
    held: Any = case.side(rows_of(0)).population
    (kept,) = tmp_path.glob("home*/rows.key")
    assert held.key == kept.read_bytes() != simulated_key(SEED, NUMBER)


@pytest.mark.parametrize("name", CASES)
def test_a_client_whose_rows_form_nothing_adds_nothing(name, tmp_path, own_cache):
    """Its rows decide neither over the run nor over whether it answers."""
    algo, given, kind = CASES[name]
    case = Case(folder=tmp_path, algo=algo, given=given, kind=kind, real=False)
    side = replace(case.side([]), source=NoNoise())
    empty = chosen_rows(side.population.pool, (), case.plan.algorithm.needs.layout, bytes(32))
    held = side.data_form
    assert empty.null.all()
    assert held.fits(empty.episode())
    made = replace(side, population=Nobody(clients=CLIENTS, held=empty.episode()))
    if case.plan.algorithm.parts > 1:
        (parts,) = made.bounded_parts(case.model, BOUND, 0, [NUMBER])
        assert not np.any(parts)
    else:
        (message,) = made.sent(case.model, BOUND, 0, [NUMBER])
        assert not message.any()


def test_real_clients_take_no_promise_for_records_that_are_chosen_by_counts(tmp_path, own_cache):
    """Noisy steps with classes of a client's own: one row less may displace a class with all its rows."""
    algo, given, _ = CASES["steps, shared"]
    with pytest.raises(RefusedPlan, match="micro-episodes, or a task with a public list of labels"):
        Case(folder=tmp_path, algo=algo, given=given | {"population.kind": "real"}, kind="own", real=True)
