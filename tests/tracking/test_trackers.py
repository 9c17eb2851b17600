import io
import json

import pytest
from rich.console import Console

from dpfedmeta.privacy.accounting import guarantees
from dpfedmeta.privacy.plan import PrivacyPlan
from dpfedmeta.tracking.terminal import Terminal, guarantee_table, number
from dpfedmeta.tracking.trackers import JsonLines, TensorBoard, WeightsAndBiases, flat

ROW = {
    "round": 0,
    "clip": 0.5,
    "aggregate_norm": 1.0,
    "noise_norm_expected": 0.9,
    "epsilons": {"client_public": 0.3, "client_server": None, "record_server": None, "record_public": 0.2},
    "seconds": 1.0,
    "clients_per_second": 10.0,
    "validation_accuracy": {"mean": 0.5, "ci95": 0.1, "episodes": 4},
}


def test_json_lines(tmp_path):
    tracker = JsonLines(tmp_path)
    for round_ in range(2):
        tracker.log({**ROW, "round": round_})
    tracker.finish({})
    assert [json.loads(line)["round"] for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == [0, 1]


def test_nested_keys_become_paths_and_infinite_cells_are_left_to_the_table():
    got = flat(ROW)
    assert got["epsilons/client_public"] == 0.3
    assert "epsilons/client_server" not in got


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline_needs_no_login(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WeightsAndBiases(tmp_path, "offline", {"algo": "x"})
    tracker.log(ROW)
    tracker.finish({"status": "completed"})
    assert list((tmp_path / "wandb").glob("offline-run-*"))


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_writes_event_files(tmp_path):
    tracker = TensorBoard(tmp_path)
    tracker.log(ROW)
    tracker.finish({})
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_the_terminal_prints_a_line_at_every_validation():
    text = io.StringIO()
    terminal = Terminal(Console(file=text, width=80), 2)
    terminal.log(ROW)
    terminal.log({key: value for key, value in ROW.items() if key != "validation_accuracy"})
    terminal.finish({})
    (line,) = text.getvalue().strip().splitlines()
    assert "50.0% ± 10.0" in line
    assert "record/server inf" in line


def test_every_cell_is_printed_and_what_holds_nothing_is_inf():
    text = io.StringIO()
    plan = PrivacyPlan(clients=1000, cohort=10, rounds=3, noise_multiplier=1.0)
    Console(file=text, width=120).print(guarantee_table(guarantees(plan), "title"))
    assert text.getvalue().count("inf") == 2
    assert [number(value) for value in (None, float("inf"), 1.4993, 613.2)] == ["inf", "inf", "1.5", "613"]
