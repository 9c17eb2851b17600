"""Labels that all clients share, and numbers to predict: read, checked against the task, and given to clients."""

import csv

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta.cli.commands.check_task_command import describe
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.inspection import Episodes, inspect_task
from dpfedmeta.data.populations.population import clients_digest, open_population
from dpfedmeta.data.populations.population_statement import population_statement
from dpfedmeta.data.sources.sinusoids import draw_curve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.data_digests import held_data
from tests.data.own_data import read_back

COLUMNS = ("age", "pulse")
LABELS = ["well", "ill", "unsure"]
TARGETS = {"centre": 20, "scale": 4, "lowest": 0, "highest": 100}


def rows_of(label, clients=6, records=8):
    """[(client, split, what `label` gives it, age, pulse)]"""
    parts = ["train"] * (clients - 2) + ["val", "test"]
    return [
        (f"c{client}", parts[client], label(client, record), 10 * client + record, client - record / 4)
        for client in range(clients)
        for record in range(records)
    ]


def task_in(folder, rows, column="class", *, mended=None, **more):
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "split", column, *COLUMNS])
        writer.writerows([*rows, *(mended or [])])
    source = {"reader": "vectors", "path": "all.csv"}
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump({"name": "all", "source": source, "features": len(COLUMNS), **more}))
    return str(path)


def in_turn(client, record):
    """Of each client two of the three labels."""
    return LABELS[(client + record % 2) % 3]


def clients_of(folder, task, shape):
    train = open_dataset(task, folder).train
    return open_population("natural", train, shape, len(set(train.clients)), seed=0)


def test_shared_labels_mean_the_same_in_every_client(tmp_path):
    task = task_in(tmp_path, rows_of(in_turn), labels=LABELS)
    population = clients_of(tmp_path, task, EpisodeShape(ways=2, shots=2, queries=2))
    seen = set()
    for client in range(population.clients):
        episode = population.episode(client)
        for images, labels in (
            (episode.support_images, episode.support_labels),
            (episode.query_images, episode.query_labels),
        ):
            # Age tells client and record, and so the label.
            for (age, _), label in zip(images.tolist(), labels.tolist(), strict=True):
                assert LABELS[label] == in_turn(*divmod(round(age), 10))
        seen |= {*episode.support_labels.tolist()}
    assert seen == {0, 1, 2}


def test_own_labels_are_numbered_by_the_client_as_before(tmp_path):
    task = task_in(tmp_path, rows_of(in_turn))
    population = clients_of(tmp_path, task, EpisodeShape(ways=2, shots=2, queries=2))
    assert all(population.episode(client).support_labels.tolist() == [0, 0, 1, 1] for client in range(4))


def test_another_order_of_the_list_is_another_population(tmp_path):
    shape = EpisodeShape(ways=2, shots=2, queries=2)
    digests = [
        clients_digest(clients_of(tmp_path, task_in(tmp_path, rows_of(in_turn), **more), shape))
        for more in ({"labels": LABELS}, {"labels": LABELS[::-1]}, {})
    ]
    assert len({*digests}) == 3


def test_another_loss_is_not_what_a_run_began_with(tmp_path):
    digests = {
        held_data(open_dataset(task_in(
            tmp_path, rows_of(number), "target", kind="regression", targets={**TARGETS, **other}
        ), tmp_path), None).sha256
        for other in ({}, {"loss": "huber"}, {"loss": "huber", "huber": 2.0}, {"highest": 200})
    }  # fmt: skip
    assert len(digests) == 4


def test_labels_outside_the_list_are_one_line_that_names_them(tmp_path):
    task = task_in(tmp_path, rows_of(in_turn), labels=LABELS[:2])
    with pytest.raises(InputError, match=r"outside the task's public list \(well, ill\): unsure of c1 \(4 records\)"):
        open_dataset(task, tmp_path)


def test_one_label_in_all_is_one_line(tmp_path):
    task = task_in(tmp_path, rows_of(lambda client, record: "ill"), labels=LABELS)
    with pytest.raises(
        InputError, match=r"all records of all clients have label ill of the list \(well, ill, unsure\)"
    ):
        open_dataset(task, tmp_path)


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1e-6, r"numbers to predict up to 2e\+07 reach the network, more than 10,000"),
        (2e5, "scale = 200000: is far above"),
    ],
)
def test_a_scale_far_from_the_numbers_is_one_line(tmp_path, scale, said):
    task = task_in(tmp_path, rows_of(number), "target", kind="regression", targets={**TARGETS, "scale": scale})
    with pytest.raises(InputError, match=said):
        open_dataset(task, tmp_path)


