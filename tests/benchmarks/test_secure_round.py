"""Stubs that go through secure aggregation with a real server: the round is whole, and its cost is a row."""

import json

import pytest

pytest.importorskip("flwr", reason="needs the extra federation")

from benchmarks import secure_round as bench


def test_cpu_seconds_of_all_stubs_are_those_between_the_first_questions_of_rounds(tmp_path):
    lines = [{"asked": "PHASE", "round": number, "at": 10.0 * number + late} for number in range(4) for late in (0, 3)]
    (tmp_path / "measured.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    used = [(second, 0.5 * second) for second in range(60)]
    assert bench._of_stubs(used, tmp_path) == pytest.approx(5.0)


@pytest.mark.slow
def test_a_federation_of_stubs_has_sums(tmp_path):
    row = bench.measured(6, 1, tmp_path)
    assert row["questions_answered_by_all"] == 1.0
    assert row["server_cpu_per_round"] > 0.0
