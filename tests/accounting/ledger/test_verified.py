"""Spending that a ledger proves: its words, its cells, and another accountant's number beside them."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger import verified
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import spent
from dpfedmeta.accounting.ledger.verified import Verified, accountants_remarks, chain_remark
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError

PLAN = PrivacyPlan(clients=400, cohort=20.0, rounds=3, noise_multiplier=1.0, client_delta=1e-5)


@pytest.mark.parametrize("loose", [(False,), (True,), (False, True), (True, True)])
@pytest.mark.parametrize(("other", "agrees"), [(None, True), (2.0, True), (1.981, True), (1.97, False), (5.0, True)])
def test_another_accountant_s_number_is_held_against_ours_unless_all_are_loose(monkeypatch, loose, other, agrees):
    asked = []

    def opinion(phases, delta):
        asked.append((phases, delta))
        return None if other is None else ("theirs", other)

    monkeypatch.setattr(verified, "second_opinion", opinion)
    monkeypatch.setattr(verified, "phases_of", lambda events: ("charged",))
    bounds = tuple(SimpleNamespace(loose=each) for each in loose)
    plan = SimpleNamespace(before=("before",), client_delta=1e-5)
    cells = [SimpleNamespace(epsilon=2.0, bounds=bounds), None]
    fits = agrees or all(loose)
    with nullcontext() if fits else pytest.raises(InputError, match=r"2 here but 1\.97 by theirs: please report"):
        found = accountants_remarks(plan, (), cells)
        assert (found == []) == (other is None)
        assert not found or "(theirs): " in found[0]
    assert asked == [(("before", "charged"), 1e-5)]


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ((), "0 rounds, hash chain intact"),
        ((0,), "1 round, hash chain intact"),
        ((0, 0), "2 rounds, hash chain intact"),
        ((0, 1, 2, 0), "2 rounds, 2 of them repeated and charged again, hash chain intact"),
    ],
)
def test_a_chain_is_said_in_rounds_and_in_what_was_charged_again(attempts, said):
    assert chain_remark([SimpleNamespace(attempt=attempt) for attempt in attempts]) == said


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_of_rounds_that_may_go_on_all_of_them_are_stated(rounds):
    charges = tuple(planned_charge(PLAN, place) for place in range(rounds))
    cells = spent(PLAN, charges)
    found = Verified(plan=PLAN, charges=charges, guarantees=cells, remarks=(), simulation=None, unverified="")
    assert found.rounds == rounds
    assert found.to_state() == (cells if rounds == 3 else guarantees(PLAN))
    assert found.to_state()[0].epsilon == guarantees(PLAN)[0].epsilon
