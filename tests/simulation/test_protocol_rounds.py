"""The real protocol inside a simulated round gives the ideal result, bit for bit, whoever falls silent and when."""

from dataclasses import replace

import pytest
import torch

from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.secure_aggregation import simulated_round as in_process
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.simulation import protocol_rounds
from dpfedmeta.simulation.cohort_sums import added_up
from dpfedmeta.simulation.protocol_rounds import LATE_FROM, MISSING_FROM, ProtocolRounds
from tests.simulation.test_secure_sums import RECORDS, cohort_of, sum_of
from tests.simulation.test_secure_sums import setting as setting_of_sums

REAL = ProtocolRounds(adversarial=0.05, colluding=1, absent=0.15, processes=1)
FEW = {"population.cohort": "20", "aggregation.dropout": "0.25", "server.noise_multiplier": "0.5"}


def setting(tiny_strokes, **given):
    return setting_of_sums(tiny_strokes, **FEW, **given)


def sums(side, model, answering, added=REAL):
    return sum_of(side, model, range(answering), 20, added)


def same(ideal, real):
    assert torch.equal(ideal.value["rotated"], real.value["rotated"])
    assert ideal.noise_variance == real.noise_variance
    assert ideal.sensitivity == real.sensitivity


@pytest.mark.parametrize(
    "records", [pytest.param({}, marks=pytest.mark.slow), RECORDS], ids=["clients", "micro-episodes"]
)
def test_sums_are_those_of_the_ideal_result(tiny_strokes, records):
    _, side, model = setting(tiny_strokes, **records)
    # Two of twenty never answer; of the others a few fall silent later.
    same(sums(side, model, 18, added_up), sums(side, model, 18))


def test_more_bits_than_a_short_word_holds(tiny_strokes):
    _, side, model = setting(tiny_strokes, **{"aggregation.bits": "18"})
    same(sums(side, model, 20, added_up), sums(side, model, 20))


def test_too_few_survivors_are_never_unmasked(tiny_strokes, monkeypatch):
    _, side, model = setting(tiny_strokes)
    monkeypatch.setattr(protocol_rounds, "run_round", None)
    lost = sums(side, model, 14)
    assert not lost.value["rotated"].any()
    assert lost.noise_variance == 0


def test_clients_fall_silent_in_every_phase(tiny_strokes, monkeypatch):
    """In each of the five phases somebody does, and those who were late are in the sum all the same."""
    _, side, model = setting(tiny_strokes)
    seen, run = [], in_process.run_round

    def watched(seats, **given):
        seen.append(given["silent"])
        return run(seats, **given)

    monkeypatch.setattr(protocol_rounds, "run_round", watched)
    monkeypatch.setattr(protocol_rounds, "OperatingSystemSource", lambda: KeyedSource(2))
    real = replace(REAL, absent=0.6)
    for round_ in range(3):
        cohort = replace(cohort_of(range(17), 20), round=round_)
        ideal, found = (added(side, InProcess(), tasks_of(side, model, cohort), cohort) for added in (added_up, real))
        assert (ideal[0] % 2**16 == found[0]).all()
        assert ideal[1] == found[1] == 17
    phases = {phase for silent in seen for phase in silent.values()}
    assert phases == {*MISSING_FROM, *LATE_FROM}
    for silent in seen:
        assert len(silent) <= 5
        assert {seat for seat, phase in silent.items() if phase in MISSING_FROM} == set(range(17, 20))


def test_a_protocol_that_fails_is_tried_again_and_never_releases(tiny_strokes, monkeypatch):
    _, side, model = setting(tiny_strokes)
    crowd = dict.fromkeys(range(18), ProtocolPhase.REVEAL)
    calls = []

    def silent(self, coins, survivors, most):
        calls.append(survivors)
        return crowd if len(calls) < 2 else {}

    monkeypatch.setattr(ProtocolRounds, "_silent", silent)
    same(sums(side, model, 20, added_up), sums(side, model, 20))
    assert len(calls) == 2
    monkeypatch.setattr(ProtocolRounds, "_silent", lambda self, coins, survivors, most: crowd)
    with pytest.raises(RuntimeError, match="nothing is released"):
        sums(side, model, 20)


def tasks_of(side, model, cohort: Cohort):
    arrays = {name: value.numpy() for name, value in model.items()}
    share = side.whole.share(cohort.asked)
    return [(side, arrays, (0.2, share), cohort.round, cohort.clients.tolist(), side.source)]
