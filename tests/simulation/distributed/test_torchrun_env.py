import os

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.simulation.distributed.torchrun_env import launched

SET = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "3",
       "TORCHELASTIC_MAX_RESTARTS": "5", "TORCHELASTIC_RUN_ID": "job-7"}  # fmt: skip


def test_without_torchrun_there_is_no_launch():
    assert launched({}) is None
    for lacking in ("RANK", "WORLD_SIZE"):
        assert launched({name: value for name, value in SET.items() if name != lacking}) is None


def test_what_torchrun_says_is_read():
    found = launched(SET)
    assert (found.rank, found.size, found.local_rank, found.restarts, found.may_restart) == (2, 4, 1, 3, 5)
    assert found.name == "job-7"


def test_a_launch_without_a_name_is_known_by_its_launcher():
    names = [launched({**SET, "TORCHELASTIC_RUN_ID": name}).name for name in ("none", "none", "")]
    assert len(set(names)) == 1
    assert str(os.getppid()) in names[0].split()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "two"}, "RANK = 'two'"),
        ({"RANK": "4"}, "expected 0 <= RANK < WORLD_SIZE"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK = '-1'"),
        ({"DPFEDMETA_RANK_TIMEOUT": "soon"}, "DPFEDMETA_RANK_TIMEOUT = 'soon'.*seconds"),
        ({"DPFEDMETA_RANK_TIMEOUT": "nan"}, "DPFEDMETA_RANK_TIMEOUT"),
        ({"DPFEDMETA_RANK_TIMEOUT": "1"}, "from 5 to"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(changed, words):
    with pytest.raises(InputError, match=words):
        launched({**SET, **changed})
