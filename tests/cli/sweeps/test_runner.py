import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from dpfedmeta.cli.sweeps import runner, sweep_folder
from dpfedmeta.cli.sweeps.runner import prepare, run_sweep, show_plan
from dpfedmeta.cli.sweeps.sweep_file import read_sweep, trials_of
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder, SweepOptions, opened
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.state.private_timings import at_most


@pytest.fixture
def sweep(sweep_file, program, tmp_path):
    """Run a sweep of the quick program; gives the status and what was printed."""

    def run(action=run_sweep, *, jobs=2, fixed=None, **changes):
        options = SweepOptions(out=tmp_path / "out", train=(sys.executable, str(program)), jobs=jobs, fixed=fixed or {})
        console = Console(file=io.StringIO(), width=200)
        status = action(read_sweep(sweep_file(**{"parameters": GRID, **changes})), options, console)
        return status, console.file.getvalue()  # type: ignore[attr-defined]

    return run


GRID = {
    "algo": {"value": "maml"},  # no noise to solve: these tests are about running
    "dataset": {"value": "strokes"},
    "clip.window": {"values": [2, 8]},
    "run.seed": {"values": [0, 1, 2]},
}


def runs(tmp_path):
    return sorted(path.name for path in (tmp_path / "out/runs").iterdir())


@pytest.mark.parametrize("private", [True, False])
def test_minutes_of_private_runs_are_coarse(sweep, program, private):
    if private:
        program.write_text(program.read_text().replace('"seconds": 60.0', '"seconds": 100.0, "times": "coarse"'))
    printed = sweep(parameters=GRID | {"run.seed": {"value": 0}})[1]
    told = re.findall(r": (at most \d+ (?:s|min))", printed)
    assert len(told) == (2 if private else 0)
    assert set(told) <= {at_most(digit * 10.0**power) for digit in (1, 2, 5) for power in range(-3, 3)}
    assert len(re.findall(r": \d+ (?:s|min)", printed)) == (0 if private else 2)


@pytest.mark.pictures
def test_a_grid_runs_and_is_summed_up(sweep, tmp_path):
    status, printed = sweep()
    assert status == "completed"
    assert "[6/6]" in printed
    assert len(runs(tmp_path)) == 6
    settings = json.loads((tmp_path / "out/results.json").read_text())["settings"]
    assert [row["parameters"] for row in settings] == [{"clip.window": 2}, {"clip.window": 8}]
    assert [row["label"] for row in settings] == ["window=2", "window=8"]
    assert settings[1]["accuracy"]["mean"] == pytest.approx(0.56)
    assert settings[1]["accuracy"]["runs"] == 3
    # Three seeds at 0.55, 0.56, 0.57: 4.303 * 0.01 / sqrt(3).
    assert settings[1]["accuracy"]["ci95"] == pytest.approx(0.02484, rel=1e-3)
    rows = list(csv.DictReader((tmp_path / "out/results.csv").read_text().splitlines()))
    assert [row["clip.window"] for row in rows] == ["2", "8"]
    assert [row["seeds"] for row in rows] == ["3", "3"]
    assert (tmp_path / "out/accuracy.png").stat().st_size > 5000
    page = (tmp_path / "out/report.html").read_text()
    assert "window=8" in page
    assert "56.0% ± 2.5" in page


def test_finished_runs_are_not_done_again(sweep, tmp_path):
    sweep()
    before = {name: (tmp_path / "out/runs" / name / "summary.json").stat().st_mtime_ns for name in runs(tmp_path)}
    status, printed = sweep()
    assert status == "completed"
    assert printed.count("finished before") == 6
    assert before == {n: (tmp_path / "out/runs" / n / "summary.json").stat().st_mtime_ns for n in runs(tmp_path)}


@pytest.mark.parametrize("name", ["run.name", "run.dir"])
def test_name_and_place_of_runs_are_the_sweep_s(sweep, tmp_path, name):
    with pytest.raises(InputError, match=rf"{name}: the sweep sets it for each run; leave it out \(--out names"):
        sweep(fixed={name: "x"})
    assert not (tmp_path / "out").exists()


HALVES = {
    "no summary": lambda run: (run / "summary.json").unlink(),
    "half a summary": lambda run: (run / "summary.json").write_text('{"status": "comp'),
    "interrupted": lambda run: (run / "summary.json").write_text('{"status": "interrupted"}'),
    "other settings": lambda run: (run / "config.yaml").write_text("clip: {initial: 9.0}"),
    "no config": lambda run: (run / "config.yaml").unlink(),
}


