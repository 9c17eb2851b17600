import json
import subprocess
import sys
from pathlib import Path

import pytest

SUM = [780, 780, 40]


@pytest.fixture(scope="module")
def found(tiny_task_file, tmp_path_factory):
    script, folder = Path(__file__).parent / "real_ranks.py", tmp_path_factory.mktemp("ranks")
    done = subprocess.run([sys.executable, script, tiny_task_file, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not (folder / "refused").exists()
    return json.loads(done.stdout)


def test_ranks_over_gloo_add_up_end_together_say_who_is_lost_and_start_again(found):
    assert found["whole"] == [SUM, 7, 7]
    # The store still holds what these left.
    assert found["again"] == [SUM, 7]
    assert found["again3"] == [SUM, 7, 7]
    for doom in ("killed", "stopped"):
        (said, seconds), other, gone = found[doom]
        assert "rank 2 is" in said
        assert "DPFEDMETA_RANK_TIMEOUT" in said
        assert seconds < 30.0
        assert other.startswith("rank 0 is ")
        assert gone is None


def test_no_rank_but_the_first_holds_a_part_of_the_sum_of_all(found):
    """A reduction of gloo would leave 1/3 of it in each of the others."""
    assert found["sums"] == [[True, 0.0], [False, 1.0], [False, 1.0]]


def test_train_from_python_in_a_group_of_the_callers_own_is_a_plain_run_bit_for_bit(found):
    plain, (first, other) = found["group"]["plain"], found["group"]["said"]
    assert plain[0] == "completed"
    assert first["ranks"] == plain
    assert first["refused"].startswith("run.workers = 1: under torchrun its processes are the workers")
    assert (first["afterwards"], other) == (2.0, {"afterwards": 2.0})
