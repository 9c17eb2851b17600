"""The one way from a cohort's sum to a public value: through real loops, with a charge that is missing or weaker."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.execute import Place, begin
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.files.run_directory import SUMMARY, RunDirectory, create
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.noises.independent import Independent
from dpfedmeta.privacy.rounds import round_journal
from dpfedmeta.privacy.rounds.cohort_log import Participations
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.privacy.thresholded_counts import Threshold
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.loop import Training
from dpfedmeta.training.tracking.callbacks import JsonLines

SMALL = {
    "model.width": "2", "server.rounds": "2", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "population.clients": "600", "population.cohort": "24", "population.max_participations": "null",
    "server.noise_multiplier": "2", "privacy.client.epsilon": "null", "clip.policy": "constant",
    "evaluation.every": "2", "evaluation.validation_episodes": "2",
}  # fmt: skip


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.fixture
def tiny(tiny_strokes, tiny_task_file):
    return SimpleNamespace(dataset=tiny_strokes, path=str(tiny_task_file))


class Zeros:
    """Clients that send nothing."""

    def cohort_sum(self, model, bound, cohort):
        return Bounded(value={name: torch.zeros_like(value) for name, value in model.items()}, sensitivity=bound)


def training_loop(tmp_path, tiny):
    plan = make_plan(resolve("dp-agr", "strokes", None, SMALL), tiny.dataset.task)
    run = create(tmp_path, "run")
    Training(
        plan=plan, run=run, backend=Zeros(), workers=InProcess(),
        validation=Benchmark(pool=tiny.dataset.val, shape=plan.shape, seed=0, split="val"), source=FreshSource(7),
        trackers=(JsonLines(run.path),), budget=Budget.of(plan.planned), environment="here",
    )()  # fmt: skip
    return run


def own_loop(tmp_path, _):
    promise, clip = dp.Promise(epsilon=6.0, delta=1e-4), dp.clip.Constant(initial=1.0)
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=2, promise=promise, clip=clip, run_dir=tmp_path / "run", like={"w": np.zeros(3)}
    ) as private:
        for round_ in private:
            round_.map(lambda client: {"w": np.ones(3)})
            round_.release()
    return private.run


def analysis(tmp_path, kind, own, **given):
    lines = tmp_path / "names.txt"
    lines.write_text("often\n" * 60 + "rare\n" * 20, encoding="utf-8")
    request = Request(
        **{"kind": kind, "epsilon": 4.0, "delta": 1e-3, "cohort": 80.0, "clients": 80, "own": own, **given}
    )
    return begin(request, Place(folder=str(tmp_path), name="run"))


def heavy_hitters(tmp_path, _):
    own = {"most_names": 1, "length": 8}
    return analysis(tmp_path, "heavy-hitters", own, names=str(tmp_path / "names.txt"))


def counts(tmp_path, tiny):
    given = {"population.clients": "80", "population.cohort": "8", "model.width": "2"}
    return analysis(tmp_path, "histogram", {}, settings=resolve("dp-agr", tiny.path, None, given))


LOOPS = [training_loop, own_loop, heavy_hitters, counts]


def published(run):
    """Files outside of secret/ that would hold a released value."""
    names = (SUMMARY, "statement.txt", "rounds.jsonl")
    files = [run.path / name for name in names] + list((run.path / "releases").glob("*")) + [run.weights]
    return [path.name for path in files if path.exists() and path.stat().st_size]


@contextmanager
def nothing_leaves(tmp_path, words):
    with pytest.raises(RefusedPlan, match=words):
        yield
    assert published(RunDirectory(tmp_path / "run")) == []


@pytest.mark.parametrize("loop", LOOPS)
def test_an_honest_loop_charges_and_releases(loop, tmp_path, tiny):
    """What the planted mistakes below are to stop does happen without them."""
    run = loop(tmp_path, tiny)
    assert published(run)
    assert read_content(run.ledger).charges


@pytest.mark.parametrize("loop", LOOPS)
def test_what_was_not_charged_is_not_released(loop, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda self, charge: None)
    with nothing_leaves(tmp_path, "has no charge for this attempt at round 0, so nothing was released"):
        loop(tmp_path, tiny)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_was_charged_as_other_noise_is_not_released(loop, tmp_path, tiny, monkeypatch):
    """The ledger counts twice the noise that the plan's mechanism adds."""

    def cheap(plan, round_):
        charge = planned_charge(plan, round_)
        louder = replace(charge.event.noise, multiplier=2.0 * charge.event.noise.multiplier)
        return replace(charge, event=replace(charge.event, noise=louder))

    monkeypatch.setattr(round_journal, "planned_charge", cheap)
    with nothing_leaves(tmp_path, "but the ledger was charged for one release with"):
        loop(tmp_path, tiny)


