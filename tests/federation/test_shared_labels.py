"""Real clients with one public list of labels, or numbers to predict: the plan tells them, and weights are those of the
simulation of the same tables.
"""

import csv
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.federation.client.local_data import NullRecords, OwnRecords, open_records
from dpfedmeta.federation.offers.offered_settings import form_of, task_of
from dpfedmeta.learning.targets.regression import Regression
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.training.personal.personal_model import load_personal
from tests.federation.silos import CLIENTS, NOISE, SEED, Silos

COLUMNS = ("age", "pulse")
LABELS = ("well", "ill", "unsure")
RANGE = TargetRange(centre=20, scale=4, lowest=0, highest=60)
SHARED = Task(name="s", source=OwnSource(reader="vectors", path="."), features=2, labels=LABELS)
NUMBERS = replace(SHARED, labels=(), kind="regression", targets=RANGE)
KINDS = {"class": SHARED, "target": NUMBERS}


def rows_of(number, column, records=12, lost=False):
    generator = np.random.default_rng(number)
    own = LABELS[number % 3 :] + LABELS[: number % 3]
    found = []
    for record in range(records):
        values = (generator.normal(size=2) + record % 2).round(3)
        written = ["?", values[1]] if lost and record % 3 == 0 else values
        found.append([own[record % 2] if column == "class" else round(20 + 8 * values[0], 3), *written])
    return found


def write(path, column, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column, *COLUMNS])
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS)
def test_a_plan_tells_clients_the_labels_and_they_read_the_same_task(task):
    found = task_of({"task": form_of(task)} if task.source.path != "." else {"task": _without_source(task)})
    assert (found.kind, found.labels, found.targets) == (task.kind, task.labels, task.targets)
    assert found.form == task.form


def _without_source(task):
    """As a server without a table of its own says it."""
    return form_of(replace(task, source=replace(task.source, reader="tokens")))


def test_plans_of_own_labels_say_nothing_new():
    assert not {"kind", "labels", "targets"} & {*_without_source(replace(SHARED, labels=()))}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": "os:system"}, "no kind of this program: 'os:system'"),
        ({"labels": ["well", "ill\x1b[2J"]}, "labels by characters that cannot be printed"),
        ({"labels": ["well", "well"]}, "the plan: labels: expected two names or more, each once"),
        ({"labels": ["well", "i" * 201]}, "the plan: labels: expected at most 200 letters each"),
        ({"train_rotations": 4}, "the plan: train_rotations: "),
    ],
)
def test_a_server_names_neither_code_nor_terminal_codes(more, words):
    with pytest.raises(Refused, match=words):
        task_of({"task": _without_source(SHARED) | more})


@pytest.mark.parametrize("column", KINDS)
def test_an_own_table_holds_the_labels_of_the_list_or_the_numbers_scaled(tmp_path, column):
    rows, task = rows_of(1, column), KINDS[column]
    pool = open_records(write(tmp_path / "own.csv", column, rows), task, COLUMNS, tmp_path / "decoded")
    shape = EpisodeShape(ways=1 if column == "target" else 2, shots=2, queries=2)
    episode = OwnRecords(pool=pool, shape=shape, clients=3, number=0, seed=0).episode(0)
    known = {tuple(np.float32(row[1:]).tolist()): row[0] for row in rows}
    for values, label in zip(episode.query_images.tolist(), episode.query_labels.tolist(), strict=True):
        wanted = known[tuple(values)]
        assert label == pytest.approx((wanted - 20) / 4) if column == "target" else LABELS[label] == wanted


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("class", "cured", "line 14: class 'cured': outside the task's public list"),
        ("target", 61, "outside the task's public range"),
    ],
)
def test_a_row_of_another_label_is_left_out_and_one_line_for_its_owner(tmp_path, column, value, words):
    path, told = write(tmp_path / "own.csv", column, [*rows_of(1, column), [value, 0.5, 0.5]]), []
    pool = open_records(path, KINDS[column], COLUMNS, tmp_path / "decoded", told.append)
    assert sum(pool.counts) == 12
    (line,) = told
    assert words in line


