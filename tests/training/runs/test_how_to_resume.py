import fcntl
import json
import os
import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.config.settings import setting_fields, value_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory, save_weights
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population_statement import asked_statement, population_statement
from dpfedmeta.training.state import resume
from dpfedmeta.training.state.how_to_resume import check_simulated, how_to_go_on, kind_of_clients, repeated
from dpfedmeta.training.state.resume import begun_by, keep_launch

SHAPE = EpisodeShape(ways=2, shots=1, queries=1)
COMMAND = "dpfedmeta train --algo maml --dataset strokes"


def run_of(folder, kind):
    path = folder / "heart"
    path.mkdir()
    if kind is not None:
        described = {"population": {"kind": kind}}
        (path / "ledger.jsonl").write_text(json.dumps({"identity": {"described": described}}))
    return RunDirectory(path)


def test_a_federation_goes_on_by_its_server(tmp_path):
    run = run_of(tmp_path, asked_statement(8).kind)
    assert "federate server ... --run.name heart" in how_to_go_on(run)
    assert "--resume" not in how_to_go_on(run)
    with pytest.raises(InputError, match=r"belongs to a federation.*federate server"):
        check_simulated(run)
    words, left_open = repeated(kind_of_clients(run), COMMAND)
    assert words.startswith("dpfedmeta federate server --keys KEYS --roster ROSTER --algo maml")
    assert "KEYS" in left_open


def test_clients_of_the_callers_own_are_handed_over_again(tmp_path):
    run = run_of(tmp_path, population_statement(from_pairs([], SHAPE)).kind)
    check_simulated(run)
    assert "population=..." in how_to_go_on(run)
    assert repeated(kind_of_clients(run), COMMAND)[0] == COMMAND
    assert "population=..." in repeated(kind_of_clients(run), COMMAND)[1]


@pytest.mark.parametrize("kind", ["virtual", "shards", None])
def test_simulated_clients_go_on_by_train(tmp_path, kind):
    run = run_of(tmp_path, kind)
    check_simulated(run)
    assert how_to_go_on(run) == f"dpfedmeta train --resume {run.path}"
    assert repeated(kind_of_clients(run), COMMAND) == (COMMAND, "")


def test_no_statement_says_which_unit_is_protected():
    """That is what the cells are for; a plan of silos protects records, and said that the unit is the client."""
    for statement in (asked_statement(8), population_statement(from_pairs([], SHAPE))):
        assert "unit" not in statement.text


