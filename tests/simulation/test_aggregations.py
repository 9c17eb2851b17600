"""Ways to add up a cohort are made with the numbers that the settings have for them, each with its own."""

from types import SimpleNamespace

import pytest

from dpfedmeta.config.settings import Settings
from dpfedmeta.core import worker_pool
from dpfedmeta.simulation import cohort_sums
from dpfedmeta.simulation.aggregations.messages import Messages
from dpfedmeta.simulation.aggregations.secure import Secure
from dpfedmeta.simulation.cohort_sums import SecureSums

# No two of them are alike, so that one in another's place shows.
NUMBERS = {
    "population.dropout": 0.03, "population.sampler": "fixed", "population.max_participations": None,
    "aggregation.dropout": 0.25, "aggregation.adversarial": 0.07, "aggregation.bits": 19,
    "aggregation.protocol": True, "privacy.client.colluding": 3, "privacy.client.hostile": 0.11, "run.workers": 2,
}  # fmt: skip


def settings(**given):
    return Settings.preset("dp-agr-secure", "strokes", {**NUMBERS, **given})


def sums_of(**given):
    made = Secure.made(settings(**given), SimpleNamespace(), SimpleNamespace())
    assert isinstance(made, SecureSums)
    return made


@pytest.mark.parametrize(("cores", "asked", "used"), [(4, 2, 2), (1, 2, 1), (4, None, 4)])
def test_the_protocol_has_the_numbers_of_the_settings(cores, asked, used, monkeypatch):
    monkeypatch.setattr(worker_pool, "available_cores", lambda: cores)
    added = sums_of(**{"run.workers": asked}).added
    assert (added.adversarial, added.colluding, added.absent, added.processes) == (0.07, 3, 0.03, used)


def test_without_the_protocol_sums_are_the_ideal_result():
    assert sums_of(**{"aggregation.protocol": False}).added is cohort_sums.added_up


def test_the_accountant_has_the_numbers_of_the_settings():
    rounds = Secure.rounds(settings(), 70, 8)
    assert (rounds.bits, rounds.dimension, rounds.parts) == (19, 70, 8)
    assert (rounds.dropout, rounds.absent, rounds.adversarial) == (0.25, 0.03, 0.07)


@pytest.mark.parametrize("kind", [Secure, Messages])
@pytest.mark.parametrize("abort", [True, False])
def test_each_ends_a_round_with_a_failure_where_that_is_asked_for(kind, abort):
    clients, workers = SimpleNamespace(), SimpleNamespace()
    made = kind.made(settings(**{"server.abort_on_failure": abort}), clients, workers)
    assert (made.clients, made.workers, made.abort_on_failure) == (clients, workers, abort)
