"""What the terminal says of a plan's noise, beside the plan's own numbers."""

from dataclasses import replace

import pytest

from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.training.terminal.tables import noise_lines

PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=10, noise_multiplier=2.0, max_participations=4)
EVENT = PLAN.phases[0].event
RECORD = RecordLayer(support_noise=3.0, query_noise=5.0, support_steps=7, support_records=2, query_records=11)


def earlier(*rounds):
    return Earlier(run="".join(map(str, rounds)), head="", phases=tuple(Phase(event=EVENT, rounds=n) for n in rounds))


def said(**changes):
    return "\n".join(noise_lines(replace(PLAN, **changes)))


def test_what_was_spent_before_is_counted_by_its_releases():
    assert "spent before" not in said()
    assert "6 releases of 2 analyses" in said(earlier=(earlier(2), earlier(3, 1)))


def test_the_population_and_every_change_of_the_rounds_are_said():
    words = said(schedule=(Change(from_round=3, cohort_scale=0.5), Change(from_round=6, noise_scale=1.5)))
    for part in (
        "population 1,000 clients", "10 rounds, at most 4 per client",
        "from round 3 on: cohort x 0.5, server noise x 1",
        "from round 6 on: cohort x 1, server noise x 1.5", "server noise z = 2",
    ):  # fmt: skip
        assert part in words, part


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (RECORD, ("z_s = 3 in each of 7 support steps, z_q = 5 in the query step",)),
        (replace(RECORD, query_noise=None, batch_rate=0.25), ("z_s = 3", "(each record with probability 0.25)")),
        (replace(RECORD, support_noise=None), ("z_q = 5 on the sum over 11 query records",)),
    ],
    ids=["both", "update", "query"],
)
def test_noise_on_records_is_said_for_every_release(record, parts):
    words = said(record=record, noise_mode="stacked")
    for part in parts:
        assert part in words, part
    assert ("z_s" in words) == (record.support_noise is not None)
    assert ("z_q" in words) == (record.query_noise is not None)


def test_no_noise_is_said():
    assert "no noise at all: no privacy is promised" in said(noise_multiplier=None)
    assert "no noise at the server" in said(noise_multiplier=None, record=RECORD)
