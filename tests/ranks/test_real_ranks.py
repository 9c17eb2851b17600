import json
import subprocess
import sys
from pathlib import Path

SUM = [780, 780, 40]


def test_ranks_over_gloo_add_up_end_together_say_who_is_lost_and_start_again():
    script = Path(__file__).parent / "real_ranks.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["whole"] == [SUM, 7, 7]
    # The store still holds what these left.
    assert found["again"] == [SUM, 7]
    assert found["again3"] == [SUM, 7, 7]
    assert found["group"] == [SUM, None]
    for doom in ("killed", "stopped"):
        (said, seconds), other, gone = found[doom]
        assert "rank 2 is" in said
        assert "DPFEDMETA_RANK_TIMEOUT" in said
        assert seconds < 30.0
        assert other.startswith("rank 0 is ")
        assert gone is None
