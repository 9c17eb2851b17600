"""Each setting reaches the one field that it is for: values that differ from each other and from every default."""

from dataclasses import fields

import pytest

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.planning import policy_from_settings
from dpfedmeta.planning.caveats import notes_of
from dpfedmeta.planning.client_spec import (
    evaluation_shape,
    network_spec,
    records_of_a_client,
    sizes_of_clients,
    whole_shape,
)
from dpfedmeta.planning.privacy import solve
from dpfedmeta.planning.privacy.solve import correlation_of
from dpfedmeta.privacy.clip_policy import Surroundings

TASK = load_task("omniglot")[0]


def settings_of(algo="dp-agr", dataset="omniglot", **given):
    return resolve(algo, dataset, None, {name: str(value) for name, value in given.items()})


NETWORK = {
    "name": ("model.name", "conv4"), "ways": ("task.ways", 7), "width": ("model.width", 24),
    "norm": ("model.norm", "group"), "groups": ("model.groups", 3), "activation": ("model.activation", "tanh"),
    "features": ("model.features", "support"), "feature_scale": ("model.feature_scale", 2.5),
    "downscale": ("model.downscale", 3), "learn": ("meta.learn", "scales"), "initial": ("model.initial", "textures"),
    "first_gain": ("model.first_gain", 1.75), "precision": ("run.precision", "bfloat16"),
}  # fmt: skip
OF_THE_TASK = {"channels": 1, "image_size": TASK.form.shape[1], "records": "images", "vocabulary": None}


def test_a_network_is_what_its_settings_and_its_task_say():
    assert {field.name for field in fields(NetworkSpec)} == NETWORK.keys() | OF_THE_TASK.keys()
    found = network_spec(settings_of(**dict(NETWORK.values())), TASK)
    assert {name: getattr(found, name) for name in NETWORK} == {name: value for name, (_, value) in NETWORK.items()}
    assert {name: getattr(found, name) for name in OF_THE_TASK} == OF_THE_TASK


SIZES = {"task.ways": 7, "task.shots": 3, "task.queries": 4}


def test_episodes_have_the_sizes_of_their_own_settings():
    training = settings_of(**SIZES)
    assert (episode_shape(training).ways, episode_shape(training).shots, episode_shape(training).queries) == (7, 3, 4)
    assert sizes_of_clients(training) == {"ways": 7, "shots": 3, "queries": 4}
    assert records_of_a_client(training, shared=False) == 7 * (3 + 4)
    held_out = evaluation_shape(settings_of(**SIZES, **{"evaluation.queries": 11}))
    assert (held_out.ways, held_out.shots, held_out.queries) == (7, 3, 11)
    other = {"evaluation.ways": 6, "evaluation.shots": 2, "evaluation.queries": 11}
    for name, due in (("ways", (6, 3)), ("shots", (7, 2))):
        found = evaluation_shape(settings_of(**SIZES, **{f"evaluation.{name}": other[f"evaluation.{name}"]}))
        assert (found.ways, found.shots) == due


def test_whole_clients_have_limits_of_their_own():
    limits = {"task.support_share": 0.25, "task.most_ways": 9, "task.most_records": 50, "task.balance": "records"}
    settings = settings_of(**{"population.episodes": "whole"}, **limits, **SIZES)
    shape = whole_shape(settings)
    assert (shape.support_share, shape.most_ways, shape.most_records) == (0.25, 9, 50)
    assert records_of_a_client(settings, shared=False) == 50
    assert network_spec(settings, TASK).ways == 9
    assert sizes_of_clients(settings) == {
        "episodes": "whole", "support_share": 0.25, "most_ways": 9, "most_records": 50, "balance": "records"
    }  # fmt: skip


# What a clip policy is planned for.

