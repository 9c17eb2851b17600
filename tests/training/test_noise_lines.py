"""What the terminal says of a plan's noise, beside the plan's own numbers."""

import math
from dataclasses import replace

import pytest

from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.training.terminal.tables import guarantee_words, noise_lines

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


@pytest.mark.parametrize("record", [None, RECORD, replace(RECORD, support_noise=None)])
@pytest.mark.parametrize("noise", [None, 2.0])
def test_a_server_s_noise_is_said_once_and_by_what_it_is(record, noise):
    """Alone by its z, beside the noise of records by what counts in all."""
    words = said(record=record, noise_multiplier=noise, noise_mode="stacked")
    first = replace(PLAN, record=record, noise_multiplier=noise, noise_mode="stacked").at(0)
    assert ("no noise at all" in words) == (record is None and noise is None)
    assert ("no noise at the server" in words) == (record is not None and noise is None)
    assert ("server noise z = 2" in words) == (record is None and noise is not None)
    in_all = f"server noise (stacked): total z_T = {first.total_noise:.4g}, of which" if noise is not None else "z_T"
    assert (in_all in words) == (record is not None and noise is not None)


@pytest.mark.parametrize("relations", [{}, {"zero-out": 1.5, "in-place": 3.251}])
def test_every_bound_of_a_cell_is_said_with_its_formula_and_what_is_seen(relations):
    bounds = (
        Bound(method="gdp", epsilon=2.25, event="all sums", formula="by gdp"),
        Bound(method="pld", epsilon=1.5, event="all means", formula="by pld"),
        Bound(method="none", epsilon=math.inf, event="messages", formula="nothing"),
    )
    cell = Guarantee(
        unit="record", observer="public", delta=1e-6, adjacency="zero-out", bounds=bounds, relations=relations
    )
    head, *others = guarantee_words([cell])
    assert head == "(record, public), zero-out, delta = 1e-06: epsilon = 1.5"
    assert others == [
        *(["  other relations: in-place 3.26"] if relations else []),
        "  - 2.25 (gdp): by gdp", "    seen: all sums", "  * 1.5 (pld): by pld", "    seen: all means",
        "  - inf (none): nothing", "    seen: messages",
    ]  # fmt: skip
    nothing = replace(cell, bounds=bounds[2:])
    assert "*" not in "".join(guarantee_words([nothing]))
