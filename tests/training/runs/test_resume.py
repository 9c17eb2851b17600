"""A run that is cut short anywhere goes on to the result of one that was not, and what was spent stays spent."""

import errno
import importlib
import io
import json
import math
import multiprocessing
import os
import shutil
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.ledger import read, read_content
from dpfedmeta.accounting.ledger.ledger_register import registered
from dpfedmeta.cli.commands import train_command as train
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files import run_directory
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training import loop
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state import recover
from dpfedmeta.training.state.checkpoint import contradicts
from dpfedmeta.training.state.resume import finished, reported, settings_of_run
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.verification.verify import audit, compose
from tests.seams.test_strangers import stripes_in

TINY = {
    "model.width": "4", "server.rounds": "6", "population.cohort": "6", "population.clients": "60", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "3", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "privacy.client.delta": "0.001", "clip.window": "2",
    "population.max_participations": "2", "record.client_ledgers": "true", "run.checkpoint_every": "2",
}  # fmt: skip
QUIET = Console(quiet=True)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def begin(task_file, folder, name="r", secure=False, told=(), **given):
    seed = {} if secure else {"run.noise_seed": "3"}
    values = {**TINY, **seed, "run.dir": str(folder), "run.name": name, **given}
    settings = resolve(values.pop("algo", "dp-agrlr-micro"), str(task_file), None, values)
    return run_training(settings, RunOptions(secure_rng=secure), told)


def resume(run, console=None, **given):
    return run_training(settings_of_run(run, given), RunOptions(resume=run), [Terminal(console)] if console else [])


def resume_changed(run, module):
    """Refused before anything is charged, unless it is allowed; then it is said which rounds are charged again."""
    lines = run.ledger.read_bytes()
    with pytest.raises(InputError, match=rf"{module}: not the code .* 2 rounds would be charged again.*--changed-code"):
        resume(run)
    assert run.ledger.read_bytes() == lines
    console = Console(record=True, width=300, file=io.StringIO())
    run_training(settings_of_run(run, {}), RunOptions(resume=run, changed_code=True), [Terminal(console)])
    said = console.export_text()
    assert f"{module}: not the code that this run was computed by so far; 2 rounds of those charged" in said
    assert "rounds 2 to 3, charged before the interruption, repeated: as new releases, and charged again" in said


def killed_in_round(monkeypatch, round_, action):
    """Run `action`; the process is killed while the clients of a round compute."""
    whole = LocalBackend.cohort_sum

    def cohort_sum(self, model, bound, cohort):
        if cohort.round == round_:
            raise Killed
        return whole(self, model, bound, cohort)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "cohort_sum", cohort_sum)
        with pytest.raises(Killed):
            action()


def results(run):
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "clients_per_second")} for row in run.rounds()]
    clients = {path.name: path.read_text() for path in (run.secret / "clients").glob("*")}
    summary = run.read_json("summary.json")
    return {
        "weights": run.weights.read_bytes(),
        "rows": rows,
        "events": read(run.ledger)[1],
        "participations": (run.secret / "participations.jsonl").read_text(),
        "clients": clients,
        "accuracy": summary["accuracy"],
        "guarantees": summary["guarantees"],
        "status": summary["status"],
    }


@pytest.fixture(scope="module")
def whole(tiny_task_file, tmp_path_factory):
    run, status = begin(tiny_task_file, tmp_path_factory.mktemp("whole"))
    assert status == "completed"
    return results(run)


def test_a_page_of_before_does_not_pass_for_that_of_the_end(tiny_task_file, tmp_path, monkeypatch):
    """Written while the clock was ahead; then the run is killed between its summary and its page."""
    run = halted(tiny_task_file, tmp_path, monkeypatch)
    page = run.path / "report.html"
    page.write_text("INTERRUPTED")
    os.utime(page, (4e9, 4e9))
    resume(run, **{"run.workers": "1"})
    assert finished(run) == "completed"
    assert not reported(run)


def halted(tiny_task_file, tmp_path, monkeypatch, round_=5, **given):
    killed_in_round(monkeypatch, round_, lambda: begin(tiny_task_file, tmp_path, **given))
    return RunDirectory(tmp_path / "r")


