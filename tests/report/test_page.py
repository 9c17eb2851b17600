import json
import re

import pytest

from dpfedmeta.errors import InputError
from dpfedmeta.report import write_report
from dpfedmeta.report.page import write_comparison
from dpfedmeta.tracking.run_directory import create

ACCURACY = {"mean": 0.9, "ci95": 0.01, "episodes": 600, "protocol": "single model"}
CELLS = [
    {"unit": unit, "observer": observer, "epsilon": epsilon, "delta": 1e-6, "adjacency": "add-remove", "method": "pld",
     "bounds": {"pld": epsilon}}
    for unit, observer, epsilon in (
        ("client", "public", 1.49), ("client", "server", None), ("record", "server", 2.5), ("record", "public", 0.0)
    )
]  # fmt: skip


def a_run(folder, name, **changes):
    run = create(folder, name)
    summary = {
        "status": "completed", "algo": "dp-agr", "dataset": "omniglot", "task": {"ways": 5, "shots": 5, "queries": 5},
        "rounds": 2,
        "population": {"clients": 400_000, "cohort": 200, "sampler": "poisson", "max_participations": None},
        **{f"accuracy{n}": ACCURACY for n in ("", "_before_adaptation", "_untrained", "_pixel_prototype")},
        "accuracy_pixel_neighbour": None, "guarantees": CELLS, "planned": CELLS, "simulation": None, "seconds": 60.0,
        "clients_per_second": 9.0, "peak_memory_mb": 700.0, "versions": {"torch": "2"}, **changes,
    }  # fmt: skip
    run.write_json("summary.json", summary)
    rows = [
        {
            "round": r, "clip": 0.5, "aggregate_norm": 1.0, "noise_norm_expected": 0.9, "seconds": 1.0,
            "epsilons": {"client_public": r + 1.0}, "validation_accuracy": {"mean": 0.5, "ci95": 0.1, "episodes": 4},
        }
        for r in range(2)
    ]  # fmt: skip
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_page_is_self_contained_and_shows_every_cell(tmp_path):
    run = a_run(tmp_path, "a")
    page = write_report(run).read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert page.count("data:image/png;base64,") == 3
    assert page.count("<td>add-remove</td>") == 4
    assert ">inf</td>" in page
    assert "90.0% ± 1.0" in page
    assert "not evaluated" in page
    assert {file.name for file in run.path.glob("*.png")} == {"accuracy.png", "clip.png", "guarantees.png"}


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = a_run(tmp_path, "a")
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_a_chosen_noise_seed_is_called_a_simulation(tmp_path):
    assert "simulation: x" in write_report(a_run(tmp_path, "a", simulation="simulation: x")).read_text()


def test_a_run_without_privacy_or_evaluation_still_has_a_page(tmp_path):
    nothing = [{**cell, "epsilon": None, "method": "none"} for cell in CELLS]
    run = a_run(tmp_path, "a", guarantees=nothing, planned=nothing, accuracy=None)
    assert write_report(run).read_text().count(">inf</td>") == 8


def test_two_runs_side_by_side(tmp_path):
    runs = [a_run(tmp_path, name) for name in ("a", "b")]
    page = write_comparison(runs, tmp_path / "compare.html").read_text()
    assert "<td>a</td>" in page
    assert "<td>b</td>" in page
    assert (tmp_path / "compare.png").exists()


def test_names_are_escaped(tmp_path):
    page = write_report(a_run(tmp_path, "a", algo="<script>")).read_text()
    assert "<script>" not in page


def test_what_is_no_run_is_said_so(tmp_path):
    with pytest.raises(InputError, match="directory of a run"):
        write_report(create(tmp_path, "empty"))
