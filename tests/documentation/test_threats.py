"""Every row of the threat table names a test that is there."""

import re

from pages import ROOT


def rows():
    text = (ROOT / "docs/federation.md").read_text(encoding="utf-8").split("## Threats")[1].split("\n## ")[0]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def test_every_threat_names_its_test():
    found = rows()
    assert len(found) > 20
    for threat, *_, last in found:
        named = re.fullmatch(r"`([\w/]+\.py)(?:::(\w+))?` ?", last)
        assert named is not None, threat
        file = ROOT / "tests" / named[1]
        assert file.is_file(), threat
        assert named[2] is None or f"def {named[2]}(" in file.read_text(encoding="utf-8"), (threat, named[2])