@pytest.mark.parametrize("round_", [0, 1, 4])
def test_a_killed_run_goes_on_to_the_identical_result(tiny_task_file, tmp_path, monkeypatch, whole, round_):
    run = halted(tiny_task_file, tmp_path, monkeypatch, round_)
    charged = read(run.ledger)[1]
    assert [event.round for event in charged] == list(range(round_ + 1))
    resume(run, **{"run.workers": "1"})
    assert results(run) == whole
    assert read(run.ledger)[1][: round_ + 1] == charged
    assert "summary.json agrees" in audit(run).remarks


@pytest.mark.parametrize("round_", [1, 4])
def test_what_a_clip_policy_remembers_of_releases_comes_back(tiny_task_file, tmp_path, monkeypatch, round_):
    given = {"algo": "dp-agr", "clip.policy": "window-products", "clip.window": "3"}
    begin(tiny_task_file, tmp_path, "whole", **given)
    run = halted(tiny_task_file, tmp_path, monkeypatch, round_, **given)
    resume(run, **{"run.workers": "1"})
    assert results(run) == results(RunDirectory(tmp_path / "whole"))


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_steps_by_singular_values_come_back_bit_by_bit(tiny_task_file, tmp_path, monkeypatch, workers):
    given = {"algo": "dp-agr", "server.optimizer": "muon"}
    begin(tiny_task_file, tmp_path, "whole", **given)
    run = halted(tiny_task_file, tmp_path, monkeypatch, 4, **given)
    resume(run, **{"run.workers": workers})
    assert results(run) == results(RunDirectory(tmp_path / "whole"))


def test_aborted_rounds_are_resumed_as_they_were(tiny_task_file, tmp_path, monkeypatch):
    """Which clients answer is drawn from the seed too, so that a round done again aborts again."""
    failing = {
        "server.abort_on_failure": "true", "population.dropout": "0.1", "run.checkpoint_every": "3", "algo": "dp-const",
        "population.sampler": "fixed", "population.max_participations": "null", "record.client_ledgers": "false",
        "server.noise_multiplier": "1",
    }  # fmt: skip
    run, _ = begin(tiny_task_file, tmp_path / "whole", **failing)
    aborted = [row["round"] for row in run.rounds() if row.get("aborted")]
    assert 0 < len(aborted) < 6
    computed = next(round_ for round_ in range(aborted[0], 6) if round_ not in aborted)
    cut = halted(tiny_task_file, tmp_path, monkeypatch, computed, **failing)
    resume(cut)
    assert results(cut) == results(run)
    assert [row["round"] for row in cut.rounds() if row.get("aborted")] == aborted


def test_a_killed_worker_ends_the_run_and_any_number_of_them_resumes_it(tiny_task_file, tmp_path, monkeypatch, whole):
    computed = LocalBackend.cohort_sum

    def cohort_sum(self, model, bound, cohort):
        if cohort.round == 4:
            for worker in multiprocessing.active_children():
                worker.kill()
        return computed(self, model, bound, cohort)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "cohort_sum", cohort_sum)
        with pytest.raises(RuntimeError, match="a worker process was killed"):
            begin(tiny_task_file, tmp_path, **{"run.workers": "2"})
    run = RunDirectory(tmp_path / "r")
    charged = read(run.ledger)[1]
    assert [event.round for event in charged] == [0, 1, 2, 3, 4]
    resume(run, **{"run.workers": "1"})
    assert results(run) == whole
    assert read(run.ledger)[1][:5] == charged


def test_a_resumed_run_can_be_killed_again_and_says_what_it_does(tiny_task_file, tmp_path, monkeypatch, whole):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 3)
    for _ in range(2):
        killed_in_round(monkeypatch, 3, lambda: resume(run))
    console = Console(record=True, width=300, file=io.StringIO())
    resume(run, console)
    said = console.export_text()
    assert "resuming at round 2 of 6; 4 charges are in the ledger" in said
    assert (
        "rounds 2 to 3, charged before the interruption, repeated: not charged again where the results are the same"
        in said
    )
    assert results(run) == whole
    assert finished(run) == "completed"


