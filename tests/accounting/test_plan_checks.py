"""Every value and combination for which nothing is proved is refused by name, each where all others hold."""

import ast
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan import plan_checks
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan

PLAIN = PrivacyPlan(clients=1000, cohort=100, rounds=10, noise_multiplier=2.0)
QUERY = RecordLayer(support_noise=None, query_noise=3.0, support_steps=1, support_records=1, query_records=4)
UPDATE = replace(QUERY, support_noise=3.0, query_noise=None)
OF_SUM = replace(QUERY, query_noise=None, of_sum=True)
RECORD = replace(PLAIN, record=QUERY)
SUMS = replace(
    PLAIN, sampler="fixed", server_sees="sum", secure=SecureRounds(bits=16, dimension=64, dropout=0.1, parts=4),
    record=OF_SUM,
)  # fmt: skip
ONE = replace(SUMS, record=None, secure=replace(SUMS.secure, parts=1))
EARLIER = Earlier(run="a" * 32, head="b" * 64, phases=PLAIN.phases)

# (what holds, what is changed, its name). Twice at the ends of a range: just outside, and far off.
REFUSED = [
    (PLAIN, {"relation": "removed"}, "relation"),
    *((PLAIN, {name: value}, name) for name in ("clients", "rounds", "colluding") for value in (0, -1)),
    *((PLAIN, {"max_participations": value}, "max_participations") for value in (0, -1)),
    *((PLAIN, {name: value}, name) for name in ("client_delta", "record_delta") for value in (0.0, 1.0, -1e-9, 2.0)),
    *((PLAIN, {"hostile": value}, "hostile") for value in (-0.1, 1.0, math.nan)),
    *((PLAIN, {"noise_multiplier": value}, "noise_multiplier") for value in (-1.0, 1e-4, 1e8, math.inf, math.nan)),
    *((PLAIN, {"cohort": value}, "cohort") for value in (0.0, -1.0, 1001.0, math.nan)),
    (PLAIN, {"schedule": (Change(from_round=3, cohort_scale=11.0),)}, "cohort"),
    (PLAIN, {"noise_mode": "other"}, "noise_mode"),
    (PLAIN, {"sampler": "nobody"}, "population.sampler"),
    (PLAIN, {"server_sees": "everything"}, "server_sees"),
    (PLAIN, {"noise": "toeplitz"}, "noise"),
    (PLAIN, {"noise_site": "clients"}, "noise_site"),
    (replace(PLAIN, sampler="fixed"), {"noise_site": "clients", "record": QUERY}, "noise_site"),
    (replace(PLAIN, sampler="fixed"), {"noise_site": "clients", "schedule": (Change(from_round=3),)}, "noise_site"),
    (RECORD, {"record": OF_SUM}, "record.of_sum"),
    (RECORD, {"record": UPDATE}, "noise_mode"),
    (RECORD, {"noise": "module:Mechanism"}, "noise"),
    (PLAIN, {"earlier": (EARLIER, EARLIER)}, "earlier"),
    *((PLAIN, {"missed": value}, "missed") for value in (-0.1, 1.0)),
    (RECORD, {"missed": 0.1}, "missed"),
    (SUMS, {"missed": 0.1}, "missed"),
    *((PLAIN, {"ends": ends}, "ends") for ends in ((0,), (10,), (11,), (5, 5), (6, 5))),
    (PLAIN, {"schedule": (Change(from_round=3), Change(from_round=3))}, "schedule"),
    (PLAIN, {"schedule": (Change(from_round=4), Change(from_round=3))}, "schedule"),
    (ONE, {"server_sees": "messages"}, "server_sees"),
    (ONE, {"noise_multiplier": None}, "noise_multiplier"),
    (ONE, {"noise_site": "clients"}, "noise_site"),
    (ONE, {"schedule": (Change(from_round=3, noise_scale=2.0),)}, "schedule"),
    (ONE, {"noise": "module:Mechanism"}, "noise"),
    (SUMS, {"secure": replace(SUMS.secure, parts=1)}, "secure.parts"),
    (ONE, {"record": UPDATE}, "noise_mode"),
    (replace(ONE, sampler="poisson"), {"hostile": 0.1}, "hostile"),
    (replace(PLAIN, sampler="cyclic", noise="banded", correlation=Correlation(separation=10)),
     {"noise": "independent", "correlation": None, "secure": ONE.secure, "server_sees": "sum"}, "sampler"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "change", "name"), REFUSED, ids=[f"{name} {list(c)}" for _, c, name in REFUSED])
def test_what_is_not_proved_is_refused_by_its_name(plan, change, name):
    with pytest.raises(RefusedPlan, match=rf"^{name.replace('.', '[.]')}\b"):
        replace(plan, **change)


# The ends of the same ranges.
ACCEPTED = [
    {"clients": 100}, {"rounds": 1}, {"colluding": 1}, {"max_participations": 1}, {"hostile": 0.0}, {"hostile": 0.999},
    {"client_delta": 1e-300, "record_delta": 1 - 1e-9}, {"noise_multiplier": 0.0},
    {"noise_multiplier": plan_checks._LEAST}, {"noise_multiplier": plan_checks._MOST}, {"cohort": 1000.0},
    {"cohort": 1e-9}, {"missed": 0.0}, {"missed": 0.999}, {"ends": (1,)}, {"ends": (1, 9)},
    {"schedule": (Change(from_round=0), Change(from_round=1, cohort_scale=10.0), Change(from_round=10))},
]  # fmt: skip


@pytest.mark.parametrize("change", ACCEPTED, ids=str)
def test_the_ends_of_what_is_proved_are_accepted(change):
    plan = replace(PLAIN, **change)
    # What begins after the last round is no part of the plan.
    assert sum(length for length, _ in plan.changes()) == plan.rounds
    assert all(length > 0 for length, _ in plan.changes())


@pytest.mark.parametrize("name", [field.name for field in fields(Change)])
def test_a_change_of_no_meaning_is_refused_by_its_name(name):
    for value in (-1, math.nan, *((0.0, math.inf) if name != "from_round" else ())):
        with pytest.raises(RefusedPlan, match=f"^{name}"):
            Change(**{"from_round": 3, name: value})


def test_every_check_of_a_plan_is_among_these():
    tree = ast.parse(Path(plan_checks.__file__).read_text())
    named = {
        ast.unparse(call.args[0]).strip("'")
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check"
    }
    assert named - {"name"} <= {name for *_, name in REFUSED}
