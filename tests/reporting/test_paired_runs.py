"""Runs on the same episodes, pair by pair: which is taken from which, on what, and once for all that both measured."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.learning.evaluation.accuracy import KeptEpisodes, PairedDifference
from dpfedmeta.learning.evaluation.held_out_clients import WHOLE_PROTOCOL, over_clients
from dpfedmeta.reporting.compare import paired_runs
from dpfedmeta.reporting.compare.paired_runs import episodes_of, kept_episodes, pairs


def kept(digest, what, *accuracies, protocol="p", counted="episodes"):
    return SimpleNamespace(
        digest=digest, what=what, protocol=protocol, accuracies=np.array(accuracies), counted=counted
    )


def test_every_run_is_compared_with_the_first_once_for_each_of_the_episodes_that_both_have():
    first = [kept("b", "5-way", 0.9, 0.8, 0.4), kept("a", "", 0.2, 0.4, 0.3), kept("a", "20-way", 0.2, 0.4, 0.3),
             kept("c", "2-way", 0.5, 0.5, 0.1)]  # fmt: skip
    second = [kept("a", "", 0.1, 0.5, 0.1), kept("b", "", 0.5, 0.5, 0.4), kept("c", "2-way", 0, 0, 0, protocol="q")]
    third = [kept("b", "5-way", 0.1, 0.2, 0.9), kept("b", "5-way", 0.3, 0.3, 0.3)]
    found = list(pairs({"one": first, "two": second, "three": third}))
    assert [(pair.first, pair.second, pair.what) for pair in found] == [
        ("one", "two", "20-way"), ("one", "two", "5-way"), ("one", "three", "5-way"),
    ]  # fmt: skip
    due = [(first[1], second[0]), (first[0], second[1]), (first[0], third[0])]
    for pair, (own, other) in zip(found, due, strict=True):
        assert pair.difference == PairedDifference.of(own.accuracies, other.accuracies)
    assert str(found[0]).startswith("one - two, 20-way: ")


def test_the_size_is_said_where_either_of_the_two_says_it():
    (pair,) = pairs({"one": [kept("a", "", 0.1, 0.4)], "two": [kept("a", "5-way", 0.2, 0.3)]})
    assert pair.what == "5-way"
    (pair,) = pairs({"one": [kept("a", "", 0.1, 0.4)], "two": [kept("a", "", 0.2, 0.3)]})
    assert str(pair).startswith("one - two: ")


def test_what_is_kept_of_a_run_is_of_its_end_of_its_last_evaluation_and_of_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(paired_runs, "episodes_of", lambda content: [content["name"]])
    (tmp_path / "evaluations").mkdir()
    names = ["episodes.json", "evaluation.json", "evaluations/a.json", "evaluations/b.json"]
    for name in reversed(names):
        (tmp_path / name).write_text(json.dumps({"name": name}))
    (tmp_path / "evaluations/.hidden.json").write_text("{")
    assert kept_episodes(RunDirectory(tmp_path)) == names
    (tmp_path / "evaluation.json").unlink()
    assert kept_episodes(RunDirectory(tmp_path)) == [names[0], *names[2:]]
    (tmp_path / "evaluations/b.json").write_text("{}")
    with pytest.raises(InputError, match=r"b\.json: its episodes cannot be read"):
        kept_episodes(RunDirectory(tmp_path))


def test_each_result_of_a_file_is_of_its_size_and_the_file_s_protocol(monkeypatch):
    monkeypatch.setattr(
        KeptEpisodes, "of", lambda what, protocol, result: (what, protocol) if result.get("kept") else None
    )
    results = [{"ways": 5, "shots": 1, "kept": 1}, {"ways": 7, "shots": 1}, {"ways": 9, "shots": 2, "kept": 1}]
    assert episodes_of({"protocol": "p", "results": results}) == [("5-way 1-shot", "p"), ("9-way 2-shot", "p")]
    assert episodes_of({"kept": 1}) == [("", "")]


def whole(values, whose, protocol=WHOLE_PROTOCOL):
    """The content of a file about whole clients."""
    test = SimpleNamespace(sizes={}, episodes_digest=lambda workers, episodes: f"of {episodes}")
    found = KeptEpisodes.measured(test, None, 3, over_clients(values, whose))
    return {"protocol": protocol, **found.as_json()}


def test_runs_of_whole_clients_are_compared_by_clients():
    """Splits of one client are alike, so more of them say little more of other clients."""
    turns, gain = 120, (0.05, -0.01, 0.04)
    whose = [client for _ in range(turns) for client in range(3)]
    contents = whole([0.5 + gain[client] for client in whose], whose), whole([0.5] * 3 * turns, whose)
    (pair,) = pairs({"a": episodes_of(contents[0]), "b": episodes_of(contents[1])})
    once = PairedDifference.of(gain, (0.0,) * 3)
    assert (pair.difference.mean, pair.difference.ci95) == pytest.approx((once.mean, once.ci95))
    assert "(paired t, 3 clients): not distinguishable" in str(pair)
    # Each client once.
    contents = whole([0.5, 0.7], [0, 1]), whole([0.4, 0.7], [0, 1])
    (pair,) = pairs({"a": episodes_of(contents[0]), "b": episodes_of(contents[1])})
    assert "(paired t, 2 clients)" in str(pair)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_same_episodes_are_compared_once_and_with_their_size_whichever_file_says_it(order):
    own = [kept("a", "", 0.1, 0.4), kept("a", "5-way", 0.1, 0.4), kept("b", "2-way", 0.1, 0.4)]
    found = pairs({"one": [own[place] for place in order], "two": [kept("b", "", 0.2, 0.3), kept("a", "", 0.2, 0.3)]})
    assert [pair.what for pair in found] == ["2-way", "5-way"]