def test_ctrl_c_during_the_final_evaluation_keeps_a_summary(tiny_task_file, tmp_path, monkeypatch, whole):
    def interrupted(*words):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "final_accuracies", interrupted)
        run, status = begin(tiny_task_file, tmp_path)
    assert status == "interrupted"
    assert run.read_json("summary.json")["accuracy"] is None
    assert finished(run) is None
    _, status = resume(run)
    assert status == "completed"
    assert results(run) == whole
    assert finished(run) == "completed"


def test_what_resume_does_not_take_is_named(tmp_path):
    for words, named in (
        (["--algo", "maml"], "--algo"),
        (["--secure-rng"], "--secure-rng"),
        ([], "no such run directory"),
    ):
        with pytest.raises(InputError, match=named):
            train.main(["--resume", str(tmp_path / "absent"), *words], QUIET)


@pytest.mark.parametrize("option", ["--resume", "--extend"])
@pytest.mark.parametrize(
    "words",
    [
        ("--algo", "maml"), ("--dataset", "strokes"), ("--config", "c.yaml"), ("--dry-run",), ("--calibration", "3"),
        ("--secure-rng",), ("--candidate", "0" * 64),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_whoever_goes_on_with_a_run_gives_nothing_that_it_began_with(tmp_path, option, words):
    """Whatever cannot hold for the rounds before; a look alone (--dry-run) would be a training."""
    (tmp_path / "run").mkdir()
    told = f"{words[0]}: {option} goes on with the settings that the run began with; leave it out"
    with pytest.raises(InputError, match=f"^{told}$"):
        train.main([option, str(tmp_path / "run"), *words], QUIET)


def files_of(run):
    return sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())


def test_any_file_may_be_cut_anywhere(tiny_task_file, tmp_path, monkeypatch, whole):
    """Power-cut-like truncation: the identical result, or one line that says which file."""
    run = halted(tiny_task_file, tmp_path / "a", monkeypatch)
    files = files_of(run)
    assert {"ledger.jsonl", "rounds.jsonl", "config.yaml", "secret/participations.jsonl"} < set(files)
    outcomes = {}
    for number, name in enumerate(files):
        if name.startswith("secret/clients/") and number % 20:
            continue
        size = (run.path / name).stat().st_size
        # Of the ledger at both places; of the others anywhere, or just before their end.
        places = (number % 3 * size // 2, max(size - 1, 0))
        for cut in sorted(set(places if name == "ledger.jsonl" else places[number % 2 :][:1])):
            folder = tmp_path / f"{number}-{cut}"
            copy = RunDirectory(shutil.copytree(run.path, folder / "r"))
            monkeypatch.setenv("DPFEDMETA_STATE", str(folder / "state"))
            shutil.copytree(tmp_path / "state", folder / "state")
            os.truncate(copy.path / name, cut)
            try:
                resume(copy)
                outcomes[name, cut] = results(copy) == whole
            except InputError as error:
                outcomes[name, cut] = "refused" if name.rpartition("/")[2] in str(error) else str(error)
    assert {key: outcome for key, outcome in outcomes.items() if outcome not in (True, "refused")} == {}
    refused = {name for (name, _), outcome in outcomes.items() if outcome == "refused"}
    # What was on disk before the first round, or before what came after it, is not lost by a power cut.
    assert refused <= {"ledger.jsonl", "secret/noise_seed.json", "secret/data.json"}
    assert outcomes["ledger.jsonl", (run.ledger).stat().st_size - 1] is True


def test_a_stale_copy_is_refused_on_this_machine(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2)
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    killed_in_round(monkeypatch, 4, lambda: resume(run))
    with pytest.raises(InputError, match="stale copy"):
        resume(copy)


def test_a_ledger_that_lost_lines_is_refused(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch)
    lines = run.ledger.read_text().splitlines(keepends=True)
    run.ledger.write_text("".join(lines[:3]))
    with pytest.raises(InputError, match="stale copy, or lines are lost"):
        resume(run)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(InputError, match=r"participations|lines after"):
        resume(run)


def lines_left(*rounds):
    """A ledger that ends early: what its other files show has to refuse it."""
    return SimpleNamespace(charges=[SimpleNamespace(round=r) for r in rounds], heads=["plan", *map(str, rounds)])


@pytest.mark.parametrize(("released", "restorable", "lost"), [
    (2, False, False), (3, False, True), (3, True, False), (4, True, True),
])  # fmt: skip
@pytest.mark.parametrize("shown_by", ["rows", "checkpoint"])
def test_more_releases_than_charges_are_lost_lines(tmp_path, released, restorable, lost, shown_by):
    run, content = RunDirectory(tmp_path), lines_left(0, 1, 1)
    rows = [{"round": r} for r in range(released)] if shown_by == "rows" else []
    chosen = SimpleNamespace(state=SimpleNamespace(round=released)) if shown_by == "checkpoint" else None
    refused = pytest.raises(InputError, match="lines after 4 are lost") if lost else nullcontext()
    with refused:
        recover._check_released(run, content, rows, chosen, restorable=restorable)


@pytest.mark.parametrize(("lines", "head"), [(5, "4"), (4, "other"), (0, "plan")])
def test_a_checkpoint_that_the_ledger_does_not_know_is_not_gone_on_from(tmp_path, monkeypatch, lines, head):
    kept = {tmp_path / "b": SimpleNamespace(lines=lines, head=head), tmp_path / "a": SimpleNamespace(lines=3, head="1")}
    for checkpoint in kept.values():
        checkpoint.state = SimpleNamespace(round=2)
    monkeypatch.setattr(recover, "checkpoint_files", lambda folder: [(0, path) for path in kept])
    monkeypatch.setattr(recover, "load_checkpoint", lambda path, initial: kept[path])
    run, content = RunDirectory(tmp_path), lines_left(0, 1, 2)
    found, remarks = recover._latest(run, content, None, None, restorable=True)
    assert found is kept[tmp_path / "a"]
    assert "later than the ledger" in remarks[0]
    with pytest.raises(InputError, match="lacks lines from before b"):
        recover._latest(run, content, None, None, restorable=False)


@pytest.mark.parametrize("rounds", [(0, 0), (0, 2, 1), (-1,)])
def test_rows_are_in_the_order_of_their_rounds(tmp_path, rounds):
    run = RunDirectory(tmp_path)
    run.rounds_file.write_text("".join(json.dumps({"round": r}) + "\n" for r in rounds))
    with pytest.raises(InputError, match=f"line {len(rounds)}: is not the next round"):
        recover._rows(run)


def test_a_line_that_was_used_and_is_torn_is_not_drawn_anew(tiny_task_file, tmp_path, monkeypatch):
    """Its fresh bytes are gone: with other ones it would be a second release that is charged once."""
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2, **{"run.noise_seed": "null"})
    os.truncate(run.ledger, run.ledger.stat().st_size - 1)
    before = run.ledger.read_bytes()
    with pytest.raises(InputError, match="stale copy, or lines are lost"):
        resume(run)
    assert run.ledger.read_bytes() == before


def test_two_processes_cannot_write_one_run(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 1)
    with only_writer(run.path), pytest.raises(InputError, match="this process itself"), only_writer(run.path):
        pass
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    with registered(run), pytest.raises(InputError, match="this process itself"):
        resume(copy)


@pytest.mark.parametrize("round_", [0, 3])
def test_secure_rng_charges_again_and_keeps_cap_and_budget(tiny_task_file, tmp_path, monkeypatch, round_):
    run = halted(tiny_task_file, tmp_path, monkeypatch, round_, secure=True)
    _, status = resume(run)
    found = audit(run)
    assert status == "budget"  # a round was paid for twice
    assert [(e.round, e.attempt) for e in found.charges] == sorted(
        (r, a) for r in range(5) for a in range(1 + (r == round_))
    )
    assert [row["round"] for row in run.rounds()] == list(range(5))
    lines = [json.loads(line) for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [event.round for event in found.charges]
    assert max(Counter(c for line in lines for c in line["clients"]).values()) <= 2
    for spent, planned in zip(found.guarantees, run.read_json("summary.json")["planned"], strict=True):
        assert spent.epsilon <= planned["epsilon"]


OWN = """
from dataclasses import dataclass
from dpfedmeta.learning.algorithms.maml import Maml
from scaling_of_mine import SCALE


@dataclass(frozen=True, kw_only=True)
class Mine(Maml):
    def messages(self, context, episodes, bound, noises):
        for message in super().messages(context, episodes, bound, noises):
            yield {name: SCALE * value for name, value in message.items()}
"""


@pytest.mark.parametrize("edited", [False, True])
def test_code_of_the_users_own_is_an_input_of_a_round(tiny_task_file, tmp_path, monkeypatch, edited):
    """The module that a method imports is edited between a crash and the resume: never two sums with one noise."""
    (tmp_path / "method_of_mine.py").write_text(OWN)
    (tmp_path / "scaling_of_mine.py").write_text("SCALE = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"algo": "dp-agr", "meta.method": "method_of_mine:Mine", "record.client_ledgers": "false"}
    run = halted(tiny_task_file, tmp_path, monkeypatch, 3, **given)
    if edited:
        (tmp_path / "scaling_of_mine.py").write_text("SCALE = 0.5  # now\n")

    def forgotten():
        for name in ("method_of_mine", "scaling_of_mine"):
            sys.modules.pop(name)
        importlib.invalidate_caches()

    forgotten()
    if edited:
        resume_changed(run, "scaling_of_mine")
    else:
        resume(run)
    forgotten()
    charged = [(charge.round, charge.attempt) for charge in read(run.ledger)[1]]
    again = [(2, 1), (3, 1)] if edited else [(4, 0), (5, 0)]
    assert charged == [(0, 0), (1, 0), (2, 0), (3, 0), *again]


OWN_GRADIENT = """
from dataclasses import dataclass
from dpfedmeta.learning.algorithms.maml import Maml
from scaling_of_mine import SCALE


@dataclass(frozen=True, kw_only=True)
class Mine(Maml):
    def gradient(self, context, episode):
        return {name: SCALE * value for name, value in super().gradient(context, episode).items()}
"""


def test_a_file_that_a_learner_reads_stops_the_first_repeated_round_before_a_charge(
    tiny_task_file, tmp_path, monkeypatch
):
    """No digest of code sees it; that the round gives another result does."""
    (tmp_path / "method_of_mine.py").write_text(OWN_GRADIENT)
    reads = f"from pathlib import Path\nSCALE = float(Path({str(tmp_path / 'scale.txt')!r}).read_text())\n"
    (tmp_path / "scaling_of_mine.py").write_text(reads)
    (tmp_path / "scale.txt").write_text("1.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"algo": "dp-agr", "meta.method": "method_of_mine:Mine", "record.client_ledgers": "false"}
    run = halted(tiny_task_file, tmp_path, monkeypatch, 3, **given)
    (tmp_path / "scale.txt").write_text("-1.0")
    for name in ("method_of_mine", "scaling_of_mine"):
        sys.modules.pop(name)
    importlib.invalidate_caches()
    lines = run.ledger.read_bytes()
    with pytest.raises(
        InputError, match=r"round 2 gives another result than before, though no module .*--changed-code"
    ):
        resume(run)
    assert run.ledger.read_bytes() == lines
    console = Console(record=True, width=300, file=io.StringIO())
    run_training(settings_of_run(run, {}), RunOptions(resume=run, changed_code=True), [Terminal(console)])
    said = console.export_text()
    assert "round 2 gives another result than before, so it is a new release and charged again" in said
    charged = [(charge.round, charge.attempt) for charge in read(run.ledger)[1]]
    assert charged[:6] == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1)]
    left = 6 - run.read_json("summary.json")["rounds"]
    assert (f"ended {left} rounds early: the budget allows no further charge" in said) == bool(left)
    for name in ("method_of_mine", "scaling_of_mine"):
        sys.modules.pop(name)


READER = """
from tests.seams.own_reader import Stripes
from dpfedmeta.data.sources import Located
from shade_of_mine import shaded


class Mine(Stripes):
    @classmethod
    def locate(cls, task, splits, folder):
        located = super().locate(task, splits, folder)

        def contents():
            found = located.contents()
            return type(found)(classes=found.classes, decode=lambda: (shaded(images) for images in found.decode()))

        # Its author forgot that `shaded` decides too.
        return Located(key=located.key, contents=contents)
"""
SHADES = {
    "not edited": "def shaded(images):\n    return images\n",
    "edited": "def shaded(images):\n    return images + 0\n",
    "other images": "def shaded(images):\n    return 255 - images\n",
}


@pytest.mark.parametrize("edit", SHADES)
def test_code_of_a_reader_of_ones_own_is_an_input_of_a_round(tmp_path, monkeypatch, edit):
    """What a reader in a task file imports is edited between a crash and the resume."""
    (tmp_path / "reader_of_mine.py").write_text(READER)
    (tmp_path / "shade_of_mine.py").write_text(SHADES["not edited"])
    monkeypatch.syspath_prepend(str(tmp_path))
    source = {"reader": "reader_of_mine:Mine", "widths": 9}
    task = stripes_in(tmp_path, source=source)
    given = {"algo": "dp-agr", "record.client_ledgers": "false", "task.shots": "1", "task.queries": "1",
             "evaluation.queries": "1"}  # fmt: skip
    run = halted(task, tmp_path, monkeypatch, 3, **given)
    (tmp_path / "shade_of_mine.py").write_text(SHADES[edit])

    def forgotten():
        for name in ("reader_of_mine", "shade_of_mine"):
            sys.modules.pop(name)
        importlib.invalidate_caches()

    forgotten()
    lines = run.ledger.read_bytes()
    if edit == "other images":
        with pytest.raises(InputError, match="data"):
            resume(run)
        assert run.ledger.read_bytes() == lines
    else:
        if edit == "edited":
            resume_changed(run, "shade_of_mine")
        else:
            resume(run)
        charged = [(charge.round, charge.attempt) for charge in read(run.ledger)[1]]
        again = [(2, 1), (3, 1)] if edit == "edited" else [(4, 0), (5, 0)]
        assert charged == [(0, 0), (1, 0), (2, 0), (3, 0), *again]
    forgotten()


def test_in_another_environment_rounds_done_again_are_new_releases(tiny_task_file, tmp_path, monkeypatch, whole):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 3)
    first = {row["round"]: row["release"] for row in run.rounds()}
    monkeypatch.setattr(run_module, "environment_of", lambda *_: "another")
    killed_in_round(monkeypatch, 3, lambda: resume(run))
    assert [(e.round, e.attempt) for e in read(run.ledger)[1]] == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1)]
    again = {row["round"]: row["release"] for row in run.rounds()}
    assert again[1] == first[1]
    assert again[2] != first[2]
    # Done again in the environment of the latest attempts: identically, nothing is charged.
    _, status = resume(run)
    assert status == "budget"
    assert len(read(run.ledger)[1]) == 6
    audit(run)


