"""The text of a request: whatever is wrong with it is one line that names its place."""

import pytest

from dpfedmeta.analytics.analysis_request import FixedCohort, Request
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
