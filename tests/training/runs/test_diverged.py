"""A run whose model is not finite any more ends at once, says so, and is no result for anybody."""

import io

import pytest
from rich.console import Console

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.compare.seed_groups import group_runs
from dpfedmeta.training import run_training as module
from dpfedmeta.training.personal.personal_model import load
from dpfedmeta.training.results.run_archive import archive
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.verification.verify import audit
from tests.training.runs.test_resume import begin, own_register, resume

__all__ = ["own_register"]
# The first step is longer than a float can say.
FAR = {"server.optimizer": "sgd", "server.lr": "1e300"}


@pytest.fixture(params=[{}, {"server.average": "1"}, {"run.checkpoint_every": "1"}, {"server.rounds": "1"}])
def diverged(request, tiny_task_file, tmp_path):
    run, status = begin(tiny_task_file, tmp_path, **FAR, **request.param)
    assert status == "diverged"
    return run


def test_nothing_is_charged_after_it_and_nothing_is_left_to_do(diverged, tmp_path, dpfedmeta):
    assert len(read_content(diverged.ledger).charges) == 1
    audit(diverged)
    again = dpfedmeta("train", "--resume", diverged.path, code=1)
    assert "training diverged" in again.error
    assert "lower server.lr or meta.lr" in again.error
    assert len(read_content(diverged.ledger).charges) == 1
    page = (diverged.path / "report.html").read_text()
    assert "DIVERGED after 1 of" in page
    assert "killed" not in page
    with pytest.raises(InputError, match="training diverged"):
        load(diverged.path)
    with pytest.raises(InputError, match="diverged, so there is no result"):
        archive(diverged, tmp_path / "run.zip")
    assert "diverged" in dpfedmeta("train", "--extend", diverged.path, "--rounds", 9, code=2).error
    assert group_runs([diverged])[0].label.endswith(" (DIVERGED)")


def test_a_process_that_ended_before_the_summary_says_it_when_it_goes_on(tiny_task_file, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "summary_of", None)
        with pytest.raises(TypeError):
            begin(tiny_task_file, tmp_path, **FAR)
    run, out = RunDirectory(tmp_path / "r"), io.StringIO()
    assert read_run(run).stage == "stopped"
    assert resume(run, Console(file=out, width=200))[1] == "diverged"
    assert "diverged after 1 of 6 rounds" in out.getvalue()
    assert len(read_content(run.ledger).charges) == 1


def test_a_round_that_diverges_says_so_when_it_does(tiny_task_file, tmp_path):
    out = io.StringIO()
    values = {"run.noise_seed": "3", **FAR}
    begin(tiny_task_file, tmp_path, told=[Terminal(Console(file=out, width=200))], **values)
    assert "round 0: training diverged" in out.getvalue()
