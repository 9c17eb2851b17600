"""`evaluate RUN --on PEOPLE`: a row for each client, kept with the run's secrets."""

import csv
import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from dpfedmeta.api.evaluate_people import _protocol, evaluate_people, keep_people
from dpfedmeta.cli.commands import evaluate_command
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import RecordForm
from dpfedmeta.data.user_sources.readers import people_contents
from dpfedmeta.learning.evaluation.people import RecordSplit
from dpfedmeta.learning.targets.classification import OWN_CLASSES
from tests.conftest import dpfedmeta
from tests.federation.test_local_data import COLUMNS, rows_of, write

TRAIN = ("train", "--algo", "dp-agr", "--rounds", "2", "--cohort", "3", "--ways", "2", "--shots", "2",
         "--task.queries", "2", "--model.name", "mlp", "--model.width", "4", "--evaluation.every", "2",
         "--evaluation.episodes", "4", "--population.kind", "natural", "--population.sampler", "fixed",
         "--privacy.client.delta", "1e-3", "--population.max_participations", "null", "--run.workers", "1",
         "--run.seed", "1", "--evaluation.queries", "2", "--evaluation.validation_episodes", "2")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("people")
    with (root / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "split", "class", *COLUMNS])
        for place, split in enumerate(["train"] * 3 + ["val", "test", "test"]):
            writer.writerows([f"clinic{place}", split, label, *values] for label, values in rows_of(place))
    task = {"name": "clinics", "source": {"reader": "vectors", "path": "all.csv"}, "features": 3}
    (root / "task.yaml").write_text(yaml.safe_dump(task))
    dpfedmeta(*TRAIN, "--dataset", "task.yaml", "--run.name", "mine", folder=root)
    return root


def judged(run, *words, code=0):
    return dpfedmeta("evaluate", "runs/mine", "--on", *words, "--repeats", "3", folder=run, code=code)


def content_of(run, stem):
    (path,) = (run / "runs" / "mine" / "secret").glob(f"people-{stem}-*.json")
    return path, json.loads(path.read_text())


def test_test_clients_of_a_table_are_judged_beside_baselines(run):
    said = judged(run, "all.csv").out
    path, found = content_of(run, "all")
    assert [each["name"] for each in found["clients"]] == ["clinic4", "clinic5"]
    assert found["clients"][0]["records"] == {"ill": 6, "unsure": 6, "well": 6}
    assert {*found["overall"]} == {
        "this run, adapted", "this run, before adaptation", "untrained weights, same adaptation",
        "each alone: softmax regression", "nearest class prototype", "majority of own classes",
    }  # fmt: skip
    assert "no guarantee covers them" in said
    for name in ("clinic4", "All clients", "worst tenth", "against"):
        assert name in said
    # For its owner alone, and nothing of it beside the run's public files.
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["clinic4", "clinic5"]
    mean = found["clients"][1]["accuracy"]["this run, adapted"]
    assert float(rows[1]["this run, adapted"]) == mean


def test_of_the_runs_own_table_nobody_is_judged_that_trained(tmp_path):
    """A table without a column of parts is divided by names; the run knows how."""
    with (tmp_path / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "class", *COLUMNS])
        writer.writerows([f"clinic{place}", label, *values] for place in range(16) for label, values in rows_of(place))
    task = {"name": "clinics", "source": {"reader": "vectors", "path": "all.csv"}, "features": 3}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    dpfedmeta(*TRAIN, "--dataset", "task.yaml", "--run.name", "mine", folder=tmp_path)
    dataset = open_dataset(str(tmp_path / "task.yaml"), None, 2)
    judged(tmp_path, "all.csv")
    _, found = content_of(tmp_path, "all")
    assert {each["name"] for each in found["clients"]} == {*dataset.test.clients}
    assert "its test clients alone" in found["protocol"]
    # The same rows elsewhere are other people, for all that is known.
    (tmp_path / "copy.csv").write_bytes((tmp_path / "all.csv").read_bytes())
    judged(tmp_path, "copy.csv")
    assert len(content_of(tmp_path, "copy")[1]["clients"]) == 16


def test_one_client_and_arrays_give_the_same(run):
    rows = rows_of(9)
    write(run / "clinic9.csv", rows)
    np.savez(run / "nine.npz", records=np.stack([v for _, v in rows]), classes=[label for label, _ in rows])
    judged(run, "clinic9.csv")
    judged(run, "nine.npz")
    first, second = (content_of(run, stem)[1]["clients"] for stem in ("clinic9", "nine"))
    assert first == second
    assert first[0]["name"] == ""
    # Whichever the order of its columns.
    write(run / "turned.csv", rows, columns=COLUMNS[::-1])
    judged(run, "turned.csv")
    assert content_of(run, "turned")[1]["clients"] == first


