"""Replay (privacy rule 2): with the releases fixed, other client data change nothing that anybody sees."""

import json
import math
from dataclasses import replace

import pytest
import torch

from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, read
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policy import ATTACHED, moved_by_a_client
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training.loop import Training
from dpfedmeta.training.results.summary import summary_of
from dpfedmeta.training.tracking.callbacks import JsonLines
from tests.training.described import identity

SMALL = {
    "model.width": "4", "server.rounds": "6", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "population.cohort": "20", "clip.window": "3", "evaluation.every": "3", "evaluation.validation_episodes": "4",
    "server.schedule": "[]",
}  # fmt: skip


class OtherData:
    """A backend whose clients hold other data: it returns sums that differ from run to run."""

    def __init__(self, seed, attachment=None):
        self.attachment, self.attached = attachment, {ATTACHED: torch.zeros(attachment.size)} if attachment else {}
        self.generator = torch.Generator().manual_seed(seed)

    def cohort_sum(self, model, bound, cohort):
        form = {**model, **self.attached}
        value = {n: torch.randn(v.shape, generator=self.generator) * 1e3 for n, v in form.items()}
        return Bounded(value=value, sensitivity=moved_by_a_client(bound, self.attachment))


class Frozen:
    """A mechanism whose releases were recorded: they do not depend on the query any more."""

    def __init__(self, plan):
        self.own, self.event = plan.mechanism, plan.privacy.at

    def init(self, form):
        return self.own.init(form)

    def release(self, round_, query, state, generator):
        # The plan's own noise, as it is charged, on a sum that is always the same.
        fixed = replace(query, value={n: torch.zeros_like(v) for n, v in query.value.items()})
        noise, event = KeyedSource(9).generator(Purpose.SERVER_NOISE, round_), self.event(round_)
        if event.whole is None:
            return self.own.release(round_, fixed, state, noise)
        # No clients here make the shares that a sum of whole numbers has to carry.
        total, charged = planned_deviation(event, round_), event.noise.multiplier
        mechanism = GaussianMechanism(total_multiplier=total, charged_multiplier=charged, denominator=event.cohort)
        return mechanism.release(fixed, noise), state


def replay(tiny_strokes, tmp_path, plan, seed):
    run = create(tmp_path, f"run-of-seed-{seed}")
    Ledger(run.ledger, plan.privacy, identity(plan.settings, plan.privacy, run="0" * 32))
    training = Training(
        plan=plan,
        run=run,
        backend=OtherData(seed, plan.policy.attachment),
        workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"),
        source=KeyedSource(seed),
        trackers=(JsonLines(run.path),),
        budget=Budget.of(plan.planned),
    )
    ending = training()
    state, status = ending.state, ending.status
    assert status == "completed"
    rows = run.rounds()
    summary = summary_of(run, plan, state, status, (1.0, 1.0), {})
    run.write_json("summary.json", summary)
    report = write_report(run).read_text().replace(run.path.name, "this-run")
    return state, json.dumps(rows), run.ledger.read_text(), run.weights.read_bytes(), report


# Of presets that differ in no part of the loop one is enough in a hurry, and of those that differ in one, some.
ALIKE = ("dp-const", "dp-fedavg", "dp-fedavg-adaptive", "dp-fedavg-fixed", "meta-sgd", "proto-maml", "dp-agrlr-secure",
         "dp-aqc", "dp-agr-checkins", "dp-agr-correlated")  # fmt: skip


@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name
        for name in algorithm_names()
        # Presets with an encoder are those without, on other records. The server's step on moments is a function of
        # releases and public constants (learning/server_optimizers/test_solve_rule.py).
        if name != "maml" and not name.startswith(("encoder-", "moments-"))
    ],
)
def test_other_client_data_change_nothing_that_anybody_sees(tiny_strokes, tmp_path, monkeypatch, algo):
    local = {"meta.batch": "5"} if algo.startswith(("dp-fedavg", "local-dp")) else {}
    # Small Poisson cohorts cannot make their own noise; a target would only take time.
    fixed = {"population.sampler": "fixed", "population.max_participations": "null", "server.noise_multiplier": "3"}
    fixed = fixed if algo.endswith("secure") else {}
    small = {"record.micro_shots": "1", "record.micro_queries": "1"} if algo.startswith("dp-agrlr") else {}
    few = {"population.clients": "60", "population.cohort": "60"} if algo.endswith("checkins") else {}
    plan = make_plan(resolve(algo, "strokes", None, {**SMALL, **local, **fixed, **small, **few}), tiny_strokes.task)
    # The plan has looked at its own mechanism already, and keeps it.
    monkeypatch.setitem(vars(plan), "mechanism", Frozen(plan))
    one, two = (replay(tiny_strokes, tmp_path, plan, seed) for seed in (1, 2))
    assert one[1:] == two[1:]
    assert one[0].bound == two[0].bound
    assert all(torch.equal(one[0].model[n], two[0].model[n]) for n in one[0].model)


def test_the_budget_ends_a_run_before_it_is_exceeded(tiny_strokes, tmp_path):
    from dataclasses import replace

    plan = make_plan(resolve("dp-agr", "strokes", None, SMALL), tiny_strokes.task)
    run = create(tmp_path, "budget")
    limits = list(Budget.of(plan.planned).limits)
    limits[0] *= 0.8
    training = Training(
        plan=plan,
        run=run,
        backend=OtherData(1),
        workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"),
        source=KeyedSource(1),
        trackers=(JsonLines(run.path),),
        budget=replace(Budget.of(plan.planned), limits=tuple(limits)),
    )
    ending = training()
    state, status = ending.state, ending.status
    assert status == "budget"
    assert 0 < state.round < 6
    assert len(read(run.ledger)[1]) == state.round
    assert math.isfinite(state.bound)


class Watching:
    """A backend that looks at the disk when the clients are invited."""

    def __init__(self, run):
        self.run, self.seen = run, []

    def cohort_sum(self, model, bound, cohort):
        lines = (self.run.secret / "participations.jsonl").read_text().splitlines()
        self.seen.append((cohort.round, len(read(self.run.ledger)[1]), json.loads(lines[-1])["round"]))
        return Bounded(value={n: torch.zeros_like(v) for n, v in model.items()}, sensitivity=bound)


def test_ledger_and_participations_are_on_disk_before_clients_are_invited(tiny_strokes, tmp_path):
    plan = make_plan(resolve("dp-agr", "strokes", None, SMALL), tiny_strokes.task)
    run = create(tmp_path, "watched")
    backend = Watching(run)
    Training(
        plan=plan,
        run=run,
        backend=backend,
        workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"),
        source=KeyedSource(1),
        trackers=(JsonLines(run.path),),
        budget=Budget.of(plan.planned),
    )()
    assert backend.seen == [(r, r + 1, r) for r in range(6)]
