"""A run that a private sweep chose is passed off as an ordinary one: every file beside its ledger is edited."""

import json
import math
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.ledger.hash_chain import heads_of
from dpfedmeta.accounting.ledger.ledger import RunIdentity, opening_line, read_content, spent
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.private_selection import RunCount, selection_cost
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.api.run import Run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import PLAN, REPORT, SELECTION, SUMMARY, RunDirectory
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training.results.facts import CHOSEN
from dpfedmeta.training.results.run_archive import archive
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.verification import proven
from dpfedmeta.training.verification.chosen_run import (
    cells_of_choice,
    choice_words,
    mark_of,
    selection_content,
    verified_selection,
)
from dpfedmeta.training.verification.proven import Proven, state_choice
from dpfedmeta.training.verification.verify import audit

TINY = {
    "model.width": "2", "server.rounds": "2", "population.cohort": "6", "population.clients": "60", "task.ways": "2",
    "task.shots": "2", "task.queries": "2", "evaluation.validation_episodes": "2", "evaluation.episodes": "2",
    "run.workers": "1", "privacy.client.delta": "0.001", "privacy.client.epsilon": "null", "clip.policy": "constant",
    "server.noise_multiplier": "2", "population.max_participations": "null",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tiny_task_file, tmp_path_factory):
    """(a run, the same as a candidate, the price of the choice, its list)."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {name: resolve("dp-agr", str(tiny_task_file), None, {**TINY, "run.dir": str(folder), "run.name": name})
                for name in ("alone", "candidate")}  # fmt: skip
    alone, _ = run_training(settings["alone"], RunOptions(page=write_report))
    plans = [read_content(alone.ledger).plan]
    cost = selection_cost(plans, RunCount(mean=5.0))
    mark = mark_of(json.loads(json.dumps(selection_content(cost, plans))))
    candidate, _ = run_training(settings["candidate"], RunOptions(page=write_report, candidate=mark))
    return alone, candidate, cost, plans


@pytest.fixture
def chosen(trained, tmp_path):
    """The candidate as a private sweep releases it."""
    _, candidate, cost, plans = trained
    run = RunDirectory(shutil.copytree(candidate.path, tmp_path / "best"))
    run.write_json(SELECTION, selection_content(cost, plans))
    state_choice(run, Proven.of(run, read_content(run.ledger)))
    write_report(run)
    return run


WAYS = {
    "audit": audit,
    "guarantees": lambda run: Run(run.path).guarantees,
    "planned": lambda run: Run(run.path).planned,
    "report": lambda run: Run(run.path).report(),
    "archive": lambda run: archive(run, run.path.with_name(f"{time.monotonic_ns()}.zip")),
}


def passed_off(run, honest, monkeypatch):
    """Edit all that says of a choice; the page is written by a program of one's own."""
    for name in (SUMMARY, PLAN):
        shutil.copy(honest.path / name, run.path / name)
    assert CHOSEN not in run.read_json(SUMMARY)
    (run.path / SELECTION).unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(proven, "verified_selection", lambda *given: None)
        assert "chosen by a private sweep" not in write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_a_chosen_run_is_not_passed_off_as_an_ordinary_one(trained, chosen, dpfedmeta, monkeypatch, way):
    WAYS[way](chosen)
    passed_off(chosen, trained[1], monkeypatch)
    with pytest.raises(InputError, match=r"selection.json: is missing, but the ledger's first line says"):
        WAYS[way](chosen)
    for option in ("--run", "--verify", "--statement"):
        assert "is a candidate of a private sweep" in dpfedmeta("account", option, chosen.path, code=2).error
    copy = shutil.copytree(chosen.path, chosen.path.with_name("copy"))
    said = dpfedmeta("account", "--verify", chosen.path, copy, code=2).error
    assert "is a candidate of a private sweep" in said


def contents_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("released", [True, False])
def test_a_candidate_gets_no_further_rounds(trained, chosen, dpfedmeta, released):
    """Its price covers the rounds of the list, seen once; rounds behind a look at the best run compose with it."""
    run = chosen if released else trained[1]
    before = contents_of(run.path)
    said = dpfedmeta("train", "--extend", run.path, "--rounds", "4", code=2).error
    assert f"{run.path}: is a candidate of a private sweep" in said
    assert contents_of(run.path) == before


def test_a_run_that_an_earlier_version_chose_gets_no_further_rounds(trained, tmp_path, dpfedmeta):
    """Its ledger has no mark; the price beside it says that it was chosen."""
    alone, _, cost, plans = trained
    run = RunDirectory(shutil.copytree(alone.path, tmp_path / "best"))
    run.write_json(SELECTION, selection_content(cost, plans))
    said = dpfedmeta("train", "--extend", run.path, "--rounds", "4", code=2).error
    assert f"{run.path}: is a candidate of a private sweep" in said


