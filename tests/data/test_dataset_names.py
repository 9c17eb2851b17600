from pathlib import Path

import pytest

from dpfedmeta.config.dataset_names import data_of_run
from dpfedmeta.core.errors import InputError


def test_data_of_a_run_are_read_where_somebody_says_that_they_are(tmp_path):
    found, named = tmp_path / "found" / "birds", tmp_path / "named"
    found.mkdir(parents=True)
    (named / "birds").mkdir(parents=True)
    assert data_of_run(str(found), None) == str(found)
    assert data_of_run(str(found), named) == str(named / "birds")
    assert data_of_run("omniglot", named) == "omniglot"
    # A folder without them is no folder to be ignored.
    with pytest.raises(
        InputError, match=r"holds no birds, the data of this run; put it there, or leave --data-dir out"
    ):
        data_of_run(str(found), tmp_path / "found" / "birds")
    assert data_of_run(str(tmp_path / "gone"), named) == str(tmp_path / "gone")
    assert Path(data_of_run(str(found), named)).is_absolute()