@pytest.mark.parametrize("loop", LOOPS)
def test_weaker_noise_under_the_planned_name_is_not_released(loop, tmp_path, tiny, monkeypatch):
    """The mechanism states the planned noise, and a deviation that is a tenth."""

    def tenth(mechanism):
        return replace(mechanism, denominator=mechanism.denominator * 10)

    counts, at, names = WholeNumberMechanism.release, Independent.at, Threshold.release
    monkeypatch.setattr(WholeNumberMechanism, "release", lambda self, *given: counts(tenth(self), *given))
    monkeypatch.setattr(Independent, "at", lambda self, round_: tenth(at(self, round_)))
    monkeypatch.setattr(Threshold, "release", lambda self, *given: names(replace(self, names=self.names / 100), *given))
    with nothing_leaves(tmp_path, "its release states noise of deviation"):
        loop(tmp_path, tiny)


# The door by itself.

PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=4, noise_multiplier=1.5)


def journal_of(folder, **given):
    return Journal(
        plan=PLAN, ledger=Ledger(folder / "ledger", PLAN), participations=Participations(folder / "participations"),
        budget=None, **{"source": FreshSource(5), "environment": "here", **given},
    )  # fmt: skip


def releasing(noise):
    query = Bounded(value={"w": torch.zeros(5)}, sensitivity=0.7)
    return GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=100.0).release(query, noise), {}


def test_only_the_attempt_that_was_charged_is_released(tmp_path):
    journal, called = journal_of(tmp_path), []
    cohort = journal.begin(0, "a")
    other = journal.begin(0, "b")
    for attempt in (cohort, other):
        assert journal.release(attempt, releasing, bound=0.7)[0].noises == (GaussianNoise(multiplier=1.5),)
    for wrong in (
        replace(cohort, round=1), replace(cohort, fresh=other.fresh), replace(cohort, again=other.again),
        replace(cohort, fresh=b""), replace(other, again=()),
    ):  # fmt: skip
        with pytest.raises(RefusedPlan, match="has no charge"):
            journal.release(wrong, called.append, bound=0.7)
    assert not called
    with pytest.raises(RefusedPlan, match="states noise of deviation"):
        journal.release(cohort, releasing, bound=0.8)


def test_the_noise_is_that_of_the_charge(tmp_path):
    journal = journal_of(tmp_path)
    cohort, other = journal.begin(0, "a"), journal.begin(0, "b")
    same, again, apart = (journal.release(each, releasing, bound=0.7)[0].value["w"] for each in (cohort, cohort, other))
    assert torch.equal(same, again)
    assert not torch.equal(same, apart)


@pytest.mark.parametrize("source", [FreshSource(5), KeyedSource(5), OperatingSystemSource()])
def test_one_charge_is_one_release_whatever_the_sum_is_the_second_time(tmp_path, source):
    journal = journal_of(tmp_path, source=source)
    cohort = journal.begin(0, "a")

    def other(noise):
        query = Bounded(value={"w": torch.full((5,), 0.1)}, sensitivity=0.7)
        mechanism = GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=100.0)
        return mechanism.release(query, noise), {}

    journal.release(cohort, releasing, bound=0.7)
    with pytest.raises(RefusedPlan, match="two releases for one charge"):
        journal.release(cohort, other, bound=0.7)
    journal.release(journal.begin(0, "b", anew=True), other, bound=0.7)


def test_a_release_that_is_no_sum_over_the_cohort_states_what_divides_it(tmp_path):
    journal = journal_of(tmp_path)
    cohort = journal.begin(0, "a")

    def sums(noise):
        query = Bounded(value={"w": torch.zeros(5)}, sensitivity=0.7)
        return GaussianMechanism(total_multiplier=1.5, charged_multiplier=1.5, denominator=1.0).release(
            query, noise
        ), {}

    assert journal.release(cohort, sums, bound=0.7, denominator=1.0)[0].noise_deviation == pytest.approx(1.05)
    for wrong in ({}, {"denominator": 2.0}):
        with pytest.raises(RefusedPlan, match="states noise of deviation"):
            journal.release(cohort, sums, bound=0.7, **wrong)


def test_thresholds_take_no_more_than_the_plan_counts(tmp_path):
    noise = ThresholdedNoise(multiplier=1.0, missed=1e-6)
    with pytest.raises(ValueError, match="more than the plan's"):
        Threshold(noise=noise, names=1, alone=2e-6)