def test_the_same_seed_repeats_and_another_one_divides_otherwise(run):
    write(run / "again.csv", rows_of(9))
    found = []
    for seed in ("0", "0", "1"):
        judged(run, "again.csv", "--seeds", seed)
        found.append(content_of(run, "again")[1]["clients"])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("absent.csv",), "--on absent.csv: not there"),
        ((".",), "a folder, but the plan counts with vectors"),
        (("all.csv", "--ways", "3"), "--on: goes with --shots"),
        (("all.csv", "--no-fine-tuning"), "--on: goes with --shots"),
        (("all.csv", "--episodes", "9"), "--on: goes with --shots"),
        (("all.csv", "--shots", "0"), "--on: --repeats has to be at least 2, --shots at least 1"),
        (("all.csv", "--seeds", "-1"), "--on: --repeats has to be at least 2"),
        (("all.csv", "--seeds", "1", "2"), "--on: judges one run"),
        (("all.csv", "--steps", "3"), "--on: goes with --shots"),
        (("all.csv", "--transductive"), "--on: goes with --shots"),
        (("all.csv", "--workers", "1"), "--on: goes with --shots"),
        (("all.csv", "--shots", "1", "2"), "--on: judges one run"),
        (("lonely.csv",), "lonely.csv: no client has two classes with two records each"),
        (("other.csv",), "column pulse: missing; column weight: unknown"),
        (("all.csv", "--out", "all.csv"), "cannot be written"),
    ],
)
def test_what_cannot_be_judged_is_one_line(run, words, said):
    write(run / "lonely.csv", rows_of(3, classes=("ill",)))
    write(run / "other.csv", rows_of(3))
    (run / "other.csv").write_text((run / "other.csv").read_text().replace("pulse", "weight", 1))
    assert said in judged(run, *words, code=2).error


def test_the_majority_is_that_of_the_client_also_with_as_many_shots_of_each(run):
    write(run / "uneven.csv", [*rows_of(9, classes=("ill",), records=4), *rows_of(9, classes=("well",), records=14)])
    judged(run, "uneven.csv", "--shots", "2")
    accuracy = content_of(run, "uneven")[1]["clients"][0]["accuracy"]
    assert accuracy["majority of own classes"] == pytest.approx(12 / 14)


def test_without_the_table_of_the_run_no_order_of_columns_is_guessed(run):
    write(run / "mine.csv", rows_of(9))
    away = (run / "all.csv").rename(run / "away.csv")
    try:
        said = judged(run, "mine.csv", code=2).error
    finally:
        away.rename(run / "all.csv")
    assert "all.csv, on which the run was trained, is not there" in said or "all.csv: not there" in said


def test_names_of_clients_are_no_markup(run):
    rows = "".join(f"[red]a[/red],{label},{','.join(map(str, values))}\n" for label, values in rows_of(9))
    (run / "named.csv").write_text(f"client,class,{','.join(COLUMNS)}\n{rows}")
    assert "[r" in judged(run, "named.csv").out


def test_what_is_found_of_people_goes_nowhere_else_in_a_run(run, monkeypatch):
    write(run / "clinic9.csv", rows_of(9))
    home = run / "runs" / "mine"
    for place in (home, home / "people", home / "checkpoint"):
        said = judged(run, "clinic9.csv", "--out", str(place), code=2).error
        assert f"is inside the run {home.resolve()}, which may be published" in said
    # Python asks when it writes.
    found = evaluate_people(home, run / "clinic9.csv", RecordSplit(shots=None, repeats=2, seed=0))
    with pytest.raises(InputError, match="inside the run"):
        keep_people(found, home / "people")
    assert not [path for path in home.rglob("people*") if "secret" not in path.parts]
    for place in (home / "secret" / "other", run / "elsewhere"):
        assert {path.parent for path in keep_people(found, place)} == {place}
    # A folder of a disk with another encoding.
    strange = [replace(each, name="M\udcfcller") for each in found.scores]
    paths = keep_people(replace(found, scores=strange), run / "elsewhere")
    assert all(r"M\udcfcller" in path.read_text() for path in paths)
    assert [path.stat().st_mode & 0o777 for path in paths[:2]] == [0o600] * 2