def test_a_run_is_found_again_by_the_launch_that_began_it_and_by_no_other(tmp_path):
    run, mark = run_of(tmp_path, None), {"launch": "a", "words": ["--algo", "maml"]}
    assert not begun_by(run.path, mark)
    keep_launch(run, None)
    assert not begun_by(run.path, mark)
    keep_launch(run, mark)
    assert begun_by(run.path, mark)
    for name, other in (("launch", "b"), ("words", ["--algo", "dp-agr"])):
        assert not begun_by(run.path, mark | {name: other})


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize("ended", [None, "completed", "budget"])
@pytest.mark.parametrize("has_page", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_a_run_that_has_ended_gets_the_page_that_it_lacks_and_any_other_goes_on(
    monkeypatch, tmp_path, extend, ended, has_page, writes
):
    run, told, drawn = RunDirectory(tmp_path), [], []
    monkeypatch.setattr(resume, "finished", lambda run: ended)
    monkeypatch.setattr(resume, "reported", lambda run: has_page)
    settings: Any = "settings"
    trains: Any = lambda settings: (settings, "trained")  # noqa: E731
    given = {"extend": extend, "told": told.append, "page": drawn.append if writes else None}
    found = resume.go_on(run, lambda: settings, trains, **given)
    if extend or ended is None:
        assert (found, told, drawn) == (("settings", "trained"), [], [])
        return
    lacks = writes and not has_page
    assert found == (run, ended)
    assert told == [f"{tmp_path}: {ended} already; {'only its report' if lacks else 'nothing'} is left to do"]
    assert drawn == ([run] if lacks else [])


@pytest.mark.parametrize("status", ["completed", "budget", "interrupted", None])
@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("weights", [False, True])
def test_nothing_is_left_to_do_of_a_run_that_ended_with_all_its_rounds_and_weights(
    monkeypatch, tmp_path, status, rounds, weights
):
    """A budget may end a run before its rounds; one that was extended since has more of them."""
    run = RunDirectory(tmp_path)
    run.weights.parent.mkdir()
    monkeypatch.setattr(resume, "read_content", lambda *given, **named: SimpleNamespace(plan=SimpleNamespace(rounds=5)))
    assert resume.finished(run) is None
    run.write_json("summary.json", {"status": status, "rounds": rounds})
    if weights:
        monkeypatch.setattr(resume, "load_weights", lambda path: {})
    ended = weights and (status == "budget" or (status == "completed" and rounds == 5))
    assert resume.finished(run) == (status if ended else None)


@pytest.mark.parametrize(("page", "summary", "due"), [
    (5, 4, True), (5, 5, True), (4, 5, False), (None, 5, False), (5, None, False),
])  # fmt: skip
def test_a_page_is_that_of_the_end_where_it_is_no_older_than_the_summary(tmp_path, page, summary, due):
    for name, when in (("report.html", page), ("summary.json", summary)):
        if when is not None:
            (tmp_path / name).write_text("")
            os.utime(tmp_path / name, ns=(when, when))
    assert resume.reported(RunDirectory(tmp_path)) == due


ALONE = {"run.workers", "run.device", "run.chunk"}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_any_setting_but_those_of_the_machine_that_differs_ends_a_resume(tmp_path, place):
    """Whichever of them it is, and whatever else is the same."""
    run, names = RunDirectory(tmp_path), [name for name, _, _ in setting_fields()]
    kept = resolve("dp-agr", "strokes")
    assert set(names) >= ALONE == {*resume.MAY_CHANGE}
    others = [name for name in names if name not in ALONE and isinstance(value_of(kept, name), int | float)]
    name = {"first": others[0], "middle": others[len(others) // 2], "last": others[-1]}[place]
    section, field = name.split(".")[-2:]
    given = replace(kept, **{section: replace(getattr(kept, section), **{field: value_of(kept, name) + 1})})
    resume.check_same_settings(run, kept, kept, "")
    with pytest.raises(InputError, match=f"it began with {name} = "):
        resume.check_same_settings(run, kept, given, "")
    machine = replace(kept.run, workers=7, device="cpu", chunk=9)
    resume.check_same_settings(run, kept, replace(kept, run=machine), "")


@pytest.mark.parametrize("brought", [False, True])
@pytest.mark.parametrize("given", [{}, {"run.workers": "2"}])
def test_ranks_are_the_workers_whatever_a_run_began_with(monkeypatch, tmp_path, brought, given):
    settings = resolve("dp-agr", "strokes", None, {"run.workers": "3"})
    monkeypatch.setattr(resume, "identity_of", lambda run: SimpleNamespace(config=to_yaml(settings)))
    found = resume.settings_of_run(RunDirectory(tmp_path), given, brought=brought)
    assert found.run.workers == (2 if given else None if brought else 3)
    # The ledger holds the settings too.
    assert (tmp_path / "config.yaml").read_text() == to_yaml(settings)
    (tmp_path / "config.yaml").write_text("algo: maml")
    resume.settings_of_run(RunDirectory(tmp_path), given, brought=brought)
    assert (tmp_path / "config.yaml").read_text() == to_yaml(settings)


@pytest.mark.parametrize("ended", [None, "completed"])
def test_nobody_else_writes_a_run_that_goes_on_or_gets_its_page(monkeypatch, tmp_path, ended):
    run = RunDirectory(tmp_path)
    monkeypatch.setattr(resume, "finished", lambda run: ended)
    monkeypatch.setattr(resume, "reported", lambda run: False)
    held = AnotherWriter(tmp_path)
    train, page = (lambda settings: held("trained")), (lambda run: held("page"))
    resume.go_on(run, lambda: held("settings"), train, told=print, page=page)
    assert held.seen == (["settings", "trained"] if ended is None else ["settings", "page"])
    assert held.refused == 2


class AnotherWriter:
    """Whoever tries to write the run, each time that it is called: a lock of its own on the same file."""

    def __init__(self, folder):
        self.folder, self.seen, self.refused = folder, [], 0

    def __call__(self, what):
        self.seen.append(what)
        with (self.folder / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.refused += 1
        return what


@pytest.mark.parametrize("torn", [False, True])
def test_a_run_whose_last_line_a_crash_tore_is_known_all_the_same(tmp_path, torn):
    plan = PrivacyPlan(clients=40, cohort=10, rounds=3, noise_multiplier=2.0)
    run = RunDirectory(tmp_path)
    ledger = Ledger(run.ledger, plan, RunIdentity(run="ab" * 16, config="algo: x"))
    ledger.charge(planned_charge(plan, 0))
    if torn:
        with run.ledger.open("a") as file:
            file.write('{"round": 1, "cl')
    assert resume.identity_of(run).config == "algo: x"
    run.write_json("summary.json", {"status": "completed", "rounds": 3})
    run.weights.parent.mkdir()
    save_weights(run.weights, {"w": torch.zeros(1)})
    assert resume.finished(run) == "completed"


@pytest.mark.parametrize("name", ["killed", "a b", "it's; rm"])
def test_the_command_to_go_on_can_be_typed_as_it_stands(tmp_path, name):
    """A shell reads the folder back as one word."""
    run = RunDirectory(tmp_path / name)
    assert shlex.split(how_to_go_on(run)) == ["dpfedmeta", "train", "--resume", str(run.path)]
