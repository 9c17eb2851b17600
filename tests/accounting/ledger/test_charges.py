"""Lines of a ledger: each field is read as it was written, or refused by what is wrong with it."""

import hashlib
import json
from dataclasses import fields, replace

import pytest

from dpfedmeta.accounting.events.events import Earlier, Event, Phase, first_rounds
from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.ledger.charges import Charge, planned_charge
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan

EVENT = Event(
    sampler="poisson", clients=1000, cohort=50.0, rate=0.05, noise=GaussianNoise(multiplier=1.5), largest_cohort=80,
    hostile=3, surplus_probability=1e-9, total_noise=2.5, assured_noise=2.25, message_noise=0.125, support_noise=3.5,
    support_steps=4, query_noise=0.75, slots=20, sum_noise=GaussianNoise(multiplier=1.25),
    whole=WholeSum(
        bits=16, dimension=64, parts=3, units=5.5, deviation=40.0, least=30, most=80, dropout=0.125, unsure=6
    ),
)  # fmt: skip
CHARGE = Charge(round=3, event=EVENT, attempt=2, inputs="of what", fresh="ab" * 16)
PLAIN = replace(EVENT, whole=None, sum_noise=None, slots=None)


@pytest.mark.parametrize("event", [EVENT, PLAIN, replace(PLAIN, noise=None), replace(EVENT, noise=None, sum_noise=None),
    replace(PLAIN, noise=ThresholdedNoise(multiplier=2.0, missed=1e-6), slots=7)])  # fmt: skip
def test_an_event_comes_back_whole(event):
    stated = json.loads(json.dumps(event.as_json()))
    assert Event.from_json(stated) == event
    assert ("slots" in stated) == (event.slots is not None)
    assert ("whole" in stated) == ("sum_noise" in stated) == (event.whole is not None)


OTHERS = {
    "sampler": "fixed", "noise": GaussianNoise(multiplier=9.0), "sum_noise": GaussianNoise(multiplier=9.0),
    "whole": replace(EVENT.whole, bits=17), "clients": 1001, "hostile": 4, "largest_cohort": 81, "support_steps": 5,
    "slots": 21,
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(Event)])
def test_each_constant_of_an_event_is_in_its_line(field):
    other = replace(EVENT, **{field: OTHERS.get(field, 0.625)})
    assert other.as_json() != EVENT.as_json()
    assert Event.from_json(json.loads(json.dumps(other.as_json()))) == other
    stated = EVENT.as_json()
    del stated[field]
    if field in ("noise", "sum_noise", "sampler", "clients", "cohort", "rate"):
        with pytest.raises((TypeError, LookupError)):
            Event.from_json(stated)


@pytest.mark.parametrize("field", [field.name for field in fields(WholeSum)])
def test_each_constant_of_a_sum_is_in_its_line(field):
    counts = replace(EVENT, whole=replace(EVENT.whole, exact=True))
    value = {"exact": False, "units": 2.0**5, "deviation": 8.0, "dropout": 0.25}.get(field, 18)
    value = 128 if field == "dimension" else value
    other = replace(counts, whole=replace(counts.whole, **{field: value}))
    assert other != counts
    assert Event.from_json(json.loads(json.dumps(other.as_json()))) == other
    assert other.as_json() != counts.as_json()


@pytest.mark.parametrize("charge", [CHARGE, replace(CHARGE, fresh=""), Charge(round=0, event=PLAIN)])
def test_a_charge_comes_back_whole(charge):
    stated = json.loads(json.dumps(charge.as_json()))
    assert Charge.from_json(stated) == charge
    assert ("fresh" in stated) == bool(charge.fresh)
    assert set(stated) - {"fresh"} == {"round", "event", "attempt", "inputs"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 3.0}, "expected attempt, event, inputs, round"),
        ({"round": True}, "expected attempt, event, inputs, round"),
        ({"round": "3"}, "expected attempt, event, inputs, round"),
        ({"attempt": 2.0}, "expected attempt, event, inputs, round"),
        ({"attempt": False}, "expected attempt, event, inputs, round"),
        ({"attempt": None}, "expected attempt, event, inputs, round"),
        ({"more": 1}, "expected attempt, event, inputs, round"),
        ({"inputs": 5}, "inputs: expected text, found 5"),
        ({"inputs": None}, "inputs: expected text"),
        ({"fresh": 12}, "fresh: expected hexadecimal digits, found 12"),
        ({"fresh": None}, "fresh: expected hexadecimal digits"),
        ({"fresh": "xy"}, "non-hexadecimal"),
        ({"fresh": "abc"}, "hexadecimal"),
    ],
    ids=str,
)
def test_a_line_of_other_types_is_none(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Charge.from_json(CHARGE.as_json() | changes)


@pytest.mark.parametrize("field", ["round", "event", "attempt", "inputs"])
def test_a_line_that_lacks_something_is_none(field):
    stated = CHARGE.as_json()
    del stated[field]
    with pytest.raises(TypeError, match="expected attempt, event, inputs, round"):
        Charge.from_json(stated)


def test_an_attempts_key_is_its_number_and_the_first_64_bits_of_a_digest_of_its_inputs():
    digest = hashlib.sha256(b"of what").hexdigest()
    assert CHARGE.again == (2, int(digest[:16], 16))
    assert replace(CHARGE, attempt=0).again == ()
    assert replace(CHARGE, attempt=1).again == (1, int(digest[:16], 16))


def test_a_planned_charge_is_the_rounds_own():
    schedule = (Change(from_round=2, noise_scale=2.0), Change(from_round=3, cohort_scale=0.5))
    plan = PrivacyPlan(clients=100, cohort=10, rounds=5, noise_multiplier=1.0, schedule=schedule)
    for round_ in range(5):
        noise, cohort = {0: (1.0, 10.0), 1: (1.0, 10.0), 2: (2.0, 10.0)}.get(round_, (1.0, 5.0))
        charge = planned_charge(plan, round_)
        assert (charge.round, charge.event.noise.multiplier, charge.event.cohort) == (round_, noise, cohort)
        assert (charge.attempt, charge.inputs, charge.fresh) == (0, "", "")


def test_what_was_charged_before_comes_back_whole_and_in_order():
    phases = (Phase(event=EVENT, rounds=3), Phase(event=PLAIN, rounds=1), Phase(event=EVENT, rounds=2))
    earlier = Earlier(run="r", head="h", phases=phases)
    stated = json.loads(json.dumps(earlier.as_json()))
    assert Earlier.from_json(stated) == earlier
    for field in ("run", "head", "phases"):
        with pytest.raises(LookupError):
            Earlier.from_json({name: value for name, value in stated.items() if name != field})


@pytest.mark.parametrize("rounds", range(8))
def test_the_first_rounds_are_those_in_front(rounds):
    phases = (Phase(event=EVENT, rounds=3), Phase(event=PLAIN, rounds=1), Phase(event=EVENT, rounds=2))
    each = [phase.event for phase in phases for _ in range(phase.rounds)]
    found = first_rounds(phases, rounds)
    assert [phase.event for phase in found for _ in range(phase.rounds)] == each[:rounds]
    assert all(phase.rounds > 0 for phase in found)
