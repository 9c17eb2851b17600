import sys

import pytest

from dpfedmeta.cli.sweeps.runner import prepare
from dpfedmeta.cli.sweeps.sweep_file import Trial, read_sweep
from dpfedmeta.cli.sweeps.sweep_folder import SweepOptions, launched_words
from dpfedmeta.core.errors import InputError


def test_a_launcher_starts_each_trial_and_brings_the_workers(tmp_path):
    words = launched_words(f"{sys.executable} -m torch.distributed.run --nproc-per-node 2")
    assert words[-3:] == ("-m", "dpfedmeta", "train")
    assert words[:5] == (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert launched_words("torchrun")[0].endswith("torchrun")  # beside this Python
    trial = Trial(number=0, name="one", key="0", parameters={"server.lr": 1.0}, fixed={})
    ranked, usual = (
        SweepOptions(out=tmp_path, **given).words(trial) for given in ({"train": words, "launched": True}, {})
    )
    assert not any(word.startswith("--run.workers") for word in ranked)
    assert any(word.startswith("--run.workers") for word in usual)


@pytest.mark.parametrize("launcher", ["", "no-such-launcher --nodes 2", "torchrun 'unfinished"])
def test_a_launcher_that_is_none_is_refused(launcher):
    with pytest.raises(InputError, match="--launch"):
        launched_words(launcher)


def test_workers_beside_ranks_are_refused_before_the_first_trial(sweep_file, tmp_path):
    parameters = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}, "run.workers": {"values": [1, 2]}}
    sweep = read_sweep(sweep_file(parameters=parameters))
    for fixed in ({}, {"run.workers": "2"}):
        prepare(sweep, SweepOptions(out=tmp_path / "out", fixed=fixed))
        with pytest.raises(InputError, match=r"run\.workers: the ranks that --launch starts are the workers"):
            prepare(sweep, SweepOptions(out=tmp_path / "out", fixed=fixed, launched=True))
    assert not (tmp_path / "out").exists()
