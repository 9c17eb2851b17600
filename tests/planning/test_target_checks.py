"""Targets, noises and limits that belong together, and those of which one has to go."""

from dataclasses import replace

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.target_checks import check_promises

TARGET, NOISE, LIMIT = (
    {"privacy.client.epsilon": "2"}, {"server.noise_multiplier": "1.5"}, {"privacy.client.limit": "3"},
)  # fmt: skip
NONE = {"privacy.client.epsilon": "null", "server.noise_multiplier": "null", "privacy.client.limit": "null"}


def check(algo="dp-agr", **given):
    check_promises(resolve(algo, "strokes", None, given), load_task("strokes")[0])


@pytest.mark.parametrize("given", [TARGET, NOISE, NOISE | LIMIT])
def test_one_of_target_and_noise_and_a_limit_beside_a_noise(given):
    check(**{**NONE, **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "neither a target"),
        (TARGET | LIMIT, "only for a noise that is given"),
        (LIMIT, "neither a target"),
        ({"server.noise_multiplier": "0"}, "its epsilon is infinite"),
        ({"privacy.client.epsilon": "2", "privacy.client.observer": "server"}, "server"),
    ],
)
def test_of_these_one_has_to_go(given, words):
    with pytest.raises(RefusedPlan, match=words):
        check(**{**NONE, **given})


def test_a_limit_beside_both():
    """The settings of a program may have what a command line refuses."""
    settings = resolve("dp-agr", "strokes", None, {**NONE, **NOISE, **LIMIT})
    client = replace(settings.privacy.client, epsilon=2.0)
    both = replace(settings, privacy=replace(settings.privacy, client=client))
    with pytest.raises(RefusedPlan, match="only for a noise that is given"):
        check_promises(both, load_task("strokes")[0])


@pytest.mark.parametrize("given", [NOISE, TARGET])
def test_what_clips_nothing_takes_neither_noise_nor_target(given):
    check("maml")
    with pytest.raises(RefusedPlan, match="clips nothing"):
        check("maml", **given)


def test_no_noise_passes_where_records_have_noise_that_the_server_shares():
    shared = {"server.noise_multiplier": "0", "server.noise_mode": "shared"}
    check("dp-agrlr-micro", **{**NONE, **shared})
    with pytest.raises(RefusedPlan, match="its epsilon is infinite"):
        check("dp-agrlr-micro", **{**NONE, **shared, "server.noise_mode": "stacked"})
    with pytest.raises(RefusedPlan, match="its epsilon is infinite"):
        check("dp-agrlr-secure", **{**NONE, "server.noise_multiplier": "0"})


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_target_that_may_fail_every_second_time_is_refused_before_it_is_solved_for(unit):
    algo = {"client": "dp-agr", "record": "dp-agrlr-micro"}[unit]
    check(algo, **{f"privacy.{unit}.delta": "0.1"})
    with pytest.raises(RefusedPlan, match=f"privacy.{unit}.delta = 0.5: a target may fail with at most 0.1; give less"):
        check(algo, **{f"privacy.{unit}.delta": "0.5"})


@pytest.mark.parametrize("given", [{}, NOISE, TARGET])
def test_a_preset_that_promises_privacy_clips(given):
    with pytest.raises(RefusedPlan, match="promises client-level privacy, which needs a clip bound"):
        check(**{**NONE, "clip.policy": "none", **given})
