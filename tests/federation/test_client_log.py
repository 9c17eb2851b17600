"""Lines of a client's log: the numbers that they say are those of what is answered and of what is left."""

import math
from types import SimpleNamespace

import pytest

from dpfedmeta.federation.client import client_log
from dpfedmeta.federation.client.client_log import (
    analysis_words,
    cell_words,
    company_words,
    epsilon_words,
    joined_words,
    offered_words,
    sent_words,
)


def words(monkeypatch, taken, more, *, epsilon=lambda n: 0.25 * n, secure=None):
    monkeypatch.setattr(client_log, "epsilon_after", lambda privacy, promise, rounds: epsilon(rounds))
    monkeypatch.setattr(client_log, "left_of_run", lambda *given: more)
    monkeypatch.setattr(client_log, "spent_words", lambda *given: "spent")
    privacy = SimpleNamespace(rounds=9, secure=secure)
    signed = SimpleNamespace(plan=SimpleNamespace(privacy=privacy), run=b"r" * 32)
    ledger = SimpleNamespace(keys=lambda run: range(taken) if run == (b"r" * 32).hex() else ())
    joined = SimpleNamespace(signed=signed, dimension=1234)
    return list(joined_words(joined, ledger, SimpleNamespace(unit="record")))


@pytest.mark.parametrize(("taken", "more"), [(0, 9), (2, 3), (5, 0)])
def test_rounds_that_are_answered_and_those_that_are_left_cost_together_what_is_said(monkeypatch, taken, more):
    spent, allowed, sent = words(monkeypatch, taken, more)
    assert spent == "spent"
    assert f"allows {taken + more} of the 9 rounds" in allowed
    assert (f"of which {taken} are answered" in allowed) == bool(taken)
    assert f"{epsilon_words(0.25)} after one round" in allowed
    assert allowed.endswith(f"{epsilon_words(0.25 * (taken + more))} after {taken + more}")
    assert "1,234 coordinates" in sent


@pytest.mark.parametrize("secure", [None, object()])
@pytest.mark.parametrize("each", [0.25, math.inf])
def test_what_leaves_is_said_with_its_noise_where_there_is_some(monkeypatch, secure, each):
    *_, sent = words(monkeypatch, 0, 9, epsilon=lambda n: each * n, secure=secure)
    assert ("masked vector of whole numbers" in sent) == (secure is not None)
    assert ("with the noise that the promise needs" in sent) == math.isfinite(each)


@pytest.mark.parametrize("company", ["drawn", "picked"])
@pytest.mark.parametrize("cohort", [5.0, 10.0])
@pytest.mark.parametrize("colluding", [1, 3])
def test_a_client_is_told_on_whom_it_counts(company, cohort, colluding):
    said = company_words(SimpleNamespace(cohort=cohort, clients=10, colluding=colluding), company)
    assert ("draws cohorts at random" in said) == (company == "drawn" and cohort < 10)
    assert ("one of the clients" in said) == (colluding == 1)
    assert colluding == 1 or "3 of the clients" in said


@pytest.mark.parametrize("secure", [None, object()])
@pytest.mark.parametrize("asked", ["plan", "analysis"])
def test_every_offer_says_what_is_seen_on_whom_it_counts_what_liars_can_do_and_every_cell(monkeypatch, asked, secure):
    if asked == "analysis" and secure is None:
        pytest.skip("answers to an analysis are always under masks")
    monkeypatch.setattr(client_log, "dishonest_words", lambda privacy: "liars")
    cells = [SimpleNamespace(unit=unit, observer="server", epsilon=2.0, delta=1e-5) for unit in ("record", "client")]
    privacy = SimpleNamespace(
        rounds=9, cohort=5.0, clients=10, colluding=3, secure=secure, server_sees="sum" if secure else "messages"
    )
    settings = SimpleNamespace(algo="dp-agr", aggregation=SimpleNamespace(company="drawn"))
    plan = SimpleNamespace(
        settings=settings, privacy=privacy, shape=SimpleNamespace(ways=2, shots=3, queries=4), planned=cells
    )
    analysis = SimpleNamespace(asks="how many it holds", server_sees="the sum of answers")
    encoding = SimpleNamespace(words=lambda name: f"encoder of {name}")
    signed = SimpleNamespace(
        plan=plan, privacy=privacy, analysis=analysis, run=b"r" * 32, request=SimpleNamespace(kind="histogram"),
        task=SimpleNamespace(name="strokes", encoding=encoding),
    )  # fmt: skip
    said = [*offered_words(signed)] if asked == "plan" else [*analysis_words(signed, cells)]
    seen = "the sum of answers" if asked == "analysis" else "the sum of all" if secure else "every client's vector"
    assert any(line.startswith(f"the server sees {seen}") for line in said)
    # Where the server sees every vector anyway, nobody's company hides anything.
    assert (company_words(privacy, "drawn") in said) == (secure is not None)
    assert said[-3:] == ["liars", *map(cell_words, cells)]
    assert any("encoder of strokes" in line for line in said) == (asked == "plan")


@pytest.mark.parametrize(("taken", "more"), [(1, 8), (2, 3), (5, 0)])
def test_what_left_is_said_to_have_cost_what_was_answered_and_not_what_may_be(monkeypatch, taken, more):
    monkeypatch.setattr(client_log, "epsilon_after", lambda privacy, promise, rounds: 0.25 * rounds)
    monkeypatch.setattr(client_log, "left_of_run", lambda *given: more)
    signed = SimpleNamespace(plan=SimpleNamespace(privacy=SimpleNamespace(rounds=9)), run=b"r" * 32)
    ledger = SimpleNamespace(keys=lambda run: range(taken) if run == (b"r" * 32).hex() else ())
    joined, task = SimpleNamespace(signed=signed, dimension=1234, why=None), SimpleNamespace(bound=1.5)
    said = sent_words(joined, ledger, SimpleNamespace(unit="record"), SimpleNamespace(round=4), task, "one vector")
    assert f"participation {taken} of {taken + more} allowed, in 9 rounds" in said
    assert said.endswith(f"(record, server) in this run so far: {epsilon_words(0.25 * taken)}")
