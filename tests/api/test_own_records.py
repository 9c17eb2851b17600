"""`evaluate RUN --own-test`: training clients are judged on records that never trained."""

import csv
import json
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import dpfedmeta as dp
from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.api.own_records import _person, own_records
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.populations.natural import name_of_client
from dpfedmeta.data.populations.own_test import trains_on, without_own_test
from dpfedmeta.learning.evaluation.people import RecordSplit
from dpfedmeta.planning.client_population import clients_of, training_part
from dpfedmeta.training.results.trained_run import open_run
from tests.api.test_evaluate_people import TRAIN
from tests.conftest import dpfedmeta
from tests.federation.test_local_data import COLUMNS, rows_of

SPLIT = RecordSplit(shots=None, repeats=2, seed=0)


def write_clinics(root, late=0.0):
    """Three training clinics of nine records a class; `late` is added to the last three of each."""
    with (root / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "split", "class", *COLUMNS])
        for place, split in enumerate(["train"] * 3 + ["val", "test"]):
            seen = dict.fromkeys(("ill", "unsure", "well"), 0)
            for label, values in rows_of(place, records=9):
                seen[label] += 1
                moved = late if split == "train" and seen[label] > 6 else 0.0
                writer.writerow([f"clinic{place}", split, label, *(value + moved for value in values)])
    task = {"name": "clinics", "source": {"reader": "vectors", "path": "all.csv"}, "features": 3}
    (root / "task.yaml").write_text(yaml.safe_dump(task))


def trained(root, *more, code=0):
    return dpfedmeta(
        *TRAIN, "--run.noise_seed", "1", "--dataset", "task.yaml", "--run.name", "mine", *more, folder=root, code=code
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    write_clinics(root)
    trained(root, "--population.own_test", "0.34")
    return root


def test_training_clients_are_judged_on_what_they_kept_back(run):
    said = dpfedmeta("evaluate", "runs/mine", "--own-test", folder=run).out
    found = json.loads((run / "runs/mine/secret/people-own-test.json").read_text())
    assert [each["name"] for each in found["clients"]] == ["clinic0", "clinic1", "clinic2"]
    # Three of nine of each class.
    assert [(each["records"]["ill"], each["judged"]) for each in found["clients"]] == [(9, 9)] * 3
    assert "is judged on 34% of them, which did not" in found["protocol"]
    assert "no guarantee covers them" in said
    assert "it keeps back 34% of its records, which never train" in (run / "runs/mine/plan.json").read_text()


def test_records_that_are_kept_back_move_no_bit_of_the_model(run, tmp_path):
    write_clinics(tmp_path, late=5.0)
    trained(tmp_path, "--population.own_test", "0.34")
    weights = [(root / "runs/mine/checkpoint/model.safetensors").read_bytes() for root in (run, tmp_path)]
    assert weights[0] == weights[1]
    # With all records they would, so the comparison can fail.
    others = tmp_path / "others"
    for late in (0.0, 5.0):
        folder = others / str(late)
        folder.mkdir(parents=True)
        write_clinics(folder, late)
        trained(folder)
    weights = [(others / late / "runs/mine/checkpoint/model.safetensors").read_bytes() for late in ("0.0", "5.0")]
    assert weights[0] != weights[1]


MICRO = (
    *("--record.micro_shots", "1", "--record.micro_queries", "1", "--privacy.client.hostile", "0.0"),
    *("--privacy.client.epsilon", "null", "--privacy.record.epsilon", "null", "--record.query_noise", "3.0"),
    *("--server.noise_multiplier", "2.0", "--model.norm", "none"),
)


def test_under_promises_for_records_each_is_kept_back_by_itself(tmp_path):
    """Training and evaluation agree on who judges, and not by place in the data."""
    write_clinics(tmp_path)
    words = ["train", "--algo", "dp-agrlr-micro", *TRAIN[3:], *MICRO, "--population.own_test", "0.34"]
    dpfedmeta(*words, "--dataset", "task.yaml", "--run.name", "mine", "--run.noise_seed", "1", folder=tmp_path)
    said = dpfedmeta("evaluate", "runs/mine", "--own-test", folder=tmp_path).out
    assert "no guarantee covers them" in said
    run = open_run(tmp_path / "runs/mine")
    persons = {person.name: person for person in own_records(run, None)}
    settings = run.settings
    part = training_part(settings, open_dataset(settings.dataset, None, settings.task.ways))
    clients: Any = clients_of(settings, part, 3)
    lasts, used = set(), set()
    for number in range(3):
        person = persons[name_of_client(part.train, settings.run.seed, number)]
        trained = {tuple(row) for row in person.records[person.adapts].tolist()}
        judged = {tuple(row) for row in person.records[~person.adapts].tolist()}
        assert trained.isdisjoint(judged)
        chosen = clients.chosen(number)
        mine = {tuple(row) for row in part.train.images[chosen.places[~chosen.null, 0]].tolist()}
        assert mine <= trained
        used |= mine
        assert sum(clients.holdings(number).values()) == person.adapts.sum() == 27 - len(judged)
        lasts.add(tuple(person.adapts.reshape(3, 9)[:, 6:].ravel().tolist()))
    assert used
    assert lasts != {(False,) * 9}
    # Another share is another choice, and told as other data are.
    config = tmp_path / "runs/mine/config.yaml"
    config.write_text(config.read_text().replace("own_test: 0.34", "own_test: 0.5"))
    with pytest.raises(dp.InputError, match="it is not known which records trained"):
        own_records(open_run(tmp_path / "runs/mine"), None)


def test_whoever_adapts_has_the_first_records_and_the_last_judge(run):
    (first, *_) = own_records(open_run(run / "runs/mine"), None)
    assert first.adapts.reshape(3, 9).tolist() == [[True] * 6 + [False] * 3] * 3
    wanted = np.array([values for label, values in rows_of(0, records=9) if label == first.classes[0]])
    np.testing.assert_allclose(first.records[:9].numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "share", "kept"), [(9, 0.34, 6), (1, 0.9, 1), (10, 0.1, 9), (2, 0.5, 1), (1, 1 - 1e-12, 1)]
)
def test_a_class_keeps_one_record_to_train_at_least(count, share, kept):
    assert trains_on(count, share) == kept


