"""Who was invited: counted over all attempts, in whatever order they come, and drawn again as they were drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.privacy.rounds.cohort_log import (
    Participations,
    draw,
    participations_file,
    redrawn,
    reopen_participations,
    repeatable,
)
from dpfedmeta.privacy.samplers import Cohort

PLAN = PrivacyPlan(clients=60, cohort=12, rounds=6, noise_multiplier=2.0)
CHECK_INS = PrivacyPlan(
    clients=60, cohort=15, rounds=4, noise_multiplier=2.0, sampler="check-ins", max_participations=1, capacity=60
)
EVENT = PLAN.phases[0].event


def charge(number, attempt=0, inputs="x", **more):
    return Charge(round=number, event=EVENT, attempt=attempt, inputs=inputs, **more)


def cohort(number, *clients, again=()):
    return Cohort(round=number, clients=np.array(clients, dtype=np.int64), again=again)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    return RunDirectory(tmp_path)


# A client that comes in rounds 0 and 4, and again when round 2 is done anew.
LINES = [cohort(0, 3, 5), cohort(4, 3, 7), cohort(2, 3, 9, again=(1, 8))]


@pytest.mark.parametrize("way", ["at once", "one by one", "from the file"])
def test_every_attempt_counts_and_the_latest_round_is_the_highest(run, way):
    log = Participations(participations_file(run), LINES if way == "at once" else ())
    if way != "at once":
        for each in LINES:
            log.record(each)
    if way == "from the file":
        lines = [json.loads(line) for line in participations_file(run).read_text().splitlines()]
        log = Participations(
            None, [cohort(each["round"], *each["clients"], again=tuple(each.get("again", ()))) for each in lines]
        )
    assert log.counts == {3: 3, 5: 1, 7: 1, 9: 1}
    assert log.latest == {3: 4, 5: 0, 7: 4, 9: 2}
    assert log.cohort(2, (1, 8)).clients.tolist() == [3, 9]
    assert log.cohort(4, ()).clients.tolist() == [3, 7]
    assert [each.round for each in log.before(4)] == [0, 2]
    assert [each.round for each in log.before(5)] == [0, 4, 2]
    with pytest.raises(KeyError):
        log.cohort(2, ())


def test_the_file_is_for_the_server_alone(run):
    Participations(participations_file(run)).record(LINES[0])
    assert participations_file(run).stat().st_mode & 0o777 == 0o600


def test_each_attempt_of_check_ins_after_the_first_is_empty_and_no_first_one_is():
    for number in range(3):
        first = draw(CHECK_INS, KeyedSource(1), charge(number), Participations(None))
        again = draw(CHECK_INS, KeyedSource(1), charge(number, 1, "y"), Participations(None))
        assert len(first.clients)
        assert len(again.clients) == 0
        assert (first.again, again.again) == ((), charge(number, 1, "y").again)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_line_that_is_drawn_again_counts_for_those_after_it(run, reopened):
    """With check-ins everybody comes once: what is drawn again in one go keeps to it, as what was drawn in turn."""
    events, source, known = [charge(number) for number in range(4)], KeyedSource(3), Participations(None)
    if reopened:
        known, remarks = reopen_participations(run, CHECK_INS, source, events)
        assert [remark.partition(": ")[2] for remark in remarks] == [
            "lines after 0 were lost and are drawn again from the secret seed"
        ]
        assert len(participations_file(run).read_text().splitlines()) == 4
    else:
        for event in events:
            known._count(draw(CHECK_INS, source, event, known))
    assert known.counts == dict.fromkeys(range(60), 1)
    assert sorted(client for each in known.before(9) for client in each.clients.tolist()) == list(range(60))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (charge(0), charge(1)),
        (charge(0, 1, "x"), charge(0, 1, "y")),
        (charge(0), charge(0, 1)),
        (charge(0, 1), charge(0, 2)),
        (charge(0, fresh="00"), charge(0, fresh="01")),
    ],
)
def test_whatever_differs_in_a_charge_another_cohort_is_drawn(one, other):
    source = FreshSource(seed=7)
    both = [each if each.fresh else replace(each, fresh="ff") for each in (one, other)]
    drawn = [draw(PLAN, source, each, Participations(None)).clients.tolist() for each in (*both, both[0])]
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_cap_is_that_of_the_plan_and_counts_what_was_before():
    capped, everybody = replace(PLAN, cohort=60, max_participations=2), range(60)
    came = Participations(None, [cohort(0, *everybody), cohort(1, *range(30))])
    found = draw(replace(capped, cohort=59.999), KeyedSource(1), charge(2), came)
    assert found.clients.tolist() == list(range(30, 60))


def test_what_can_be_drawn_again_is_what_has_its_key_and_bytes():
    keyed, fresh, system = KeyedSource(1), FreshSource(seed=7), OperatingSystemSource()
    assert [repeatable(source, charge(0)) for source in (keyed, fresh, system)] == [True, False, False]
    assert [repeatable(source, charge(0, fresh="00")) for source in (keyed, fresh, system)] == [True, True, False]
    events = [charge(0), charge(1, fresh="00"), charge(2)]
    assert [each.round for each in redrawn(PLAN, fresh, events).before(9)] == [1]
    assert [each.round for each in redrawn(PLAN, keyed, events).before(9)] == [0, 1, 2]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_lines_that_are_lost_are_drawn_again_if_all_of_them_can_be(run, known):
    fresh = FreshSource(seed=7)
    events = [charge(0, fresh="00"), charge(1, fresh="01"), charge(2)]
    log = Participations(participations_file(run))
    for event in events[:known]:
        log.record(draw(PLAN, fresh, event, log))
    with pytest.raises(InputError, match=rf"line {known + 1}: the participants of charged rounds are lost"):
        reopen_participations(run, PLAN, fresh, events)
    found, _ = reopen_participations(run, PLAN, fresh, events[:2])
    assert [each.fresh for each in found.before(9)] == [event.stream for event in events[:2]]


def test_a_line_without_a_charge_is_dropped_from_the_file_too(run):
    events = [charge(0), charge(1)]
    log = Participations(participations_file(run))
    for each in (cohort(0, 1), cohort(1, 2), cohort(2, 3)):
        log.record(each)
    found, remarks = reopen_participations(run, PLAN, KeyedSource(1), events)
    assert found.counts == {1: 1, 2: 1}
    assert remarks == []
    assert len(participations_file(run).read_text().splitlines()) == 2
    log.record(cohort(2, 3))
    log.record(cohort(3, 3))
    with pytest.raises(InputError, match="line 4: more rounds than the ledger charged"):
        reopen_participations(run, PLAN, KeyedSource(1), events)
