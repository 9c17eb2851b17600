import stat
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.accounting.cells import guarantees
from dpfedmeta.accounting.gaussian import gaussian_epsilon
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.accounting.record_layer import RecordLayer
from dpfedmeta.errors import InputError
from dpfedmeta.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.willingness import ClientLedgers

LAYER = RecordLayer(support_noise=4.0, query_noise=1.6, support_steps=5, support_records=25, query_records=25)
PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=20, noise_multiplier=1.0, max_participations=3, record=LAYER)


def budget(participations):
    cell = guarantees(replace(PLAN, max_participations=participations))[2]
    return RecordBudget(epsilon=cell.epsilon, delta=cell.delta)


def test_a_client_takes_part_as_often_as_it_was_promised_and_then_declines(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    for round_ in range(3):
        assert ledger.accepts(LAYER)
        ledger.charge(round_, LAYER)
    assert not ledger.accepts(LAYER)
    assert ledger.epsilon == pytest.approx(budget(3).epsilon)
    with pytest.raises(ValueError, match="would exceed"):
        ledger.charge(3, LAYER)


def test_what_was_spent_survives_and_is_what_the_accountant_says(tmp_path):
    ClientLedger(tmp_path / "c", budget(3)).charge(0, LAYER)
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.epsilon == pytest.approx(budget(1).epsilon)
    again.charge(7, LAYER)
    assert ClientLedger(tmp_path / "c", budget(3)).epsilon == pytest.approx(budget(2).epsilon)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600


def test_other_noise_counts_as_what_it_is(tmp_path):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=3.0, delta=1e-5))
    ledger.charge(0, LAYER)
    strong = replace(LAYER, query_noise=0.5)
    assert not ledger.accepts(strong)
    assert ledger.epsilon == pytest.approx(gaussian_epsilon(1 / 1.6, 1e-5))


def test_an_edited_ledger_or_another_budget_is_refused(tmp_path):
    path = tmp_path / "c"
    ClientLedger(path, budget(3)).charge(0, LAYER)
    with pytest.raises(InputError, match="was started as"):
        ClientLedger(path, budget(2))
    path.write_text(path.read_text().replace('"mu"', '"nu"'))
    with pytest.raises(InputError, match=r"line|mu"):
        ClientLedger(path, budget(3))


def test_a_line_that_a_crash_tore_was_never_answered_and_is_charged_again(tmp_path):
    path = tmp_path / "c"
    ledger = ClientLedger(path, budget(3))
    for round_ in (0, 1):
        ledger.charge(round_, LAYER)
    whole = path.read_text()
    path.write_text(whole[:-5])
    mended = ClientLedger(path, budget(3))
    assert (mended.holds(0), mended.holds(1)) == (True, False)
    mended.charge(1, LAYER)
    assert path.read_text() == whole
    path.write_text(whole[:20])
    assert ClientLedger(path, budget(3)).epsilon == 0.0


def test_an_attempt_at_a_round_is_charged_on_its_own(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    ledger.charge(4, LAYER)
    once = ledger.epsilon
    ledger.charge(4, LAYER, again=(1, 77))
    assert ledger.epsilon > once
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.holds(4, (1, 77))
    assert not again.holds(4, (2, 77))


def test_a_cohort_keeps_those_who_are_willing(tmp_path):
    ledgers = ClientLedgers(folder=tmp_path / "clients", budget=budget(2), each=LAYER)
    cohorts = [Cohort(round=r, clients=np.asarray([1, 2 + r], dtype=np.int64)) for r in range(4)]
    stayed = [ledgers.willing(cohort).clients.tolist() for cohort in cohorts]
    assert stayed == [[1, 2], [1, 3], [4], [5]]
    assert sorted(file.name for file in (tmp_path / "clients").iterdir()) == [f"{c}.jsonl" for c in (1, 2, 3, 4, 5)]
    assert stat.S_IMODE((tmp_path / "clients").stat().st_mode) == 0o700
    assert ledgers.willing(Cohort(round=9, clients=np.empty(0, dtype=np.int64))).clients.size == 0
