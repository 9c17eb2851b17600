"""A run on one page: its numbers are those of its ledger, and what they mean holds."""

import json
import math
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.charges import Closing
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.ledger.population_register import begin_register, reserve
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.right_guesses import most_right_guesses
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.run_statement import statement_lines
from dpfedmeta.core.files.run_directory import SELECTION, RunDirectory
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.training.verification.chosen_run import selection_content
from dpfedmeta.training.verification.file_claims import check_summary
from dpfedmeta.training.verification.verify import audit
from tests.conftest import dpfedmeta
from tests.reporting.test_page import chosen_run, written_run


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_no_guess_about_a_gaussian_is_right_more_often_than_is_said(mu, delta):
    right = 0.5 * math.erfc(-mu / 2 / math.sqrt(2))  # of the best threshold, at mu/2
    said = most_right_guesses(gaussian_epsilon(mu, delta), delta)
    assert right <= said <= 1.0
    # Randomised response with this epsilon reaches it.
    epsilon = 1.3
    assert most_right_guesses(epsilon, 0.0) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
    assert most_right_guesses(0.0, delta) == pytest.approx(0.5 * (1 + delta))
    assert most_right_guesses(math.inf, delta) == 1.0


def loop_of(folder, rounds, released):
    """The run of a loop, of whose rounds so many were released, and its spent cells."""
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=rounds, promise=dp.Promise(epsilon=6.0, delta=1e-4), like={"w": np.zeros(3)},
        clip=dp.clip.Constant(initial=1.0), run_dir=folder,
    ) as private:  # fmt: skip
        for round_ in islice(private, released):
            for client in round_.cohort:
                round_.add(client, None)
            round_.release()
        return folder, private.spent


