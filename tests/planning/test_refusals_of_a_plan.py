"""Each refusal by itself: settings in which one thing is wrong and nothing else is, and their neighbour that passes."""

import re
from functools import partial

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.client_spec import algorithm_of, whole_shape
from dpfedmeta.planning.policy_from_settings import check_clip
from dpfedmeta.planning.privacy.secure_sum_settings import secure_rounds
from dpfedmeta.planning.privacy.solve import check_asked, check_constants, check_solve
from dpfedmeta.planning.privacy.target_checks import check_promises
from dpfedmeta.planning.run_plan import make_plan

TASK = load_task("omniglot")[0]
BOTH = (InputError, RefusedPlan)


def settings_of(algo, given, dataset="omniglot"):
    return resolve(algo, dataset, None, {name: str(value) for name, value in given.items()}, keep_both=True)


def holds(check, algo, given, wrong, words):
    """`given` passes, and with `wrong` beside it is refused in these words."""
    check(settings_of(algo, given))
    with pytest.raises(BOTH, match=words) as refused:
        check(settings_of(algo, {**given, **wrong}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("algo", "wrong"),
    [
        ("dp-agr", {"meta.method": "reptile"}),
        ("dp-agr-secure", {"population.cohort": 20, "population.clients": 2000}),
        ("dp-agr-secure", {"population.cohort": 23, "population.clients": 2000}),
    ],
)
def test_what_a_refusal_says_is_enough_is_enough(algo, wrong):
    check = partial(check_constants if "secure" in algo else make_plan, task=load_task("strokes")[0])
    with pytest.raises(BOTH) as refused:
        check(settings_of(algo, wrong, "strokes"))
    advice = dict(re.findall(r"--(\S+) (\w[\w.]*)", str(refused.value).partition(", or another")[0]))
    given = {{"cohort": "population.cohort"}.get(name, name): value for name, value in advice.items()}
    assert given
    check(settings_of(algo, {**wrong, **given}, "strokes"))


WHOLE = {"population.episodes": "whole", "meta.learn": "body", "meta.method": "fomaml", "meta.order": "null"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"meta.learn": "all"}, r"with meta\.learn = all: a learned head"),
        ({"population.most_shots": 7}, "most_shots is for fixed episodes"),
        ({"meta.divisions": 2}, r"with meta\.divisions"),
        ({"meta.division_shots": 2}, r"with meta\.divisions"),
        ({"record.enabled": "true"}, r"with record\.enabled: how records are grouped"),
        ({"privacy.record.epsilon": 2.0}, r"with privacy\.record\.epsilon: how records are grouped"),
        ({"task.most_ways": 9, "task.most_records": 17}, r"needs 2 records of each; give at least 18"),
    ],
)
def test_whole_clients_are_not_everything(wrong, words):
    holds(lambda settings: algorithm_of(settings, TASK), "dp-agr", WHOLE, wrong, words)


def test_as_many_records_as_two_of_each_class_are_enough():
    assert (
        whole_shape(settings_of("dp-agr", {**WHOLE, "task.most_ways": 9, "task.most_records": 18})).most_records == 18
    )


@pytest.mark.parametrize(
    "wrong",
    [{"task.support_share": 0.25}, {"task.most_ways": 9}, {"task.most_records": 50}, {"task.balance": "records"}],
)
def test_limits_of_whole_clients_are_for_no_others(wrong):
    (name,) = wrong
    holds(whole_shape, "maml", {}, wrong, rf"^{name} = .*: has no effect on episodes of a fixed size")


NOTHING = {"privacy.client.epsilon": "null", "privacy.record.epsilon": "null"}
MICRO = {**NOTHING, "privacy.record.epsilon": 2.5}


@pytest.mark.parametrize(
    ("algo", "given", "wrong", "words"),
    [
        # A record's target is one of the client's noise too where one noise is all that there is.
        (
            "dp-agrlr-micro",
            {**MICRO, "privacy.record.observer": "public"},
            {"privacy.record.observer": "server"},
            "neither a target",
        ),
        (
            "dp-agrlr-micro",
            {**MICRO, "aggregation.mode": "secure"},
            {"aggregation.mode": "messages"},
            "neither a target",
        ),
        (
            "dp-agr",
            {**NOTHING, "privacy.record.epsilon": 2.5, "privacy.record.observer": "public"},
            {"privacy.record.epsilon": "null"},
            "neither a target",
        ),
        (
            "dp-agr",
            {**NOTHING, "server.noise_multiplier": 0.5},
            {"server.noise_multiplier": 0},
            "its epsilon is infinite",
        ),
        (
            "dp-agr",
            {**NOTHING, "server.noise_multiplier": 0.5, "privacy.client.limit": 3},
            {"server.noise_multiplier": "null", "privacy.client.epsilon": 2},
            r"privacy\.client\.limit = 3",
        ),
        (
            "dp-agr",
            {**NOTHING, "server.noise_multiplier": 0.5, "privacy.client.limit": 3},
            {"privacy.client.epsilon": 2},
            r"privacy\.client\.limit = 3",
        ),
        (
            "dp-agr",
            {"privacy.client.observer": "server", "aggregation.mode": "secure"},
            {"aggregation.mode": "messages"},
            "aggregation",
        ),
        ("dp-agr", {"privacy.client.delta": 0.1}, {"privacy.client.delta": 0.1000001}, r"privacy\.client\.delta"),
        (
            "dp-agrlr-micro",
            {"privacy.record.delta": 0.1},
            {"privacy.record.delta": 0.1000001},
            r"privacy\.record\.delta",
        ),
        (
            "dp-agrlr-micro",
            {"privacy.record.epsilon": "null", "record.query_noise": 2.0},
            {"record.query_noise": "null"},
            r"promises \(record, server\), but neither",
        ),
        (
            "dp-agrlr",
            {"privacy.record.epsilon": "null", "record.support_noise": 2.0},
            {"record.support_noise": "null"},
            r"promises \(record, server\), but neither",
        ),
        ("maml", {}, {"server.noise_multiplier": 0.5}, "clips nothing, so a noise or a target"),
        ("maml", {}, {"privacy.client.epsilon": 2}, "clips nothing, so a noise or a target"),
        ("maml", {}, {"privacy.record.epsilon": 2}, "clips nothing, so a noise or a target"),
        ("maml", {}, {"record.enabled": "true"}, "clips nothing, so a noise or a target"),
    ],
)
def test_each_promise_has_what_it_needs_and_no_more(algo, given, wrong, words):
    holds(lambda settings: check_promises(settings, TASK), algo, given, wrong, words)