def test_half_finished_runs_are_set_aside_and_done_again(sweep, tmp_path):
    whole = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}}
    whole["run.seed"] = {"values": [*range(len(HALVES) + 1)]}
    sweep(parameters=whole)
    *names, untouched = runs(tmp_path)
    for name, spoil in zip(names, HALVES.values(), strict=True):
        spoil(tmp_path / "out/runs" / name)
    status, printed = sweep(parameters=whole)
    assert status == "completed"
    assert printed.count("set aside") == len(names)
    for name in names:
        assert (tmp_path / "out/set-aside" / f"{name}.1").is_dir()
        assert json.loads((tmp_path / "out/runs" / name / "summary.json").read_text())["status"] == "completed"
    assert not (tmp_path / "out/set-aside" / f"{untouched}.1").exists()


def test_what_was_set_aside_is_never_written_over(sweep_file, tmp_path):
    folder, (trial, *_) = SweepFolder(tmp_path), trials_of(read_sweep(sweep_file(parameters=GRID)), {})
    places = []
    for _ in range(3):
        folder.run(trial).path.mkdir(parents=True)
        places.append(folder.put_aside(trial))
        shutil.rmtree(places[0], ignore_errors=True)
    assert [place.suffix for place in places] == [".1", ".1", ".1"]
    for expected in (".1", ".2", ".3"):
        folder.run(trial).path.mkdir(parents=True)
        assert folder.put_aside(trial).suffix == expected


def test_a_run_that_fails_is_named_and_the_others_go_on(sweep, tmp_path):
    parameters = {
        "algo": {"value": "maml"}, "dataset": {"value": "strokes"}, "model.width": {"values": [13, 15]},
    }  # fmt: skip
    status, printed = sweep(parameters=parameters)
    assert status == "failed"
    assert "failed with exit code 1: error: no luck" in printed
    assert "[1/2]" in printed