def test_a_round_that_comes_out_otherwise_gets_noise_of_its_own(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 4, **{"run.checkpoint_every": "3"})
    rows = run.rounds()
    rows[3]["release"] = "0" * 16
    run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    resume(run)
    assert [(e.round, e.attempt) for e in read(run.ledger)[1]][:7] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (3, 1),
    ]  # fmt: skip
    audit(run)


def full_disk(monkeypatch, after, number=errno.ENOSPC):
    """From the n-th write on the disk is full: half a write may still get through."""
    done, honest = Counter(), os.write

    def write(handle, content):
        done["writes"] += 1
        if done["writes"] > after:
            if done["writes"] == after + 1 and len(content) > 4:
                honest(handle, content[: len(content) // 2])
            raise OSError(number, os.strerror(number))
        return honest(handle, content)

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("after", [0, 2, 11, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3, 5))])
def test_a_full_disk_loses_nothing(tiny_task_file, tmp_path, monkeypatch, whole, after):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 1)
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        with pytest.raises(OSError, match="No space left"):
            resume(run)
    resume(run)
    assert results(run) == whole


@pytest.mark.parametrize("which", [1, 3])
def test_weights_are_never_older_than_the_checkpoint(tiny_task_file, tmp_path, monkeypatch, whole, which):
    """The disk is full for one write only: the weights of the third or of the last checkpoint. The run goes on."""
    run, honest, written = halted(tiny_task_file, tmp_path, monkeypatch, 1), run_directory.save_weights, Counter()

    def save_weights(path, weights):
        written[path.name] += 1
        if path.name == "model.safetensors" and written[path.name] == which:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        honest(path, weights)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_weights", save_weights)
        with pytest.raises(OSError, match="No space left"):
            resume(run)
    resume(run)
    assert results(run) == whole
    assert not contradicts(run.path / "checkpoint", load_weights(run.weights))
    assert finished(run) == "completed"


