"""Files of check-ins that state the looser bound of earlier versions verify; forged ones do not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting import PrivacyPlan
from dpfedmeta.accounting.divergences.pld_composition import COARSE
from dpfedmeta.accounting.ledger.versions import VERSION
from dpfedmeta.accounting.observers.four_guarantees import guarantees, stated
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.verification.file_claims import Proven, check_cells, json_of
from dpfedmeta.training.verification.row_claims import _Along
from dpfedmeta.training.verification.verify import agreed

PLAN = PrivacyPlan(
    clients=1000, cohort=250.0, rounds=4, noise_multiplier=1.0, sampler="check-ins", capacity=400, max_participations=1
)
BY_COINS = PrivacyPlan(clients=1000, cohort=50.0, rounds=4, noise_multiplier=1.0)
PATH = Path("plan.json")


def proven_of(plan):
    content = SimpleNamespace(plan=plan, charges=(), version=VERSION)
    return Proven(content=content, settings=None, spent=stated((), Terms.of(plan)), planned=guarantees(plan))


def cells_of(plan, by_absence):
    terms = replace(Terms.of(plan), by_absence=by_absence)
    return json_of([cell.as_json() for cell in stated(plan.phases, terms)])


def checked(cells, proven):
    def check(by):
        check_cells(PATH, "planned", cells, by, by.planned)
        return ["plan.json agrees"]

    return agreed(check, proven)


@pytest.fixture(scope="module")
def proven():
    return proven_of(PLAN)


@pytest.fixture(scope="module")
def earlier():
    return cells_of(PLAN, by_absence=True)


def test_what_earlier_versions_stated_agrees_and_is_said(proven, earlier):
    today = cells_of(PLAN, by_absence=False)
    assert earlier[3]["epsilon"] > 1.2 * today[3]["epsilon"]
    assert earlier[:3] == today[:3]
    assert checked(today, proven) == ["plan.json agrees"]
    (remark,) = checked(earlier, proven)
    assert remark.startswith("plan.json agrees, by a looser bound")


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_any_other_number_is_refused_against_that_of_today(proven, earlier, factor):
    forged = [*earlier[:3], {**earlier[3], "epsilon": factor * earlier[3]["epsilon"]}]
    with pytest.raises(InputError, match=f"adds up to {proven.planned[3].epsilon:.3f}"):
        checked(forged, proven)
    forged = [{**earlier[0], "epsilon": factor * earlier[0]["epsilon"]}, *earlier[1:]]
    with pytest.raises(InputError, match="client, public"):
        checked(forged, proven)


def test_other_samplers_never_had_another_bound():
    cells = cells_of(BY_COINS, by_absence=True)
    assert checked(cells, proven_of(BY_COINS)) == ["plan.json agrees"]
    cells[3]["epsilon"] *= 1.3
    with pytest.raises(InputError, match="record, public"):
        checked(cells, proven_of(BY_COINS))


def test_rows_of_earlier_versions_agree_with_their_bound_alone(proven):
    terms = replace(Terms.of(PLAN), by_absence=True)
    phases = PLAN.first(3)
    row = {f"{cell.unit}_{cell.observer}": cell.epsilon for cell in stated(phases, terms, COARSE)}

    def check(by):
        _Along(proven=by, finished=True).check("rounds.jsonl, line 3", 2, row)
        return ["rounds.jsonl agrees"]

    assert "looser" in agreed(check, proven)[0]
    with pytest.raises(InputError, match="record_public"):
        check(proven)