@pytest.fixture
def loop(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    return loop_of(tmp_path / "mine", 2, 2)


def test_the_page_of_a_loop_says_what_its_ledger_proves(loop):
    run, spent = loop
    epsilon = spent.of("client", "public").epsilon
    shown = dpfedmeta("account", "--statement", str(run)).out
    assert f"(client, public): epsilon = {rounded_up(epsilon, 4)} at delta = 0.0001" in shown
    right = most_right_guesses(epsilon, 1e-4)
    stated = float(shown.split("is right at most ")[1].split("%")[0])
    assert 100 * right <= stated < 100 * right + 0.1
    assert "(client, server): nothing." in shown
    assert "at a delta that is up to k e^((k-1) epsilon) times as large" in shown
    assert "2 rounds over 400 clients, 40 of them" in shown
    assert f"has the hash {read_content(run / 'ledger.jsonl').heads[-1]}." in shown
    assert "Attention" not in shown
    (run / "plan.json").write_text("{}")
    assert "plan.json" in dpfedmeta("account", "--statement", str(run), code=2).error


def test_of_a_loop_that_may_go_on_the_page_says_what_it_may_spend(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    run, cells = loop_of(tmp_path / "mine", 3, 1)
    spent = cells.of("client", "public").epsilon
    promised = guarantees(read_content(run / "ledger.jsonl").plan)
    epsilon = next(cell.epsilon for cell in promised if cell.name == "(client, public)")
    shown = json.loads(dpfedmeta("account", "--statement", str(run), "--json").out)
    found = {(cell["unit"], cell["observer"]): cell["epsilon"] for cell in shown["guarantees"]}
    assert found["client", "public"] == epsilon > 1.2 * spent
    text = "\n".join(shown["statement"])
    assert f"(client, public): epsilon = {rounded_up(epsilon, 4)}" in text
    assert "What was done: 1 of 3 rounds over 400 clients" in text


@pytest.mark.parametrize(("charged", "status", "over"), [
    (2, "completed", True), (1, "budget", True), (1, "interrupted", False), (1, None, False),
])  # fmt: skip
def test_of_a_run_that_may_go_on_the_page_says_what_it_may_spend(tmp_path, charged, status, over):
    given = {"server.rounds": "2", "server.noise_multiplier": "1.0", "population.cohort": "30"}
    run = written_run(tmp_path, algo="dp-agr", given=given, charged=charged, **({"status": status} if status else {}))
    if status is None:
        (run.path / "summary.json").unlink()
    proven = audit(run).proven
    due = proven.cells if over else proven.promised
    shown = json.loads(dpfedmeta("account", "--statement", str(run.path), "--json").out)
    assert shown["guarantees"] == [cell.as_json() for cell in due]
    text = "\n".join(shown["statement"])
    assert f"What was done: {'2 rounds' if charged == 2 else '1 of 2 rounds'} over" in text
    assert "depends on that code" not in text
    # Whose clients these are, and what a record is.
    assert "Attention: the clients are simulated (population.kind = virtual)" in text
    assert "A record is one row or one image, as a client holds it. Where a row is a visit" in text


def test_the_page_of_noise_of_ones_own_says_on_whose_word_it_rests(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfedmeta.training.verification.proven.word_of_authors", lambda settings: "by that author")
    run = written_run(
        tmp_path, algo="dp-agr", given={"server.rounds": "2", "server.noise_multiplier": "1.0"}, charged=2
    )
    assert "Attention: by that author" in dpfedmeta("account", "--statement", str(run.path)).out


@pytest.mark.parametrize("sees", ["messages", "sum"])
def test_under_sums_a_page_says_that_clients_of_a_round_see_more(sees):
    sums = {"server_sees": "sum", "secure": SecureRounds(bits=16, dimension=64)} if sees == "sum" else {}
    plan = PrivacyPlan(
        clients=1000, cohort=50.0, rounds=2, noise_multiplier=2.0, sampler="fixed", client_delta=1e-5, **sums
    )
    text = "\n".join(statement_lines(Path("run"), plan, guarantees(plan), 2, "head"))
    assert ("Towards the other clients of a round" in text) is (sees == "sum")
    assert ("released and was in no round as a client" in text) is (sees == "sum")


@pytest.mark.parametrize("value", [0.9994999, 1.00001, 7.5, 23.4501, 1234.01, 1.0, 1e-05, 9.9999])
def test_numbers_of_a_page_are_never_below_what_they_stand_for(value):
    assert value <= float(rounded_up(value, 4)) <= value * 1.001
    assert rounded_up(7.5) == "7.5"


def test_a_replaced_client_is_guessed_as_one_of_two_data_sets():
    plan = PrivacyPlan(clients=100, cohort=10.0, rounds=2, noise_multiplier=2.0, sampler="fixed", client_delta=1e-5)
    cells = guarantees(plan)
    lines = [line for line in statement_lines(Path("run"), plan, cells, 2, "head") if "Who guesses" in line]
    assert "which of the two data it was" in lines[0]
    assert "whether the data were there" not in lines[0]


@pytest.fixture
def chosen(tmp_path):
    """The folder of a run that a private sweep chose, and the price."""
    run, cost = chosen_run(tmp_path, mean=5.0)
    return run.path, cost


@pytest.mark.parametrize("way", ["--run", "--verify", "--statement"])
def test_the_cells_of_a_chosen_run_are_those_of_the_choice(chosen, way):
    run, cost = chosen
    content = json.loads(dpfedmeta("account", way, str(run), "--json").out)
    cells = {(cell["unit"], cell["observer"]): cell["epsilon"] for cell in content["guarantees"]}
    assert cells.pop(("client", "public")) == cost.epsilon > cost.single
    assert set(cells.values()) == {None}
    shown = " ".join(dpfedmeta("account", way, str(run)).out.split())
    assert f"report (client, public) epsilon = {rounded_up(cost.epsilon, 4)} at delta = 0.0001" in shown
    if way == "--statement":
        assert shown.count("epsilon = ") == 2
        assert "(record, public): nothing." in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 7.5}, "selection.json: epsilon = 7.5, but its list and the run's ledger give "),
        ({"epsilon": 1.0}, "selection.json: epsilon = 1.0, but"),
        ({"delta": 1e-5}, "selection.json: delta = 1e-05, but the run's plan has client_delta = 0.0001"),
        ({"mean": 50.0}, "but its list and the run's ledger give"),
        ({"plans": []}, None),
        ({"plans": 3}, "selection.json: damaged"),
        ({"epsilon": math.nan}, "selection.json: epsilon = nan"),
        ({"mean": 0.0}, "selection.json: there is no such choice"),
        ({"adjacency": "replace-one"}, "selection.json: adjacency = replace-one"),
    ],
)
def test_a_price_that_is_too_low_or_another_is_refused(chosen, changes, words):
    run, cost = chosen
    path = run / SELECTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if words is None:  # its own plan is priced in any case
        assert dpfedmeta("account", "--verify", str(run)).code == 0
        return
    assert cost.epsilon > 7.5
    assert words in " ".join(dpfedmeta("account", "--verify", str(run), code=2).error.split())


def test_a_price_counts_the_whole_list(chosen):
    """A list with a noisier and a less noisy setting is priced by the latter."""
    run, cost = chosen
    plan = read_content(run / "ledger.jsonl").plan
    content = selection_content(cost, [plan, replace(plan, noise_multiplier=plan.noise_multiplier / 2)])
    RunDirectory(run).write_json(SELECTION, content)
    assert "selection.json: epsilon" in dpfedmeta("account", "--verify", str(run), code=2).error


def test_a_price_without_its_list_is_damaged(chosen):
    run, _ = chosen
    (run / SELECTION).write_text('{"epsilon": 1e9, "delta": 0.0001}')
    assert "selection.json: damaged: has no adjacency" in dpfedmeta("account", "--verify", str(run), code=2).error


@pytest.mark.parametrize(("epsilon", "protects"), [(6.9, True), (7.0, False), (613.0, False), (1e6, False)])
def test_a_bound_that_protects_nobody_is_called_so(epsilon, protects):
    plan = PrivacyPlan(clients=400, cohort=40, rounds=2, noise_multiplier=1.0, client_delta=1e-5)
    cell = guarantees(plan)[0]
    cell = replace(cell, bounds=(replace(cell.binding, epsilon=epsilon),))
    shown = "\n".join(statement_lines(Path("r"), plan, [cell], 2, "0"))
    assert ("times as likely, but for" in shown) == protects
    assert ("This protects nobody from everybody who sees" in shown) != protects
    assert "100.0%" not in shown