def test_a_finished_run_whose_weights_are_of_another_round_is_mended(tiny_task_file, tmp_path, monkeypatch, whole):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 5)
    old = tmp_path / "old.safetensors"
    shutil.copy(run.weights, old)
    resume(run)
    shutil.copy(old, run.weights)
    assert finished(run) is None
    resume(run)
    assert results(run) == whole
    # Of a copy that has no checkpoint, or one that cannot be read, nobody can tell.
    max(run.path.glob("checkpoint/round-*")).write_bytes(b"cut by a crash")
    shutil.copy(old, run.weights)
    assert finished(run) == "completed"


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_disk_that_fills_while_a_checkpoint_is_written(tiny_task_file, tmp_path, monkeypatch, whole, which):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 3)
    before = sorted(path.name for path in (run.path / "checkpoint").iterdir())
    calls, honest = Counter(), os.fdopen

    def fdopen(*words):
        calls["opened"] += 1
        if calls["opened"] > which:
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(*words)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", fdopen)
        with pytest.raises(OSError, match="No space left"):
            resume(run)
    assert set(before) <= {path.name for path in (run.path / "checkpoint").iterdir()} | {"round-000002.safetensors"}
    resume(run)
    assert results(run) == whole


@pytest.mark.parametrize("given", [{"secure": True}, {"run.noise_seed": "null"}], ids=["secure", "drawn key"])
def test_copies_are_composed_or_exposed(tiny_task_file, tmp_path, monkeypatch, given):
    """What was drawn for one copy was not drawn for the other: two releases, and two charges."""
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2, **given)
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    resume(run)
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
    resume(copy)
    both, alone = compose([run, copy]), audit(run)
    # With a key, the last charge of both is one and the same release.
    assert len(both.charges) == 2 * len(alone.charges) - 3
    assert len(both.charges) == 3 + (len(alone.charges) - 3) + (len(audit(copy).charges) - 3)
    assert both.guarantees[0].epsilon > alone.guarantees[0].epsilon
    assert compose([run, run]).charges == alone.charges


