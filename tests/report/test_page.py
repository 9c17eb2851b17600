import base64
import copy
import json
import re

import pytest

from dpfedmeta.errors import InputError
from dpfedmeta.report import write_report
from dpfedmeta.report.groups import group_runs
from dpfedmeta.report.page import write_comparison
from dpfedmeta.tracking.run_directory import append_lines, create
from dpfedmeta.tracking.terminal import number

CELLS = [("client", "public", 1.49), ("client", "server", None), ("record", "server", 2.5), ("record", "public", 0.07)]


def accuracy(mean):
    return {"mean": mean, "ci95": 0.004, "episodes": 600, "protocol": "single model"}


SUMMARY = {
    "status": "completed",
    "algo": "dp-agrlr",
    "dataset": "strokes",
    "task": {"ways": 5, "shots": 5, "queries": 5},
    "rounds": 3,
    "population": {"clients": 400_000, "cohort": 300.0, "sampler": "poisson", "max_participations": 1},
    "accuracy": accuracy(0.91),
    "accuracy_before_adaptation": accuracy(0.2),
    "accuracy_untrained": accuracy(0.55),
    "accuracy_pixel_prototype": accuracy(0.66),
    "accuracy_pixel_neighbour": accuracy(0.64),
    "guarantees": [
        {
            "unit": unit,
            "observer": observer,
            "epsilon": epsilon,
            "delta": 1e-6,
            "adjacency": "add-remove",
            "method": "pld" if epsilon else "none",
            "bounds": {"pld": epsilon},
        }
        for unit, observer, epsilon in CELLS
    ],
    "simulation": None,
    "seconds": 120.0,
    "clients_per_second": 150.0,
    "peak_memory_mb": 300.0,
    "versions": {"dpfedmeta": "0.1.0", "torch": "2.13.0"},
}
SUMMARY["planned"] = SUMMARY["guarantees"]
ROWS = [
    {
        "round": index,
        "clip": 0.3,
        "aggregate_norm": 0.2,
        "noise_norm_expected": 0.1,
        "epsilons": {f"{unit}_{observer}": epsilon for unit, observer, epsilon in CELLS},
        "seconds": 1.0,
        "clients_per_second": 150.0,
        **({"validation_accuracy": accuracy(0.5 + 0.1 * index)} if index else {}),
    }
    for index in range(3)
]


@pytest.fixture
def make_run(tmp_path):
    def made(name="r", rows=ROWS, **changes):
        *parents, plain = name.split("/")
        run = create(tmp_path.joinpath("runs", *parents), plain)
        append_lines(run.path / "rounds.jsonl", rows)
        run.write_json("summary.json", copy.deepcopy(SUMMARY) | changes)
        return run

    return made


def assert_self_contained(page):
    assert not re.search(r"https?://|@import|<script|<link|url\(", page)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    for source in sources:
        kind, _, content = source.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(content, validate=True).startswith(b"\x89PNG\r\n\x1a\n")
    return len(sources)


