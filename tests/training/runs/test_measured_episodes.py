"""Labels are those of the evaluation that was run, wherever an accuracy stands."""

import csv
import html
import io
import json
import re

import pytest
from rich.console import Console

from dpfedmeta.reporting.compare.latex_tables import csv_table, latex_table
from dpfedmeta.reporting.compare.seed_groups import Group
from dpfedmeta.reporting.plots.epsilon_plot import _benchmark
from dpfedmeta.training.results.evaluation_store import size
from dpfedmeta.training.terminal.tables import accuracy_table
from dpfedmeta.training.tracking.flatten_rows import evaluation_sheet

TRAINED = {"ways": 3, "shots": 2, "queries": 2}
MEASURED = {"ways": 4, "shots": 1, "queries": 6, "steps": 7, "episodes": 5}
OTHER = {
    "task.ways": 3, "task.shots": 2, "task.queries": 2, "meta.steps": 1, "model.width": 4, "server.rounds": 1,
    "evaluation.every": 1, "evaluation.validation_episodes": 2, "population.cohort": 2, "population.clients": 10,
    "run.workers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(dpfedmeta, tmp_path_factory, tiny_task_file):
    """A run of one round, and what it said on the terminal."""
    folder = tmp_path_factory.mktemp("measured")
    changes = OTHER | {f"evaluation.{name}": value for name, value in MEASURED.items()}
    words = [part for name, value in changes.items() for part in (f"--{name}", value)]
    left = dpfedmeta(
        "train", "--algo", "maml", "--dataset", tiny_task_file, *words, "--run.dir", folder, "--run.name", "run"
    )
    return folder / "run", left.out


def outputs(path, told):
    """Every place with an accuracy, as text."""
    group = Group.of("it", [path])
    page = html.unescape(re.sub(r"<[^>]*>", "", (path / "report.html").read_text()))
    console = Console(file=io.StringIO(), width=300, record=True)
    console.print(accuracy_table(group.summaries[0]))
    return {
        "terminal at the end": " ".join(told.split()), "terminal": " ".join(console.export_text().split()),
        "page": " ".join(page.split()), "latex": latex_table([group]), "plot": _benchmark(group.summaries[0]),
    }  # fmt: skip


def test_every_output_has_the_numbers_of_the_evaluation(ended):
    path, told = ended
    words = "4-way 1-shot, 6 queries per class, 7 adaptation steps, 5 episodes"
    for name, text in outputs(path, told).items():
        assert words in text, name
        assert "2-shot" not in text, name
    (row,) = csv.DictReader(io.StringIO(csv_table([Group.of("it", [path])])))
    assert {name: int(row[f"accuracy.{name}"]) for name in MEASURED} == MEASURED
    assert {name: int(row[f"task.{name}"]) for name in TRAINED} == TRAINED
    summary = json.loads((path / "summary.json").read_text())
    sheet = evaluation_sheet(summary)
    assert dict(zip(sheet.columns, sheet.rows[0], strict=True)).items() >= {**MEASURED, "count": 5}.items() - {
        ("episodes", 5)
    }


def test_evaluate_prints_and_keeps_every_number(ended, dpfedmeta):
    path, _ = ended
    asked = ("--shots", 3, "--ways", 2, "--steps", 2, "--episodes", 8, "--workers", 1, "--no-fine-tuning")
    text = " ".join(dpfedmeta("evaluate", path, *asked).out.split())
    for words in ("2-way 3-shot", "queries per class │ 6", "steps │ 7", "episodes │ 8"):
        assert words in text
    dpfedmeta("report", path)
    page = (path / "report.html").read_text()
    assert "2-way 3-shot; 6 queries per class; 7 steps; 8 episodes" in page


@pytest.mark.parametrize("name", ["ways", "shots", "queries"])
def test_a_label_that_is_not_that_of_the_settings_is_found(ended, dpfedmeta, name):
    path, _ = ended
    written = (path / "summary.json").read_text()
    edited = json.loads(written)
    edited["accuracy"][name] += 1
    try:
        (path / "summary.json").write_text(json.dumps(edited))
        assert f"accuracy.{name}" in dpfedmeta("account", "--verify", path, code=2).error
    finally:
        (path / "summary.json").write_text(written)


def test_images_have_no_shots():
    assert size({"mean": 0.9, "images": 600}) == ""
