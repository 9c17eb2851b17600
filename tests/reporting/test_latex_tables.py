import csv
import io
import itertools
import json
import re

import pytest

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.ledger import Ledger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.accounting.rounded import asked as written
from dpfedmeta.core.errors import InputError
from dpfedmeta.reporting.compare import latex_tables
from dpfedmeta.reporting.compare.latex_tables import csv_table, latex, latex_table, row_of, write_paper, write_pictures
from dpfedmeta.reporting.compare.seed_groups import Group
from dpfedmeta.reporting.plots import comparison_plots, run_plots

CELLS = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]

SIZES = {"ways": 5, "shots": 1, "queries": 15, "steps": 5}


def cell(unit, observer):
    more = {"relations": {"zero-out": 2.5, "in-place": 5.54}} if (unit, observer) == ("record", "server") else {}
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
    assert [rows[0][f"spent.record_server.{name}"] for name in ("in-place", "row-deleted")] == ["5.54", ""]
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
    with pytest.raises(InputError, match="have the name one, so their pictures"):
        write_pictures([group, Group.of("again", [tmp_path / "one"])], folder)


def test_a_run_that_is_called_as_the_comparison_keeps_its_pictures(group, tmp_path, monkeypatch):
    (tmp_path / "two").rename(tmp_path / "comparison")
    apart = [Group.of(name, [tmp_path / name]) for name in ("one", "comparison")]
    with pytest.raises(InputError, match="a run and the comparison, have the name comparison"):
        write_pictures(apart, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


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


LAYER = RecordLayer(support_noise=1.25, query_noise=1.75, support_steps=2, support_records=3, query_records=4)
PLANS = (
    PrivacyPlan(clients=400_000, cohort=1500, rounds=4, noise_multiplier=1.234),
    PrivacyPlan(clients=50_000, cohort=250, rounds=7, noise_multiplier=2.5, max_participations=3, record=LAYER),
    PrivacyPlan(clients=60, cohort=30, rounds=9, noise_multiplier=None, sampler="fixed"),
)


def related(unit, epsilon):
    return {"relations": {"zero-out": epsilon, "in-place": epsilon + 0.5}} if unit == "record" else {}


def stated(place, kind):
    """Four cells of which no two numbers are equal."""
    first = 10.0 * place + (100.0 if kind == "planned" else 0.0)
    return [
        {"unit": unit, "observer": observer, "epsilon": first + number, "delta": 10.0 ** -(place + number + 2),
         "adjacency": f"{kind}-{number}", **related(unit, first + number)}
        for number, (unit, observer) in enumerate(CELLS[::-1], 1)
    ]  # fmt: skip


@pytest.fixture
def apart(tmp_path):
    """Three runs of one setting of which everything differs."""
    paths = []
    for place, plan in enumerate(PLANS):
        path = tmp_path / f"run{place}"
        path.mkdir()
        Ledger(path / "ledger.jsonl", plan)
        measured = {name: {"mean": 0.5 + 0.1 * place + 0.01 * n, "ci95": 0.001 * (place + n + 1)} for n, name in
                    enumerate(("accuracy", "accuracy_untrained", "accuracy_pixel_prototype"))}  # fmt: skip
        measured["accuracy"] |= {"episodes": 600 + place, "ways": 5 + place, "shots": 2 + place, "queries": 15 + place,
                                 "steps": 30 + place}  # fmt: skip
        summary = {
            "algo": f"algo{place}", "dataset": f"data{place}", "status": "completed", "rounds": 3 + place,
            "task": {"ways": 50 + place, "shots": 60 + place, "queries": 70 + place},
            "ledger": {"head": f"head{place}"},
            "simulation": "yes" if place == 1 else None, "guarantees": stated(place, "spent"),
            "planned": stated(place, "planned"), **measured,
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
        (path / "rounds.jsonl").write_text("")
        paths.append(path)
    return Group.of("mine", paths)


@pytest.mark.parametrize("place", range(3))
def test_each_column_of_a_run_is_its_own_and_of_its_name(apart, place):
    run, plan = apart.runs[place], PLANS[place]
    (apart.runs[0].path / "config.yaml").write_text("meta: {method: 'mine:Sign'}")
    summary = json.loads((run.path / "summary.json").read_text())
    row = row_of(apart, run, summary)
    due = {
        "run": str(run.path), "setting": "mine", "algo": f"algo{place}", "own_method": "mine:Sign",
        "dataset": f"data{place}", "status": "completed",
        "task.ways": 50 + place, "task.shots": 60 + place, "task.queries": 70 + place,
        "population.clients": plan.clients, "population.cohort": plan.cohort, "population.sampler": plan.sampler,
        "population.max_participations": plan.max_participations, "server.rounds": 3 + place,
        "server.noise_multiplier": plan.noise_multiplier,
        "record.support_noise": 1.25 if place == 1 else None, "record.query_noise": 1.75 if place == 1 else None,
        "accuracy.episodes": 600 + place, "accuracy.ways": 5 + place, "accuracy.shots": 2 + place,
        "accuracy.queries": 15 + place, "accuracy.steps": 30 + place, "simulation": place == 1,
        "ledger.head": f"head{place}",
    }  # fmt: skip
    for name in ("accuracy", "accuracy_untrained", "accuracy_pixel_prototype"):
        due |= {f"{name}.mean": summary[name]["mean"], f"{name}.ci95": summary[name]["ci95"]}
    for kind in ("spent", "planned"):
        for cell in stated(place, kind):
            name = f"{kind}.{cell['unit']}_{cell['observer']}"
            due |= {f"{name}.{key}": cell[key] for key in ("epsilon", "delta", "adjacency")}
            if cell["unit"] == "record":
                due |= {f"{name}.{relation}": cell["relations"].get(relation) for relation in RELATIONS}
    assert row == due
    assert "& algo0, mine:Sign &" in latex_table([apart])
    (_, *lines) = csv.reader(io.StringIO(csv_table([apart])))
    assert lines[place] == ["" if value is None else str(value) for value in row.values()]


def test_a_line_of_the_table_has_the_sizes_and_the_weakest_cells_in_their_columns(apart):
    """Sizes are those of the first run; of the seeds, the mean accuracy and the largest epsilon of each cell."""
    text = latex_table([apart])
    (line,) = (line for line in text.splitlines() if line.startswith("mine"))
    cells = [cell.strip() for cell in line.removesuffix(r" \\").split(" & ")]
    assert cells[:3] == [r"mine$^{\dagger}$", "algo0", "data0, 5-way 2-shot"]
    assert cells[3].startswith(r"$60.0 \pm")
    assert cells[4].startswith(r"$61.0 \pm")
    assert cells[5:9] == [r"$400\,000$", "$1500$", "$3$", "1.23"]
    # In the order of the heading; the costliest relation in brackets, where every run states it.
    assert cells[9:] == ["$24$", "$23$", "$22$ ($22.5$)", "$21$ ($21.5$)"]
    notes = [line.removeprefix("% ") for line in text.splitlines() if line.startswith("% ")]
    for unit, observer in CELLS:
        number = 4 - CELLS.index((unit, observer))
        found = next(note for note in notes if note.startswith(f"({unit}, {observer}): "))
        for place in range(3):
            assert f"delta = {written(10.0 ** -(place + number + 2))}, spent-{number}" in found
        assert ("in brackets" in found) == (unit == "record")
    for place in range(3):
        size = f"{5 + place}-way {2 + place}-shot, {15 + place} queries per class, {30 + place} adaptation steps"
        assert f"{size}, {600 + place} episodes" in notes


@pytest.mark.parametrize("asked", list(itertools.product([False, True], repeat=3)))
def test_what_was_asked_for_is_written_and_said_and_nothing_else(apart, tmp_path, monkeypatch, asked):
    monkeypatch.setattr(latex_tables, "write_pictures", lambda groups, folder: [folder / "a.pdf"])
    places = [
        tmp_path / name if wanted else None for name, wanted in zip(("a.tex", "a.csv", "pdf"), asked, strict=True)
    ]
    said = list(write_paper([apart], *places))
    words = ("LaTeX table", "CSV: ", "PDF pictures: ")
    assert [any(line.startswith(word) for line in said) for word in words] == list(asked)
    assert len(said) == sum(asked)
    assert [(tmp_path / name).exists() for name in ("a.tex", "a.csv")] == list(asked[:2])


@pytest.mark.parametrize("lacking", ["validation", "signal", None])
def test_pictures_of_a_comparison_are_those_that_show_something(apart, tmp_path, monkeypatch, lacking):
    """One of before, of other runs, does not stay."""

    def draws(what):
        def draw(path, groups):
            path.write_text("")
            return what != lacking

        return draw

    for what, name in (("accuracy", "final_plot"), ("validation", "validation_plot"), ("clip", "bound_plot"),
                       ("signal", "signal_plot")):  # fmt: skip
        monkeypatch.setattr(comparison_plots, name, draws(what))
    for name in ("accuracy_plot", "clip_plot", "guarantee_plot"):
        monkeypatch.setattr(run_plots, name, lambda path, *given: path.write_text(""))
    folder = tmp_path / "pdf"
    written = {path.name for path in write_pictures([apart], folder)}
    assert written == {f"run{n}-{what}.pdf" for n in range(3) for what in ("accuracy", "clip", "guarantees")}
    halves = [Group(label=str(place), runs=(run,)) for place, run in enumerate(apart.runs)]
    written = {path.name for path in write_pictures(halves, folder)}
    due = {f"comparison-{what}.pdf" for what in ("accuracy", "validation", "clip", "signal") if what != lacking}
    assert {name for name in written if name.startswith("comparison")} == due
    assert {path.name for path in folder.glob("comparison-*")} == due


@pytest.mark.parametrize(("method", "due"), [("mine:Sign", "mine:Sign"), ("maml", "")])
def test_a_method_of_the_users_own_is_named_and_a_presets_is_not(apart, method, due):
    (apart.runs[0].path / "config.yaml").write_text(f"meta: {{method: '{method}'}}")
    assert apart.own_method == due