@pytest.mark.parametrize("listed", [False, True])
def test_a_choice_that_was_extended_before_states_nothing(trained, tmp_path, listed):
    """Also where a run of so many rounds was in the list."""
    alone, _, _, plans = trained
    ledger, run = read_content(alone.ledger), RunDirectory(tmp_path)
    given = [*plans, replace(plans[0], rounds=4)] if listed else plans
    cost = selection_cost(given, RunCount(mean=5.0))
    run.write_json(SELECTION, selection_content(cost, given))
    cells = spent(ledger.plan, ledger.charges)
    assert verified_selection(run, ledger, cells) == cost
    longer = replace(ledger, plan=ledger.plan.extended(4))
    with pytest.raises(InputError, match=r"was extended after the choice \(rounds 2 to 3\)"):
        verified_selection(run, longer, cells)


def test_the_same_edits_say_nothing_wrong_of_a_run_that_was_not_chosen(trained, tmp_path, monkeypatch):
    """So it is the mark alone that tells."""
    run = RunDirectory(shutil.copytree(trained[0].path, tmp_path / "alone"))
    passed_off(run, trained[0], monkeypatch)
    for way in WAYS.values():
        way(run)


def test_a_cheaper_choice_does_not_take_the_place_of_the_one_that_was_made(trained, chosen):
    plans = trained[3]
    cheap = selection_cost(plans, RunCount(mean=1.5))
    assert cheap.epsilon < trained[2].epsilon
    proven = Proven.of(chosen, read_content(chosen.ledger))
    chosen.write_json(SELECTION, selection_content(cheap, plans))
    state_choice(chosen, replace(proven, choice=cheap))
    (chosen.path / REPORT).unlink()
    for way in WAYS.values():
        with pytest.raises(InputError, match=r"selection.json: is not what the ledger's first line names"):
            way(chosen)


@pytest.mark.parametrize("key", ["epsilon", "delta", "single", "mean", "eta", "cap", "beyond", "settings", "plans"])
def test_each_ingredient_of_a_price_is_in_the_mark(trained, key):
    content = json.loads(json.dumps(selection_content(trained[2], trained[3])))
    assert mark_of(content) == read_content(trained[1].ledger).identity.candidate
    assert mark_of({**content, key: [content[key]]}) != mark_of(content)
    assert mark_of({name: value for name, value in content.items() if name != key}) != mark_of(content)


def test_a_mark_is_not_taken_out_of_a_ledger_in_silence(trained, chosen, monkeypatch):
    """Nor moves without changing the hash of each line, which a statement of the run quotes."""
    passed_off(chosen, trained[1], monkeypatch)
    lines = [json.loads(line) for line in chosen.ledger.read_text().splitlines()]
    del lines[0]["identity"]["candidate"]
    chosen.ledger.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    for way in WAYS.values():
        with pytest.raises(InputError, match="the hash chain breaks here"):
            way(chosen)


def test_a_candidate_has_no_page_and_states_nothing_before_the_choice(trained):
    alone, candidate, *_ = trained
    assert (alone.path / REPORT).exists()
    assert not (candidate.path / REPORT).exists()
    with pytest.raises(InputError, match="nothing can be stated of it alone"):
        audit(candidate)


def test_a_run_of_no_search_has_the_first_line_that_it_had_before(trained):
    plan = read_content(trained[0].ledger).plan
    assert {*opening_line(plan, RunIdentity(run="a"))["identity"]} == {"run", "config", "secure"}
    marked = opening_line(plan, RunIdentity(run="a", candidate="b"))
    assert marked["identity"]["candidate"] == "b"
    assert heads_of([marked]) != heads_of([opening_line(plan, RunIdentity(run="a"))])


@pytest.mark.parametrize("mark", ["", "ab", "g" * 64, "A" * 64, "0" * 65])
def test_what_is_no_mark_is_refused(dpfedmeta, tmp_path, mark):
    said = dpfedmeta("train", "--algo", "dp-agr", "--dataset", "strokes", "--run.dir", tmp_path, f"--candidate={mark}",
                     code=2)  # fmt: skip
    assert "--candidate" in said.error
    assert "sweep --private" in said.error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [
    RunCount(mean=5.0), RunCount(mean=5.0, eta=1.0), RunCount(mean=5.0, cap=80), RunCount(mean=5.0, eta=1.0, cap=40),
])  # fmt: skip
def test_the_price_of_a_choice_is_computed_again_from_every_number_of_its_law(trained, tmp_path, count):
    run = RunDirectory(shutil.copytree(trained[0].path, tmp_path / "alone"))
    plans, ledger = trained[3], read_content(run.ledger)
    cells, cost = spent(ledger.plan, ledger.charges), selection_cost(plans, count)
    run.write_json(SELECTION, selection_content(cost, plans))
    assert verified_selection(run, ledger, cells) == cost
    run.write_json(SELECTION, selection_content(replace(cost, epsilon=0.999 * cost.epsilon), plans))
    with pytest.raises(InputError, match=r"selection.json: epsilon = .*, but its list and the run's ledger give"):
        verified_selection(run, ledger, cells)


