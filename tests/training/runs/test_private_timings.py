"""No time that follows a cohort's size leaves a private run."""

import io
import json
import math
import re
import stat
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from dpfedmeta.accounting.ledger.ledger import RunIdentity
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory, create
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.results.summary import what_it_took
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.private_timings import (
    COARSE,
    at_most,
    coarse,
    hides_times,
    hides_times_of,
    keep_seconds,
    seconds_before,
)
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.trackers.wandb_tracker import WandbTracker

# Two runs have two speeds.
pytestmark = pytest.mark.speed

TINY = {
    "model.width": "4", "server.rounds": "4", "population.cohort": "6", "population.clients": "60", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "clip.window": "2", "run.checkpoint_every": "2",
}  # fmt: skip
NOISE = {"server.noise_multiplier": "1.5"}
SERIES = {float(f"{digit}e{power}") for digit in (1, 2, 5) for power in range(-6, 9)}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.03, "1 s"), (4, "5 s"), (43, "50 s"), (63, "2 min"), (150, "4 min"), (500, "9 min"), (9000, "2 h 47 min")],
)
def test_what_is_said_of_a_coarse_time_is_never_less_than_it(seconds, words):
    assert at_most(seconds) == f"at most {words}"


def test_coarse_times_are_rounded_up_to_a_short_series():
    values = [base * 10.0**power for power in range(-5, 6) for base in (1, 1.0001, 1.7, 2, 2.0001, 4, 5, 7, 9.9999)]
    for value in [*values, math.nextafter(1000, 0), 1000.0, math.nextafter(1000, math.inf)]:
        found = coarse(value)
        assert found in SERIES
        assert value <= found < 2.5001 * value
        assert coarse(found) == found
    assert [coarse(value) for value in (0.0, 61.0, 100.0, 101.0, 0.3)] == [0.0, 100.0, 100.0, 200.0, 0.5]


@pytest.mark.parametrize(
    ("algo", "given", "hidden"),
    [
        ("maml", {}, False),
        ("dp-agr", NOISE, True),
        ("dp-agrlr-micro", NOISE, True),
        ("local-dp", {"meta.batch": "5"}, True),  # a promise to records alone
        ("dp-agr", {**NOISE, "run.noise_seed": "3"}, False),
    ],
)
def test_whoever_promises_something_tells_no_exact_time(tiny_strokes, tmp_path, monkeypatch, algo, given, hidden):
    small = {name: value for name, value in TINY.items() if name.startswith(("model", "task", "server"))}
    plan = make_plan(resolve(algo, "strokes", None, small | given), tiny_strokes.task)
    assert hides_times(plan) == hidden
    took = what_it_took(plan, 7, 123.4, 1234.5)
    if hidden:
        assert (took["seconds"], took["peak_memory_mb"], took["times"]) == (200.0, 2000.0, COARSE)
        # Of the coarse time, not of the exact one: it must not narrow it down.
        assert took["clients_per_second"] == coarse(7 * plan.privacy.cohort / 200.0)
    else:
        speed = 7 * plan.privacy.cohort / 123.4
        assert took == {"seconds": 123.4, "clients_per_second": speed, "peak_memory_mb": 1234.5, "times": None}
    sent = []
    monkeypatch.setattr(WandbTracker, "opened", lambda tracked, say: sent.append(tracked.timed))
    monkeypatch.setattr(run_module, "identity_of", lambda run: RunIdentity(run="0" * 32, config="", secure=False))
    asked = replace(plan, settings=resolve(algo, "strokes", None, small | given | {"track.wandb": "offline"}))
    run_module._trackers(asked, create(tmp_path, "r"), RunOptions(), print)
    assert sent == [not hidden]


