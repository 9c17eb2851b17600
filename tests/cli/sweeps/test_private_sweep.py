"""A private sweep: what is drawn, what stays secret, and that only the best of all runs is released, at its price."""

import io
import json
import math
import os
import secrets
import shutil
import sys

import pytest
from rich.console import Console

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.private_selection import RunCount
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.sweeps import private_sweep
from dpfedmeta.cli.sweeps.private_sweep import check_private, price_lines, run_private
from dpfedmeta.cli.sweeps.runner import prepare, run_sweep
from dpfedmeta.cli.sweeps.sweep_file import read_sweep
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder, SweepOptions
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import SELECTION
from dpfedmeta.training.verification.chosen_run import mark_of
from tests.cli.sweeps.conftest import SMALL
from tests.conftest import dpfedmeta

GRID = {
    "algo": {"value": "dp-agr"},
    "dataset": {"value": "strokes"},
    "clip.window": {"values": [2, 8]},
    "run.seed": {"values": [0, 1]},
}
COUNT = RunCount(mean=3.0, eta=1.0)


def released(sweep, options, count):
    """A private sweep whose chosen run gets a page."""
    return run_private(sweep, options, count, lambda run: (run.path / "page").write_text(run.path.parent.name))


@pytest.fixture
def searched(sweep_file, program, tmp_path):
    def run(action=released, count=COUNT, *, fixed=None, jobs=1, out="out", **changes):
        options = SweepOptions(
            out=tmp_path / out, train=(sys.executable, str(program)), jobs=jobs, fixed=SMALL | (fixed or {})
        )
        command = ["${env}", "${interpreter}", "${program}", "${args}"]
        sweep = read_sweep(sweep_file(**{"parameters": GRID, "command": command, **changes}))
        return action(sweep, options, count)

    return run


@pytest.fixture
def drawn(monkeypatch):
    """The operating system's bytes, chosen: K by the first number, then places."""

    def choose(uniform, places):
        left = list(places)
        monkeypatch.setattr(secrets, "randbits", lambda bits: int(uniform * 2**bits))
        monkeypatch.setattr(secrets, "randbelow", lambda below: left.pop(0))

    return choose


def test_the_best_of_the_drawn_runs_is_released_with_its_price_and_the_others_stay(searched, drawn, tmp_path):
    drawn(0.6, [0, 2, 2])  # window 2, then window 8 twice
    best, cost = searched()
    assert best.path == tmp_path / "out/best"
    content = json.loads((best.path / SELECTION).read_text())
    assert content["epsilon"] == cost.epsilon > cost.single
    assert len(content["plans"]) == 1  # windows and seeds cost nothing
    summary = best.read_json("summary.json")
    stated = [cell["epsilon"] for key in ("guarantees", "planned") for cell in summary[key]]
    assert stated == [cost.epsilon, None, None, None] * 2
    assert rounded_up(cost.epsilon, 4) in summary["chosen"]
    assert best.rounds()[-1]["validation_accuracy"]["mean"] == pytest.approx(0.55)
    assert [path.parent for path in (tmp_path / "out").rglob("page")] == [best.path]
    hidden = tmp_path / "out/secret"
    assert hidden.stat().st_mode & 0o777 == 0o700
    assert len(list((hidden / "runs").iterdir())) == 2
    # The same setting twice is two runs.
    assert len(json.loads((hidden / "drawn.json").read_text())) == 3
    # Asked again, the same is there and nothing is run.
    assert searched()[0].path == best.path
    assert len(list((hidden / "logs").iterdir())) == 3


def marks_of(folder):
    return [read_content(path / "ledger.jsonl").identity.candidate for path in sorted(folder.glob("runs/*"))]


