"""The catalogue fits the code as it is, and random changes are made of it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])


def test_every_mistake_that_is_written_down_can_be_planted():
    from mistakes import ROOT, catalogue, changed

    for mutant in catalogue():
        compile(changed(mutant), mutant.file, "exec")
        for test in mutant.tests:
            file, _, function = test.partition("::")
            assert f"def {function}" in (ROOT / file).read_text(), (mutant.name, test)


def test_random_changes_are_other_code_and_the_same_for_the_same_seed():
    from mistakes import changed
    from random_changes import random_mutants

    found = random_mutants(5, 1)
    assert found == random_mutants(5, 1) != random_mutants(5, 2)
    for mutant in found:
        compile(changed(mutant), mutant.file, "exec")