@pytest.mark.parametrize(
    ("words", "due"),
    [
        ((), (None, 20, 0)),
        (("--repeats", "2"), (None, 2, 0)),
        (("--shots", "1"), (1, 20, 0)),
        (("--seeds", "7", "--repeats", "5", "--shots", "3"), (3, 5, 7)),
        (("--repeats", "1"), None),
        (("--repeats", "0"), None),
        (("--repeats", "-2"), None),
        (("--shots", "0"), None),
        (("--seeds", "-1"), None),
    ],
)
@pytest.mark.parametrize("asked", ["--on", "--own-test"])
def test_records_are_split_as_it_is_asked_for_and_often_enough_for_an_interval(run, monkeypatch, asked, words, due):
    """One split alone has no interval; whom a run names is judged on what the run says."""
    given = []

    def evaluate(path, on, split, *rest):
        given.append((split.shots, split.repeats, split.seed))
        raise Asked

    monkeypatch.setattr("dpfedmeta.api.evaluate_people.evaluate_people", evaluate)
    line = [str(run / "runs" / "mine"), *(("--on", str(run / "all.csv")) if asked == "--on" else (asked,)), *words]
    refused = "at least 2, --shots at least 1, and a seed" if asked == "--on" else "the run says who is judged on what"
    due = due if asked == "--on" or not words else None
    with pytest.raises(Asked if due else InputError, match=None if due else refused):
        evaluate_command.main(line, Console(quiet=True))
    assert given == ([due] if due else [])


class Asked(Exception):
    """Records would be split."""


def test_repeats_are_of_people_alone(run):
    said = dpfedmeta("evaluate", "runs/mine", "--repeats", "3", folder=run, code=2).error
    assert "--repeats: splits the records of people (--on PATH)" in said


def test_the_protocol_says_it_of_clients_with_and_without_records_of_train():
    split = RecordSplit(shots=None, repeats=3, seed=4)
    every, some, none = (
        _protocol(split, OWN_CLASSES, given, "single model, inductive")
        for given in ([True] * 2, [True, False], [False] * 2)
    )
    assert every.startswith("each client adapts on its records of train and is judged on those of test, single")
    assert none.startswith("each client adapts on half of its records of each class and is judged on the others; 3")
    assert some.startswith("each client without records of train adapts on half of its records of each class")
    assert "each other one adapts on its records of train" in some
    assert "splits" not in every
    assert "train" not in none


NETWORK = """
from torch import nn

class Mixing(nn.Module):
    def __init__(self, inputs, ways):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU())
        self.head = nn.Linear(8, ways)

    def forward(self, records):
        return self.head(self.body(records))

def net(channels, image_size, ways, width, norm):
    return Mixing(channels, ways)
"""


def test_a_network_whose_queries_mix_is_labelled_so_wherever_it_is_judged(run):
    (run / "mixing.py").write_text(NETWORK)
    given = [*TRAIN, "--dataset", "task.yaml", "--run.name", "mixed", "--model.name", "mixing:net"]
    given[2] = "maml"
    dpfedmeta(*given, folder=run)
    said = json.loads((run / "runs/mixed/summary.json").read_text())["accuracy"]["protocol"]
    dpfedmeta("evaluate", "runs/mixed", "--on", "all.csv", "--repeats", "3", folder=run)
    (path,) = (run / "runs/mixed/secret").glob("people-all-*.json")
    for protocol in (said, json.loads(path.read_text())["protocol"]):
        assert "TRANSDUCTIVE" in protocol
        assert "inductive" not in protocol
    judged(run, "all.csv")
    assert "inductive" in content_of(run, "all")[1]["protocol"]


@pytest.mark.parametrize("clients", [("",), ("ann", "bob")])
@pytest.mark.parametrize("listed", [False, True], ids=["folder", "list"])
def test_images_of_one_client_or_of_several_judge_however_they_are_handed_over(clients, listed, tmp_path):
    rows = []
    for number in range(12):
        client = clients[number // 3 % len(clients)]
        file = tmp_path / "held" / client / f"kind{number % 3}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(file)
        rows.append({"path": str(file), "class": file.parent.name, **({"client": client} if client else {})})
    path = tmp_path / "held"
    if listed:
        path = tmp_path / "list.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    found = people_contents(path, RecordForm(shape=(1, 8, 8)))
    assert [(each.name, each.client, each.split, each.images) for each in found.classes] == [
        (f"kind{place}", client, "test", 4 // len(clients)) for client in clients for place in range(3)
    ]
