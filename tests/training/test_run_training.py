"""Which object of a run is handed to what: all that is measured, kept or told is of public data, or of nobody's."""

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.peak_memory import peak_memory_mb
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.planning.caveats import TaskFacts, cautions
from dpfedmeta.planning.network_trial.pretraining_overlap import initial_words
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training import loop, setup
from dpfedmeta.training import run_training as module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions, prepared
from dpfedmeta.training.tracking.callbacks import JsonLines

# What is measured, and of whom, is looked at.
pytestmark = pytest.mark.speed

TINY = {
    "model.width": "2", "server.rounds": "2", "task.ways": "2", "task.shots": "2", "task.queries": "2",
    "clip.policy": "constant", "population.clients": "60", "population.cohort": "6", "server.noise_multiplier": "2",
    "privacy.client.delta": "0.001", "privacy.client.epsilon": "null", "evaluation.every": "2",
    "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "run.workers": "1", "run.noise_seed": "3",
    "track.public_clients": "2", "population.max_participations": "null",
}  # fmt: skip


def settings_of(task_file, folder, algo="dp-agr", **given):
    return resolve(algo, str(task_file), None, {**TINY, "run.dir": str(folder), **given})


@pytest.fixture(scope="module")
def ran(tiny_task_file, tmp_path_factory):
    """A run, with what was handed to each function that measures or keeps something."""
    handed = SimpleNamespace()

    def watch(patched, place, name):
        honest = getattr(place, name)

        def watched(*given, **named):
            setattr(handed, name.strip("_"), given)
            return honest(*given, **named)

        patched.setattr(place, name, watched)

    with pytest.MonkeyPatch.context() as patched:
        watch(patched, module, "clients_per_second")
        watch(patched, module, "_trained")
        watch(patched, loop, "update_spread")
        handed.run, _ = run_training(settings_of(tiny_task_file, tmp_path_factory.mktemp("runs")))
    return handed


def classes_of(runner):
    return {*runner.population.pool.names}


def test_only_public_clients_are_measured(ran, tiny_strokes):
    """The speed and the spread of updates are told as they are: no training class is in either."""
    for measured in (ran.clients_per_second[0], ran.update_spread[0]):
        assert classes_of(measured) == {*tiny_strokes.val.names}
        assert classes_of(measured).isdisjoint(tiny_strokes.train.names)
        # Not the server's secret source: what it draws is shown.
        assert measured.source == KeyedSource(0)


def test_each_part_of_the_data_is_for_one_thing(ran, tiny_strokes):
    training, made = ran.trained
    assert {*training.validation.pool.names} == {*tiny_strokes.val.names}
    assert {*made.test.pool.names} == {*tiny_strokes.test.names}
    assert {*made.clients.population.pool.names} == {*tiny_strokes.train.names}
    assert training.backend.clients is made.clients
    kept = ran.run.read_json("episodes.json")
    assert kept["episodes_digest"] == made.test.episodes_digest(InProcess(), 2)
    assert kept["episodes_digest"] != made.validation.episodes_digest(InProcess(), 2)
    assert kept["protocol"] == made.test.protocol


def test_a_run_s_files_state_all_that_a_reader_is_promised(ran):
    """Whoever reads a run reads these names; that their numbers are the ledger's is checked by --verify."""
    _, made = ran.trained
    plan, stated = made.plan, ran.run.read_json("plan.json")
    rate = stated.pop("cost")["clients_per_second"]
    assert rate > 0
    assert rate != 100.0  # of tests that are not marked `speed`
    assert stated == json.loads(
        json.dumps(
            {
                "planned": [cell.as_json() for cell in plan.planned],
                "begins_with": initial_words(plan.settings),
                "cautions": cautions(plan.settings, TaskFacts.of(plan.settings, made.dataset.task)),
                "privacy": constants(plan.privacy),
                "described": made.described.as_json(),
                "phases": [{"rounds": each.rounds, "event": each.event.as_json()} for each in plan.privacy.phases],
            }
        )
    )
    assert ran.run.read_json("plan.json")["cost"]["seconds"] == pytest.approx(12 / rate)
    summary = ran.run.read_json("summary.json")
    assert {
        "status", "algo", "dataset", "task", "rounds", "population", "aggregation", "begins_with", "accuracy",
        "guarantees", "planned", "ledger", "simulation", "seconds", "clients_per_second", "versions",
    } <= summary.keys()  # fmt: skip
    assert summary["ledger"] == {"rounds": 2, "head": read_content(ran.run.ledger).heads[-1]}
    assert summary["simulation"]


@pytest.mark.parametrize("alike", [True, False])
def test_machines_that_hold_other_images_repeat_no_round(tiny_task_file, tmp_path, monkeypatch, alike):
    monkeypatch.setattr(setup, "check_together", lambda *_: alike)
    with prepared(settings_of(tiny_task_file, tmp_path), RunOptions(), lambda text: None) as made:
        assert made.repeatable == alike


