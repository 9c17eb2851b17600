"""When a journal charges, what it asks of the budget before, and in which order it writes."""

import itertools
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.privacy.rounds.cohort_log import Participations, participations_file
from dpfedmeta.privacy.rounds.round_journal import Journal, further_question, round_inputs

PLAN = PrivacyPlan(clients=60, cohort=12, rounds=8, noise_multiplier=2.0)


class Budget:
    """Allows rounds below `end`, and notes what it is asked."""

    def __init__(self, end, again):
        self.end, self.again, self.asked = end, again, []

    def affordable_rounds(self, plan):
        assert plan == PLAN
        self.asked.append("all")
        return self.end

    def further_rounds(self, plan, charges, first):
        assert plan == PLAN
        self.asked.append(([(charge.round, charge.attempt) for charge in charges], first))
        return self.again


@pytest.fixture
def journal(tmp_path):
    (tmp_path / "secret").mkdir()
    run, number = RunDirectory(tmp_path), itertools.count()

    def made(**changes):
        usual = {
            "plan": PLAN, "participations": Participations(participations_file(run)), "budget": None,
            "source": FreshSource(seed=7), "environment": "here",
        }  # fmt: skip
        ledger = Ledger(tmp_path / f"{next(number)}.jsonl", PLAN, RunIdentity(run="ab" * 16, config="", secure=False))
        return Journal(**{**usual, "ledger": ledger, **changes})

    return made


def charges(journal):
    return [(charge.round, charge.attempt) for charge in journal.ledger.charges]


def test_the_same_question_is_charged_once_and_another_one_again(journal):
    own = journal()
    first = own.begin(0, "one")
    assert own.begin(0, "one") is first
    assert charges(own) == [(0, 0)]
    other = own.begin(0, "two")
    assert (other.again, charges(own)) == (own.ledger.charges[1].again, [(0, 0), (0, 1)])
    # Whichever it was of several.
    assert own.begin(0, "one") is first
    assert own.begin(0, "two") is other
    third = own.begin(0, "two", anew=True)
    assert third is not other
    assert charges(own) == [(0, 0), (0, 1), (0, 2)]
    assert len({charge.fresh for charge in own.ledger.charges}) == 3
    assert all(charge.fresh for charge in own.ledger.charges)


def test_a_round_after_another_release_is_charged_again(journal):
    """The same inputs do not make it the same question: what was released before it is part of it."""
    own = journal()
    own.begin(0, "one")
    own.released[0] = "a" * 64
    first = own.begin(1, "two")
    assert own.begin(1, "two") is first
    own.released[0] = "b" * 64
    assert own.begin(1, "two") is not first
    assert charges(own) == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("changes", "reproducible"),
    [
        ({}, True), ({"environment": ""}, True), ({"environment": None}, False), ({"source": KeyedSource(1)}, True),
        ({"source": OperatingSystemSource()}, False),
    ],
)  # fmt: skip
def test_what_cannot_be_done_again_identically_is_charged_again(journal, changes, reproducible):
    own = journal(**changes)
    assert own.reproducible == reproducible
    found = [own.begin(0, "one") for _ in range(2)]
    assert (found[0] is found[1]) == reproducible
    assert len(charges(own)) == (1 if reproducible else 2)


def test_an_attempt_whose_fresh_bytes_are_gone_is_none_to_repeat(journal):
    keyed = journal(source=KeyedSource(1))
    keyed.begin(0, "one")
    assert not keyed.ledger.charges[0].fresh
    own = journal(participations=keyed.participations)
    own.ledger.charges[:] = keyed.ledger.charges
    found = own.begin(0, "one")
    assert charges(own) == [(0, 0), (0, 1)]
    assert found.again
    assert own.begin(0, "one") is found