@pytest.mark.parametrize("epsilon", [0.0123456, 0.5, 1.2345678, 2.718, 4.99999])
def test_what_becomes_likelier_is_never_said_to_do_so_by_less_than_it_may(epsilon):
    """Nor is a probability of right guesses: both are rounded up."""
    plan = PrivacyPlan(clients=400, cohort=40, rounds=2, noise_multiplier=1.0, client_delta=1e-5)
    cell = guarantees(plan)[0]
    cell = replace(cell, bounds=(replace(cell.binding, epsilon=epsilon),))
    shown = "\n".join(statement_lines(Path("r"), plan, [cell], 2, "0"))
    times = float(re.search(r"becomes more than ([0-9.]+) times as likely", shown)[1])
    assert math.exp(epsilon) <= times <= 1.001 * math.exp(epsilon)
    right = float(re.search(r"is right at most ([0-9.]+)% of", shown)[1]) / 100
    exact = (1 + 1e-5 * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    assert exact <= right <= exact + 0.001
    assert epsilon <= float(re.search(r"epsilon = ([0-9.]+) at delta", shown)[1]) <= 1.001 * epsilon


@pytest.mark.parametrize("times", [1, 2])
def test_copies_together_are_held_against_their_register(tmp_path, monkeypatch, times):
    register = tmp_path / "register.jsonl"
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    given = {"server.rounds": "2", "server.noise_multiplier": "2.0", "population.register": str(register)}
    run = written_run(tmp_path, algo="dp-agr", given=given, charged=2)
    content = read_content(run.ledger)
    begin_register(register, 8.0, 1e-4)
    reserve(register, run=content.identity.run, data="d", plan=content.plan)
    (run.path / "config.yaml").write_text(content.identity.config)
    together = replace(audit(run), charges=content.charges * times)
    monkeypatch.setattr("dpfedmeta.training.verification.verify.compose", lambda runs: together)
    words = ("account", "--verify", str(run.path), str(run.path))
    if times == 1:
        assert "holds no less for this run than it charged" in " ".join(dpfedmeta(*words).out.split())
    else:
        assert "or by copies of it" in dpfedmeta(*words, code=2).error


def test_a_page_and_papers_of_a_run_say_what_its_plan_cautions_of(tmp_path, monkeypatch):
    """One machine that read all records, people that count as public, no target, and a register of other runs."""
    given = {"server.rounds": "2", "server.noise_multiplier": "2.0", "population.register": str(tmp_path / "reg.jsonl")}
    run = written_run(tmp_path, algo="dp-agr", given=given, charged=2)
    due = "dpfedmeta.training.verification.proven.cautions"
    monkeypatch.setattr(due, lambda settings, task: [f"test people of {task.name} are treated as public"])
    monkeypatch.setattr(PopulationStatement, "whose", "named")
    dpfedmeta("account", "--run", str(run.path), "--papers", str(tmp_path / "papers"))
    papers = [path.read_text() for path in (tmp_path / "papers").iterdir()]
    for shown in (dpfedmeta("account", "--statement", str(run.path)).out, *papers):
        said = " ".join(shown.split())
        assert "one machine held all records and played every client" in said
        assert "test people of strokes are treated as public" in said
        assert "no target limits its rounds" in said
    counted = "Counted with other runs in register reg.jsonl; ask for its statement."
    assert counted in dpfedmeta("account", "--statement", str(run.path)).out
    assert counted in " ".join((tmp_path / "papers/dpia.yaml").read_text().split())
    (run.path / "summary.json").unlink()
    said = dpfedmeta("account", "--statement", str(run.path)).out
    assert "Attention: test people of strokes are treated as public" in said  # the ledger holds what was said of them
    given |= {"privacy.client.limit": "50"}
    held = written_run(tmp_path, name="held", algo="dp-agr", given=given, charged=2)
    assert "no target limits its rounds" not in dpfedmeta("account", "--statement", str(held.path)).out


def test_what_is_missing_or_was_not_compared_is_said(tmp_path):
    given = {"server.rounds": "2", "server.noise_multiplier": "2.0"}
    run = written_run(tmp_path, algo="dp-agr", given=given, charged=2)
    (run.path / "summary.json").unlink()
    said = " ".join(dpfedmeta("account", "--verify", str(run.path)).out.split())
    assert "not there, so not compared: config.yaml, plan.json, summary.json, report.html not verified: " in said
    assert "that no copy of this run went on elsewhere" in said
    assert "no summary.json: the run has not finished" in said
    closed = replace(audit(run).proven)
    content = replace(closed.content, lines=(*closed.content.lines, Closing(release="r", weights={}, rounds=2)))
    (line,) = check_summary(audit(run).snapshot, replace(closed, content=content))
    assert line == "no summary.json, though the ledger is closed: it is lost or was removed"
