"""Runs of earlier versions are read as ever; they do not go on here."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

import dpfedmeta
from dpfedmeta.api.evaluation_request import EvaluationRequest
from dpfedmeta.api.print_evaluation import evaluate_runs
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.reporting.html.privacy_statement import COMPARED, check_report
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.verification.verify import audit

RUNS = ("version-4-micro-episodes", "version-4-steps")


@pytest.fixture(params=RUNS)
def old(request, tmp_path):
    return RunDirectory(shutil.copytree(Path(__file__).with_name(request.param), tmp_path / "old"))


def test_it_verifies(old):
    found = audit(old)
    assert {"summary.json agrees", "plan.json agrees", "rounds.jsonl agrees"} <= {*found.remarks}
    if (old.path / "report.html").exists():
        assert check_report(read_run(old), found.proven) == [f"report.html agrees{COMPARED}"]


def test_a_forged_epsilon_is_refused(old):
    summary = old.read_json("summary.json")
    summary["guarantees"][0]["epsilon"] *= 0.5
    (old.path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=r"\(client, public\)"):
        audit(old)


def test_it_reports(old):
    page = write_report(old).read_text()
    assert "(record, server)" in page or "record" in page
    assert check_report(read_run(old), audit(old).proven) == [f"report.html agrees{COMPARED}"]


def test_it_is_evaluated_and_loaded(old, capsys):
    request = EvaluationRequest(runs=(old.path,), episodes=2, fine_tuning=False, workers=1)
    evaluate_runs(request, Console(quiet=True))
    assert old.read_json("evaluation.json")["results"]
    model = dpfedmeta.load(old.path)
    images = torch.rand(6, 1, 28, 28)
    assert model.adapt(images, [0, 0, 1, 1, 2, 2]).predict(images).shape == (6,)


def test_it_does_not_go_on(old):
    before = {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="version 4, in which clients' messages were added up in floating point"):
        run_training(settings_of_run(old, {}), RunOptions(resume=old))
    assert {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()} == before
