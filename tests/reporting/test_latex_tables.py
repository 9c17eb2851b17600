import csv
import io
import json
import re

import pytest

from dpfedmeta.accounting.ledger.ledger import Ledger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.reporting.compare.latex_tables import csv_table, latex, latex_table, write_pictures
from dpfedmeta.reporting.compare.seed_groups import Group

CELLS = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]

SIZES = {"ways": 5, "shots": 1, "queries": 15, "steps": 5}


def cell(unit, observer):
    more = {"epsilon_replace_one": 5.54} if (unit, observer) == ("record", "server") else {}
    epsilon = {"client_public": 0.0123, "record_server": 2.5}.get(f"{unit}_{observer}")
    return {"unit": unit, "observer": observer, "epsilon": epsilon, "delta": 1e-6, "adjacency": "add-remove", **more}


@pytest.fixture
def group(tmp_path):
    runs = []
    for name, accuracy in (("one", 0.981), ("two", 0.979)):
        path = tmp_path / name
        path.mkdir()
        Ledger(path / "ledger.jsonl", PrivacyPlan(clients=400_000, cohort=1500, rounds=4, noise_multiplier=1.234))
        cells = [cell(*each) for each in CELLS]
        summary = {
            "algo": "dp-agr", "dataset": "my_data", "task": {"ways": 5, "shots": 1, "queries": 15}, "rounds": 4,
            "status": "completed", "guarantees": cells, "planned": cells, "simulation": "yes", "ledger": {"head": "ab"},
            "accuracy": {"mean": accuracy, "ci95": 0.002, "episodes": 600, **SIZES},
            "accuracy_untrained": None,
            "accuracy_pixel_prototype": None, "seconds": 1.0,
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
        row = {"clip": 1.0, "aggregate_norm": 0.5, "noise_norm_expected": 0.4, "epsilons": {"client_public": 0.01}}
        measured = {"validation_accuracy": {"mean": 0.5, "ci95": 0.1}}
        rows = [{**row, **measured, "round": number, "signal_to_noise": 1.0} for number in range(4)]
        (path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        runs.append(path)
    return Group.of(r"50% & more_of \it {x}", runs)


def test_the_csv_has_a_row_for_each_run_and_stable_names(group):
    rows = list(csv.DictReader(io.StringIO(csv_table([group]))))
    assert [row["accuracy.mean"] for row in rows] == ["0.981", "0.979"]
    assert {row["spent.client_server.epsilon"] for row in rows} == {"inf"}
    assert rows[0]["spent.record_server.replaced"] == "5.54"
    names = ("run", "algo", "dataset", "population.clients", "population.cohort", "server.rounds", "accuracy.ci95")
    assert set(names) | {"server.noise_multiplier", "planned.client_public.delta", "ledger.head"} <= set(rows[0])
    assert rows[0]["population.clients"] == "400000"
    assert rows[0]["accuracy_untrained.mean"] == ""


def test_the_table_is_sound_latex(group):
    text = latex_table([group])
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = [line for line in lines if line.endswith(r"\\")]
    columns = len(re.search(r"tabular\}\{(\w+)\}", text)[1])
    # An ampersand of the text is no column.
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in body} == {columns}
    assert r"50\% \& more\_of \textbackslash{}it \{x\}$^{\dagger}$" in text
    assert r"$98.0 \pm" in text
    assert r"$2.5$ ($5.54$)" in text
    assert text.count(r"$\infty$") == 2
    assert lines[0].startswith(r"\begin{tabular}")
    assert lines[-1] == r"\end{tabular}"
    assert "% dagger: simulation" in text
    assert latex("a~b^c#d$e<f>") == r"a\textasciitilde{}b\textasciicircum{}c\#d\$e\textless{}f\textgreater{}"


def test_a_note_says_that_the_untrained_model_is_the_public_encoder(group):
    assert "no client" not in latex_table([group])
    for run in group.runs:
        path = run.path / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "encoder": "lite0"}))
    again = Group.of("mine", [run.path for run in group.runs])
    assert "% untrained, of mine: public encoder, no client" in latex_table([again]).splitlines()


def test_pictures_are_vectors_with_their_fonts(group, tmp_path):
    folder = tmp_path / "figures"
    written = write_pictures([group], folder)
    due = {f"{run}-{picture}.pdf" for run in ("one", "two") for picture in ("accuracy", "clip", "guarantees")}
    assert {path.name for path in written} == due
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        assert b"CreationDate" not in content
        assert b"/Subtype /Image" not in content
    with pytest.raises(InputError, match="two runs have the name one"):
        write_pictures([group, Group.of("again", [tmp_path / "one"])], folder)


def test_wrong_endings_are_refused(tmp_path, dpfedmeta):
    (tmp_path / "file").touch()
    for option, name in (
        ("latex", "a.csv"),
        ("csv", "a.tex"),
        ("pdf", "a.pdf"),
        ("latex", "no/a.tex"),
        ("pdf", "file"),
    ):
        assert f"--{option} " in dpfedmeta("report", tmp_path, f"--{option}", tmp_path / name, code=2).error


@pytest.mark.parametrize("simulated", [(), (0,), (1,), (0, 1)])
def test_one_simulation_among_several_seeds_is_enough_to_say_so(group, simulated):
    for place, run in enumerate(group.runs):
        summary = run.read_json("summary.json")
        run.write_json("summary.json", summary | {"simulation": "yes" if place in simulated else None})
    text = latex_table([Group(label=group.label, runs=group.runs)])
    assert (r"$^{\dagger}$" in text) == ("% dagger: simulation" in text) == bool(simulated)