def test_the_ledger_of_each_run_names_the_search_and_its_price(searched, drawn, tmp_path):
    drawn(0.6, [0, 2, 2])
    best, _ = searched()
    mark = mark_of(best.read_json(SELECTION))
    assert read_content(best.ledger).identity.candidate == mark
    assert marks_of(tmp_path / "out/secret") == [mark] * 2
    assert mark_of(searched(check_private, RunCount(mean=4.0, eta=1.0)).selection) != mark
    # Lost and asked for again, it is what the ledger names.
    (best.path / SELECTION).unlink()
    assert mark_of(searched()[0].read_json(SELECTION)) == mark


@pytest.mark.parametrize("candidate", ["", "0" * 64])
def test_a_run_that_is_no_candidate_of_this_search_is_done_again(searched, drawn, tmp_path, program, candidate):
    drawn(0.6, [0, 2, 1])
    quick = program.read_text()
    program.write_text(quick.replace('options["candidate"]', f'"{candidate}"'))
    with pytest.raises(InputError, match="a run failed, so nothing is released"):
        searched()
    assert not (tmp_path / "out/best").exists()
    program.write_text(quick)
    best, _ = searched()
    assert mark_of(best.read_json(SELECTION)) == read_content(best.ledger).identity.candidate
    assert len(list((tmp_path / "out/secret/set-aside").iterdir())) == 1


def test_nothing_outside_tells_how_many_runs_there_were_or_when(searched, drawn, tmp_path):
    told = []
    for out, uniform, places in (("one", 0.0, [3]), ("many", 0.8, [3, 0, 0, 0])):
        drawn(uniform, places)
        best, _ = searched(out=out)
        public = sorted(path for path in (tmp_path / out).rglob("*") if "secret" not in path.parts and path.is_file())
        told.append([(path.relative_to(tmp_path / out), path.read_bytes()) for path in public])
        times = {path.stat().st_mtime for path in best.path.rglob("*")}
        assert max(times) - min(times) < 5.0
        assert len(best.path.name) == 4
    assert told[0] == told[1]


def test_files_of_the_chosen_run_are_as_old_as_its_release(searched, drawn, monkeypatch):
    """When they were written would tell which of the runs it was, and so how many came after it."""
    score = private_sweep._score

    def long_ago(run):
        for path in (run.path, *run.path.rglob("*")):
            os.utime(path, (10**9, 10**9))
        return score(run)

    monkeypatch.setattr(private_sweep, "_score", long_ago)
    drawn(0.8, [3, 0, 0, 0])
    best, _ = searched()
    assert min(path.stat().st_mtime for path in (best.path, *best.path.rglob("*"))) > 1.1 * 10**9


def test_a_search_that_was_cut_off_goes_on_with_what_was_drawn(searched, drawn, tmp_path, program):
    drawn(0.6, [0, 2, 1])
    quick = program.read_text()
    fails = "run.mkdir(parents=True)\nif options['run.seed'] == '1': sys.exit(1)"
    program.write_text(quick.replace("run.mkdir(parents=True)", fails))
    with pytest.raises(InputError, match="a run failed, so nothing is released"):
        searched()
    assert not (tmp_path / "out/best").exists()
    before = (tmp_path / "out/secret/drawn.json").read_bytes()
    program.write_text(quick)
    # Other bytes would draw one run.
    drawn(0.0, [0])
    searched()
    assert (tmp_path / "out/secret/drawn.json").read_bytes() == before
    assert len(list((tmp_path / "out/secret/set-aside").iterdir())) == 1
    with pytest.raises(InputError, match="a private sweep with other numbers"):
        searched(count=RunCount(mean=4.0, eta=1.0))


def test_a_damaged_draw_is_not_drawn_again(searched, drawn, tmp_path):
    drawn(0.6, [0, 2, 1])
    searched()
    (tmp_path / "out/best/selection.json").unlink()
    (tmp_path / "out/best").rename(tmp_path / "elsewhere")
    (tmp_path / "out/released.json").unlink()
    (tmp_path / "out/secret/drawn.json").write_text("[]")
    with pytest.raises(InputError, match=r"drawn.json: damaged"):
        searched()