def test_other_data_than_those_that_trained_are_refused(run, tmp_path):
    write_clinics(tmp_path)
    trained(tmp_path, "--population.own_test", "0.34")
    write_clinics(tmp_path, late=5.0)
    with pytest.raises(dp.InputError, match="it is not known which records trained"):
        evaluate_people(tmp_path / "runs/mine", None, SPLIT)


def test_nobody_is_judged_where_it_is_not_known_what_trained(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    config, kept = tmp_path / "runs/mine/config.yaml", tmp_path / "runs/mine/secret/data.json"
    config.write_text(config.read_text().replace(str(run), str(tmp_path)))
    assert evaluate_people(tmp_path / "runs/mine", None, SPLIT).scores
    config.write_text(config.read_text().replace("own_test: 0.34", "own_test: 0.5"))
    with pytest.raises(dp.InputError, match="it is not known which records trained"):
        evaluate_people(tmp_path / "runs/mine", None, SPLIT)
    config.write_text(config.read_text().replace("own_test: 0.5", "own_test: 0.34"))
    kept.unlink()
    with pytest.raises(dp.InputError, match=r"data\.json: lost or damaged"):
        evaluate_people(tmp_path / "runs/mine", None, SPLIT)


def test_a_dry_run_refuses_what_a_run_does(tiny_task_file):
    words = ("--dataset", tiny_task_file, "--population.own_test", "0.3")
    said = dpfedmeta("train", "--dry-run", *TRAIN[1:3], *words, code=2)
    assert "tiny does not name clients" in said.error


def test_what_does_not_fit_is_one_line(run, tmp_path):
    said = dpfedmeta("evaluate", "runs/mine", "--own-test", "--shots", "2", folder=run, code=2).error
    assert "--own-test: the run says who is judged on what" in said
    write_clinics(tmp_path)
    trained(tmp_path)
    said = dpfedmeta("evaluate", "runs/mine", "--own-test", folder=tmp_path, code=2).error
    assert "trained on all their records" in said
    nobody = SimpleNamespace(task=SimpleNamespace(name="strokes"), train=SimpleNamespace(clients=()))
    with pytest.raises(dp.InputError, match="strokes does not name clients"):
        without_own_test(nobody, 0.3)
    with pytest.raises(dp.InputError, match="a population of your own keeps back what it likes"):
        without_own_test(nobody, 0.3, ready_made=True)


@pytest.mark.parametrize("hundredths", [1, 7, 29, 33, 50, 57, 58, 90, 99])
def test_of_every_class_as_many_are_kept_back_as_whole_records_are_in_the_share(hundredths):
    """By whole numbers: in floats 29 hundredths of 100 are a little less than 29."""
    for count in range(1, 301):
        back = min(count * hundredths // 100, count - 1)
        assert trains_on(count, hundredths / 100) == count - back


@pytest.mark.parametrize("kind", ["classes", "listed", "numbers"])
def test_a_person_has_its_own_records_with_their_labels(kind):
    """The second client of three; its labels are places, those of the public list, or numbers in the last column."""
    images = np.arange(60, dtype=np.float64).reshape(15, 4)
    pool = SimpleNamespace(
        images=images, counts=[3, 4, 2, 6], first=[0, 3, 7, 9], names=["p", "q", "r", "s"],
        labels=("a", "b", "c") if kind == "listed" else (), targets="number" if kind == "numbers" else None,
        numbers=lambda rows: images[rows].astype(np.float32), listed=lambda rows: rows % 3,
    )  # fmt: skip
    found = _person(pool, "two", [1, 2], 0.5)
    rows = np.array([3, 4, 5, 6, 7, 8])
    assert found.name == "two"
    columns = 3 if kind == "numbers" else 4
    assert found.records.numpy().tolist() == images[rows, :columns].tolist()
    due = {"classes": [0, 0, 0, 0, 1, 1], "listed": (rows % 3).tolist(), "numbers": images[rows, 3].tolist()}[kind]
    assert list(found.labels) == due
    assert tuple(found.classes) == (("a", "b", "c") if kind == "listed" else ("q", "r"))
    assert found.adapts.tolist() == [True, True, False, False, True, False]
