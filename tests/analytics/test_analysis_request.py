"""The text of a request: whatever is wrong with it is one line that names its place."""

import math
import re
from dataclasses import replace

import pytest

from dpfedmeta.accounting.calibration import Targets
from dpfedmeta.accounting.events.failure_probability import MOST_TRIALS
from dpfedmeta.analytics import analysis_request
from dpfedmeta.analytics.analyses.quantile import Quantile
from dpfedmeta.analytics.analysis_request import FixedCohort, Request, made, options_of, read_names
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError

REQUEST = Request(
    kind="quantile", epsilon=1.5, delta=1e-6, cohort=40.0, clients=100, own={}, names="a", fixed=FixedCohort()
)
LINES = REQUEST.as_text().splitlines()
REQUIRED = ("kind", "epsilon", "delta", "cohort", "clients", "own")


def refused(text):
    with pytest.raises(InputError, match=r"^the folder: not the request of an analysis"):
        Request.from_text(text, "the folder")


@pytest.mark.parametrize("field", REQUIRED)
def test_a_field_that_is_missing(field):
    refused("\n".join(line for line in LINES if not line.startswith(f"  {field}:")))


@pytest.mark.parametrize("line", ["  more: 1", "    more: 1"], ids=["of the request", "of its cohort"])
def test_a_field_too_many(line):
    refused("\n".join([*LINES, line] if line.startswith("    ") else [LINES[0], line, *LINES[1:]]))


@pytest.mark.parametrize("text", ["", "analysis: 3", "analysis: [1]", "3", "[", "other: {}", "analysis: {epsilon: a}"])
def test_a_text_of_another_kind(text):
    refused(text)


def test_its_own_text_is_none_of_them():
    assert Request.from_text(REQUEST.as_text(), "") == REQUEST


CHANGES = {
    "kind": "histogram", "epsilon": 2.5, "delta": 1e-5, "cohort": 41.0, "clients": 101, "own": {"quantile": 0.25},
    "names": "b", "run": "runs/a", "noise_seed": 0, "fixed": FixedCohort(dropout=0.125),
}  # fmt: skip


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_of_a_request_is_in_its_text(field):
    other = replace(REQUEST, **{field: CHANGES[field]})
    assert other.as_text() != REQUEST.as_text()
    assert Request.from_text(other.as_text(), "") == other
    alone = replace(other, fixed=None)
    assert Request.from_text(alone.as_text(), "") == alone
    assert "fixed" not in alone.as_text()


@pytest.mark.parametrize("field", ["dropout", "adversarial", "colluding", "hostile"])
def test_each_option_of_a_fixed_cohort_is_in_the_text(field):
    other = replace(REQUEST, fixed=replace(FixedCohort(), **{field: 3 if field == "colluding" else 0.1875}))
    assert Request.from_text(other.as_text(), "") == other != REQUEST


def test_the_settings_of_the_training_are_in_the_text_and_only_where_there_are_some():
    settings = resolve("dp-agr", "strokes", None, {"population.clients": "100", "model.width": "7"})
    request = replace(REQUEST, names=None, settings=settings)
    assert Request.from_text(request.as_text(), "") == request
    assert "---" not in REQUEST.as_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.0}, "--epsilon 0.0"), ({"epsilon": math.inf}, "--epsilon inf"),
        ({"epsilon": math.nan}, "--epsilon nan"), ({"delta": 0.0}, "--delta 0.0"), ({"delta": 1.0}, "--delta 1.0"),
        ({"cohort": 0.0}, "--cohort 0"), ({"cohort": 101.0}, "--cohort 101: expected above 0 and at most 100"),
        ({"cohort": 40.5}, "--cohort 40.5: a whole number"),
        ({"clients": MOST_TRIALS + 1, "cohort": MOST_TRIALS // 2 + 1.0}, "at most half of the clients"),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_plan_has_are_refused_by_their_option(changes, words):
    with pytest.raises(InputError, match=re.escape(words)):
        replace(REQUEST, **changes)


def test_the_ends_of_what_may_be_asked():
    for changes in (
        {"cohort": 100.0}, {"cohort": 40.5, "fixed": None}, {"clients": MOST_TRIALS, "cohort": float(MOST_TRIALS)},
        {"clients": MOST_TRIALS + 1, "cohort": MOST_TRIALS / 2}, {"delta": 1 - 1e-9}, {"epsilon": 1e-9},
    ):  # fmt: skip
        assert replace(REQUEST, **changes)


FIXED = FixedCohort(dropout=0.25, adversarial=0.125, colluding=3, hostile=0.02)


@pytest.mark.parametrize("fixed", [None, FIXED], ids=["drawn", "fixed"])
def test_a_plan_has_each_number_of_its_request(fixed, monkeypatch):
    """Before any noise is solved for; the noise is that of the target."""
    solved = []
    monkeypatch.setattr(analysis_request, "calibrate", lambda plan, targets: solved.append((plan, targets)) or plan)
    request = replace(REQUEST, own={"quantile": 0.5, "bins": 6}, cohort=60.0, clients=200, fixed=fixed)
    plan = request.planned()
    assert solved == [(plan, Targets(client_epsilon=1.5))]
    assert (plan.clients, plan.cohort, plan.rounds, plan.client_delta) == (200, 60.0, 1, 1e-6)
    assert (plan.server_sees, plan.secure.dimension, plan.secure.longest) == ("sum", 8, 1.0)
    if fixed is None:
        assert (plan.sampler, plan.colluding, plan.hostile) == ("poisson", 1, 0.0)
        assert (plan.secure.dropout, plan.secure.adversarial) == (0.0, None)
    else:
        assert (plan.sampler, plan.colluding, plan.hostile) == ("fixed", 3, 0.02)
        assert (plan.secure.dropout, plan.secure.adversarial) == (0.25, 0.125)


def test_names_of_a_file_are_counted_by_line(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("a\tb\ta\n\n \t c \t\nb\n")
    assert read_names(path) == [{"a": 2, "b": 1}, {}, {"c": 1}, {"b": 1}]
    assert replace(REQUEST, names=str(path)).names_by_client() == read_names(path)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_no_client_is_two_by_what_its_names_hold(tmp_path, mark):
    """Of one client's line some programs would make many, and its names would pass the threshold."""
    path = tmp_path / "names.txt"
    path.write_text(f"a\nb{mark}b{mark}b\tc\n", encoding="utf-8", newline="")
    assert read_names(path) == [{"a": 1}, {f"b{mark}b{mark}b": 1, "c": 1}]


def test_line_ends_that_are_mixed_are_refused(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(b"a\r\nb\rc\r\n")
    with pytest.raises(InputError, match=r"--names .*names\.txt: cannot be read \(a carriage return stands in it"):
        read_names(path)


def test_options_of_a_kind_are_its_own():
    assert made("quantile", {"quantile": 0.75, "bins": 9}) == Quantile(quantile=0.75, bins=9)
    assert made("quantile", options_of(Quantile(lowest=0.5))) == Quantile(lowest=0.5)
    with pytest.raises(InputError, match="analysis quantile: takes bins, highest, lowest, quantile, not more, share"):
        made("quantile", {"share": 1, "more": 2, "bins": 9})
    with pytest.raises(InputError, match="analysis = quantil: unknown; did you mean quantile"):
        made("quantil", {})
