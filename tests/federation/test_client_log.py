"""Lines of a client's log: the numbers that they say are those of what is answered and of what is left."""

import math
from types import SimpleNamespace

import pytest

from dpfedmeta.federation.client import client_log
from dpfedmeta.federation.client.client_log import (
    analysis_words,
    answered_words,
    answering_words,
    cell_words,
    company_words,
    epsilon_words,
    joined_words,
    offered_words,
    sent_words,
    spent_words,
)


def counts_for(monkeypatch):
    """The promise with the relation that is counted, which all numbers are of."""
    due = SimpleNamespace(unit="record", words="little", epsilon=5.0)
    monkeypatch.setattr(client_log, "counted", lambda plan, promise, ledger: due)
    return due


def words(monkeypatch, taken, more, *, epsilon=lambda n: 0.25 * n, secure=None):
    promise, due = SimpleNamespace(unit="record"), counts_for(monkeypatch)
    monkeypatch.setattr(client_log, "epsilon_after", lambda privacy, of, rounds: epsilon(rounds) if of is due else None)
    monkeypatch.setattr(client_log, "left_of_run", lambda *given: more if due in given else None)
    monkeypatch.setattr(client_log, "spent_words", lambda *given: "spent")
    privacy = SimpleNamespace(rounds=9, secure=secure)
    signed = SimpleNamespace(plan=SimpleNamespace(privacy=privacy), run=b"r" * 32)
    ledger = SimpleNamespace(keys=lambda run: range(taken) if run == (b"r" * 32).hex() else ())
    joined = SimpleNamespace(signed=signed, numbers_sent=1234, limits="limits")
    return list(joined_words(joined, ledger, promise))


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
    encoding = SimpleNamespace(facts=lambda name: SimpleNamespace(words=f"encoder of {name}"))
    signed = SimpleNamespace(
        plan=plan, privacy=privacy, analysis=analysis, run=b"r" * 32, request=SimpleNamespace(kind="histogram"),
        task=SimpleNamespace(name="strokes", encoding=encoding),
    )  # fmt: skip
    said = [*offered_words(signed)] if asked == "plan" else [*analysis_words(signed, cells)]
    seen = "the sum of answers" if asked == "analysis" else "the sum of all" if secure else "every client's vector"
    assert any(line.startswith(f"the server sees {seen}") for line in said)
    assert any("hold if the server draws cohorts as it says" in line for line in said) == (asked == "plan")
    # Where the server sees every vector anyway, nobody's company hides anything.
    assert (company_words(privacy, "drawn") in said) == (secure is not None)
    assert said[-3:] == ["liars", *map(cell_words, cells)]
    assert any("encoder of strokes" in line for line in said) == (asked == "plan")


@pytest.mark.parametrize(("taken", "more"), [(1, 8), (2, 3), (5, 0)])
def test_what_left_is_said_to_have_cost_what_was_answered_and_not_what_may_be(monkeypatch, taken, more):
    due = counts_for(monkeypatch)
    monkeypatch.setattr(client_log, "epsilon_after", lambda plan, of, rounds: 0.25 * rounds if of is due else None)
    monkeypatch.setattr(client_log, "left_of_run", lambda *given: more if due in given else None)
    signed = SimpleNamespace(plan=SimpleNamespace(privacy=SimpleNamespace(rounds=9)), run=b"r" * 32)
    ledger = SimpleNamespace(keys=lambda run: range(taken) if run == (b"r" * 32).hex() else ())
    joined, task = (
        SimpleNamespace(signed=signed, numbers_sent=1234, why=None, limits="limits"),
        SimpleNamespace(bound=1.5),
    )
    said = sent_words(joined, ledger, SimpleNamespace(unit="record"), SimpleNamespace(round=4), task, "one vector")
    assert f"participation {taken} of {taken + more} allowed, in 9 rounds" in said
    assert said.endswith(f"(record, server) in this run so far: {epsilon_words(0.25 * taken)}")


# Numbers of which no two are equal, nor a sum or product of others that a sentence says.
PLAN = SimpleNamespace(rounds=23, cohort=7.0, clients=1019, colluding=3, secure=object(), server_sees="sum")
SETTINGS = SimpleNamespace(algo="dp-agrlr", aggregation=SimpleNamespace(company="drawn"))
OFFERED = SimpleNamespace(
    plan=SimpleNamespace(
        settings=SETTINGS, privacy=PLAN, shape=SimpleNamespace(ways=2, shots=5, queries=11), planned=()
    ),
    privacy=PLAN, run=bytes.fromhex("0123456789abcdef") * 4, task=SimpleNamespace(name="scans", encoding=None),
    request=SimpleNamespace(kind="histogram"),
    analysis=SimpleNamespace(
        asks="its classes", server_sees="a sum", form=lambda privacy: SimpleNamespace(dimension=4321)
    ),
)  # fmt: skip
PROMISE = SimpleNamespace(unit="client", words="little", epsilon=5.0)