@pytest.fixture
def train(tiny_task_file, tmp_path, monkeypatch):
    """A whole run whose clients take a while; gives the run and what was printed."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    # Two private runs with the same secret: only the clock can make them differ.
    monkeypatch.setattr("dpfedmeta.core.random.fresh_seeds.draw_secret_seed", lambda: 12345)
    monkeypatch.setattr("dpfedmeta.privacy.rounds.round_journal.draw_fresh", lambda: "ab" * 16)
    computed = LocalBackend.cohort_sum

    def trained(name, algo, pause=0.0, **given):
        def slow(self, model, bound, cohort):
            time.sleep(pause * (1 + cohort.round % 2))
            return computed(self, model, bound, cohort)

        console = Console(file=io.StringIO(), width=300)
        values = {**TINY, "run.dir": str(tmp_path / name), "run.name": "r", "track.tensorboard": "true", **given}
        with monkeypatch.context() as patch:
            patch.setattr(LocalBackend, "cohort_sum", slow)
            run, _ = run_training(resolve(algo, str(tiny_task_file), None, values), callbacks=[Terminal(console)])
        return run, console.file.getvalue()  # type: ignore[attr-defined]

    return trained


def during(printed):
    """What the terminal showed while training."""
    return [line for line in printed.splitlines() if line.startswith("round")]


def scalars(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    return {name: events.Scalars(name) for name in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_that_differ_only_in_time_look_the_same(train):
    quick, printed = train("quick", "dp-agr", **NOISE)
    slow, later = train("slow", "dp-agr", 0.1, **NOISE)
    assert quick.rounds_file.read_bytes() == slow.rounds_file.read_bytes()
    assert {row["seconds"] for row in slow.rounds()} == {None}
    assert during(printed) == during(later) != []
    assert "clients/s" not in "".join(during(printed))
    assert scalars(quick) == scalars(slow)
    # The first record and the names of the files too.
    told = [{path.name: path.read_bytes() for path in (run.path / "tensorboard").iterdir()} for run in (quick, slow)]
    assert told[0] == told[1]
    for name, told in scalars(slow).items():
        assert "second" not in name
        assert [event.wall_time for event in told] == [event.step for event in told]
    for run, words in ((quick, printed), (slow, later)):
        summary = run.read_json("summary.json")
        assert {summary[name] for name in ("seconds", "clients_per_second", "peak_memory_mb")} <= SERIES
        assert summary["times"] == COARSE
        assert re.search(r"after (at most .*) in all", words)[1] in {at_most(step) for step in SERIES}
        assert "coarse" in write_report(run).read_text()
    # What the server keeps for itself is exact, and readable to it alone.
    kept = slow.secret / "seconds.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert all(line["seconds"] >= 0.1 for line in lines)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_a_promise_times_are_exact(train):
    run, printed = train("plain", "maml", 0.05)
    rows, summary = run.rounds(), run.read_json("summary.json")
    assert all(row["seconds"] >= 0.05 for row in rows)
    for row in rows:
        assert row["clients_per_second"] == pytest.approx(6 / row["seconds"])
    assert all("clients/s" in line for line in during(printed))
    assert summary["seconds"] >= sum(row["seconds"] for row in rows)
    assert summary["clients_per_second"] == 4 * 6 / summary["seconds"]
    assert summary["times"] is None
    assert not (run.secret / "seconds.jsonl").exists()
    assert [event.value for event in scalars(run)["seconds"]] == pytest.approx([row["seconds"] for row in rows])
    assert scalars(run)["seconds"][0].wall_time > 1e9
    assert "coarse" not in write_report(run).read_text()


class Killed(BaseException):
    """The process ends here."""


def test_the_total_of_a_resumed_run_holds_all_its_processes(train, tmp_path, monkeypatch):
    def killed(self, state, charged):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_module.Training, "_measured", killed)  # type: ignore[attr-defined]
        with pytest.raises(Killed):
            train("cut", "dp-agr", **NOISE, **{"track.tensorboard": "false"})
    run = RunDirectory(tmp_path / "cut" / "r")
    assert not any("second" in path.name for path in run.path.iterdir())
    keep_seconds(run, 1, 3000.0)
    run_training(settings_of_run(run, {}), RunOptions(resume=run))
    assert run.read_json("summary.json")["seconds"] == 5000.0


def test_seconds_of_lines_that_a_crash_spoilt_are_missing_and_no_others(tmp_path):
    run = create(tmp_path, "r")
    rows = [{"round": 0, "seconds": 4.0}, {"round": 1, "seconds": None}, {"round": 2}]
    run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert seconds_before(run) == 4.0
    keep_seconds(run, 1, 10.0)
    path = run.secret / "seconds.jsonl"
    path.write_text(path.read_text() + "\x00\x01\n[]\n" + '{"round": 2, "sec')
    assert seconds_before(run) == 14.0
    keep_seconds(run, 2, 100.0)
    assert seconds_before(run) == 114.0


@pytest.mark.parametrize("server", [None, 0.0, 2.0])
@pytest.mark.parametrize("record", [None, object()])
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_times_are_hidden_wherever_something_is_promised_to_who_does_not_know_the_seed(server, record, seed):
    settings = SimpleNamespace(run=SimpleNamespace(noise_seed=seed))
    privacy = SimpleNamespace(noise_multiplier=server, record=record)
    assert hides_times_of(settings, privacy) == ((server is not None or record is not None) and seed is None)


@pytest.mark.parametrize(("value", "due"), [
    (0.0, 0.0), (1.0, 1.0), (1.0001, 2.0), (2.0, 2.0), (2.5, 5.0), (5.0, 5.0), (5.01, 10.0), (10.0, 10.0),
    (99.0, 100.0), (0.3, 0.5), (0.05, 0.05), (0.051, 0.1), (1234.0, 2000.0), (5000.1, 10_000.0),
])  # fmt: skip
def test_a_coarse_value_is_the_next_of_the_series(value, due):
    assert coarse(value) == due
    assert coarse(due) == due