def test_the_cores_are_shared_out(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfedmeta.cli.sweeps.sweep_folder.available_cores", lambda: 7)
    sweep(jobs=3)
    assert {log.read_text() for log in (tmp_path / "out/logs").iterdir()} == {"workers 2\n"}


def test_ctrl_c_stops_the_children_and_says_how_to_go_on(sweep, tmp_path):
    waits = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}, "model.width": {"value": 14}}

    def interrupt():
        while len(list((tmp_path / "out/logs").glob("*"))) < 2 or len(runs(tmp_path)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    waits["run.seed"] = {"values": [0, 1, 2]}
    thread = threading.Thread(target=interrupt)
    thread.start()
    status, printed = sweep(parameters=waits)
    thread.join()
    assert status == "interrupted"
    assert "to continue, use the same command" in printed
    assert not list((tmp_path / "out/runs").glob("*/summary.json"))
    (tmp_path / "out/go").touch()
    status, printed = sweep(parameters=waits)
    assert status == "completed"
    assert printed.count("set aside") == 2
    assert len(runs(tmp_path)) == 3


@pytest.mark.parametrize("method", [pytest.param("random", marks=pytest.mark.slow), "bayes"])
def test_a_search_goes_on_where_it_was(sweep, tmp_path, method):
    parameters = {
        "algo": {"value": "maml"},
        "dataset": {"value": "strokes"},
        "clip.initial": {"min": 0.01, "max": 10.0, "distribution": "log_uniform_values"},
    }
    _, printed = sweep(jobs=1, method=method, run_cap=4, parameters=parameters)
    before = runs(tmp_path)
    assert len(before) == 4
    last = max(before, key=lambda name: (tmp_path / "out/runs" / name / "summary.json").stat().st_mtime_ns)
    (tmp_path / "out/runs" / last / "summary.json").unlink()
    _, printed = sweep(jobs=1, method=method, run_cap=4, parameters=parameters)
    assert printed.count("finished before") == 3
    assert runs(tmp_path) == before
    assert len(json.loads((tmp_path / "out/results.json").read_text())["settings"]) == 4


def test_a_search_with_several_jobs_does_not_propose_other_runs_when_it_goes_on(sweep, tmp_path):
    """While the first session went on, the latest runs had no value yet; now all have."""
    parameters = {
        "algo": {"value": "maml"},
        "dataset": {"value": "strokes"},
        "clip.initial": {"min": 0.01, "max": 10.0},
    }
    for _ in range(2):
        _, printed = sweep(jobs=4, method="bayes", run_cap=14, parameters=parameters)
        assert len(runs(tmp_path)) == 14
    assert printed.count("finished before") == 14


def test_a_sweep_that_was_cut_off_at_once_goes_on_in_its_folder(sweep, tmp_path, monkeypatch):
    with monkeypatch.context() as cut:
        cut.setattr(sweep_folder, "write_text", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sweep()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    assert sweep(parameters=GRID | {"run.seed": {"value": 0}, "clip.window": {"value": 2}})[0] == "completed"


def test_a_search_without_optuna_says_what_to_install(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    for method in ("random", "bayes"):
        with pytest.raises(InputError, match=rf"method = {method}: .*pip install 'dpfedmeta\[search\]'"):
            sweep(method=method, run_cap=4)
    assert not (tmp_path / "out").exists()
    assert sweep()[0] == "completed"


def test_a_run_is_started_as_a_command_that_any_directory_knows(sweep_file, tmp_path):
    options = SweepOptions(out=tmp_path / "out")
    (trial, *_) = prepare(read_sweep(sweep_file(parameters=GRID)), options)[1]
    interpreter, dash, module, name, *rest = options.words(trial)
    assert (interpreter, dash, module, name) == (sys.executable, "-m", "dpfedmeta", "train")
    assert set(rest) >= {"--algo=maml", "--clip.window=2"}


def test_a_dry_run_prints_every_command_and_writes_nothing(sweep, tmp_path):
    _, printed = sweep(show_plan)
    assert printed.count("--clip.window=2") == 3
    assert "6 runs; about" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("done", [0, 1, 6])
def test_a_dry_run_counts_what_was_finished_before(sweep, tmp_path, monkeypatch, done):
    names = iter(range(6))
    monkeypatch.setattr(runner, "is_finished", lambda run: next(names) < done)
    monkeypatch.setattr(runner, "_clients_per_second", lambda trial, options: 10.0)
    _, printed = sweep(show_plan)
    assert printed.count("--algo=") == 6 - done
    words = f"{6 - done} runs" + (f", {done} finished before" if done else "")
    assert printed.splitlines()[-1].startswith(words + ("; about" if done < 6 else ""))
    assert ("finished before" in printed) == (done > 0)


def test_a_folder_with_another_sweep_is_refused(sweep, tmp_path):
    sweep()
    with pytest.raises(InputError, match="holds another sweep"):
        sweep(fixed={"server.rounds": "9"})
    with pytest.raises(InputError, match="holds another sweep"):
        sweep(parameters={"algo": {"value": "maml"}, "dataset": {"value": "strokes"}})


@pytest.mark.parametrize("how", ["more", "less", "null", "other", "not an object", "nested"])
def test_each_key_of_a_sweep_is_compared_and_named(sweep, tmp_path, how):
    sweep()
    path = tmp_path / "out" / "sweep.json"
    sound = json.loads(path.read_text())
    if how in ("not an object", "nested"):
        path.write_text("[1]" if how == "not an object" else "[" * 200_000)
        with pytest.raises(InputError, match=r"sweep\.json: (expected a JSON object|not valid JSON)"):
            sweep()
        return
    for key in ["further"] if how == "more" else sound:
        held = {name: value for name, value in sound.items() if name != key}
        path.write_text(json.dumps(held if how == "less" else held | {key: None if how == "null" else "other"}))
        with pytest.raises(InputError, match=rf"holds another sweep \(its {key} differ\)"):
            sweep()
    path.write_text(json.dumps({**sound, "further": None}))
    with pytest.raises(InputError, match=r"its further differ"):
        sweep()


def test_a_folder_with_something_else_is_refused(sweep, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").touch()
    with pytest.raises(InputError, match="not empty"):
        sweep()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_one_at_a_time(sweep, sweep_file, tmp_path):
    with (
        opened(tmp_path / "out", read_sweep(sweep_file(parameters=GRID)), {}) as _,
        pytest.raises(InputError, match="still working"),
    ):
        sweep()


def test_nothing_is_written_when_a_combination_is_refused(sweep, tmp_path):
    for changes in ({"jobs": 0}, {"fixed": {"server.rounds": "0"}}):
        with pytest.raises(InputError):
            sweep(**changes)
    assert not (tmp_path / "out").exists()


def test_runs_of_a_sweep_are_in_the_order_of_their_names_those_set_aside_last(tmp_path):
    folder = SweepFolder(tmp_path)
    for parent in (folder.set_aside, folder.runs):
        parent.mkdir()
        for number in (7, 2, 9, 0, 4, 1, 8, 3, 6, 5):
            (parent / f"run-{number}").mkdir()
        (parent / "notes.txt").touch()
    names = [f"run-{number}" for number in range(10)]
    due = [folder.runs / name for name in names] + [folder.set_aside / name for name in names]
    assert [run.path for run in folder.started()] == due


def starts(folder):
    return {name: noted.starts for name, noted in folder.noted().items()}


SEEDS = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}, "run.seed": {"values": [0, 1]}}


def test_each_start_is_noted_and_whether_a_run_came_of_it(sweep, program, tmp_path):
    """A run that was refused before it had a folder cost nothing; one that failed later did."""
    quick, refused = program.read_text(), "if options['run.seed'] == '1': sys.exit('error: refused')\n"
    program.write_text(quick.replace("run.mkdir(parents=True)", refused + "run.mkdir(parents=True)"))
    assert sweep(parameters=SEEDS)[0] == "failed"
    folder = SweepFolder(tmp_path / "out")
    first, second = folder.noted()
    assert starts(folder) == {first: 1, second: 0}
    program.write_text(quick + "sys.exit(1 if options['run.seed'] == '1' else 0)\n")
    assert sweep(parameters=SEEDS)[0] == "failed"
    assert starts(folder) == {first: 1, second: 1}
    program.write_text(quick)
    shutil.rmtree(folder.runs / second)
    assert sweep(parameters=SEEDS)[0] == "completed"
    assert starts(folder) == {first: 1, second: 2}
    assert [*folder.noted()] == [first, second]
    whole = (tmp_path / "out/trials.jsonl").read_bytes()
    for torn in (b'{"name": "cut', b"\xff", b"\0" * 9):
        (tmp_path / "out/trials.jsonl").write_bytes(whole + torn)
        assert starts(folder) == {first: 1, second: 2}
        (tmp_path / "out/trials.jsonl").write_bytes(torn + b"\n" + whole)
        with pytest.raises(InputError, match=r"trials\.jsonl, line 1: damaged"):
            starts(folder)


def test_a_start_that_ctrl_c_ended_before_its_run_began_is_taken_back(sweep, program, tmp_path):
    waits = "if options['run.seed'] == '1': time.sleep(60)\n"
    program.write_text(program.read_text().replace("run.mkdir(parents=True)", waits + "run.mkdir(parents=True)"))
    folder = SweepFolder(tmp_path / "out")

    def interrupt():
        while sum(starts(folder).values()) < 2 or len(runs(tmp_path)) < 1:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    status, _ = sweep(parameters=SEEDS)
    thread.join()
    assert status == "interrupted"
    assert list(starts(folder).values()) == [1, 0]


@pytest.mark.parametrize("place", ["log", "poll"])
def test_whatever_ends_a_sweep_stops_its_children(sweep, program, tmp_path, monkeypatch, place):
    """The second run's log cannot be opened, or its end cannot be looked at: the first one would train on."""
    waits = "time.sleep(60)\n"
    program.write_text(program.read_text().replace("run.mkdir(parents=True)", waits + "run.mkdir(parents=True)"))
    children, started = [], subprocess.Popen

    def fails(*given):
        raise OSError(28, "No space left on device")

    def begins(*given, **named):
        children.append(started(*given, **named))
        monkeypatch.setattr(*{"log": (SweepFolder, "log"), "poll": (runner._Work, "_reap")}[place], fails)
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", begins)
    with pytest.raises(OSError, match="No space left"):
        sweep(parameters=SEEDS, jobs=2 if place == "log" else 1)
    assert [child.poll() is None for child in children] == [False]


def test_a_signal_while_a_run_is_started_leaves_no_run_behind(sweep, program, tmp_path, monkeypatch):
    """It comes when the child lives and nobody holds it yet."""
    waits = "time.sleep(60)\n"
    program.write_text(program.read_text().replace("run.mkdir(parents=True)", waits + "run.mkdir(parents=True)"))
    children, started = [], subprocess.Popen

    def interrupted(*given, **named):
        children.append(started(*given, **named))
        os.kill(os.getpid(), signal.SIGTERM)
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    status, _ = sweep(parameters=SEEDS)
    assert status == "interrupted"
    assert [child.poll() is None for child in children] == [False]
    assert sum(starts(SweepFolder(tmp_path / "out")).values()) == 0


def test_how_many_lines_a_running_sweep_says_tells_no_more_of_its_time_than_the_end_does(tmp_path, monkeypatch):
    """A line every ten seconds counted the time of a private run, which is told rounded up."""
    now, console = [0.0], Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    work = runner._Work(sweep=None, options=SweepOptions(out=tmp_path), folder=None, lock=0, console=console)
    work.heart.clock = lambda: now[0]
    work.running = {"a": (None, SimpleNamespace(poll=lambda: None), 0.0)}
    for end in (1150.0, 1190.0):
        work.say("event")
        begun, said = now[0], []
        while now[0] - begun < end:
            before = len(console.file.getvalue())  # type: ignore[attr-defined]
            work._reap()
            if len(console.file.getvalue()) > before:  # type: ignore[attr-defined]
                said.append(now[0] - begun)
        assert said == pytest.approx([10, 20, 50, 100, 200, 500, 1000], abs=0.5)
    assert console.file.getvalue().count("running: a\n") == 14  # type: ignore[attr-defined]
