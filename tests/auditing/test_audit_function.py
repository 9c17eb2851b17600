"""`audit --function`: what it prints, writes and refuses, and the words of its badge."""

import inspect
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from dpfedmeta.auditing.rounds.audit_rounds import RoundsVerdict, audit_rounds, badge_words, draw_badge
from dpfedmeta.cli.outputs import BADGE, check_output
from dpfedmeta.privacy.rounds.promise import PromisedCell
from tests.conftest import dpfedmeta

MODULE = """
import numpy as np

LIKE = {"w": np.zeros(4)}
MODEL = {"v": np.zeros(3)}


def honest(state, updates, generator):
    sums = {}
    for update in updates.values():
        norm = np.sqrt(sum(np.sum(value**2) for value in update.values()))
        for name, value in update.items():
            sums[name] = sums.get(name, 0) + value * min(1.0, 1.0 / norm if norm else 1.0)
    return state, {name: value + 6 * generator.normal(size=value.shape) for name, value in sums.items()}


def quiet(state, updates, generator):
    return state, {name: sum(update[name] for update in updates.values()) for name in LIKE}


def counted(state, updates, generator):
    state, released = honest(state, updates, generator)
    return state, {**released, "clients": np.array([len(updates)])}


number = 3


def nan(state, updates, generator):
    return state, {"w": np.full(4, np.nan)}


def fails(state, updates, generator):
    raise ValueError("no such device")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "theirs48.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def audit(folder, name, *words, code=0):
    given = ("--promise", "1.5", "--runs", "200", "--rounds", "1", "--audit-seed", "4")
    return dpfedmeta("audit", "--function", f"theirs48:{name}", *given, *words, folder=folder, code=code)


def test_a_right_function_is_not_refuted_and_a_wrong_one_is(folder):
    found = json.loads(audit(folder, "honest", "--json").out)
    assert found["refuted"] is False
    assert found["promised"] == {"unit": "client", "observer": "public", "epsilon": 1.5, "delta": 1e-5}
    assert found["seed"] == 4
    assert (found["relation"], found["rounds"]) == ("add-remove", 1)
    assert found["calls"] > 2 * 400
    shown = audit(folder, "quiet", "--strict", "--badge", "badge.svg", code=1).out
    assert "refuted: (client, public) epsilon 1.5 at delta 1e-05, add-remove, does not hold" in shown
    assert re.search(r"; 1 round\(s\) a run, [\d,]+ calls\n", shown)
    tree = ElementTree.parse(folder / "badge.svg")
    assert "promise broken: no epsilon holds, 400 runs" in tree.getroot().attrib["aria-label"]
    check_output("--badge", folder / "badge.svg", BADGE, ())  # the same command may be run again


def test_the_relation_says_whether_a_count_breaks_the_promise(folder):
    assert json.loads(audit(folder, "counted", "--json").out)["refuted"] is True
    assert json.loads(audit(folder, "counted", "--relation", "zero-out", "--json").out)["refuted"] is False


def test_without_rounds_it_makes_as_many_as_the_function_behind_it_and_the_help_says_so(folder):
    given = ("--promise", "0.1", "--runs", "100", "--audit-seed", "4", "--json")
    found = json.loads(dpfedmeta("audit", "--function", "theirs48:quiet", *given, folder=folder).out)
    usual = inspect.signature(audit_rounds).parameters
    assert found["rounds"] == usual["rounds"].default
    shown = " ".join(dpfedmeta("audit", "--help", folder=folder).out.split())
    rounds, clients = usual["rounds"].default, usual["clients"].default
    assert f"--rounds ({rounds} here), --clients ({clients}) and --delta (1e-5)" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--function", "theirs48:honest"), "--promise is missing"),
        (("--promise", "1.5", "--algo", "dp-agr"), "--promise belongs to --function"),
        (("--releases-alone", "--algo", "dp-agr"), "--releases-alone belongs to --function"),
        (("--relation", "zero-out", "--algo", "dp-agr"), "--relation belongs to --function"),
        (("--function", "theirs48:nothing", "--promise", "1"), "has no nothing"),
        (("--function", "theirs48:number", "--promise", "1"), "expected a function"),
        (("--function", "theirs48:honest", "--like", "theirs48:number", "--promise", "1"), "like: a mapping"),
        (("--function", "theirs48:honest", "--promise", "1", "--rounds", "x"), "server.rounds = x: expected a whole"),
        (("--function", "theirs48:honest", "--promise", "1", "--cohort", "5"), "is no setting of a function"),
        (("--function", "theirs48:honest", "--promise", "1", "--delta", "x"), "expected a number"),
        (("--function", "theirs48:honest", "--promise", "9", "--releases-alone"), "nothing could be found; give about"),
        (
            ("--function", "theirs48:honest", "--promise", "20", "--releases-alone"),
            "nor by 100,000,000 runs; promise less",
        ),
        (("--function", "theirs48:honest", "--promise", "0"), "epsilon = 0.0, expected a finite number above 0"),
        (("--function", "theirs48:honest", "--promise", "nan"), "epsilon = nan"),
        (("--function", "theirs48:honest", "--promise", "1", "--delta", "0"), "delta = 0.0"),
        (("--function", "theirs48:honest", "--promise", "1", "--clients", "1"), "clients = 1,"),
        (("--function", "theirs48:honest", "--promise", "1", "--rounds", "0"), "rounds = 0,"),
        (("--function", "theirs48:honest", "--promise", "1", "--runs", "-5"), "runs = -5,"),
        (("--function", "theirs48:honest", "--promise", "1", "--audit-seed", "-1"), "audit seed = -1"),
        (("--algo", "dp-agr", "--audit-seed", "-1"), "audit seed = -1"),
        (("--algo", "dp-agr", "--confidence", "nan"), "confidence = nan"),
        (("--algo", "dp-agr", "--runs", "0"), "runs = 0"),
        (("--algo", "dp-agr", "--canaries", "15"), "canaries = 15"),
        *(
            (("--function", "theirs48:honest", "--promise", "1", *words), f"{words[0]}: does not go with --function")
            for words in (
                *(("--dry-run",), ("--confidence", "0.5"), ("--plot", "x.png"), ("--audits", "one-run")),
                *(("--units", "record"), ("--observers", "server"), ("--canaries", "20"), ("--as-planned",)),
                ("--whole-runs",),
            )
        ),
        (("--function", "theirs48:nan", "--promise", "1"), "'w' that is not finite"),
        (("--function", "theirs48:fails", "--promise", "1"), "no such device"),
        (("--function", "theirs48:honest", "--like", "theirs48:MODEL", "--promise", "1", "--badge", "x.png"), ".svg"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(folder, words, said):
    assert said in dpfedmeta("audit", *words, folder=folder, code=2).error


@pytest.mark.parametrize("confirmed", [None, 2.5])
def test_a_badge_never_says_private(tmp_path, confirmed):
    verdict = RoundsVerdict(
        promised=PromisedCell(epsilon=1.5, delta=1e-5),
        audited=0.31,
        confirmed=confirmed,
        relation="add-remove",
        rounds=8,
        calls=12_000,
        runs=2000,
        seed=1,
    )
    draw_badge(tmp_path / "badge.svg", verdict)
    text = (tmp_path / "badge.svg").read_text()
    assert "private" not in text.lower()
    due = "no violation found; lower bound 0.31 at 95%, 2000 runs, 2026-11-26"
    broken = "promise broken: epsilon >= 2.5 at 99.9%, 2000 runs, 2026-11-26"
    assert badge_words(verdict, "2026-11-26") == (due if confirmed is None else broken)
