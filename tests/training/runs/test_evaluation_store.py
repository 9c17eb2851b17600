import json

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.results.evaluation_store import (
    keep_audit,
    keep_evaluation,
    kept_evaluations,
    name_of_evaluation,
    unfinished,
)


def result(ways=5, shots=5, steps=(0, 1, 2), episodes=600, mean=0.9, **more):
    accuracy = {"mean": mean, "ci95": 0.01, "episodes": episodes}
    return {"ways": ways, "shots": shots, "accuracy": accuracy, "by_steps": [{"steps": n} for n in steps], **more}


def content(*results, **more):
    return {"protocol": "inductive", "note": None, "seeds": [0], "results": list(results or [result()]), **more}


DIFFERENT = [
    content(),
    content(result(ways=20)),
    content(result(shots=1)),
    content(result(steps=(0, 2))),
    content(result(episodes=100)),
    content(result(accuracy_fine_tuned={})),
    content(seeds=[1]),
    content(seeds=[0, 1, 2]),
    content(protocol="TRANSDUCTIVE"),
    content(status="interrupted", rounds=12, planned_rounds=40),
    content(status="interrupted", rounds=14, planned_rounds=40),
    content({"accuracy": {"mean": 0.9, "ci95": 0.1, "images": 10_000}}),
    content(result(steps=range(0, 1000, 7))),
    content(result(steps=range(0, 1001, 11))),
]


def test_what_was_measured_gives_the_name():
    names = [name_of_evaluation(each) for each in DIFFERENT]
    assert len(set(names)) == len(names)
    assert names[0] == "5-way-5-shot-steps-0-to-2-600-episodes-seed-0-no-fine-tuning"
    assert max(map(len, names)) < 150
    # The accuracy itself and how the run ended do not change what was measured.
    assert name_of_evaluation(content(result(mean=0.1), status="completed", rounds=40, planned_rounds=40)) == names[0]


def test_every_evaluation_stays_and_the_same_one_replaces_itself(tmp_path):
    for each in DIFFERENT:
        keep_evaluation(tmp_path / "new", each)
    path = keep_evaluation(tmp_path / "new", content(result(mean=0.5), result(shots=1, mean=0.25)))
    assert json.loads(path.read_text())["results"][1]["accuracy"]["mean"] == 0.25
    found = {name_of_evaluation(each): each for each in kept_evaluations(path.parent)}
    assert set(found) == {name_of_evaluation(each) for each in DIFFERENT}
    assert [name.split("-")[0] for name in found if "600" in name and "1-shot" not in name][-1] == "20"
    means = {name: each["results"][0]["accuracy"]["mean"] for name, each in found.items()}
    assert means.pop(name_of_evaluation(DIFFERENT[0])) == 0.5
    assert means.pop(name_of_evaluation(DIFFERENT[2])) == 0.25
    assert set(means.values()) == {0.9}


def test_more_keys_of_a_file_of_its_own_and_an_older_evaluation(tmp_path):
    (tmp_path / "evaluation.json").write_text(json.dumps(content(result(shots=1), result(ways=2))))
    assert len(list(kept_evaluations(tmp_path))) == 2
    path = keep_evaluation(tmp_path, content(result(shots=3)), [{"episodes": [0.5, 1.0]}])
    assert "episodes" not in json.loads(path.read_text())
    shots = [(each["results"][0]["shots"], each.get("episodes")) for each in kept_evaluations(tmp_path)]
    assert sorted(shots) == [(1, None), (3, [0.5, 1.0]), (5, None)]


def test_a_damaged_file_is_named(tmp_path):
    keep_evaluation(tmp_path, content())
    (tmp_path / "evaluations" / "mine.json").write_text('{"results": [{}]}')
    with pytest.raises(InputError, match=r"mine\.json: is not an evaluation"):
        list(kept_evaluations(tmp_path))


def test_what_is_no_end_of_a_run_is_labelled():
    assert unfinished(DIFFERENT[9]) == "INTERRUPTED after 12 of 40 rounds"
    # It had all its rounds: only its final evaluation is missing.
    assert unfinished(content(status="stopped", rounds=40, planned_rounds=40)) is None
    assert unfinished(content(status="budget")) is unfinished(content()) is None


def test_what_an_audit_found_is_added_to_a_summary_and_takes_nothing_away(tmp_path):
    run, before = RunDirectory(tmp_path), {"status": "completed", "rounds": 3, "guarantees": [{"epsilon": 1.5}]}
    keep_audit(run, {"cells": [1]})  # before the run has ended
    assert not (tmp_path / "summary.json").exists()
    run.write_json("summary.json", before)
    for cells in ([1], [2, 3]):
        keep_audit(run, {"cells": cells})
        assert run.read_json("summary.json") == before | {"audited": cells}
        assert run.read_json("audit.json") == {"cells": cells}