def test_numbers_that_were_scaled_once_are_not_those_of_another_plan(tmp_path):
    """One decoded folder serves all plans of a client."""
    path = write(tmp_path / "own.csv", "target", rows_of(1, "target"))
    for targets in (RANGE, replace(RANGE, centre=30), replace(RANGE, scale=8), RANGE):
        task = replace(NUMBERS, targets=targets)
        pools = [open_records(path, task, COLUMNS, tmp_path / folder) for folder in ("decoded", f"{targets}")]
        shared, alone = (np.array(pool.images) for pool in pools)
        assert np.array_equal(shared, alone)


def test_null_records_have_targets_of_the_right_form():
    shape = EpisodeShape(ways=1, shots=3, queries=2)
    kind = Regression(range=RANGE)
    null = NullRecords(clients=2, number=0, why="x", form=(2,), shape=shape, blank_labels=kind.blank)
    episode = null.episode(0)
    assert kind.sound(episode.support_labels, 1)
    assert kind.sound(episode.query_labels, 1)
    assert bool(torch.isnan(episode.support_images).all())


# Whole numbers of so few clients, whose shares of the noise can be drawn.
IN_ONE_ROUND = {"server.rounds": "1", "aggregation.dropout": "0.2", "meta.own.scale": "10", "model.name": "gaussian"}
ALGORITHMS = {"dp-agr": {"model.name": "mlp"}, "moments-agrlr-secure": IN_ONE_ROUND}


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("lost", [False, True], ids=["", "missing values"])
@pytest.mark.parametrize("column", KINDS)
def test_weights_are_those_of_the_simulation_of_the_same_tables(tmp_path, column, lost, algo):
    root, places, task = tmp_path, range(CLIENTS), KINDS[column]
    rows_here = partial(rows_of, column=column, lost=lost)
    order = public_generator(SEED, Purpose.CLIENT_DATA, 1, 4).permutation(CLIENTS)
    own = [write(root / f"silo{place}.csv", column, rows_here(place)) for place in places]
    public = [("val-client", "val", rows_here(20)), ("test-client", "test", rows_here(30))]
    parts = [(f"silo{place}", "train", rows_here(place)) for place in places]
    said = {"targets": vars(RANGE)} if column == "target" else {"labels": [*LABELS]}
    if lost:
        said |= {"mean": [0.5, 0.2], "deviation": [1, 2], "missing": {"values": ["?"], "indicators": ["age"]}}
    for name, held in (("all", [*parts, *public]), ("public", [("nobody", "train", rows_here(40)), *public])):
        with (root / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "split", column, *COLUMNS])
            writer.writerows([client, split, *row] for client, split, rows in held for row in rows)
        source = {"reader": "vectors", "path": f"{name}.csv"}
        content = {"name": "clinics", "source": source, "features": 2, "kind": task.kind, **said}
        (root / f"{name}.yaml").write_text(yaml.safe_dump(content))
    silos = Silos(
        root=root,
        everybody=root / "all.yaml",
        public=root / "public.yaml",
        folders=tuple(own[n] for n in order.tolist()),
    )
    more = {"task.ways": "1", "meta.lr": "0.05"} if column == "target" else {"task.ways": "2"}
    given = {"run.precision": "float32", **more, **ALGORITHMS[algo]}
    expected, home = silos.simulated(algo, tmp_path / "out", **given), tmp_path / "out"
    run, status = silos.serve(silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)}), home)
    assert status == "completed"
    assert run.weights.read_bytes() == expected.weights.read_bytes()
    for number in range(CLIENTS):
        said = (home / f"client{number}" / "log.txt").read_text()
        assert f"round {'0' if algo.startswith('moments') else '1'}: one vector" in said
        assert "ONLY NOISE" not in said
        model = home / f"client{number}" / "personal.safetensors"
        if column == "target":
            assert "the learned model, adapted to the numbers of this client" in said
            assert load_personal(model).class_names == ()
        else:
            # Of every label of the list, though no client holds them all.
            assert load_personal(model).class_names == LABELS
        if lost:
            personal = load_personal(model)
            assert personal.form.missing is not None
            held = [{"age": "?", "pulse": 0.3}, {"age": 0.5, "pulse": 0.3}]
            unknown, mean = personal.logits(held)
            assert not torch.equal(unknown, mean)
            assert torch.equal(personal.logits(held[:1])[0], unknown)