def test_a_cap_bounds_the_runs_and_is_paid_for(searched, drawn, tmp_path):
    drawn(1 - 2**-53, [0] * 200)
    count = RunCount(mean=3.0, eta=1.0, cap=60)
    plan = searched(check_private, count)
    assert plan.cost.beyond > 0
    assert plan.cost.epsilon > searched(check_private, COUNT).cost.epsilon
    folder = tmp_path / "hidden"
    folder.mkdir()
    assert len(private_sweep._drawn(folder, plan)) == 60


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "random", "run_cap": 5}, "with replacement from a list that is fixed"),
        ({"jobs": 2}, "one at a time"),
        ({"fixed": {"run.noise_seed": "3"}}, "every run would have the same noise"),
        ({"fixed": {"track.to": "tensorboard"}}, "a tracker would tell of runs"),
        ({"fixed": {"track.tensorboard": "true"}}, "a tracker would tell of runs"),
        ({"fixed": {"population.cohort": "50", "population.sampler": "check-ins"}}, "."),
        ({"fixed": {"server.noise": "toeplitz"}}, "."),
    ],
)
def test_what_has_no_price_or_would_tell_is_refused_before_the_first_draw(searched, tmp_path, changes, words):
    with pytest.raises((InputError, RefusedPlan), match=words):
        searched(**changes)
    assert not (tmp_path / "out").exists()


def test_the_price_is_said_before_the_first_run(searched):
    cost = searched(check_private).cost
    words = "\n".join(price_lines(cost))
    assert rounded_up(cost.epsilon, 4) in words
    assert "4 settings; 3 runs in expectation" in words
    assert "all runs compose" in words
    assert math.isfinite(cost.epsilon)


def test_a_crash_before_the_release_leaves_nothing_that_looks_like_an_ordinary_run(
    searched, drawn, tmp_path, monkeypatch
):
    drawn(0.6, [0, 2, 1])

    def crash(self, target):
        assert json.loads((self / SELECTION).read_text())["epsilon"] > 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(tmp_path), "rename", crash)
        searched()
    assert not (tmp_path / "out/best").exists()
    (tmp_path / "out/secret").chmod(0o755)
    assert (searched()[0].path / SELECTION).exists()
    assert (tmp_path / "out/secret").stat().st_mode & 0o777 == 0o700


def test_the_day_of_a_run_does_not_leave_with_it(searched, drawn, program):
    program.write_text(
        program.read_text().replace('"seconds": 60.0}', '"seconds": 60.0, "made_by": {"day": "D", "cores": 2}}')
    )
    drawn(0.0, [0])
    assert searched()[0].read_json("summary.json")["made_by"] == {"cores": 2}