SCHEDULE = "[{from_round: 2, noise_scale: 0.5}, {from_round: 4, noise_scale: 3.0}, {from_round: 5, noise_scale: 0.7}]"
GIVEN = {
    "server.rounds": 8, "population.clients": 900, "population.cohort": 37, "server.noise_multiplier": 1.25,
    "clip.policy": "quantile", "server.schedule": SCHEDULE,
}  # fmt: skip


@pytest.fixture
def planned_for(monkeypatch):
    """What a policy of these settings is planned for."""

    def found(**given):
        seen = []
        monkeypatch.setattr(policy_from_settings, "planned_policy", lambda clip, around: seen.append((clip, around)))
        settings = settings_of(**{**GIVEN, **given})
        policy_from_settings.clip_policy(settings, solve._plan(settings, TASK, ()))
        ((clip, around),) = seen
        assert clip == settings.clip
        return around

    return found


def test_a_policy_is_planned_for_the_loudest_of_all_rounds(planned_for):
    assert planned_for() == Surroundings(algo="dp-agr", rounds=8, cohort=37.0, noise=3.75, exact=True, independent=True)
    assert planned_for(**{"server.schedule": "[{from_round: 2, noise_scale: 0.5}]"}).noise == 1.25


def test_a_policy_is_planned_for_what_clients_send_and_how_rounds_hang_together(planned_for):
    records = {"record.enabled": "true", "record.release": "micro-episodes"}
    noisy = planned_for(**records, **{"server.schedule": "[]"})
    assert (noisy.exact, noisy.independent) == (False, True)
    apart = planned_for(**{"server.noise": "toeplitz", "server.schedule": "[]"})
    assert (apart.exact, apart.independent) == (True, False)


# Constants of the accountant.


@pytest.mark.parametrize("given", [{"population.separation": 3, "server.buffers": 2}, {"server.buffers": 4}])
@pytest.mark.parametrize("noise", ["blt", "banded", "toeplitz"])
def test_correlated_noise_has_its_own_numbers_or_what_the_population_allows(noise, given):
    usual = {"population.clients": 900, "population.cohort": 37, "server.rounds": 20}
    found = correlation_of(settings_of("dp-agr", **usual, **{"server.noise": noise}, **given))
    # 900 clients in cohorts of 37 can rest for 24 rounds, and there are 20.
    assert (found.separation, found.buffers) == (given.get("population.separation", 20), given["server.buffers"])
    assert correlation_of(settings_of("dp-agr", **usual)) is None


@pytest.mark.parametrize(
    ("most", "rounds"), [(1, 2), (1, 12), (2, 12), (3, 12), (11, 12), (12, 12), (30, 12), (2, 60), (4, 60)]
)
def test_whoever_came_as_often_as_allowed_is_not_there(most, rounds):
    """P[Bin(T - 1, q) < R] of the cohort: who came less often in the rounds before the last one."""
    from scipy.stats import binom

    given = {
        "population.clients": 1000, "population.cohort": 150, "server.rounds": rounds,
        "population.max_participations": most,
    }  # fmt: skip
    share = float(binom.cdf(most - 1, rounds - 1, 0.15))
    found = [each for each in notes_of(settings_of(**given), TASK) if "cohorts become smaller" in each]
    assert bool(found) == (share < 0.8)
    if found:
        often = "once" if most == 1 else f"{most} times"
        assert found[0].startswith(f"each client takes part at most {often}, so cohorts become smaller: about ")
        assert f"about {share * 150:.0f} of 150 clients are left in round {rounds}," in found[0]


def test_every_sampler_says_what_its_plan_is_made_of():
    given = {"population.clients": 900, "population.cohort": 40, "server.rounds": 8}
    usual = settings_of("dp-agr", **given, **{"population.max_participations": 3})
    assert sampling_of("poisson").planned(usual) == {"cohort": 40.0, "max_participations": 3}
    assert sampling_of("check-ins").planned(usual) == {"cohort": 112.5, "max_participations": 1, "capacity": 40}