def test_clients_hold_the_server_to_what_it_promised_towards_the_server(tiny_strokes, tmp_path):
    given = {
        **TINY, "record.micro_shots": "1", "record.micro_queries": "1", "record.query_noise": "3",
        "record.client_ledgers": "true", "population.max_participations": "2", "privacy.record.epsilon": "null",
    }  # fmt: skip
    plan = make_plan(resolve("dp-agrlr-micro", "strokes", None, given), tiny_strokes.task)
    cells = {cell.name: cell.epsilon for cell in plan.planned}
    ledgers = module._client_ledgers(SimpleNamespace(secret=tmp_path), plan)
    assert ledgers.budget.epsilon == cells["(record, server)"] != cells["(record, public)"]
    assert ledgers.budget.delta == plan.privacy.record_delta


def test_what_was_spent_before_leaves_no_room_in_clients_ledgers(tmp_path):
    """It is in the promise, and not in these ledgers."""
    own = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=1, support_records=25, query_records=25)
    plan = PrivacyPlan(clients=200, cohort=20, rounds=3, noise_multiplier=4.0, max_participations=1, record=own)
    asked = PrivacyPlan(clients=200, cohort=100.0, rounds=1, noise_multiplier=2.0)
    before = replace(plan, earlier=(Earlier(run="a", head="0", phases=asked.phases),))
    kept = SimpleNamespace(record=SimpleNamespace(client_ledgers=True))
    budgets = [
        module._client_ledgers(
            SimpleNamespace(secret=tmp_path), SimpleNamespace(settings=kept, privacy=each, planned=guarantees(each))
        ).budget
        for each in (plan, before)
    ]
    assert guarantees(before)[2].epsilon > 1.01 * guarantees(plan)[2].epsilon
    assert budgets[0] == budgets[1]


@pytest.mark.parametrize("secure", [True, False])
def test_a_ledger_says_whether_its_draws_can_be_repeated(tiny_task_file, tmp_path, secure):
    given = {"run.noise_seed": "null"} if secure else {}
    settings = settings_of(tiny_task_file, tmp_path, **given, **{"server.rounds": "1", "evaluation.every": "1"})
    run, _ = run_training(settings, RunOptions(secure_rng=secure))
    assert read_content(run.ledger).identity.secure == secure


@pytest.fixture
def listening():
    """Ctrl-C interrupts, also where the tests were started in the background, which inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_a_signal_while_the_end_is_written_counts_afterwards(tiny_task_file, tmp_path, monkeypatch):
    """A run whose last round is released has its summary, and whoever is told of runs hears of its end."""
    hurt, told = [], []

    def interrupted(workers):
        hurt.append(os.kill(os.getpid(), signal.SIGINT))
        return peak_memory_mb(workers)

    monkeypatch.setattr(module, "peak_memory_mb", interrupted)
    monkeypatch.setattr(JsonLines, "on_end", lambda self, summary: told.append(summary["status"]))
    with pytest.raises(KeyboardInterrupt):
        run_training(settings_of(tiny_task_file, tmp_path, **{"run.name": "run"}))
    assert len(hurt) == 1
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "completed"
    assert told == ["completed"]


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("step", ["keep_noise_state", "save_checkpoint", "drop_noise_states", "save_weights"])
def test_a_signal_while_the_last_checkpoint_is_written_leaves_it_whole(
    ran, tiny_task_file, tmp_path, monkeypatch, step
):
    honest = getattr(loop, step)

    def interrupted(*given):
        if not hurt and "initial" not in str(given[0]):  # those of before round 0
            hurt.append(os.kill(os.getpid(), signal.SIGINT))
        return honest(*given)

    hurt = []
    monkeypatch.setattr(loop, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_training(settings_of(tiny_task_file, tmp_path, **{"run.name": "run"}))
    assert len(hurt) == 1
    left = RunDirectory(tmp_path / "run")
    assert left.weights.read_bytes() == ran.run.weights.read_bytes()
    names = [path.name for path in sorted((left.path / "checkpoint").iterdir())]
    assert names == [path.name for path in sorted((ran.run.path / "checkpoint").iterdir())]


ALONE = SimpleNamespace(run=SimpleNamespace(workers=None))


class Planned(Exception):
    """What a plan was made of."""


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_goes_on_with_what_its_ledger_counts_as_spent_before(monkeypatch, resumed):
    """The folders of the analyses may be gone by then, or hold further charges that its promise does not count."""
    counted = (Earlier(run="a", head="0", phases=()),)
    content = SimpleNamespace(plan=SimpleNamespace(earlier=counted))

    def planned(settings, task, own_policy, earlier):
        raise Planned(earlier)

    for name in ("check_same_policy", "_device", "use_precision"):
        monkeypatch.setattr(setup, name, lambda *given: None)
    monkeypatch.setattr(setup, "_opened", lambda *given: (SimpleNamespace(task=None), None))
    monkeypatch.setattr(setup, "read_content", lambda path, torn: content)
    monkeypatch.setattr(setup, "make_plan", planned)
    options = RunOptions(resume=SimpleNamespace(ledger=None) if resumed else None, workers=InProcess())
    with pytest.raises(Planned) as found, prepared(ALONE, options, print):
        pass
    assert found.value.args == (counted if resumed else None,)