FIXED = {"population.sampler": "fixed", "population.max_participations": "null"}


@pytest.mark.parametrize(
    ("given", "wrong", "words"),
    [
        (FIXED, {"population.sampler": "poisson"}, "larger cohorts fail more often"),
        ({**FIXED, "population.dropout": 0.1}, {"population.availability": "diurnal"}, "which clients were drawn"),
        (FIXED, {"record.enabled": "true", "record.release": "micro-episodes", "record.query_noise": 2.0},
         "damaged data sends nothing"),
    ],
)  # fmt: skip
def test_an_abort_that_everybody_sees_tells_nothing(given, wrong, words):
    asked = {"server.abort_on_failure": "true", **given}
    holds(lambda settings: check_asked(settings, TASK), "dp-agr", asked, wrong, words)
    check_asked(settings_of("dp-agr", {**given, **wrong}), TASK)


SECURE = {"aggregation.mode": "secure", "aggregation.dimension": 100}


@pytest.mark.parametrize(
    ("given", "wrong", "words"),
    [
        (
            {"population.dropout": 0.1},
            {"population.availability": "correlated"},
            r"population\.availability = correlated",
        ),
        ({}, {"server.timeout": 3}, r"server\.timeout = 3"),
        ({}, {"record.client_ledgers": "true"}, r"record\.client_ledgers"),
        ({}, {"clip.policy": "none"}, "clips nothing, but messages must be"),
        ({}, {"aggregation.mode": "messages", "aggregation.protocol": "true"}, "the protocol is only for secure"),
    ],
)
def test_a_secure_sum_tells_nothing_by_its_aborts(given, wrong, words):
    holds(lambda settings: secure_rounds(settings, TASK), "dp-agr", {**SECURE, **given}, wrong, words)
    if "message" not in str(wrong) and "clip.policy" not in wrong:
        # Cohorts of one size are aborted alike.
        secure_rounds(settings_of("dp-agr", {**SECURE, **given, **FIXED, **wrong}), TASK)


@pytest.mark.parametrize(
    ("solve", "given", "wrong", "words"),
    [
        ("bits", {"aggregation.mode": "secure"}, {"aggregation.mode": "messages"}, "only for secure aggregation"),
        ("rounds", {"server.noise_multiplier": 1}, {"server.noise_multiplier": "null"}, "give the noise too"),
        ("cohort", {"server.noise_multiplier": 1}, {"server.noise_multiplier": 0}, "give the noise too"),
        ("rounds", {"server.noise_multiplier": 1}, {"clip.policy": "none"}, "give the noise too"),
        ("cohort", {"server.noise_multiplier": 1}, {"privacy.client.epsilon": "null"}, "give a target too"),
        ("rounds", {"server.noise_multiplier": 1, **MICRO}, NOTHING, "give a target too"),
    ],
)
def test_what_is_solved_for_follows_from_what_is_given(solve, given, wrong, words):
    holds(lambda settings: check_solve(settings, solve), "dp-agr", given, wrong, words)
    check_solve(settings_of("dp-agr", {**given, **wrong}), "noise")


@pytest.mark.parametrize(
    ("given", "wrong", "words"),
    [
        ({"clip.percentile": 1}, {"clip.percentile": 0.9}, "a percentile is from 0 to 100; write 90"),
        ({"clip.percentile": 0}, {"clip.percentile": 0.001}, r"write 0\.1"),
        ({"server.unit": "bound"}, {"clip.policy": "none"}, "sets no bound to divide by"),
        ({"clip.policy": "median", "server.rounds": 9}, {"clip.window": 10}, r"more than server\.rounds = 9"),
        ({"clip.policy": "quantile"}, {"record.enabled": "true"}, "counts norms of exact messages"),
    ],
)
def test_clip_settings_fit_before_the_noise_is_solved(given, wrong, words):
    holds(check_clip, "dp-agr", given, wrong, words)
