import json

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.results.evaluation_store import (
    audited_cells,
    keep_audit,
    keep_evaluation,
    kept_audit,
    kept_evaluations,
    name_of_evaluation,
    row_label,
    size,
    size_and_count,
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


def test_a_damaged_file_is_named(tmp_path):
    keep_evaluation(tmp_path, content())
    (tmp_path / "evaluations" / "mine.json").write_text('{"results": [{}]}')
    with pytest.raises(InputError, match=r"mine\.json: is not an evaluation"):
        list(kept_evaluations(tmp_path))


@pytest.mark.parametrize("name", ["mine-²", "mine-5²", "①", "mine-٣"])
def test_names_with_other_digits_are_names(tmp_path, name):
    keep_evaluation(tmp_path, content())
    (tmp_path / "evaluations" / f"{name}.json").write_text(json.dumps(content(result(shots=3))))
    assert [each["results"][0]["shots"] for each in kept_evaluations(tmp_path)] == [5, 3]


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


@pytest.mark.parametrize("status", [None, "completed", "budget", "interrupted", "running", "stopped"])
@pytest.mark.parametrize("rounds", [39, 40, 41])
def test_weights_of_fewer_rounds_than_planned_are_labelled_unless_the_run_ended_there(status, rounds):
    stated = content(rounds=rounds, planned_rounds=40) | ({} if status is None else {"status": status})
    ended = status in (None, "completed", "budget") or rounds >= 40
    assert unfinished(stated) == (None if ended else f"{status.upper()} after {rounds} of 40 rounds")
    assert ("after-round" in name_of_evaluation(stated)) == (not ended)


@pytest.mark.parametrize(("numbers", "words"), [
    ([0], "0"), ([0, 1], "0-to-1"), ([0, 1, 2, 3, 7], "0-to-3-7"), ([7, 3, 0, 1, 2], "0-to-3-7"), ([0, 2, 4], "0-2-4"),
    ([0, 1, 3, 4], "0-to-1-3-to-4"),
])  # fmt: skip
def test_numbers_in_a_row_are_named_by_their_ends(numbers, words):
    named = name_of_evaluation(content(result(steps=numbers, accuracy_fine_tuned={})))
    assert named == f"5-way-5-shot-steps-{words}-600-episodes-seed-0"
    plural = "s" if len(numbers) > 1 else ""
    assert name_of_evaluation(content(seeds=numbers)).endswith(f"-seed{plural}-{words}-no-fine-tuning")


def test_many_numbers_are_named_by_their_ends_and_all_of_them():
    one, other = (list(range(0, 100, 2)), [*range(0, 96, 2), 97, 98])
    names = [name_of_evaluation(content(result(steps=steps))) for steps in (one, other)]
    assert names[0] != names[1]
    assert all(name.startswith("5-way-5-shot-steps-0-to-98-") for name in names)


NEEDED = {"unit": "client", "observer": "public", "promised": 1.0, "audited": 0.5, "confidence": 0.95,
          "audit": "distinguish", "method": "curve", "runs": 9, "canaries": 1}  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("key", [*NEEDED, "size", "cells"])
def test_a_kept_audit_lacks_nothing_in_any_cell(tmp_path, key, place):
    whole = {"cells": [dict(NEEDED) for _ in range(3)], "size": "small"}
    assert kept_audit(tmp_path) is None
    assert audited_cells(tmp_path) == {}
    RunDirectory(tmp_path).write_json("audit.json", whole)
    assert kept_audit(tmp_path) == whole
    assert audited_cells(tmp_path) == {"audited": whole["cells"]}
    del (whole["cells"][place] if key in NEEDED else whole)[key]
    RunDirectory(tmp_path).write_json("audit.json", whole)
    with pytest.raises(InputError, match=r"audit\.json: is not an audit, or of another version"):
        kept_audit(tmp_path)
    assert audited_cells(tmp_path) == {}


SHAPE = {"ways": 7, "shots": 3, "queries": 11}


def test_the_protocol_in_words_has_each_of_its_numbers():
    accuracy = {**SHAPE, "steps": 13, "episodes": 1234}
    words = "7-way 3-shot, 11 queries per class, 13 adaptation steps, 1,234 episodes"
    assert size_and_count(accuracy) == words
    assert (size(accuracy), size({}), size_and_count({"images": 9})) == ("7-way 3-shot", "", "")


@pytest.mark.parametrize("encoder", [None, "name"])
@pytest.mark.parametrize("records", ["images", "vectors", None])
@pytest.mark.parametrize("key", ["accuracy", "accuracy_untrained", "accuracy_untrained_prototype",
                                 "accuracy_pixel_prototype", "accuracy_pixel_neighbour"])  # fmt: skip
def test_a_row_is_called_after_what_was_measured_on(encoder, records, key):
    """Over an encoder nothing is untrained; tables hold no pixels."""
    of = {"encoder": encoder} | ({} if records is None else {"records": records})
    said = row_label(key, "own words", of)
    pixels = {"accuracy_pixel_prototype", "accuracy_pixel_neighbour"}
    if encoder:
        assert (said == "own words") == (key == "accuracy")
        assert ("raw features" in said) == (key in pixels)
        assert ("public encoder" in said) == ("untrained" in key)
    else:
        assert (said == "own words") == (key not in pixels or records != "vectors")
        assert said == "own words" or "records" in said
