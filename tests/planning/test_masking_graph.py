from dataclasses import replace

import pytest

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.planning.privacy.masking_graph import check_graph, masking_graph, withstood
from dpfedmeta.secure_aggregation import agreed

PLAN = PrivacyPlan(
    clients=4000,
    cohort=400,
    rounds=20,
    noise_multiplier=1.0,
    server_sees="sum",
    sampler="fixed",
    secure=SecureRounds(bits=16, dimension=1000, dropout=0.1, adversarial=0.05),
)


def changed(cohort=400, **secure):
    return replace(PLAN, cohort=cohort, secure=replace(PLAN.secure, **secure))


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("cohort", [20, 99, 100, 400])
def test_it_is_what_the_parties_agree_on(cohort, malicious):
    plan = changed(cohort, malicious=malicious)
    check_graph(plan)
    found = masking_graph(plan)
    numbers = agreed(clients=cohort, dimension=1024, bits=16, adversarial=0.05, dropout=0.1, malicious=malicious)
    assert (found.degree, found.threshold, found.fewest) == (numbers.degree, numbers.threshold, numbers.fewest)


def test_nothing_is_masked_elsewhere():
    for plan in (replace(PLAN, secure=None, server_sees="messages"), changed(adversarial=None)):
        check_graph(plan)
        assert masking_graph(plan) is None


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (changed(adversarial=0.95), "fewer than two honest clients stay"),
        (changed(adversarial=0.5, dropout=0.5), "fewer than two honest clients stay"),
        (changed(cohort=3, dropout=0.0, adversarial=0.4), "invite more clients"),
        (changed(cohort=2, dropout=0.0, adversarial=0.05), "fewer than two"),
        (replace(changed(40), colluding=35), "fewer than two honest clients stay"),
        (changed(absent=0.3), "most rounds would be aborted"),
    ],
)
def test_cohorts_without_a_graph_are_refused(plan, why):
    with pytest.raises(RefusedPlan, match=why) as refusal:
        check_graph(plan)
    assert "\n" not in str(refusal.value)


def test_masks_withstand_who_knows_its_own_noise():
    """Of 400 the settings say 20; as many more as are counted for the noise, though nobody is adversarial."""
    for plan, colluding in ((PLAN, 20), (replace(PLAN, colluding=60), 60), (changed(adversarial=0.0), 1)):
        check_graph(plan)
        share = withstood(plan.secure.adversarial, plan.colluding, 400)
        numbers = agreed(clients=400, dimension=1024, bits=16, adversarial=share, dropout=0.1, malicious=False)
        assert numbers.colluding == colluding
        assert masking_graph(plan).threshold == numbers.threshold


def test_every_cohort_that_may_be_drawn_counts():
    """Of the expected size there is one; the smallest that is used would be left with too few honest clients."""
    plan = replace(PLAN, sampler="poisson", cohort=40, secure=replace(PLAN.secure, adversarial=0.85, dropout=0.1))
    assert masking_graph(plan) is not None
    assert plan.at(0).whole.least < 12
    with pytest.raises(RefusedPlan, match="fewer than two honest"):
        check_graph(plan)
    check_graph(replace(plan, secure=replace(plan.secure, adversarial=0.3)))