def test_the_tuning_cost_of_a_private_sweep_is_its_price(searched, drawn, tmp_path):
    drawn(0.0, [0])
    _, cost = searched()
    assert private_sweep.private_cost(tmp_path / "out") == cost
    shown = dpfedmeta("sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), "--count-tuning").out
    assert f"{cost.mean:g} runs in expectation" in shown
    assert f"epsilon = {rounded_up(cost.epsilon, 4)} of the chosen run" in shown
    assert private_sweep.private_cost(tmp_path) is None
    (tmp_path / "out/private-sweep.json").write_text("{}")
    with pytest.raises(InputError, match=r"private-sweep.json: damaged"):
        private_sweep.private_cost(tmp_path / "out")


@pytest.fixture
def named(program):
    """Runs whose ledgers tell them apart, as those of `dpfedmeta train` do."""
    told = 'body["identity"]["candidate"] = options["candidate"]'
    named = told + '\n    body["identity"]["run"] = options["run.name"]'
    program.write_text(program.read_text().replace(told, named))


@pytest.mark.parametrize("also", ["", "secret", "secret/runs", "drawn"])
def test_a_folder_releases_one_run_whatever_becomes_of_it(searched, drawn, named, tmp_path, also):
    drawn(0.6, [0, 2, 1])
    best, cost = searched()
    first, out = read_content(best.ledger).identity.run, tmp_path / "out"
    assert json.loads((out / "released.json").read_text())["run"] == first
    best.path.rename(tmp_path / "first")
    if also == "drawn":
        (out / "secret/drawn.json").unlink()
    elif also:
        shutil.rmtree(out / also)
    drawn(0.6, [3, 3, 3])
    with pytest.raises(InputError, match=rf"its best was released \(run {first}\) and is no longer .*Put it back as"):
        searched()
    assert not best.path.exists()
    (tmp_path / "first").rename(best.path)
    assert searched() == (best, cost)


def test_another_run_in_the_place_of_the_released_one_is_told(searched, drawn, named, tmp_path):
    drawn(0.6, [0, 2, 1])
    best, _ = searched()
    best.path.rename(tmp_path / "first")
    other = next((tmp_path / "out/secret/runs").iterdir())
    shutil.copytree(other, best.path)
    with pytest.raises(InputError, match=rf"names run .*, and {best.path} is another one; put the released run back"):
        searched()


def test_a_crash_between_the_mark_and_the_release_releases_the_run_of_the_mark(
    searched, drawn, named, tmp_path, monkeypatch
):
    """The mark comes first: what was shown is never another one."""
    drawn(0.6, [0, 2, 1])
    marks = []

    def crash(self, target):
        marks.append(json.loads((tmp_path / "out/released.json").read_text()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(tmp_path), "rename", crash)
        searched()
    # Judged anew it would be another one.
    monkeypatch.setattr(private_sweep, "_score", lambda run: float(run.path.name != marks[0]["run"]))
    best, _ = searched()
    content = read_content(best.ledger)
    assert marks == [{"candidate": content.identity.candidate, "run": content.identity.run, "head": content.heads[-1]}]
    assert [path.parent for path in (tmp_path / "out").rglob("page")] == [best.path]


def test_a_release_whose_note_is_lost_is_noted_again_and_stays(searched, drawn, named, tmp_path):
    drawn(0.0, [3])
    best, cost = searched()
    mark = (tmp_path / "out/released.json").read_text()
    (tmp_path / "out/released.json").unlink()
    (best.path / SELECTION).unlink()
    assert searched() == (best, cost)
    assert (tmp_path / "out/released.json").read_text() == mark
    assert (best.path / SELECTION).exists()


def ordinary(sweep, options, count):
    return prepare(sweep, options)


def test_a_private_sweep_and_an_ordinary_one_refuse_each_others_folder(searched, drawn, sweep_file, tmp_path):
    """The ordinary one shows every run, and the private one's price is that of one run shown."""
    drawn(0.0, [0])
    searched()
    with pytest.raises(InputError, match=r"out: holds a private sweep.*choose another folder for the ordinary one"):
        searched(ordinary)
    with pytest.raises(InputError, match="holds a private sweep"):
        searched(lambda sweep, options, count: run_sweep(sweep, options, Console(file=io.StringIO())))
    assert not list((tmp_path / "out/runs").iterdir())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/sweep.json").write_bytes((tmp_path / "out/sweep.json").read_bytes())
    folder, (_, (trial, *_), _) = SweepFolder(tmp_path / "other"), searched(ordinary, out="other")
    # A start that ended before its run began showed nothing.
    for began in (True, False):
        folder.note(trial, began=began)
    searched(check_private, out="other")
    folder.note(trial)
    with pytest.raises(InputError, match=r"other: holds an ordinary sweep.*choose another folder for the private one"):
        searched(check_private, out="other")
    with pytest.raises(InputError, match="holds an ordinary sweep"):
        searched(out="other")
    searched(ordinary, out="other")