def test_the_cohort_is_on_disk_before_its_charge_and_the_register_follows(journal, monkeypatch, tmp_path):
    seen, followed = [], []
    lineage = SimpleNamespace(follow=lambda lines, head: followed.append((lines, head)))
    own = journal(lineage=lineage)
    charge = own.ledger.charge

    def noting(event):
        seen.append(participations_file(RunDirectory(tmp_path)).read_text().count("\n"))
        assert len(followed) == len(seen) - 1
        charge(event)

    monkeypatch.setattr(own.ledger, "charge", noting)
    for number in range(3):
        own.begin(number, f"{number}")
        assert followed[-1] == (own.ledger.lines, own.ledger.head)
    assert seen == [1, 2, 3]
    assert len(followed) == 3


def test_releases_behind_a_further_attempt_are_forgotten_and_no_others(journal):
    own = journal()
    for number in range(4):
        own.begin(number, "one")
        own.released[number] = f"{number}"
    own.begin(2, "two")
    assert own.released == {0: "0", 1: "1"}
    own.begin(4, "one")
    assert own.released == {0: "0", 1: "1"}
    assert [own.repeats(*each) for each in ((0, "0"), (0, "1"), (7, "0"))] == [True, False, True]


# The budget.


def test_a_run_in_order_asks_once_and_ends_where_it_may(journal):
    budget = Budget(end=3, again=0)
    own = journal(budget=budget)
    assert [own.begin(number, "one") is not None for number in range(3)] == [True] * 3
    assert budget.asked == ["all"]
    assert own.begin(3, "one") is None
    assert charges(own) == [(0, 0), (1, 0), (2, 0)]
    assert own.participations.before(9)[-1].round == 2  # nobody was drawn


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_further_attempt_and_what_comes_after_it_are_asked_for_together(journal, allowed):
    budget = Budget(end=9, again=allowed)
    own = journal(budget=budget)
    for number in range(3):
        own.begin(number, "one")
    before = charges(own)
    # From round 1 on, so many more.
    found = [own.begin(number, "two") is not None for number in (1, 2, 3)]
    assert found == [number < allowed for number in range(3)]
    assert budget.asked[:2] == ["all", (before, 1)]
    assert charges(own)[3:] == [(1, 1), (2, 1)][:allowed]


def test_after_a_further_attempt_a_first_one_is_asked_for_with_all_that_was_charged(journal):
    before = journal()
    for number, inputs in ((0, "one"), (1, "one"), (1, "two")):
        before.begin(number, inputs)
    budget = Budget(end=9, again=1)
    own = journal(budget=budget, participations=before.participations)
    own.ledger.charges[:] = before.ledger.charges
    assert own.begin(2, "one") is not None
    assert budget.asked == [([(0, 0), (1, 0), (1, 1)], 2)]


# What a question is made of.


def test_whatever_a_release_is_computed_from_is_in_its_question():
    import numpy as np

    model = {"w": np.arange(3.0, dtype=np.float32)}
    usual = (2, model, 0.5, "here")
    others = [
        (3, *usual[1:]), (2, {"w": model["w"] + 1}, *usual[2:]), (2, {"v": model["w"]}, *usual[2:]),
        (2, model, float(np.nextafter(0.5, 1)), "here"), (2, model, 0.5, "there"), (2, model, 0.5, None),
    ]  # fmt: skip
    found = {round_inputs(*each) for each in (usual, *others)}
    assert len(found) == 1 + len(others)
    assert round_inputs(2, dict(model), 0.5, "here") in found
    # What ledgers have written is the same question today.
    assert round_inputs(*usual) == "3abb09f078df48f8977df4f1c3e11177"


def test_a_further_question_is_charged_and_a_run_that_goes_on_finds_the_last_one(journal):
    own = journal()
    assert own.last_question(0, "one") == "one"
    cohorts, inputs = [own.begin(0, "one")], "one"
    for attempt in (1, 2):
        inputs = further_question(inputs)
        cohorts.append(own.begin(0, inputs))
        assert charges(own)[-1] == (0, attempt)
        assert own.last_question(0, "one") == inputs
        # Of another round, or of another first question, nothing was used up.
        assert own.last_question(1, "one") == "one"
        assert own.last_question(0, "two") == "two"
    assert len({cohort.again for cohort in cohorts}) == 3
    assert own.begin(0, own.last_question(0, "one")) is cohorts[-1]
    assert charges(own) == [(0, 0), (0, 1), (0, 2)]
