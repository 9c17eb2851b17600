from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.federation.server.federation_checks import check_agreements
from dpfedmeta.planning.privacy.secure_sum_settings import check_company, may_be_picked

PLAN = PrivacyPlan(
    clients=200,
    cohort=40,
    rounds=20,
    noise_multiplier=1.0,
    server_sees="sum",
    sampler="fixed",
    secure=SecureRounds(bits=16, dimension=1000, dropout=0.1, adversarial=0.05),
)


def test_a_server_that_picks_puts_all_who_collude_into_one_cohort():
    """Ten of 200 beside any other client, of whom a share of the cohort would count two."""
    assert may_be_picked(PLAN, 40) == 10
    with pytest.raises(RefusedPlan, match=r"40 of 200 clients can place 10 .* --privacy\.client\.colluding 10"):
        check_company(PLAN, "picked")
    check_company(PLAN, "drawn")
    check_company(replace(PLAN, colluding=10), "picked")
    with pytest.raises(RefusedPlan, match="can place 10"):
        check_company(replace(PLAN, colluding=9), "picked")


def test_never_more_than_all_others_of_a_cohort():
    assert may_be_picked(PLAN, 8) == 7
    assert may_be_picked(replace(PLAN, secure=replace(PLAN.secure, adversarial=0.0)), 40) == 0


def test_nothing_is_counted_on_where_everybody_is_asked_or_messages_are_seen():
    check_company(replace(PLAN, clients=20, cohort=20), "picked")
    check_company(replace(PLAN, secure=None, server_sees="messages"), "picked")
    # Of fifty silos three may collude, whoever is picked.
    with pytest.raises(RefusedPlan, match="can place 3"):
        check_company(replace(PLAN, clients=50, cohort=50), "picked")


def test_a_server_of_real_clients_looks_at_its_company():
    settings = SimpleNamespace(aggregation=SimpleNamespace(company="picked"))
    with pytest.raises(RefusedPlan, match="colluding"):
        check_agreements(SimpleNamespace(privacy=PLAN, settings=settings))
