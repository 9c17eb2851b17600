"""The example of people, on files of made-up ones in the published forms."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

# Made-up people have other units than the task file of real ones.
pytestmark = pytest.mark.filterwarnings("ignore:.*is it in another unit")

FOLDER = Path(__file__).parents[2] / "examples" / "people"


@pytest.fixture
def people(monkeypatch, tmp_path):
    """The example, whose trainings take two rounds."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "populations", raising=False)
    spec = importlib.util.spec_from_file_location("example_people", FOLDER / "people.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def write_hospitals(folder):
    """14 columns with commas; one patient of each hospital has a gap, and is left out."""
    generator = np.random.default_rng(0)
    for count, name in enumerate(("cleveland", "hungarian", "switzerland", "va"), start=9):
        rows = []
        for ill in generator.integers(0, 2, count).tolist():
            plain = [f"{value:.1f}" for value in generator.normal(10 + 5 * ill, 1, 14)]
            plain[2], plain[6] = f"{generator.integers(1, 5)}.0", f"{generator.integers(0, 3)}.0"
            rows.append([*plain[:13], str(3 * ill)])
        rows.append([*rows[0][:5], "?", *rows[0][6:]])
        (folder / f"processed.{name}.data").write_text("\n".join(",".join(row) for row in rows) + "\n")


def write_wisdm(folder, names):
    """Windows of all people mixed; a user writes quotes, and a peak that was not found is a question mark."""
    generator, rows = np.random.default_rng(0), []
    for user in range(1, 20):
        for number in range(14):
            numbers = ",".join(["?", *(f"{value:.2f}" for value in generator.normal(1, 1, 42))])
            rows.append(f'{len(rows)},"{user}",{numbers},{names[(user + number % 2) % 6]}')
    (folder / "WISDM_ar_v1.1_transformed.arff").write_text("@relation x\n\n@data\n" + "\n".join(rows[::-1]) + "\n")


def write_parkinsons(folder):
    """Recordings of all patients, the latest first."""
    generator, rows = np.random.default_rng(0), []
    for patient in range(1, 20):
        for day in range(9, 0, -1):
            voice = "\t".join(f"{value:.4f}" for value in generator.uniform(0.001, 1, 16))
            rows.append(f"{patient}\t70\t0\t{day}.5\t{10 + patient + day}\t50\t{voice}")
    (folder / "parkinsons_updrs.data").write_text("header\n" + "\n".join(rows) + "\n")


def shown_of(people, tmp_path, capsys, population, *words):
    given = ["--set", "server.rounds=2", "meta.steps=2", "model.width=3", "evaluation.steps=2"]
    people.main([
        "--population", population, "--data", str(tmp_path), "--out", str(tmp_path / "out"), *words, *given,
    ])  # fmt: skip
    return capsys.readouterr().out


def rows_of(shown):
    lines = [line.split("|") for line in shown.splitlines() if line.startswith("| ")]
    return {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}


def test_hospitals_train_on_two_thirds_and_are_judged_on_the_rest(people, tmp_path, capsys):
    write_hospitals(tmp_path)
    held = people.POPULATIONS["heart"].read(tmp_path)
    assert [len(own.targets) for own in held] == [9, 10, 11, 12]
    assert {own.records.shape[1] for own in held} == {13}
    one, two = (people.half_of(held[3], 3, split) for split in (0, 1))
    assert one.adapts.sum() == two.adapts.sum() == 7
    assert (one.adapts != two.adapts).any()
    (trial, _) = people.trials_of(people.POPULATIONS["heart"], held, 0, 2, development=False)
    for trained, own in zip(trial.trained, trial.judged, strict=True):
        assert np.array_equal(trained.records, own.records[own.adapts])
    shown = shown_of(people, tmp_path, capsys, "heart", "--trials", "2")
    rows = rows_of(shown)
    assert rows.keys() >= {"this run, adapted", "each alone: softmax regression", "majority of own classes",
                           "all data in one place"}  # fmt: skip
    assert "nan" not in shown
    assert rows["each alone: softmax regression"][-1] == "+0.000 ± 0.000"


def test_with_missing_values_all_patients_train_and_are_judged(people, tmp_path, capsys, monkeypatch):
    write_hospitals(tmp_path)
    monkeypatch.setitem(sys.modules, "people", people)
    spec = importlib.util.spec_from_file_location("example_missing", FOLDER / "missing.py")
    missing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(missing)
    few = {"server.rounds": 2, "meta.steps": 2, "evaluation.steps": 2, "evaluation.every": 2}
    missing.main(["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--trials", "2"], few)
    shown = capsys.readouterr().out
    assert "'cleveland': (10, 9)" in shown
    for way in ("dropped | complete", "missing | complete", "missing | all"):
        assert (
            f"| {way} | this run, before adaptation | 0." in shown
            or f"| {way} | this run, before adaptation | 1." in shown
        )
    trained = {
        way: (tmp_path / "out" / f"{way}-0" / "people.csv").read_text().splitlines() for way in ("dropped", "missing")
    }
    gaps = {way: sum("?" in line for line in lines) for way, lines in trained.items()}
    assert gaps["dropped"] == 0 < gaps["missing"]
    assert [len(lines[0].split(",")) for lines in trained.values()] == [16, 19]


@pytest.mark.parametrize(
    ("labels", "judges"),
    [
        ([1, 0, 0] * 7 + [1, 0], [0, 1, 2, 6, 7, 8, 9, 16]),
        ([0, 1, 1, 1] * 8 + [0], [0, 1, 2, 3, 4, 5, 15, 16, 19, 21, 25, 31]),
        ([1] * 21 + [0] * 2, [5, 6, 8, 10, 12, 13, 15, 22]),
    ],
    ids=["stratified", "a remainder", "two of a label"],
)
def test_flambys_split_is_that_of_scikit_learn(people, labels, judges):
    """Expected: train_test_split(test_size=1.0 - 0.66, train_size=0.66, random_state=43) of scikit-learn 1.9.1."""
    own = people.Person(
        name="made-up", records=np.zeros((len(labels), 1)), targets=np.array(labels), adapts=np.zeros(len(labels), bool)
    )
    assert np.flatnonzero(~people.flamby_half_of(own).adapts).tolist() == judges


def test_wearers_adapt_on_the_first_windows_of_each_class_and_judge_models_of_others(people, tmp_path, capsys):
    task = people.POPULATIONS["wisdm"]
    write_wisdm(tmp_path, task.labels)
    held = task.read(tmp_path)
    assert len(held) == 19
    # 14 windows in their order, two classes by turns: the first ten adapt.
    assert all(own.adapts.tolist() == [True] * 10 + [False] * 4 for own in held)
    assert all((own.records[:, 0] == 0).all() for own in held)
    people.write_task(task, tmp_path / "trained", held[:2])
    own = [row for row in (tmp_path / "trained" / "people.csv").read_text().splitlines() if row.startswith("user")]
    assert [row.split(",")[1] for row in own] == ["train"] * 28
    trials = people.trials_of(task, held, 0, None, development=False)
    judged = [own.name for trial in trials for own in trial.judged]
    assert len(judged) == len(set(judged)) == 19 - people.DEVELOPMENT
    for trial in trials:
        assert {own.name for own in trial.trained}.isdisjoint(own.name for own in trial.judged)
        assert len(trial.trained) + len(trial.judged) == 19
    (chosen,) = people.trials_of(task, held, 0, None, development=True)
    assert {own.name for own in (*chosen.trained, *chosen.judged)}.isdisjoint(judged)
    shown = shown_of(people, tmp_path, capsys, "wisdm", "--trials", "1", "--epsilon", "4")
    assert "this run, before adaptation" in rows_of(shown)
    summary = next((tmp_path / "out" / "runs").glob("*/summary.json")).read_text()
    assert '"client"' in summary


def test_patients_adapt_on_the_first_recordings_and_no_model_sees_the_time(people, tmp_path, capsys):
    write_parkinsons(tmp_path)
    task = people.POPULATIONS["parkinsons"]
    held = task.read(tmp_path)
    assert len(held) == 19
    assert {own.records.shape for own in held} == {(9, len(task.mean))} == {(9, 18)}
    assert all(own.adapts.tolist() == [True] * 5 + [False] * 4 for own in held)
    assert held[0].targets.tolist() == [11 + day for day in range(1, 10)]
    rows = rows_of(shown_of(people, tmp_path, capsys, "parkinsons", "--trials", "1"))
    # Day 9 has the latest four days' mean 18.5; the first five days' mean is 14.
    assert rows["mean of own targets"][0] == "4.500 ± 0.000"
    assert {"this run, adapted", "all data in one place"} <= rows.keys()


@pytest.mark.parametrize("moments", [False, True], ids=["gradients", "moments"])
def test_real_hospitals_are_asked_for_the_plan_of_the_simulation(people, tmp_path, monkeypatch, moments):
    """With records promised, under sums: the command line of the server has every setting of the example."""
    from dpfedmeta.cli.arguments import given_settings
    from dpfedmeta.cli.commands.train_command import options_of
    from dpfedmeta.config.load import resolve

    monkeypatch.setitem(sys.modules, "people", people)
    federation = importlib.import_module("federation")
    monkeypatch.delitem(sys.modules, "federation")
    task = people.POPULATIONS["heart"]
    algo = "moments-agrlr-secure" if moments else "dp-agrlr-secure"
    words = [*federation.settings_of(task, 1.0, 4, moments=moments), "--algo", algo]
    settings = resolve(algo, str(people.write_task(task, tmp_path)), None, given_settings(options_of(), words))
    assert (settings.privacy.record.epsilon, settings.privacy.record.delta) == (1.0, 1e-4)
    assert (settings.population.clients, settings.population.cohort, settings.population.episodes) == (4, 4, "fixed")
    assert settings.aggregation.mode == "secure"
    if moments:
        assert (settings.server.rounds, settings.model.name, settings.population.kind) == (1, "gaussian", "real")
        # Four withstand one that tells all it knows, and none that is lost; of more, one may be.
        assert (settings.aggregation.dropout, settings.privacy.client.colluding) == (0.0, 1)
        assert f"--aggregation.dropout {1 / 24}" in " ".join(federation.settings_of(task, 1.0, 24, moments=True))
        return
    assert settings.meta.learn == "all"
