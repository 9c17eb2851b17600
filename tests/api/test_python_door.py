import inspect
import io
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dpfedmeta as dp
import dpfedmeta.accounting
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.verification.verify import audit

TINY = {
    "model.width": 4, "meta.steps": 1, "clip.window": 2, "population.clients": 40, "population.cohort": 6,
    "server.rounds": 4, "server.noise_multiplier": 2.0, "privacy.client.delta": 1e-3, "privacy.record.delta": 1e-3,
    "evaluation.every": 2, "evaluation.validation_episodes": 2, "evaluation.episodes": 2, "run.workers": 1,
    "run.noise_seed": 3, "task.ways": 3, "task.shots": 2, "task.queries": 2, "evaluation.queries": 2,
}  # fmt: skip


@pytest.fixture
def settings(tiny_task_file, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def made(name, algo="dp-agr", **short):
        values = {**TINY, "run.dir": tmp_path, "run.name": name}
        return dp.Settings.preset(algo, tiny_task_file, values, **short)

    return made


class Listens(dp.Callback):
    def __init__(self, fails=None):
        self.heard, self.fails = [], fails or (None, None)

    def _hear(self, event, said):
        self.heard.append((event, said))
        if self.fails == (event, len([name for name, _ in self.heard if name == event])):
            raise ZeroDivisionError("by zero")

    def on_plan(self, planned):
        self._hear("on_plan", planned)

    def on_start(self, path):
        self._hear("on_start", path)

    def on_round(self, row):
        self._hear("on_round", row)

    def on_end(self, summary):
        self._hear("on_end", summary)


@dataclass(frozen=True)
class State:
    bound: float
    mode: str = "following"


@dataclass(frozen=True)
class Shrinks:
    first: float = 0.4
    attachment: object = None

    def initial(self):
        return State(self.first)

    def next_bound(self, state, aggregate):
        return State(state.bound / 2), state.bound / 2


def left(run):
    """All that two runs with one seed have in common; a simulation tells its times."""
    rows = [{n: v for n, v in row.items() if n not in ("seconds", "clients_per_second")} for row in run.rounds]
    return rows, (run.path / "checkpoint" / "model.safetensors").read_bytes()


def test_a_run_from_the_first_line_to_a_model_of_ones_own(settings, capsys, tmp_path):
    listens = Listens()
    planned = dp.plan(settings("r"))
    run = dp.train(settings("r"), callbacks=[listens], quiet=True)
    assert capsys.readouterr() == ("", "")
    assert [event for event, _ in listens.heard] == ["on_plan", "on_start", *4 * ["on_round"], "on_end"]
    told = dict(listens.heard)
    assert replace(told["on_plan"], clients=None, minutes=None, clients_per_second=None) == planned
    assert told["on_start"] == run.path == tmp_path / "r"
    # What callbacks hear is what the run directory says, and nothing else.
    assert [said for event, said in listens.heard if event == "on_round"] == RunDirectory(run.path).rounds()
    assert json.loads(json.dumps(told["on_end"])) == run.summary
    assert (run.status, run.settings) == ("completed", resolve(None, None, run.path / "config.yaml"))
    assert run.planned == planned.guarantees
    assert run.guarantees.of("client", "public").epsilon <= planned.guarantees.of("client", "public").epsilon
    assert run.accuracy.mean == run.summary["accuracy"]["mean"]
    assert [row["round"] for row in run.rounds] == [0, 1, 2, 3]
    assert len({tuple(row) for row in run.rounds}) == 1
    assert [row["validation_accuracy"] is None for row in run.rounds] == [True, False, True, False]
    assert all(path.exists() for path in run.plots.values())
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8)
    labels = [0, 0, 1, 1, 2, 2]
    assert torch.equal(
        run.adapt(images, labels).predict(images), dp.load(run.path).adapt(images, labels).predict(images)
    )
    for shown in (run, run.rounds, run.guarantees, planned):
        assert "0x" not in repr(shown)
        assert max(map(len, repr(shown).splitlines())) < 340
    (evaluation,) = dp.evaluate(run, shots=1, episodes=2, fine_tuning=False, workers=1)
    assert capsys.readouterr() == ("", "")
    assert evaluation.results == json.loads((run.path / "evaluation.json").read_text())["results"]
    assert str(evaluation.accuracy) in repr(evaluation)


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({"accuracy": {"mean": 0.5, "ci95": 0.01, "episodes": 4}}, "accuracy 50.0% ± 1.0"),
        ({"accuracy": None, "error": {"mean": 0.512, "ci95": 0.01, "episodes": 4}}, "error 0.512 ± 0.01"),
        ({"accuracy": None}, ""),
    ],
)
def test_a_run_says_what_it_reached_whatever_it_predicts(summary, words, settings, monkeypatch, tmp_path):
    (tmp_path / "config.yaml").write_text("")
    run, said = dp.Run(tmp_path), {"algo": "maml", "dataset": "d", "rounds": 3, "status": "completed"}
    monkeypatch.setattr(dp.Run, "summary", said | summary)
    monkeypatch.setattr("dpfedmeta.api.run.read_run", lambda directory: SimpleNamespace(words=None))
    found = run.accuracy
    assert ("" if found is None else f"{found.score} {found}") == words
    assert run._words() == "maml on d, 3 rounds, completed" + (f", {words}" if words else "")


