"""MLflow as a tracker: what it is told and when, by a stand-in for its client."""

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from test_trackers import ROWS

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.training.trackers import Tracked, trackers_of
from dpfedmeta.training.tracking.callbacks import JsonLines

CELL = {"unit": "client", "observer": "public", "epsilon": 1.5, "delta": 1e-6}
SUMMARY = {"status": "completed", "accuracy": {"mean": 0.8}, "guarantees": [CELL], "simulation": None}


class Server:
    """What was told: experiments by name, runs with their metrics, parameters, tags and times."""

    def __init__(self):
        self.experiments, self.runs, self.down = {}, {}, False


@pytest.fixture
def server(monkeypatch):
    kept = Server()

    class MlflowClient:
        def get_experiment_by_name(self, name):
            if kept.down:
                raise ConnectionError("nobody there")
            return kept.experiments.get(name)

        def create_experiment(self, name):
            kept.experiments[name] = SimpleNamespace(experiment_id=name)
            return name

        def search_runs(self, experiments, filter_string, max_results):
            identity = filter_string.split("'")[1]
            found = [run for run in kept.runs.values() if identity in run.tags.values()]
            return [
                SimpleNamespace(
                    info=SimpleNamespace(run_id=run.number),
                    data=SimpleNamespace(metrics={metric.key: metric.value for metric in run.metrics}),
                )
                for run in found
            ]

        def create_run(self, experiment, start_time, run_name, tags):
            number = f"run{len(kept.runs)}"
            kept.runs[number] = SimpleNamespace(
                number=number, start=start_time, end=None, name=run_name, tags=tags, metrics=[], params={}
            )
            return SimpleNamespace(info=SimpleNamespace(run_id=number))

        def log_batch(self, run, metrics=(), params=()):
            if kept.down:
                raise ConnectionError("nobody there")
            assert len(metrics) <= 1000
            assert len(params) <= 100
            kept.runs[run].metrics += metrics
            kept.runs[run].params |= {each.key: each.value for each in params}

        def set_terminated(self, run, status, end_time):
            kept.runs[run].end = end_time or time.time() * 1000

    module: Any = ModuleType("mlflow")
    entities: Any = ModuleType("mlflow.entities")
    module.MlflowClient = MlflowClient
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, timestamp=timestamp, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return kept


SETTINGS = resolve("maml", "strokes", None, {"track.to": "mlflow"})


def opened(run, said, timed):
    tracked = Tracked(run=run, settings=SETTINGS, identity="abc", timed=timed, pictures=lambda run: ())
    (tracker,) = trackers_of(SETTINGS.track)
    tracker.check(SETTINGS.track, said.append)
    return tracker.opened(tracked, said.append)


def lived(run, server, *, timed, rows=ROWS, ends=True, said=None):
    lines, tracker = JsonLines(run.path), opened(run, [] if said is None else said, timed)
    for row in rows:
        lines.on_round(row)
        tracker.on_round(row)
    before = {name: len(each.metrics) for name, each in server.runs.items()}
    if ends:
        tracker.on_end(SUMMARY)
    return before


def test_a_private_run_is_sent_at_its_end_without_the_clock(server, tmp_path):
    run = create(tmp_path, "r")
    assert lived(run, server, timed=False) == {}
    (sent,) = server.runs.values()
    assert (sent.start, sent.end) == (1, 1)
    assert {metric.timestamp for metric in sent.metrics} == {0, 1, 2}
    values = {(metric.key, metric.step): metric.value for metric in sent.metrics}
    assert values["epsilons/client_public", 1] == ROWS[1]["epsilons"]["client_public"]
    assert values["validation_accuracy/mean", 2] == 0.75
    assert values["summary/accuracy/mean", 2] == 0.8
    assert values["summary/guarantees/client_public/epsilon", 2] == 1.5
    assert sent.params["server.rounds"] == str(SETTINGS.server.rounds)
    assert sent.tags == {"dpfedmeta.identity": "abc"}
    assert not [key for key in sent.params if "secret" in key]


def test_others_are_sent_round_by_round_and_a_resumed_run_goes_on(server, tmp_path):
    run = create(tmp_path, "r")
    assert lived(run, server, timed=True, rows=ROWS[:2], ends=False)["run0"] > 0
    lived(run, server, timed=True, rows=ROWS[2:])
    (sent,) = server.runs.values()
    assert [metric.step for metric in sent.metrics if metric.key == "round"] == [0, 1, 2]
    assert sent.start > 1e12 < sent.end


def test_a_server_that_is_away_costs_no_round(server, tmp_path):
    server.down, said = True, []
    lived(create(tmp_path, "r"), server, timed=True, said=said)
    assert said == [
        "MLflow: nobody there; training goes on, and MLflow is tried again at its end",
        "MLflow: nobody there; the run itself is complete",
    ]


def test_without_mlflow_it_is_refused_before_anything_is_written(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    (tracker,) = trackers_of(SETTINGS.track)
    with pytest.raises(InputError, match=r"MLflow is not installed; type: pip install 'dpfedmeta\[mlflow\]'"):
        tracker.check(SETTINGS.track, print)