def test_copies_count_participations_each_for_itself(tiny_task_file, tmp_path, monkeypatch):
    """A cap of 1 in each of two copies: the same client takes part in both."""
    # So many that two copies that draw anew share nobody with probability 1e-4.
    given = {"population.max_participations": "1", "population.clients": "80", "record.client_ledgers": "false"}
    given["population.cohort"] = "16"
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2, secure=True, **given)
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    resume(run)
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
    resume(copy)
    one, two = ((each.secret / "participations.jsonl").read_text().splitlines() for each in (run, copy))
    assert one[:3] == two[:3]
    counts = Counter(c for line in [*one, *two[3:]] for c in json.loads(line)["clients"])
    alone, together = audit(run), compose([run, copy])
    most = max(counts.values())
    assert most == 2
    layer = together.plan.record
    for found, times in ((alone, 1), (together, most)):
        server = gaussian_epsilon(math.sqrt(times) / layer.query_noise, together.plan.record_delta)
        assert found.guarantees[2].epsilon == pytest.approx(server)
        mu = 2.0 * layer.query_records / layer.query_noise
        whole = gaussian_epsilon(math.sqrt(times) * mu, together.plan.client_delta)
        assert found.guarantees[1].epsilon == pytest.approx(whole)
    assert together.guarantees[2].relations["in-place"] == pytest.approx(
        gaussian_epsilon(math.sqrt(2) * 2 / layer.query_noise, together.plan.record_delta)
    )
    mixtures = [found.guarantees[3].bounds[0].epsilon for found in (alone, together)]
    assert mixtures[1] > mixtures[0]
    assert any("taken part 2 times" in remark for remark in together.remarks)
    # Told twice, a run is one run.
    assert compose([run, run]).guarantees == alone.guarantees


