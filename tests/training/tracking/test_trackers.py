import json
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from dpfedmeta.accounting.ledger.ledger import Budget
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.loop import Training
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.terminal.tables import guarantee_table
from dpfedmeta.training.trackers import trackers_of
from dpfedmeta.training.trackers.tensorboard_tracker import TensorBoard, TensorBoardTracker
from dpfedmeta.training.tracking.callbacks import Callback, JsonLines
from dpfedmeta.training.tracking.flatten_rows import flat

ROWS = [
    {
        "round": number,
        "clip": 0.5 / (number + 1) if number else None,
        "clip_mode": "holding" if number == 2 else "following",
        "aggregate_norm": 0.25 * number,
        "signal_to_noise": 0.5,
        "noise_norm_expected": 0.125,
        "epsilons": {
            "client_public": 0.1 * (number + 1),
            "client_server": None,
            "record_server": None,
            "record_public": 0.01,
        },
        "seconds": 2.0,
        "clients_per_second": 100.0,
    }
    for number in range(3)
]
ROWS[2]["validation_accuracy"] = {"mean": 0.75, "ci95": 0.02, "episodes": 60}
SUMMARY = {"status": "completed", "accuracy": {"mean": 0.8}, "guarantees": [{"epsilon": None}], "simulation": None}

RELEASED = {
    "round", "clip", "clip_mode", "aggregate_norm", "noise_norm_expected", "signal_to_noise", "epsilons", "seconds",
    "validation_accuracy", "release",
}  # fmt: skip
VALIDATED = {"validation_accuracy", "validation_accuracy_untrained"}
CELLS = {"client_public", "client_server", "record_server", "record_public"}


def tell(tracker):
    for row in ROWS:
        tracker.on_round(row)
    tracker.on_end(SUMMARY)


def test_json_lines_hold_the_rows(tmp_path):
    run = create(tmp_path, "r")
    tell(JsonLines(run.path))
    assert run.rounds() == ROWS


def test_a_run_without_a_round_has_the_file_and_old_rows_are_kept(tmp_path):
    run = create(tmp_path, "r")
    JsonLines(run.path)
    assert run.rounds() == []
    JsonLines(run.path).on_round(ROWS[0])
    JsonLines(run.path).on_round(ROWS[1])
    assert run.rounds() == ROWS[:2]


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_same_rows(tmp_path):
    tell(TensorBoard(tmp_path))
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    scalars = scalars_of(tmp_path / "tensorboard")
    for name in {name for row in ROWS for name, value in flat(row).items() if not isinstance(value, str)}:
        expected = [(row["round"], flat(row)[name]) for row in ROWS if name in flat(row)]
        assert scalars.pop(name) == [(step, pytest.approx(value)) for step, value in expected]
    assert scalars == {}


def test_tensorboard_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'dpfedmeta\[tensorboard\]'"):
        TensorBoardTracker.check(None, print)


def test_the_terminal_prints_a_line_per_validation():
    console = Console(record=True, width=300)
    terminal = Terminal(console)
    for row in ROWS:
        terminal.on_round(row)
    assert console.export_text().splitlines() == [
        "round     1  eps client/public 0.1  eps record/public 0.01  100 clients/s",
        "round     3  validation 75.0% ± 2.0  clip 0.167 (holding)  eps client/public 0.301  "
        "record/server inf  100 clients/s",
    ]


def test_every_cell_is_printed_and_what_holds_nothing_is_inf():
    console = Console(record=True, width=120)
    plan = PrivacyPlan(clients=1000, cohort=10, rounds=3, noise_multiplier=1.0)
    console.print(guarantee_table(guarantees(plan), "title"))
    text = console.export_text()
    # (client, server), and (record, server) under zero-out and under replace-one.
    assert text.count(" inf ") == 3
    assert [text.count(f"│ {unit} │") for unit in ("client", "record")] == [2, 2]


class Trap(Callback):
    """Stands in for the clients; remembers what the trackers were told."""

    def __init__(self):
        self.rows = []

    def cohort_sum(self, model, bound, cohort):
        return Bounded(value={n: torch.zeros_like(v) for n, v in model.items()}, sensitivity=bound)

    def on_round(self, row):
        self.rows.append(row)


def only_plain_numbers(value):
    if isinstance(value, dict):
        return all(isinstance(name, str) and only_plain_numbers(entry) for name, entry in value.items())
    return value is None or type(value) in (int, float)


@pytest.mark.parametrize("algo", ["dp-const", "dp-agr", "dp-agrlr-micro"])
def test_trackers_are_told_released_quantities_only(tiny_strokes, tmp_path, algo):
    small = {
        "model.width": "4", "clip.window": "2", "server.rounds": "4", "task.ways": "3", "task.shots": "2",
        "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    }  # fmt: skip
    plan = make_plan(resolve(algo, "strokes", None, small), tiny_strokes.task)
    trap = Trap()
    training = Training(
        plan=plan,
        run=create(tmp_path, "r"),
        backend=trap,
        workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"),
        source=KeyedSource(1),
        trackers=(trap,),
        budget=Budget.of(plan.planned),
    )
    training()
    assert [row["round"] for row in trap.rows] == [0, 1, 2, 3]
    for row in trap.rows:
        assert set(row) - VALIDATED == RELEASED - VALIDATED
        assert set(row["epsilons"]) == CELLS
        assert row["seconds"] is None
        assert row["clip_mode"] in ("constant", "following", "searching", "holding")
        assert only_plain_numbers({name: value for name, value in row.items() if name not in ("clip_mode", "release")})
        assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert ["validation_accuracy" in row for row in trap.rows] == [False, True, False, True]
    # Before round 0, which its own row tells.
    assert ["validation_accuracy_untrained" in row for row in trap.rows] == [True, False, False, False]
    assert set(trap.rows[0]["validation_accuracy_untrained"]) == {"mean", "ci95", "episodes"}
    assert set(trap.rows[1]["validation_accuracy"]) == {"mean", "ci95", "episodes"}


def test_a_tracker_that_is_named_in_two_ways_is_told_once():
    track, to = resolve("maml", "strokes", None, {}).track, ("tensorboard", "wandb")
    asked = (replace(track, to=to), replace(track, wandb="offline", tensorboard=True))
    both = replace(asked[1], to=to)
    kinds = [sorted(type(each).__name__ for each in trackers_of(each)) for each in (*asked, both)]
    assert kinds[0] == kinds[1] == kinds[2]
    assert len(kinds[0]) == 2
