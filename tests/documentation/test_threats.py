"""Every row of the tables of threats and pitfalls names a test that is there."""

import re

import pytest
from pages import ROOT


def rows(page, begins):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(begins)[1].split("\n## ")[0]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


TABLES = (("federation.md", "## Threats"), ("explanation/pitfalls.md", "# Pitfalls"))


@pytest.mark.parametrize(("page", "begins"), TABLES)
def test_every_threat_names_its_test(page, begins):
    found = rows(page, begins)
    assert len(found) > 20
    for threat, *_, last in found:
        named = re.fullmatch(r"`([\w/]+\.py)(?:::(\w+))?` ?", last)
        assert named is not None, threat
        file = ROOT / "tests" / named[1]
        assert file.is_file(), threat
        assert named[2] is None or f"def {named[2]}(" in file.read_text(encoding="utf-8"), (threat, named[2])


def test_pitfalls_stand_by_severity():
    severities = [row[1].strip() for row in rows(*TABLES[1])]
    order = ("critical", "theoretical", "negligible")
    assert severities == sorted(severities, key=order.index)
    assert {*severities} == {*order}