def test_copies_that_shared_their_noise_are_exposed(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2)
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    identical = RunDirectory(shutil.copytree(run.path, tmp_path / "identical"))
    resume(run)
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
    resume(identical)
    assert compose([run, identical]).charges == audit(run).charges
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "a third machine"))
    monkeypatch.setattr(run_module, "environment_of", lambda *_: "another")
    resume(copy)
    with pytest.raises(InputError, match="the same noise in round"):
        compose([run, copy])


def test_other_data_and_other_settings_are_refused(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 1)
    with pytest.raises(InputError, match=r"server\.rounds: a run goes on with the settings it began with"):
        settings_of_run(run, {"server.rounds": "9"})
    (run.path / "config.yaml").write_text("algo: maml\n")
    assert settings_of_run(run, {}).algo == "dp-agrlr-micro"
    held = json.loads((run.secret / "data.json").read_text())
    (run.secret / "data.json").write_text(json.dumps({**held, "sha256": "0"}))
    with pytest.raises(InputError, match="training images"):
        resume(run)


def test_a_budget_that_was_spent_by_repeats_ends_the_run(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 1, secure=True)
    for _ in range(8):
        if len(read(run.ledger)[1]) < 6:
            killed_in_round(monkeypatch, 1, lambda: resume(run))
    _, status = resume(run)
    assert status == "budget"
    assert len(read(run.ledger)[1]) == 6
    assert [row["round"] for row in run.rounds()] == [0]