CELLS = tuple(
    Guarantee(
        unit=unit, observer=observer, delta=delta, adjacency="add-remove", relations=relations,
        bounds=(Bound(method="pld", epsilon=epsilon, event="all", formula="own"),),
    )
    for unit, observer, delta, epsilon, relations in (
        ("client", "public", 1e-5, 1.5, {}), ("client", "server", 1e-6, math.inf, {}),
        ("record", "server", 1e-4, 2.5, {"in-place": 5.5}), ("record", "public", 1e-3, 3.5, {"in-place": 7.5}),
    )
)  # fmt: skip


@pytest.mark.parametrize("place", range(4))
def test_of_a_choice_the_clients_cell_has_its_price_and_delta_and_no_other_cell_has_a_bound(place):
    cost = selection_cost(
        [PrivacyPlan(clients=400, cohort=40, rounds=3, noise_multiplier=2.0, client_delta=1e-7)], RunCount(mean=3.0)
    )
    assert cells_of_choice(CELLS, None) == CELLS
    own, found = CELLS[place], cells_of_choice(CELLS, cost)[place]
    assert (found.unit, found.observer, found.adjacency) == (own.unit, own.observer, own.adjacency)
    if place == 0:
        assert (found.epsilon, found.delta, found.relations) == (cost.epsilon, cost.delta, {})
        assert cost.delta == 1e-7
    else:
        assert (found.epsilon, found.delta, found.method) == (math.inf, own.delta, "none")
        assert found.relations == dict.fromkeys(own.relations, math.inf)
        # Towards the server all runs of the search compose; the public sees the best one alone.
        assert ("all runs of the search" in found.bounds[0].event) == (own.observer == "server")
    assert f"epsilon = {rounded_up(cost.epsilon, 4)} at delta = 1e-07" in choice_words(cost)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"delta": 2e-5}, "delta = 2e-05, but the run's plan has client_delta"),
        ({"adjacency": "replace-one"}, "adjacency"),
        ({"plans": []}, None), ({"epsilon": 0.5}, "epsilon = 0.5, but its list and the run's ledger give"),
        ({"mean": "x"}, "damaged"), ({"cap": 0}, "there is no such choice|epsilon|damaged"),
        ({"plans": [{}]}, "damaged"),
    ],
)  # fmt: skip
def test_each_number_of_a_choice_is_held_against_the_ledger(trained, tmp_path, change, said):
    """With all others as they are."""
    alone, _, cost, plans = trained
    content = json.loads(json.dumps(selection_content(cost, plans)))
    run = RunDirectory(tmp_path)
    ledger = read_content(alone.ledger)
    cells = spent(ledger.plan, ledger.charges)
    run.write_json(SELECTION, content)
    assert verified_selection(run, ledger, cells) == cost
    run.write_json(SELECTION, content | change)
    with nullcontext() if said is None else pytest.raises(InputError, match=said):
        # The run's own plan is paid for even where the list leaves it out.
        assert verified_selection(run, ledger, cells) == cost


@pytest.mark.parametrize("field", ["epsilon", "delta", "single", "mean", "eta", "cap", "beyond", "adjacency", "plans"])
def test_a_choice_lacks_none_of_its_numbers(trained, tmp_path, field):
    alone, _, cost, plans = trained
    content = json.loads(json.dumps(selection_content(cost, plans)))
    del content[field]
    run, ledger = RunDirectory(tmp_path), read_content(alone.ledger)
    run.write_json(SELECTION, content)
    with pytest.raises(InputError, match=f"damaged: has no {field}; restore it"):
        verified_selection(run, ledger, spent(ledger.plan, ledger.charges))


@pytest.mark.parametrize("turned", [0, 1, 2, 3])
def test_what_the_run_alone_spent_is_its_clients_cell_wherever_it_stands(trained, tmp_path, turned):
    """Other cells may be dearer: nothing is promised in them."""
    alone, _, cost, plans = trained
    ledger, run = read_content(alone.ledger), RunDirectory(tmp_path)
    run.write_json(SELECTION, selection_content(cost, plans))
    cells = list(spent(ledger.plan, ledger.charges))
    assert verified_selection(run, ledger, [*cells[turned:], *cells[:turned]]) == cost


def test_a_price_below_what_the_run_alone_spent_is_refused(trained, tmp_path):
    """Also where its list would give less."""
    alone, _, cost, plans = trained
    ledger, run = read_content(alone.ledger), RunDirectory(tmp_path)
    run.write_json(SELECTION, selection_content(cost, plans))
    cells = [replace(cell, bounds=tuple(replace(b, epsilon=2 * cost.epsilon) for b in cell.bounds))
             for cell in spent(ledger.plan, ledger.charges)]  # fmt: skip
    with pytest.raises(InputError, match=r"selection\.json: epsilon = "):
        verified_selection(run, ledger, cells)