def test_without_pandas_a_frame_says_what_is_missing(monkeypatch):
    from dpfedmeta.api.run import Rounds

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(dp.InputError, match="pip install pandas"):
        Rounds().frame()


def test_where_nobody_looks_the_lines_of_a_terminal_are_printed(settings, monkeypatch):
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    dp.train(settings("r"))
    printed = out.getvalue()
    assert printed.count("validation") == 2
    for words in ("dp-agr on tiny", "What is promised, before round 0", "What was spent", "all files are in"):
        assert words in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_callback_that_raises_ends_the_run_cleanly_and_it_goes_on_as_if_nothing_had_been(settings, number):
    whole = dp.train(settings("whole"), quiet=True)
    after = Listens()
    with pytest.raises(
        dp.CallbackFailed, match=r"callback Listens\.on_round raised ZeroDivisionError: by zero;"
    ) as caught:
        dp.train(settings("cut"), callbacks=[Listens(fails=("on_round", number)), after], quiet=True)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    # The others hear of that round, and of the end.
    assert [event for event, _ in after.heard][-2:] == ["on_round", "on_end"]
    cut = dp.Run(whole.path.parent / "cut")
    assert f"ended cleanly after {counted_words(number, 'round')};" in str(caught.value)
    assert (cut.status, cut.summary["rounds"], cut.accuracy) == ("interrupted", number, None)
    # Between the first line and the one that closes it.
    assert len(cut.rounds) == number == len((cut.path / "ledger.jsonl").read_text().splitlines()) - 2
    assert dp.train(resume=cut, quiet=True).status == "completed"
    assert left(cut) == left(whole)
    assert cut.guarantees == whole.guarantees


def test_one_that_raises_at_the_end_or_before_the_beginning(settings):
    with pytest.raises(dp.CallbackFailed, match="on_plan"):
        dp.train(settings("r"), callbacks=[Listens(fails=("on_plan", 1))], quiet=True)
    with pytest.raises(dp.InputError, match="is this the directory of a run"):
        dp.Run(settings("r").run.dir + "/r")
    with pytest.raises(dp.CallbackFailed, match=r"on_end raised .*; the run itself is complete"):
        dp.train(settings("r"), callbacks=[Listens(fails=("on_end", 1))], quiet=True)
    assert dp.Run(settings("r").run.dir + "/r").status == "completed"


def test_a_clip_policy_of_ones_own_and_how_it_goes_on(settings, monkeypatch, capsys):
    run = dp.train(settings("own"), clip_policy=Shrinks(), quiet=True)
    assert [row["clip"] for row in run.rounds] == [0.4, 0.2, 0.1, 0.05]
    assert run.settings.clip.policy == "own"
    assert audit(RunDirectory(run.path)).proven is not None
    with pytest.raises(dp.CallbackFailed):
        dp.train(settings("cut"), clip_policy=Shrinks(), callbacks=[Listens(fails=("on_round", 2))], quiet=True)
    cut = dp.Run(run.path.parent / "cut")
    for given, said in ((None, "none was handed over"), (Shrinks(first=0.3), "first=0.3.* was handed over")):
        with pytest.raises(dp.InputError, match=said):
            dp.train(resume=cut, clip_policy=given, quiet=True)
    dp.train(settings("cut"), resume=cut.path, clip_policy=Shrinks(), quiet=True)
    assert left(cut) == left(run)
    with pytest.raises(dp.InputError, match=r"clip\.policy = own"):
        dp.train(replace(run.settings, run=settings("new").run), quiet=True)


def test_going_on_with_a_run(settings, capsys):
    with pytest.raises(dp.CallbackFailed):
        dp.train(settings("r"), callbacks=[Listens(fails=("on_round", 2))], quiet=True)
    path = settings("r").run.dir + "/r"
    with pytest.raises(dp.InputError, match=r"began with server\.rounds = 4, but 5 is given"):
        other = replace(settings("r").server, rounds=5)
        dp.train(replace(settings("r"), server=other), resume=path)
    with pytest.raises(dp.InputError, match=r"began with clip\.policy = window; resume it without"):
        dp.train(resume=path, clip_policy=Shrinks(), quiet=True)
    with pytest.raises(dp.InputError, match="no such run directory"):
        dp.train(resume=path + "x", quiet=True)
    assert dp.train(settings("r"), resume=path, quiet=True).status == "completed"
    capsys.readouterr()
    dp.train(resume=path)
    assert "completed already" in capsys.readouterr().out


