"""`account --statement` of a client's home and of a population's register: the total over all runs, and each run."""

import json
import math

import pytest

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget, RunCost, open_own_ledger
from dpfedmeta.accounting.ledger.hash_chain import read_chain
from dpfedmeta.accounting.participation_cost import Spending
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.federation.client.client_home import claim, note_answered
from tests.conftest import dpfedmeta

ONE = Spending(mus={"zero-out": 0.5, "row-deleted": 1.0}, relation="row-deleted")
RUNS = {"aa" * 16: 3, "bb" * 16: 2}


@pytest.fixture
def home(tmp_path):
    (tmp_path / "clinic-1.home").mkdir()
    ledger = ClientLedger(tmp_path / "clinic-1.home/ledger.jsonl", RecordBudget(epsilon=30.0, delta=1e-5))
    for run, rounds in RUNS.items():
        for round_ in range(rounds):
            ledger.charge(round_, ONE, run=run, question=f"{round_}", plan="p")
    return tmp_path / "clinic-1.home"


def said(path, *words, code=0):
    return dpfedmeta("account", "--statement", str(path), *words, code=code)


def test_a_site_reads_its_total_its_limit_what_is_left_and_each_run(home):
    before = (home / "ledger.jsonl").read_bytes()
    page = said(home).out
    total = gaussian_epsilon(math.sqrt(5), 1e-5)
    assert f"(record, server) epsilon = {rounded_up(total, 4)} at delta = 1e-05, for one record" in page
    assert "row-deleted), over 5 participations in 2 runs" in page
    assert "Limit: epsilon = 30, over all runs" in page
    for run, rounds in RUNS.items():
        alone = gaussian_epsilon(math.sqrt(rounds), 1e-5)
        assert f"- {run[:16]}: {rounds} participations, epsilon = {rounded_up(alone, 4)}" in page
    ledger, budget = open_own_ledger(home / "ledger.jsonl")
    left = ledger.like_last()
    assert f"Left: {left} further participations like the last one" in page
    # So many fit, and one more does not.
    at = [gaussian_epsilon(math.sqrt(5 + more), 1e-5) for more in (left, left + 1)]
    assert at[0] <= budget.epsilon < at[1]
    assert f"(zero-out): {rounded_up(gaussian_epsilon(math.sqrt(5) / 2, 1e-5), 4)}" in page
    # Nothing is written, and JSON says the same.
    assert (home / "ledger.jsonl").read_bytes() == before
    assert "\n".join(json.loads(said(home, "--json").out)["statement"]) == page.rstrip("\n")


def test_a_home_that_took_no_part_and_one_without_a_limit(tmp_path):
    for name, budget in (
        ("new", RecordBudget(epsilon=1.0, delta=1e-5)),
        ("trusting", RecordBudget(epsilon=None, delta=1e-5)),
    ):
        (tmp_path / name).mkdir()
        ledger = ClientLedger(tmp_path / name / "ledger.jsonl", budget)
        if name == "trusting":
            ledger.charge(0, Spending(mus={"zero-out": math.inf}), run="r")
    new, trusting = said(tmp_path / "new").out, said(tmp_path / "trusting").out
    assert "epsilon = 0 at delta" in new
    assert "- none yet" in new
    assert "Left" not in new
    assert "Limit: none: the server is trusted" in trusting
    assert "epsilon = infinite (no bound is stated)" in trusting


def test_a_limit_that_was_changed_is_not_hidden(home):
    """Lowered, raised before anything else was counted, and then by the number of participations."""
    path, page = home / "ledger.jsonl", said(home).out
    assert "Limit before" not in page
    ledger = ClientLedger(path, RecordBudget(epsilon=20.0, delta=1e-5), change=True)
    assert ledger.former_limits == [("epsilon 30, delta 1e-05", 5)]
    for limit in (RecordBudget(epsilon=40.0, delta=1e-5), RecordBudget(epsilon=40.0, delta=1e-5, participations=9)):
        ledger = ClientLedger(path, limit, change=True)
        ledger.charge(ledger.participations, ONE, run="cc" * 16)
    page = said(home).out
    found = [line for line in page.splitlines() if line.startswith("Limit")]
    assert found == [
        "Limit: epsilon = 40, and 9 participations, over all runs",
        "Limit before: epsilon 30, delta 1e-05, changed after 5 participations (no date is kept)",
        "Limit before: epsilon 20, delta 1e-05, changed after 5 participations (no date is kept)",
        "Limit before: epsilon 40, delta 1e-05, changed after 6 participations (no date is kept)",
    ]


def test_what_a_run_costs_besides_is_its_own(tmp_path):
    ledger = ClientLedger(tmp_path / "ledger.jsonl", RecordBudget(epsilon=30.0, delta=1e-5, participations=4))
    ledger.charge(0, ONE, run="a", cost=RunCost(rare=5e-6))
    ledger.charge(0, ONE, run="b")
    found, _ = open_own_ledger(tmp_path / "ledger.jsonl")
    assert found.spent_by_run() == ledger.spent_by_run()
    assert found.spent_by_run()["a"] == (1, gaussian_epsilon(1.0, 5e-6))
    assert found.spent_by_run()["b"] == (1, gaussian_epsilon(1.0, 1e-5))
    # The cap on participations counts too.
    assert found.like_last() == 2


def test_a_damaged_ledger_is_one_line(home):
    text = (home / "ledger.jsonl").read_text()
    (home / "ledger.jsonl").write_text(text.replace('"round": 1', '"round": 9', 1))
    assert "the hash chain breaks here" in said(home, code=2).error


def test_a_home_that_lost_a_line_is_refused_as_its_client_refuses_it(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    (tmp_path / "own.csv").write_text("class,age\nwell,1\nill,2\n")
    claim(home, tmp_path / "own.csv", bytes(32))
    note_answered(home)
    whole = (home / "ledger.jsonl").read_text()
    page = said(home).out
    assert f"has the hash {read_chain(home / 'ledger.jsonl', '')[1]}. Not verified:" in page
    assert "Attention" not in page
    (home / "ledger.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert "is an older copy; on this machine its ledger went on to line 6" in said(home, code=2).error
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "of another machine"))
    assert "was not used on this machine before; its ledger counts 4 answers" in said(home).out


def test_a_registers_page_says_the_total_the_limit_and_each_run(tmp_path):
    dpfedmeta("account", "--population", "register.jsonl", "--promise", "4", "1e-5", folder=tmp_path)
    page = dpfedmeta("account", "--statement", "register.jsonl", folder=tmp_path).out
    assert "Spent in all: (client, public), all data of one client replaced: epsilon = 0 at delta = 1e-05" in page
    assert "Limit: epsilon = 4, over all runs" in page
    assert "Left: runs that cost a divergence of " in page
    assert "- none yet" in page
    # Of a folder that is neither, the line of before.
    assert "ledger.jsonl" in said(tmp_path, code=2).error