def number(client, record):
    return 20 + 4 * client - record


def test_numbers_to_predict_reach_clients_scaled_and_apart_from_the_features(tmp_path):
    task = task_in(tmp_path, rows_of(number), "target", kind="regression", targets=TARGETS)
    dataset = open_dataset(task, tmp_path)
    assert dataset.task.form.shape == (2,)
    population = clients_of(tmp_path, task, EpisodeShape(ways=1, shots=5, queries=3))
    for client in range(population.clients):
        episode = population.episode(client)
        assert (episode.support_images.shape, episode.query_images.shape) == ((5, 2), (3, 2))
        ages = torch.cat([episode.support_images, episode.query_images])[:, 0]
        found = torch.cat([episode.support_labels, episode.query_labels])
        wanted = [(number(*divmod(round(age), 10)) - 20) / 4 for age in ages.tolist()]
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(wanted)
        assert len({*ages.tolist()}) == 8


def test_numbers_are_scaled_before_they_are_rounded(tmp_path):
    """Times in seconds, of which float32 keeps every 128th."""
    targets = {"centre": 1_700_000_000, "scale": 8, "lowest": 0, "highest": 2_000_000_000}
    times = rows_of(lambda client, record: 1_700_000_000 + client + 10 * record)
    task = task_in(tmp_path, times, "target", kind="regression", targets=targets)
    found = open_dataset(task, tmp_path).train.images[:, -1]
    assert {*(8 * found).tolist()} == {client + 10 * record for client in range(6) for record in range(8)}


def test_the_ends_of_the_range_are_in_it(tmp_path):
    """0.1 in float32 is larger than 0.1."""
    targets = {"centre": 0, "scale": 1, "lowest": 0, "highest": 0.1}
    ends = rows_of(lambda client, record: record % 2 / 10)
    task = task_in(tmp_path, ends, "target", kind="regression", targets=targets)
    assert open_dataset(task, tmp_path).train.classes == 4


def test_standardisation_is_of_features_alone(tmp_path):
    task = task_in(
        tmp_path, rows_of(number), "target", kind="regression", targets=TARGETS, mean=[30.0], deviation=[10.0]
    )
    plain = task_in(tmp_path, rows_of(number), "target", kind="regression", targets=TARGETS)
    shape = EpisodeShape(ways=1, shots=5, queries=3)
    raw = clients_of(tmp_path, plain, shape).episode(0)
    task = task_in(
        tmp_path, rows_of(number), "target", kind="regression", targets=TARGETS, mean=[30.0], deviation=[10.0]
    )
    found = clients_of(tmp_path, task, shape).episode(0)
    assert torch.allclose(found.support_images, (raw.support_images - 30) / 10)
    assert torch.equal(found.support_labels, raw.support_labels)


def test_arrays_have_targets_too(tmp_path):
    rows = rows_of(number)
    task = task_in(tmp_path, rows, "target", kind="regression", targets=TARGETS)
    shape = EpisodeShape(ways=1, shots=5, queries=3)
    table = clients_of(tmp_path, task, shape).episode(1)
    np.savez(
        tmp_path / "all.npz", records=np.array([row[3:] for row in rows], float), targets=[row[2] for row in rows],
        clients=[row[0] for row in rows], splits=[row[1] for row in rows],
    )  # fmt: skip
    (tmp_path / "task.yaml").write_text((tmp_path / "task.yaml").read_text().replace("all.csv", "all.npz"))
    arrays = clients_of(tmp_path, task, shape).episode(1)
    assert torch.equal(arrays.support_images, table.support_images)
    assert torch.equal(arrays.support_labels, table.support_labels)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (101, r"1 number\(s\) to predict outside the task's public range \(from 0 to 100\): 101 of c0"),
        ("nan", "line 50: target 'nan' is no number"),
        ("", "line 50: target '' is no number"),
        ("inf", "line 50: target 'inf' is no number"),
        ("high", "line 50: target 'high' is no number"),
    ],
)
def test_numbers_that_cannot_be_targets_are_one_line(tmp_path, value, words):
    task = task_in(
        tmp_path, rows_of(number), "target", mended=[("c0", "train", value, 1, 1)], kind="regression", targets=TARGETS
    )
    with pytest.raises(InputError, match=words):
        open_dataset(task, tmp_path)