@pytest.fixture
def counted(monkeypatch):
    """Epsilon grows by 0.25 with each participation; nine rounds were answered in this run and four are left."""
    monkeypatch.setattr(client_log, "epsilon_after", lambda plan, promise, n: 0.25 * n if plan is PLAN else None)
    monkeypatch.setattr(
        client_log, "left_of_run", lambda plan, *given: 4 if plan is PLAN and given[3:] == ("limits",) else None
    )
    monkeypatch.setattr(client_log, "dishonest_words", lambda privacy: "liars")
    keys = {OFFERED.run.hex(): range(9)}
    return SimpleNamespace(keys=keys.get, participations=31, epsilon=1.75, epsilons={}, relation=None)


COMPANY = (
    "the plan assumes that the server draws cohorts at random, as it says; 3 of the clients that are asked may collude "
    "with the server"
)
SPENT = "promised here: little; so far 31 participations in all runs, in all epsilon 1.75"


def test_sentences_of_a_run(counted):
    assert [*offered_words(OFFERED)] == [
        "offered: a plan of run 01234567, dp-agrlr: 23 rounds, 7 of 1,019 clients in each; a client uses 2 classes "
        "with 5 support and 11 query records each",
        "the server sees the sum of all clients' vectors, modulo a power of two, with the noise that the clients made",
        COMPANY,
        "the plan's guarantees towards the public hold if the server draws cohorts as it says, keeps them secret and "
        "adds its noise; no client can check that",
        "liars",
    ]
    joined = SimpleNamespace(signed=OFFERED, numbers_sent=2345, why=None, limits="limits")
    assert [*joined_words(joined, counted, PROMISE)] == [
        SPENT,
        "the promise allows 13 of the 23 rounds, of which 9 are answered; (client, server) in this run: epsilon 0.25 "
        "after one round, epsilon 3.25 after 13",
        "what would leave this machine in a round: one masked vector of whole numbers, 2,345 coordinates, clipped to "
        "the clip bound of the round, with the noise that the promise needs; no records, labels, counts, losses or "
        "accuracies",
    ]
    for why, only in ((None, ""), ("nothing there", ", only noise")):
        joined.why = why
        words = sent_words(
            joined, counted, PROMISE, SimpleNamespace(round=17), SimpleNamespace(bound=0.123456), "one vector"
        )
        assert words == (
            f"round 17: one vector left this machine (2,345 coordinates, clipped to 0.1235{only}); participation 9 of "
            "13 allowed, in 23 rounds; (client, server) in this run so far: epsilon 2.25"
        )


def test_sentences_of_an_analysis(counted, monkeypatch):
    assert [*analysis_words(OFFERED, ())] == [
        "offered: an analysis of run 01234567, histogram: 7 of 1,019 clients are asked once; each says its classes",
        "the server sees a sum",
        COMPANY,
        "liars",
    ]
    joined = SimpleNamespace(signed=OFFERED)
    lines = [
        SPENT,
        "the answer would cost epsilon 0.25 of (client, server)",
        "what would leave this machine: one vector of 4,321 whole numbers under masks, once, with this client's share "
        "of the noise; no images; the server sees only the sum of all clients' vectors",
    ]
    assert [*answering_words(joined, counted, PROMISE)] == lines
    assert answered_words(joined, PROMISE, "one vector") == (
        "histogram: one vector left this machine (4,321 whole numbers: its classes); (client, server) in this "
        "analysis: epsilon 0.25"
    )
    monkeypatch.setattr(client_log, "epsilon_after", lambda *given: math.inf)
    assert [*answering_words(joined, counted, PROMISE)] == [
        SPENT,
        "the answer would cost no finite epsilon (no noise covers it) of (client, server)",
        lines[2].replace(", with this client's share of the noise", ""),
    ]


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("epsilon", [None, 10.0])
def test_an_answer_s_cost_is_said_as_the_ledger_counts_it(counted, monkeypatch, epsilon, answered):
    """The promise is compared with that number, which lies above the answer's own where bounds are added up."""
    monkeypatch.setattr(client_log, "participation", lambda plan, promise, round_: ("one", round_))
    monkeypatch.setattr(client_log, "run_cost", lambda plan: "besides")
    after = {(("one", 0),): 11.01}
    ledger = SimpleNamespace(
        keys=lambda run: [(0,)] if answered else [], participations=31, epsilon=1.75, epsilons={},
        relation=None,
        after=lambda layers, *, run, cost: after[tuple(layers)] if (run, cost) == (OFFERED.run.hex(), "besides") else 0,
    )  # fmt: skip
    promise = SimpleNamespace(unit="record", epsilon=epsilon, words="little")
    monkeypatch.setattr(client_log, "counted", lambda plan, promise, ledger: promise)
    more = "; with it this client's ledger counts epsilon 11.01 in all, by a bound that adds up"
    due = "the answer would cost epsilon 0.25 of (record, server)" + (more if epsilon and not answered else "")
    assert list(answering_words(SimpleNamespace(signed=OFFERED), ledger, promise))[1] == due


def test_a_promise_without_an_epsilon_names_none(counted):
    assert spent_words(counted, SimpleNamespace(words="much", epsilon=None)) == (
        "promised here: much; so far 31 participations in all runs"
    )