def test_the_ledger_names_its_run_and_config(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 0)
    identity = read_content(run.ledger).identity
    assert len(identity.run) == 32
    assert identity.config == (run.path / "config.yaml").read_text()
    assert str(json.loads((run.secret / "noise_seed.json").read_text())["seed"]) == "3"


def seed_file(run, **changes):
    """Rewrite the noise seed's file; None takes a key away."""
    path = run.secret / "noise_seed.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("generator", [None, "philox", "chacha20-blake2b-ziggurat-2", 7, ["philox"]])
def test_a_seed_that_another_generator_drew_from_is_refused(tiny_task_file, tmp_path, monkeypatch, generator):
    """None: runs from before the file named one drew from Philox."""
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2)
    # Drawn again by another generator they would be other clients, and the cap would count wrongly.
    (run.secret / "participations.jsonl").unlink()
    seed_file(run, generator=generator)
    files = files_of(run)
    before = {name: (run.path / name).read_bytes() for name in files}
    with pytest.raises(InputError, match=r"noise_seed\.json: noise and cohorts .* go on with the version") as refused:
        resume(run)
    assert "\n" not in str(refused.value)
    assert str(generator or "philox")[:10] in str(refused.value)
    assert {name: (run.path / name).read_bytes() for name in files_of(run)} == before


def test_a_finished_run_of_another_generator_is_still_verified_and_reported(tiny_task_file, tmp_path):
    run, _ = begin(tiny_task_file, tmp_path)
    seed_file(run, generator=None)
    assert finished(run) == "completed"
    assert "summary.json agrees" in audit(run).remarks
    assert write_report(run).exists()


def test_a_seed_that_cannot_be_one_is_refused(tiny_task_file, tmp_path, monkeypatch):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 1)
    seed_file(run, seed=-1)
    with pytest.raises(InputError, match=r"noise_seed\.json: does not hold a noise seed"):
        resume(run)


def test_rows_that_are_lost_before_a_checkpoint_are_made_again(tiny_task_file, tmp_path, monkeypatch, whole):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 5)
    assert (run.path / "checkpoint" / "round-000004.safetensors").exists()
    lines = run.rounds_file.read_text().splitlines(keepends=True)
    run.rounds_file.write_text("".join(lines[:2]))
    resume(run)
    assert results(run) == whole


@pytest.mark.parametrize("kept", [0, 1])
def test_lost_participants_of_a_secure_run_cannot_be_drawn_again(tiny_task_file, tmp_path, monkeypatch, kept):
    run = halted(tiny_task_file, tmp_path, monkeypatch, 2, secure=True)
    path = run.secret / "participations.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    with pytest.raises(InputError, match="cannot be drawn again"):
        resume(run)
