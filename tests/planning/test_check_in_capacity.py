"""Rounds that clients choose: what a plan of settings refuses, in one line that says what to do."""

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import check_asked, make_privacy


def settings_of(**given):
    return resolve("dp-agr-checkins", "omniglot", None, {name.replace("__", "."): v for name, v in given.items()})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"population.cohort": "419"}, "give 420 or more"),
        ({"population.cohort": "420.5"}, "whole number"),
        ({"population.max_participations": "2"}, "takes part once"),
        ({"server.rounds": "80000"}, "rounds would be empty"),
        ({"server.schedule": "[{from_round: 2, noise_scale: 2.0}]"}, "rounds must be equal"),
        ({"server.noise": "tests.seams.own_noise:Rounded"}, "only supported with independent Gaussian noise"),
        ({"aggregation.mode": "secure"}, "cohort of known size"),
        ({"server.noise_site": "clients"}, "share the noise of a round is random"),
        ({"privacy.client.hostile": "0.01"}, "choose their round too"),
        ({"privacy.client.limit": "3", "server.noise_multiplier": "1"}, "must be fixed before training"),
        ({"privacy.spent_before": "somewhere"}, "together with other releases"),
        ({"server.abort_on_failure": "true"}, "with population.sampler = check-ins"),
    ],
)
def test_what_is_not_proved_is_refused_with_the_reason(given, words):
    settings = resolve("dp-agr-checkins", "omniglot", None, given)
    with pytest.raises((RefusedPlan, InputError), match=words):
        check_asked(settings, load_task("omniglot")[0])


@pytest.mark.parametrize("solve", ["rounds", "cohort"])
def test_a_target_ends_neither_rounds_nor_a_cohort(solve):
    with pytest.raises(InputError, match="--solve noise"):
        make_privacy(settings_of(), load_task("omniglot")[0], solve)


def test_the_plan_is_one_in_which_each_client_comes_once():
    given = {"population.clients": "40", "population.cohort": "40", "server.rounds": "4"}
    plan = make_privacy(resolve("dp-agr-checkins", "omniglot", None, given), load_task("omniglot")[0])
    assert (plan.cohort, plan.capacity, plan.max_participations) == (10.0, 40, 1)
    event = plan.at(0)
    # The constant that divides the sum is what is expected, never what came.
    assert (event.cohort, event.slots, event.largest_cohort, event.surplus_probability) == (10.0, 4, 40, 0.0)