@pytest.mark.parametrize(
    ("column", "more", "words"),
    [
        ("class", {"kind": "regression", "targets": TARGETS}, "holds classes, but the task has numbers to predict"),
        ("target", {}, "holds numbers to predict, but the task has classes; give a column class"),
        ("class", {"labels": ["well"]}, "expected two names or more"),
        ("class", {"labels": ["well", "well"]}, "expected two names or more, each once"),
        ("class", {"labels": [True, False]}, "put yes, no, on, off and true into quotes"),
        ("class", {"labels": LABELS, "train_rotations": 4}, "train_rotations"),
        ("target", {"kind": "regression", "targets": {**TARGETS, "scale": 0}}, "targets.scale"),
        ("target", {"kind": "regression", "targets": {**TARGETS, "mean": 0}}, "targets.mean"),
        (
            "target",
            {"kind": "regression", "targets": {**TARGETS, "lowest": 100, "highest": 0}},
            "task.yaml: targets: lowest = 100 and highest = 0: lowest must be below highest",
        ),
        (
            "target",
            {"kind": "regression", "targets": {**TARGETS, "lowest": 100, "highest": 100}},
            "lowest must be below highest",
        ),
        (
            "target",
            {"kind": "regression", "targets": {**TARGETS, "centre": 2100}},
            "task.yaml: targets: centre = 2100: is far from the numbers, which are from 0 to 100",
        ),
    ],
)
def test_task_files_that_do_not_fit_are_one_line(tmp_path, column, more, words):
    task = task_in(tmp_path, rows_of(number if column == "target" else in_turn), column, **more)
    with pytest.raises(InputError, match=words) as refused:
        open_dataset(task, tmp_path)
    assert "\n" not in str(refused.value)


def test_a_check_of_numbers_to_predict_asks_for_no_classes(tmp_path):
    """As training, which takes ways = 1 by itself; and the numbers to predict are no features."""
    far = {**TARGETS, "scale": 4e-3}
    task = task_in(tmp_path, rows_of(number), "target", kind="regression", targets=far)
    asked = {"shots": 2, "queries": 2}
    report, _ = inspect_task(task, tmp_path, Episodes(shape=EpisodeShape(ways=5, **asked), evaluation_queries=2))
    assert (report.problem, report.splits["train"].able) == (None, 4)
    features = [value for row in rows_of(number) if row[1] == "train" for value in row[3:]]
    low, _, high = report.splits["train"].numbers
    assert (low, high) == (min(features), max(features))
    said = next(line for line in describe(report) if "train" in line)
    assert "per client; numbers" in said
    assert "class" not in said
    with pytest.raises(InputError, match=r"task.ways = 3: .* has numbers to predict and no classes; leave --ways out"):
        inspect_task(
            task, tmp_path, Episodes(shape=EpisodeShape(ways=3, **asked), evaluation_queries=2, ways_given=True)
        )
    many = Episodes(shape=EpisodeShape(ways=1, shots=200, queries=2), evaluation_queries=2)
    problem = inspect_task(task, tmp_path, many)[0].problem
    assert "holds 200 shots + 2 queries = 202 records (the best holds" in problem
    assert "class" not in problem
    stated = population_statement(clients_of(tmp_path, task, EpisodeShape(ways=1, **asked)))
    assert "each holds 2 + 2 records with a number to predict, and one that has fewer" in stated.text
    assert read_back(stated) == stated


def test_without_clients_shared_labels_would_be_in_one_part_each(tmp_path):
    path = tmp_path / "all.csv"
    labels = [f"label {number}" for number in range(15)]
    path.write_text("class,age\n" + "".join(f"{labels[n % 15]},{n}\n" for n in range(60)))
    task = {"name": "all", "source": {"reader": "vectors", "path": "all.csv"}, "features": 1, "labels": labels}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    with pytest.raises(InputError, match="names no clients"):
        open_dataset(str(tmp_path / "task.yaml"), tmp_path)


def test_a_table_of_numbers_without_a_task_file_asks_for_their_range(tmp_path):
    task_in(tmp_path, rows_of(number), "target")
    with pytest.raises(InputError, match="numbers to predict need a task file, which says their public range"):
        load_task(str(tmp_path / "all.csv"))


def test_sinusoids_are_curves_of_the_paper():
    points = draw_curve(2017, 3, 40)
    assert points.shape == (40, 2)
    assert np.abs(points).max() <= 5
    assert np.array_equal(points, draw_curve(2017, 3, 40))
    # y = p sin x + q cos x for some p and q: a sinusoid of the period of the paper.
    basis = np.stack([np.sin(points[:, 0]), np.cos(points[:, 0])], axis=1)
    (p, q), *_ = np.linalg.lstsq(basis, points[:, 1], rcond=None)
    assert np.allclose(basis @ [p, q], points[:, 1], atol=1e-5)
    assert 0.1 <= np.hypot(p, q) <= 5
