"""Shared labels and numbers to predict in plans: which methods and releases take them, and which are refused."""

import csv

import numpy as np
import pytest
import yaml

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.planning.client_population import plan_population
from dpfedmeta.planning.client_spec import algorithm_of, check_protocol, network_spec
from dpfedmeta.planning.run_plan import make_plan

LABELS = ["well", "ill", "unsure"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    for column, more in (
        ("class", {"labels": LABELS}),
        ("target", {"kind": "regression", "targets": {"centre": 0, "scale": 1, "lowest": -9, "highest": 9}}),
    ):
        with (root / f"{column}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "split", column, "age", "pulse"])
            for client in range(60):
                split = ("val", "test")[client] if client < 2 else "train"
                for record in range(24):
                    label = LABELS[record % 2 + client % 2] if column == "class" else record / 3
                    writer.writerow([f"c{client}", split, label, record / 24, client / 60])
        source = {"reader": "vectors", "path": f"{column}.csv"}
        content = {"name": column, "source": source, "features": 2, **more}
        (root / f"{column}.yaml").write_text(yaml.safe_dump(content))
    return {"shared": str(root / "class.yaml"), "numbers": str(root / "target.yaml")}


def settings_of(tasks, which, algo, **more):
    ways = {} if which == "numbers" else {"task.ways": 2}
    # Noises are given: what is looked at needs no solving.
    given = {"privacy.client.epsilon": None, "server.noise_multiplier": 1.0, "population.cohort": 4,
             "population.max_participations": None, "model.norm": "none", "model.width": 3, "meta.lr": 0.1,
             "server.rounds": 2, "clip.policy": "constant"}  # fmt: skip
    if algo.startswith(("dp-agrlr", "local")):
        given |= {"privacy.record.epsilon": None, "record.query_noise": 1.0}
    return Settings.preset(algo, tasks[which], {**given, **ways, **more})


@pytest.mark.parametrize("which", ["shared", "numbers"])
@pytest.mark.parametrize(
    ("algo", "more"),
    [
        ("dp-agr", {}),
        ("dp-agr", {"meta.method": "reptile", "meta.order": 1}),
        ("dp-fedavg", {"meta.batch": 4}),
        ("dp-agrlr", {"record.support_noise": 1.0}),
        ("dp-agrlr-micro", {}),
    ],
)
def test_every_algorithm_learns_one_head_for_all(tasks, which, algo, more):
    """The plan is made, which tries out on synthetic clients that no record moves another one."""
    settings = settings_of(tasks, which, algo, **more)
    task, _ = load_task(tasks[which])
    plan = make_plan(settings, task)
    assert plan.network.ways == {"shared": 3, "numbers": 1}[which]
    assert settings.meta.learn == "all"
    assert settings.task.ways == {"shared": 2, "numbers": 1}[which]
    learned = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    assert tuple(learned["head.weight"].shape) == (plan.network.ways, plan.network.width)


@pytest.mark.parametrize("which", ["shared", "numbers"])
@pytest.mark.parametrize(
    ("algo", "more", "words"),
    [
        (
            "maml",
            {"meta.method": "protonet", "meta.learn": "body"},
            "computes a head from the classes that a client holds",
        ),
        ("maml", {"meta.method": "proto-maml", "meta.learn": "all"}, "computes a head from the classes that a client"),
        ("dp-agr", {"meta.divisions": 3}, "cuts the classes of a client's own"),
        ("dp-agrlr-micro", {"meta.divisions": 3}, "cuts the classes of a client's own"),
        ("dp-agrlr", {"meta.order": 2, "record.support_noise": 1.0}, "Hessian terms"),
    ],
)
def test_what_couples_records_or_numbers_classes_is_refused_in_one_line(tasks, which, algo, more, words):
    task, _ = load_task(tasks[which])
    with pytest.raises((InputError, RefusedPlan), match=words) as refused:
        algorithm_of(settings_of(tasks, which, algo, **more), task)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("which", ["shared", "numbers"])
def test_a_head_of_own_classes_stays_refused_under_noisy_steps(tasks, which):
    settings = settings_of(tasks, which, "dp-agrlr", **{"record.support_noise": 1.0, "meta.method": "proto-maml"})
    with pytest.raises((InputError, RefusedPlan), match="computes a head"):
        algorithm_of(settings, load_task(tasks[which])[0])


@pytest.mark.parametrize(
    ("which", "ways", "words"),
    [
        ("numbers", 2, "has numbers to predict and no classes; give task.ways=1"),
        ("shared", 4, "task.ways = 4: the public list of class has only 3 labels"),
        ("shared", 1, "a client needs classes to tell apart; give 2 or more"),
    ],
)
def test_ways_fit_the_labels(tasks, which, ways, words):
    task, _ = load_task(tasks[which])
    with pytest.raises(InputError, match=words):
        check_protocol(settings_of(tasks, which, "maml", **{"task.ways": ways}), task)


def test_the_head_has_a_row_for_each_label_of_the_list(tasks):
    settings = settings_of(tasks, "shared", "maml")
    task, _ = load_task(tasks["shared"])
    assert network_spec(settings, task).ways == 3
    assert not targets_of(task).masked


def test_pairs_which_number_labels_anew_are_refused(tasks):
    shape = EpisodeShape(ways=2, shots=1, queries=1)
    pairs = [((np.zeros((2, 2), np.float32), [0, 2]), (np.zeros((2, 2), np.float32), [0, 2]))] * 4
    settings = settings_of(tasks, "shared", "maml", **{"population.clients": 4})
    pool = open_dataset(tasks["shared"]).train
    with pytest.raises(InputError, match="pairs are numbered anew in every client"):
        plan_population(settings, pool, shape, from_pairs(pairs, shape))


@pytest.mark.parametrize("which", ["shared", "numbers"])
@pytest.mark.parametrize("algo", ["dp-agr", "dp-fedavg"])
def test_whole_clients_learn_one_head_for_all(tasks, which, algo):
    settings = settings_of(tasks, which, algo, **{"population.episodes": "whole"})
    plan = make_plan(settings, load_task(tasks[which])[0])
    learned = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    assert learned["head.weight"].shape[0] == {"shared": 3, "numbers": 1}[which]
    # Numbers have no classes that could be balanced.
    assert plan.algorithm.adaptation.balance == {"shared": "classes", "numbers": "records"}[which]


@pytest.mark.parametrize("which", ["shared", "numbers"])
def test_whole_clients_promise_records_nothing(tasks, which):
    settings = settings_of(tasks, which, "dp-agrlr-micro", **{"population.episodes": "whole"})
    with pytest.raises(RefusedPlan, match=r"population\.episodes = whole with record\.enabled"):
        make_plan(settings, load_task(tasks[which])[0])