def rows_of(page):
    """Texts of the cells of each table row."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[re.sub(r"<.*?>", "", c).strip() for c in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", r, re.S)] for r in rows]


def test_the_report_is_one_file_with_its_pictures_inside_and_beside(make_run):
    run = make_run()
    path = write_report(run)
    assert path == run.path / "report.html"
    assert assert_self_contained(path.read_text(encoding="utf-8")) == 3
    assert {p.name for p in run.path.glob("*.png")} == {"accuracy.png", "clip.png", "guarantees.png"}


def test_the_four_cells_stand_in_it_with_inf_where_nothing_is_promised(make_run):
    rows = rows_of(write_report(make_run()).read_text(encoding="utf-8"))
    found = {tuple(row[:2]): row[2:4] for row in rows if row[0] in ("client", "record")}
    assert found == {
        ("client", "public"): ["1.49", "1.49"],
        ("client", "server"): ["inf", "inf"],
        ("record", "server"): ["2.5", "2.5"],
        ("record", "public"): ["0.07", "0.07"],
    }


def test_accuracies_and_their_references_stand_in_it(make_run):
    rows = rows_of(write_report(make_run()).read_text(encoding="utf-8"))
    shown = {row[0]: row[1] for row in rows if len(row) == 2}
    assert shown["this run, adapted"] == "91.0% ± 0.4"
    assert shown["untrained weights, same adaptation"] == "55.0% ± 0.4"
    assert shown["nearest class prototype in pixels"] == "66.0% ± 0.4"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "inf"), (float("inf"), "inf"), (1.4951, "1.5"), (0.0, "0"), (1234.5, "1234")]
)
def test_how_an_epsilon_is_written(value, text):
    assert number(value) == text


def test_an_epsilon_of_zero_is_not_infinite(make_run):
    spent = [cell | {"epsilon": 0.0} for cell in SUMMARY["guarantees"]]
    rows = rows_of(write_report(make_run(guarantees=spent)).read_text(encoding="utf-8"))
    assert [row[3] for row in rows if row[0] in ("client", "record")] == ["0"] * 4


def test_a_simulation_is_marked(make_run):
    said = "simulation: no guarantee"
    assert said not in write_report(make_run()).read_text(encoding="utf-8")
    assert said in write_report(make_run("s", simulation=said)).read_text(encoding="utf-8")


def test_a_run_without_privacy_and_without_a_clip(make_run):
    none = [cell | {"epsilon": None, "method": "none", "bounds": {}} for cell in SUMMARY["guarantees"]]
    rows = [row | {"clip": None, "epsilons": dict.fromkeys(row["epsilons"])} for row in ROWS]
    page = write_report(make_run(rows=rows, guarantees=none, planned=none)).read_text(encoding="utf-8")
    assert assert_self_contained(page) == 3
    assert [row[3] for row in rows_of(page) if row[0] in ("client", "record")] == ["inf"] * 4


@pytest.mark.parametrize("rows", [[], ROWS[:1]])
def test_an_interrupted_run_without_evaluation(make_run, rows):
    missing = dict.fromkeys(key for key in SUMMARY if key.startswith("accuracy"))
    page = write_report(make_run(rows=rows, status="interrupted", **missing)).read_text(encoding="utf-8")
    assert "interrupted after" in page
    assert page.count("not evaluated") == 5


def test_names_cannot_put_markup_into_the_page(make_run):
    page = write_report(make_run(dataset="<b>bold</b>")).read_text(encoding="utf-8")
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page


def test_the_same_run_gives_the_same_bytes(make_run):
    run = make_run()
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_two_runs_side_by_side(make_run, tmp_path):
    out = tmp_path / "comparison.html"
    runs = [make_run("a"), make_run("b", algo="maml", accuracy=accuracy(0.97))]
    assert write_comparison(group_runs(runs), out) == out
    page = out.read_text(encoding="utf-8")
    assert assert_self_contained(page) == 3
    rows = rows_of(page)
    assert [row[0] for row in rows] == ["run", "a", "b"]
    assert len({len(row) for row in rows}) == 1
    assert [row[1] for row in rows[1:]] == ["dp-agrlr", "maml"]
    assert [row[3] for row in rows[1:]] == ["91.0% ± 0.4", "97.0% ± 0.4"]
    assert rows[1][6:10] == ["1.49", "inf", "2.5", "0.07"]
    beside = {path.name for path in tmp_path.glob("*.png")}
    assert beside >= {"comparison-accuracy.png", "comparison-validation.png", "comparison-clip.png"}


def test_runs_of_one_name_in_different_folders_are_both_shown(make_run, tmp_path):
    runs = [make_run("here/a"), make_run("there/a")]
    page = write_comparison(group_runs(runs), tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert [row[0] for row in rows_of(page)[1:]] == [str(run.path) for run in runs]


DAMAGES = {
    "no summary": lambda run: (run.path / "summary.json").unlink(),
    "no rounds": lambda run: (run.path / "rounds.jsonl").unlink(),
    "half a summary": lambda run: (run.path / "summary.json").write_text('{"status": '),
    "an empty summary": lambda run: run.write_json("summary.json", {}),
    "a summary that is a list": lambda run: (run.path / "summary.json").write_text("[1]"),
    "a summary without sizes": lambda run: run.write_json("summary.json", {"guarantees": [], "planned": []}),
    "half a line": lambda run: (run.path / "rounds.jsonl").write_text('{"round": 0'),
    "a line without its keys": lambda run: (run.path / "rounds.jsonl").write_text(json.dumps({"round": 0}) + "\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_or_damaged_files_are_bad_input(make_run, damage):
    run = make_run()
    DAMAGES[damage](run)
    with pytest.raises(InputError, match=r"summary\.json|rounds\.jsonl") as caught:
        write_report(run)
    assert str(run.path) in str(caught.value)
    assert not (run.path / "report.html").exists()


@pytest.mark.parametrize("damage", ["no summary", "half a line", "an empty summary"])
def test_a_comparison_with_a_damaged_run_is_bad_input(make_run, tmp_path, damage):
    runs = [make_run("a"), make_run("b")]
    DAMAGES[damage](runs[1])
    with pytest.raises(InputError, match=r"summary\.json|rounds\.jsonl"):
        write_comparison(group_runs(runs), tmp_path / "comparison.html")
    assert not (tmp_path / "comparison.html").exists()
