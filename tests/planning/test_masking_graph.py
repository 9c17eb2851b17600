from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.analytics.analysis_request import FixedCohort, Request
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.federation.offers.signed_analysis import agreement_for
from dpfedmeta.federation.offers.signed_plan import agreement_of
from dpfedmeta.planning.privacy.masking_graph import check_graph, masking_graph, withstood
from dpfedmeta.secure_aggregation import agreed
from dpfedmeta.simulation import protocol_rounds
from dpfedmeta.simulation.protocol_rounds import ProtocolRounds
from tests.federation.sessions import cohort

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


def of_a_training(adversarial, colluding):
    plan = replace(PLAN, cohort=60, colluding=colluding, secure=replace(PLAN.secure, adversarial=adversarial))
    settings = SimpleNamespace(aggregation=SimpleNamespace(adversarial=adversarial))
    return agreement_of(SimpleNamespace(privacy=plan, settings=settings), 0, 60)


def of_an_analysis(adversarial, colluding):
    fixed = FixedCohort(adversarial=adversarial, colluding=colluding)
    request = Request(
        kind="quantile", epsilon=1.0, delta=1e-6, cohort=60, clients=4000, own={}, names="names.txt", fixed=fixed
    )
    return agreement_for(request, replace(PLAN, cohort=60, colluding=colluding, secure=SecureRounds(
        bits=31, dimension=62, longest=1.0, adversarial=adversarial)))  # fmt: skip


def of_a_simulation(adversarial, colluding):
    whole = replace(PLAN, cohort=60, colluding=colluding).at(0).whole
    found = []

    def noted(seats, *, agreement, **given):
        found.append(agreement)
        return SimpleNamespace(sum=SimpleNamespace(total=seats[0]))

    vectors = [np.zeros(whole.dimension, dtype=np.uint32)] * 60
    added = ProtocolRounds(adversarial=adversarial, colluding=colluding, absent=0.0, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol_rounds, "run_round", noted)
        added(
            SimpleNamespace(whole=whole),
            SimpleNamespace(map=lambda *given: [vectors]),
            [()],
            replace(cohort(range(60)), invited=60),
        )
    return found[0]


@pytest.mark.parametrize(
    ("adversarial", "colluding", "counted"), [(0.05, 1, 3), (0.05, 9, 9), (0.0, 4, 4), (0.2, 4, 12)]
)
@pytest.mark.parametrize("agreement", [of_a_training, of_an_analysis, of_a_simulation])
def test_wherever_masks_are_agreed_on_they_withstand_whoever_is_counted_for_the_noise(
    agreement, adversarial, colluding, counted
):
    """Server and clients compute the numbers alike, so neither would notice."""
    assert agreement(adversarial, colluding).colluding == counted


def test_every_cohort_that_may_be_drawn_counts():
    """Of the expected size there is one; the smallest that is used would be left with too few honest clients."""
    plan = replace(PLAN, sampler="poisson", cohort=40, secure=replace(PLAN.secure, adversarial=0.85, dropout=0.1))
    assert masking_graph(plan) is not None
    assert plan.at(0).whole.least < 12
    with pytest.raises(RefusedPlan, match="fewer than two honest"):
        check_graph(plan)
    check_graph(replace(plan, secure=replace(plan.secure, adversarial=0.3)))
