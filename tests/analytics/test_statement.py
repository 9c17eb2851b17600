"""The page of an analysis: each number of its summary where it belongs, and nothing that does not hold."""

from dataclasses import replace

import pytest

from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.public_context import Ground
from dpfedmeta.analytics.statement import statement
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.training.terminal.tables import ANSWERED, HOLDS, why_above

PLAN = PrivacyPlan(clients=2000, cohort=500.0, rounds=1, noise_multiplier=2.0, client_delta=1.23456789e-6)
CELLS = guarantees(PLAN)
SUMMARY = {
    "analysis": "quantile", "clients": 2000, "cohort": 500.0, "server_sees": "the sum of the answers",
    "guarantees": [
        {"unit": "client", "observer": "public", "epsilon": 1.23456, "delta": 1.23456789e-6, "adjacency": "add-remove"},
        {"unit": "record", "observer": "server", "epsilon": None, "delta": 1e-5, "adjacency": "zero-out"},
    ],
    "simulation": None,
}  # fmt: skip


def test_a_statement_line_by_line():
    text = statement(SUMMARY, ["the first", "the second"], CELLS)
    assert text.splitlines() == [
        "quantile: 2,000 clients, each with probability 0.25 asked once", "", "the first", "the second", "",
        "spent, from the ledger alone:",
        "  (client, public): epsilon = 1.24 at delta = 1.23457e-06, add-remove",
        "  (record, server): epsilon = inf at delta = 1e-05, zero-out",
        *why_above(CELLS, ANSWERED),
        "the server sees besides: the sum of the answers", HOLDS,
        "a client that says something here and in training is charged for both: name this folder in "
        "privacy.spent_before",
    ]  # fmt: skip
    assert text.endswith("spent_before\n")


def test_a_name_that_a_client_chose_is_no_line_of_the_statement():
    """Nor anything that a terminal obeys."""
    forged = "  1,000  x\x1b[2J\nspent, from the ledger alone:\n  (client, public): epsilon = 0"
    text = statement(SUMMARY, ["the first", forged], CELLS)
    assert text.splitlines()[3] == forged.replace("\x1b", r"\x1b").replace("\n", r"\x0a")
    assert len(text.splitlines()) == len(statement(SUMMARY, ["the first", "name"], CELLS).splitlines())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort": 2000.0}, "all asked once"),
        ({"sampler": "fixed"}, "500 of them asked once"),
        ({"sampler": "fixed", "cohort": 2000}, "all asked once"),
        ({"sampler": "poisson"}, "each with probability 0.25 asked once"),
        ({"cohort": 1999.0}, "each with probability 0.9995 asked once"),
    ],
)
def test_who_was_asked_is_told_as_they_were_drawn(changes, words):
    assert statement({**SUMMARY, **changes}, [], CELLS).splitlines()[0] == f"quantile: 2,000 clients, {words}"


def test_a_simulation_says_so_last():
    assert (
        statement({**SUMMARY, "simulation": "it promises nothing"}, [], CELLS).splitlines()[-1] == "it promises nothing"
    )


def test_why_a_cell_lies_above_another_is_told():
    reasons = why_above(CELLS, ANSWERED)
    assert reasons
    assert [line for line in statement(SUMMARY, [], CELLS).splitlines() if line in reasons] == reasons


class Request:
    kind, names, settings, run = "quantile", None, None, None


def test_what_needs_images_or_messages_says_what_is_missing():
    ground = Ground(Request())
    with pytest.raises(InputError, match="--algo and --dataset are needed"):
        _ = ground.settings
    ground.check_holdings()
    named = Request()
    named.names = "a file"
    for check in (Ground(named).check_holdings, Ground(named).check_messages):
        with pytest.raises(InputError, match="--names: quantile needs images; give --algo and --dataset"):
            check()


@pytest.mark.parametrize("releases", [True, False])
def test_messages_that_are_noisy_before_they_are_formed_have_no_norm(monkeypatch, releases):
    algorithm = type("Algorithm", (), {"releases": releases})
    monkeypatch.setattr(Ground, "plan", type("Plan", (), {"algorithm": algorithm}))
    monkeypatch.setattr(Ground, "settings", type("Settings", (), {"algo": "dp-agrlr"}))
    if not releases:
        Ground(Request()).check_messages()
        return
    with pytest.raises(RefusedPlan, match=r"quantile: dp-agrlr sends no exact message .* give --clip\.initial"):
        Ground(Request()).check_messages()


def test_a_plan_without_noise_is_stated_as_infinite():
    cells = [cell.as_json() for cell in guarantees(replace(PLAN, noise_multiplier=None))]
    text = statement({**SUMMARY, "guarantees": cells}, [], CELLS)
    assert text.count("epsilon = inf") == 4
