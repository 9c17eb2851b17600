import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from dpfedmeta.federation.json_log import JsonLog, finite


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": x}, lambda x: [1, x], lambda x: (1, x)])
@pytest.mark.parametrize("again", [lambda x: x, lambda x: {"b": x}, lambda x: [x], lambda x: (x, "c")])
def test_no_number_that_json_lacks_is_written_however_deep(wrap, again):
    for number in (float("inf"), float("-inf"), float("nan")):
        written = json.dumps(finite(wrap(again(number))), allow_nan=False)
        assert json.loads(written) == json.loads(json.dumps(wrap(again(None))))
    assert finite(wrap(again(1.5))) == json.loads(json.dumps(wrap(again(1.5))))


def test_each_event_is_one_line_that_any_reader_of_json_takes(tmp_path):
    lines = []
    log = JsonLog(lines.append)
    cell = SimpleNamespace(as_json=lambda: {"unit": "record", "epsilon": float("inf")})
    log.on_plan(SimpleNamespace(settings=SimpleNamespace(algo="dp-agr"), rounds=3, guarantees=[cell]))
    log.on_start(tmp_path)
    log.say("left: clinic A\nround 9: forged")
    log.on_round({"round": 0, "clip": float("nan"), "epsilons": {"client_public": 1.5}})
    log.on_rewind(0)
    log.on_end({"status": "completed", "rounds": 3, "secret": 1})

    def strict(word):
        raise AssertionError(word)

    read = [json.loads(line, parse_constant=strict) for line in lines]
    assert all("\n" not in line for line in lines)
    assert [line["event"] for line in read] == ["plan", "start", "message", "round", "rewind", "end"]
    assert read[0]["guarantees"] == [{"unit": "record", "epsilon": None}]
    assert read[2]["text"] == "left: clinic A\nround 9: forged"
    assert (read[3]["clip"], read[3]["epsilons"]) == (None, {"client_public": 1.5})
    assert read[5] | {"time": ""} == {
        "time": "", "event": "end", "status": "completed", "rounds": 3, "accuracy": None, "guarantees": None,
    }  # fmt: skip
    for line in read:
        assert abs((datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()) < 60