def test_ctrl_c_in_a_cell_gives_back_the_run(settings, monkeypatch):
    computed = LocalBackend.cohort_sum

    def interrupted(self, model, bound, cohort):
        if cohort.round == 2:
            raise KeyboardInterrupt
        return computed(self, model, bound, cohort)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "cohort_sum", interrupted)
        run = dp.train(settings("r"), quiet=True)
    assert (run.status, len(run.rounds)) == ("interrupted", 2)
    assert dp.train(resume=run, quiet=True).status == "completed"


def test_clients_of_ones_own(settings, tiny_strokes):
    shape = EpisodeShape(ways=3, shots=2, queries=2)
    own = VirtualPopulation(pool=tiny_strokes.train, shape=shape, clients=40, seed=5)
    listens = Listens()
    dp.train(settings("r"), population=own, callbacks=[listens], quiet=True)
    assert "40 simulated clients" in dict(listens.heard)["on_plan"].clients


@pytest.mark.parametrize("given", [None, {"algo": "dp-agr"}, "dp-agr"])
def test_what_are_no_settings(given):
    for call in (dp.plan, dp.train):
        with pytest.raises(dp.InputError, match=r"Settings\.preset"):
            call(given)


def test_all_names_of_the_doors_are_there():
    for door in (dp, dpfedmeta.accounting):
        for name in door.__all__:
            assert getattr(door, name) is not None
    assert set(dp.__all__) <= set(dir(dp))
    with pytest.raises(AttributeError, match="trian"):
        _ = dp.trian


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dp.evaluate("x", shots="five"), "shots = 'five': expected whole numbers"),
        (lambda: dp.evaluate("x", shots=5.5), "shots = 5.5: expected whole numbers"),
        (lambda: dp.evaluate("x", ways=[2, "a"]), "ways = 'a': expected whole numbers"),
        (lambda: dp.evaluate("x", steps=True), "steps = True: expected whole numbers"),
        (lambda: dp.evaluate("x", seeds=0.5), "seeds = 0.5: expected whole numbers"),
        (lambda: dp.evaluate("x", episodes="many"), "episodes = 'many': expected whole numbers"),
        (lambda: dp.evaluate("x", workers="two"), "workers = 'two': expected whole numbers"),
        (lambda: dp.evaluate(3), "runs: expected runs or their paths, got 3"),
        (lambda: dp.evaluate(["x", 3]), "runs: expected runs or their paths, got 3"),
        (lambda: dp.evaluate("nowhere-at-all"), "nowhere-at-all: is this the directory of a run"),
        (lambda: dp.evaluate(Path("nowhere-at-all")), "nowhere-at-all: is this the directory of a run"),
        (lambda: dp.evaluate(["nowhere-at-all", "x"]), "nowhere-at-all: is this the directory of a run"),
        (lambda: dp.train(dp.Settings.preset("dp-agr", "strokes"), workers=3), "put run.workers into the settings"),
    ],
)
def test_arguments_of_another_type_are_one_line(call, said):
    with pytest.raises(InputError, match=re.escape(said)):
        call()


def options_of(function):
    return {name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY}


def test_every_option_of_an_audit_is_asked_for(monkeypatch):
    given = {
        "audits": ("one-run",), "runs": 4321, "canaries": 777, "confidence": 0.9, "units": ("record",),
        "observers": ("public",), "as_planned": True, "whole": True, "seed": 12, "expected": True,
    }  # fmt: skip
    asked = {}
    monkeypatch.setattr(
        "dpfedmeta.api.audit.made", lambda request, *more, expected: asked.update(vars(request), expected=expected)
    )
    dp.audit(dp.Settings.preset("dp-agr", "strokes"), {"server.rounds": 3}, **given)
    assert {name: asked[name] for name in given} == given
    assert asked["given"] == {"server.rounds": "3"}
    assert options_of(dp.audit) == given.keys()


def test_every_option_of_an_evaluation_is_asked_for(monkeypatch, tmp_path):
    given = {
        "shots": 3, "ways": 4, "steps": (5, 6), "seeds": (7,), "episodes": 77, "transductive": True,
        "fine_tuning": False, "out": tmp_path / "out", "data_folder": tmp_path, "workers": 2,
    }  # fmt: skip
    asked = []
    monkeypatch.setattr("dpfedmeta.api.evaluate.evaluations", lambda request: asked.append(vars(request)) or iter(()))
    monkeypatch.setattr("dpfedmeta.api.evaluate.comparison", lambda *given: None)
    dp.evaluate("a run", **given)
    due = {name: (value,) if name in ("shots", "ways") else value for name, value in given.items()}
    assert {name: asked[0][name] for name in given} == due
    assert options_of(dp.evaluate) == given.keys()
