import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.planning.data_digests import HeldData, keep_data
from dpfedmeta.reporting.compare import seed_groups
from dpfedmeta.reporting.compare.seed_groups import (
    Group,
    Measured,
    code_words,
    describe,
    differing_settings,
    group_runs,
    pooled,
)
from dpfedmeta.reporting.html.page import write_comparison

CELLS = [{"unit": "client", "observer": "public", "epsilon": 1.5, "delta": 1e-6}]


def test_one_run_keeps_its_interval():
    assert pooled([Measured(mean=0.9, ci95=0.01)]) == Measured(mean=0.9, ci95=0.01)


def test_students_interval_over_seeds():
    found = pooled([Measured(mean=mean, ci95=0.001) for mean in (0.90, 0.92, 0.94)])
    assert found.mean == pytest.approx(0.92)
    assert found.ci95 == pytest.approx(4.3027 * 0.02 / 3**0.5, rel=1e-4)
    assert found.runs == 3


def test_seeds_that_agree_by_chance_are_no_surer_than_their_episodes():
    found = pooled([Measured(mean=0.9, ci95=0.03)] * 3)
    assert found.ci95 == pytest.approx(0.03 / 3**0.5)


@pytest.fixture
def make_run(tmp_path):
    def made(name, mean, seed=0, **clip):
        path = tmp_path / name
        path.mkdir()
        config = {"algo": "dp-agr", "clip": {"policy": "window", "initial": 0.15} | clip, "run": {"seed": seed}}
        (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        accuracy = {"mean": mean, "ci95": 0.004}
        rows = [
            {"round": index, "clip": 0.3, "signal_to_noise": 0.5 * index, "validation_accuracy": accuracy}
            for index in range(3)
        ]
        (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        names = ("accuracy", "accuracy_untrained", "accuracy_pixel_prototype")
        summary = {
            "status": "completed",
            "algo": "dp-agr",
            "dataset": "strokes",
            "seconds": 60.0,
            "simulation": None,
            "guarantees": CELLS,
        }
        (path / "summary.json").write_text(json.dumps(summary | dict.fromkeys(names, accuracy)))
        return RunDirectory(path)

    return made


def test_runs_that_differ_only_by_seed_are_one_group_with_the_differences_as_label(make_run):
    runs = [make_run(f"a{seed}", 0.9 + seed / 100, seed) for seed in range(3)]
    runs += [make_run(f"b{seed}", 0.8, seed, policy="constant", initial=0.3) for seed in range(2)]
    groups = group_runs([runs[3], *runs[:3], runs[4]])
    assert [group.label for group in groups] == ["policy=constant, initial=0.3", "policy=window, initial=0.15"]
    assert [len(group.runs) for group in groups] == [2, 3]
    assert groups[1].accuracy().mean == pytest.approx(0.91)
    assert groups[0].epsilons == {("client", "public"): 1.5}


def test_a_groups_rounds_are_those_of_the_plan_or_the_most_that_a_run_has(make_run):
    runs = [make_run(f"a{seed}", 0.9, seed) for seed in range(2)]
    assert Group(label="no plan says", runs=tuple(runs)).planned_rounds == 3
    config = yaml.safe_load((runs[0].path / "config.yaml").read_text())
    (runs[0].path / "config.yaml").write_text(yaml.safe_dump(config | {"server": {"rounds": 100}}))
    assert Group(label="stopped", runs=tuple(runs)).planned_rounds == 100


def test_runs_on_other_data_of_the_same_name_are_no_seeds_of_each_other(make_run):
    """Their settings are alike; only the digest of the data, which the server keeps, tells them apart."""
    runs = [make_run(name, mean, seed) for seed, (name, mean) in enumerate([("a", 0.9), ("b", 0.2), ("c", 0.91)])]
    for run, digest in zip(runs, ("one", "other", "one"), strict=True):
        (run.path / "secret").mkdir()
        held = HeldData(sha256=digest, own=False, clients=None, decoded=None, source=None)
        keep_data(run, held)
    assert [[run.path.name for run in group.runs] for group in group_runs(runs)] == [["a", "c"], ["b"]]
    assert len({group.label for group in group_runs(runs)}) == 2
    assert all(digest not in group.label for group in group_runs(runs) for digest in ("one", "other"))


def test_seeds_that_other_code_computed_are_rows_of_their_own(make_run):
    """A learner that was edited between two seeds, or what it imports: the digests in plan.json are not the same."""
    runs = [make_run(name, mean, seed) for seed, (name, mean) in enumerate([("a", 0.9), ("b", 0.2), ("c", 0.3)])]
    for run, digest in zip(runs, ("1" * 64, "2" * 64, "2" * 64), strict=True):
        run.write_json("plan.json", {"code": {"mine": "0" * 64, "package.scale": digest}})
    groups = group_runs(runs)
    assert [[run.path.name for run in group.runs] for group in groups] == [["a"], ["b", "c"]]
    assert [group.label for group in groups] == ["scale=11111111", "scale=22222222"]
    assert groups[1].accuracy().mean == pytest.approx(0.25)
    (line,) = code_words(groups)
    one, *others = (str(run.path) for run in runs)
    assert line == f"not pooled: {one}; {', '.join(others)}: same settings, but not the same code (package.scale)"
    # Other settings are no seeds of each other, whatever computed them.
    other = make_run("d", 0.9, initial=0.3)
    other.write_json("plan.json", {"code": {"mine": "0" * 64}})
    assert not list(code_words(group_runs([runs[0], other])))
    assert not list(code_words(group_runs(runs[1:])))


def test_cells_are_read_by_their_names(make_run):
    """Files of two seeds in another order: epsilons of different cells never meet."""
    runs = [make_run("a", 0.9), make_run("b", 0.9, seed=1)]
    more = {"unit": "record", "observer": "server", "epsilon": None, "delta": 1e-5}
    for run, cells in zip(runs, ([*CELLS, more], [more, CELLS[0] | {"epsilon": 1.7}]), strict=True):
        run.write_json("summary.json", run.read_json("summary.json") | {"guarantees": cells})
    (group,) = group_runs(runs)
    assert group.epsilons == {("client", "public"): 1.7, ("record", "server"): None}


def test_a_single_run_keeps_its_name(make_run):
    groups = group_runs([make_run("a", 0.9), make_run("b", 0.8, initial=0.3)])
    assert [group.label for group in groups] == ["a", "b"]


def test_a_damaged_config_is_named(make_run):
    run = make_run("a", 0.9)
    (run.path / "config.yaml").write_text("[1")
    with pytest.raises(InputError, match=r"config\.yaml"):
        group_runs([run])


def test_labels_are_short():
    assert describe({"config": "configs/policies/window-15.yaml", "clip.window": 4}) == "window-15, window=4"
    # Two settings that end alike are told apart.
    both = describe({"privacy.client.epsilon": 1.0, "privacy.record.epsilon": 4.0, "clip.window": 4})
    assert both == "privacy.client.epsilon=1, privacy.record.epsilon=4, window=4"


def test_a_page_of_groups(make_run, tmp_path):
    runs = [make_run(f"a{seed}", 0.9, seed) for seed in range(3)] + [make_run("b", 0.8, initial=0.3)]
    page = write_comparison(group_runs(runs), tmp_path / "page.html").read_text()
    seeds = '<td class="number" data-name="seeds">3</td>'
    for words in ("initial=0.15", "Clip bound", "Signal-to-noise", "90.0% ± 0.2", seeds):
        assert words in page
    assert page.count("data:image/png") == 4


def test_nowhere_to_write(make_run, tmp_path):
    with pytest.raises(InputError, match="no folder"):
        write_comparison(group_runs([make_run("a", 0.9)]), tmp_path / "nowhere/page.html")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_of_several_seeds_each_cell_is_the_weakest_and_infinite_where_one_is(order):
    """Whichever seed it is; a cell, or a replaced record, that one of them does not state is stated of none."""
    seeds = [
        [("client", 1.0, None), ("record", 2.0, 4.0), ("other", 7.0, None)],
        [("client", 3.0, None), ("record", None, 5.0), ("other", 7.0, 1.0)],
        [("client", 2.0, None), ("record", 1.0, 3.0)],
    ]
    summaries = [
        {"guarantees": [{"unit": u, "observer": "public", "epsilon": e, "delta": d * 0.1}
                        | ({"relations": {"zero-out": e, "in-place": r}} if r else {})
                        for d, (u, e, r) in enumerate(seeds[place], 1)]}
        for place in order
    ]  # fmt: skip
    group = Group(label="mine", runs=())
    group.__dict__["summaries"] = summaries
    assert group.epsilons == {("client", "public"): 3.0, ("record", "public"): None}
    assert group.relations == {("record", "public"): {"zero-out": None, "in-place": 5.0}}
    assert group.deltas["record", "public"] == 0.2


@pytest.mark.parametrize(("seconds", "due"), [([60.0, 180.0], 2.0), ([60.0, None], None), ([90.0], 1.5)])
def test_minutes_are_the_mean_of_runs_that_have_all_ended(seconds, due):
    group = Group(label="mine", runs=())
    group.__dict__["summaries"] = [{"seconds": each} for each in seconds]
    assert group.minutes == due


def test_accuracies_are_pooled_over_the_seeds_that_have_them_and_validation_is_the_last():
    group = Group(label="mine", runs=())
    values = [{"mean": 0.5, "ci95": 0.1}, None, {"mean": 0.7, "ci95": 0.2}]
    group.__dict__["summaries"] = [{"accuracy": each, "accuracy_untrained": None} for each in values]
    assert group.accuracy() == pooled([Measured(mean=0.5, ci95=0.1), Measured(mean=0.7, ci95=0.2)])
    assert group.accuracy("accuracy_untrained") is None
    rows = [{"validation_accuracy": {"mean": mean, "ci95": 0.1}} for mean in (0.1, 0.3, 0.2)]
    group.__dict__["rows"] = [rows, [{}], [*rows[:1], {}]]
    assert group.validation == pooled([Measured(mean=0.2, ci95=0.1), Measured(mean=0.1, ci95=0.1)])


@pytest.mark.parametrize(("values", "words"), [
    ({"privacy.client.epsilon": 2.5}, "epsilon=2.5"), ({"privacy.client.delta": 1e-5}, "delta=1e-05"),
    ({"clip.initial": 0.1500001}, "initial=0.15"), ({"clip.policy": "window", "a.b.c": None}, "policy=window, c=None"),
    ({"config": "x/y/z.yaml"}, "z"), ({"server.rounds": 20}, "rounds=20"),
])  # fmt: skip
def test_a_setting_is_said_by_the_last_part_of_its_name(values, words):
    assert describe(values) == words


@pytest.mark.parametrize("stages", [("completed",), ("completed", "budget"), ("interrupted", "completed"),
                                    ("stopped", "running", "stopped")])  # fmt: skip
def test_a_setting_says_which_of_its_runs_did_not_end(monkeypatch, stages):
    left = iter(stages)
    monkeypatch.setattr(seed_groups, "stage_of", lambda run: next(left))
    words = seed_groups._unfinished(range(len(stages)))
    others = [stage.upper() for stage in dict.fromkeys(stages) if stage not in ("completed", "budget")]
    assert words == (f" ({', '.join(others)})" if others else "")


@pytest.mark.parametrize("count", [4, 5])
def test_more_than_four_differences_say_less_than_a_name(make_run, count):
    given = {f"s{number}": 1 for number in range(count)}
    runs = [make_run(f"a{seed}", 0.9, seed) for seed in range(2)] + [make_run("b", 0.8, **given)]
    labels = [group.label for group in group_runs(runs)]
    assert (labels == ["a0", "b"]) == (count > 4)
    if count == 4:
        assert labels[1] == ", ".join(f"s{number}=1" for number in range(4))


def test_an_extended_run_is_no_further_seed_of_the_first_plan(make_run, monkeypatch):
    first, second, extended = (make_run(name, 0.9) for name in "abc")
    plan = PrivacyPlan(clients=100, cohort=10.0, rounds=3, noise_multiplier=1.0)
    plans = {first.ledger: plan, second.ledger: plan, extended.ledger: replace(plan, rounds=9, ends=(3,))}
    for path in plans:
        path.touch()
    monkeypatch.setattr(seed_groups, "read_content", lambda path, torn: SimpleNamespace(plan=plans[path]))
    groups = group_runs([first, extended, second])
    assert [[run.path.name for run in group.runs] for group in groups] == [["a", "b"], ["c"]]
    assert groups[1].label == "rounds=9"


def test_what_a_run_is_called_and_tracked_by_makes_no_setting_of_its_own(make_run):
    """Nor where it lies; everything else does."""
    first, second, third = (make_run(name, 0.9) for name in "abc")
    for run, change in ((second, {"run": {"seed": 3, "name": "x"}, "track": {"wandb": "offline"}}),
                        (third, {"server": {"rounds": 7}})):  # fmt: skip
        path = run.path / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change, sort_keys=False))
    groups = group_runs([first, third, second])
    assert [[run.path.name for run in group.runs] for group in groups] == [["a", "b"], ["c"]]
    assert differing_settings(groups) == {
        groups[0].label: {"server.rounds": "null"}, groups[1].label: {"server.rounds": "7"},
    }  # fmt: skip
    (second.path / "config.yaml").unlink()
    assert len(group_runs([first, third, second])) == 3


def test_algorithm_and_data_have_columns_of_their_own_and_are_no_differences(make_run):
    first, second = (make_run(name, 0.9) for name in "ab")
    path = second.path / "config.yaml"
    changed = {"algo": "maml", "dataset": "mine", "server": {"rounds": 7, "lr": None}}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed, sort_keys=False))
    groups = group_runs([first, second])
    assert [list(found) for found in differing_settings(groups).values()] == [["server.rounds"]] * 2


def test_a_run_without_settings_goes_by_its_name_among_others(make_run):
    runs = [make_run("a0", 0.9), make_run("a1", 0.9, seed=1), make_run("b", 0.8, initial=0.3), make_run("c", 0.7)]
    (runs[3].path / "config.yaml").unlink()
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert groups[2].label == "c"
    assert differing_settings(groups) == {}


def test_settings_of_one_label_go_by_their_places(make_run, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    runs = [make_run("x/r", 0.9), make_run("y/r", 0.8, initial=0.3)]
    assert [group.label for group in group_runs(runs)] == [str(run.path) for run in runs]


def test_settings_are_the_same_in_whatever_order_a_file_has_them(make_run):
    first, second = make_run("a", 0.9), make_run("b", 0.9, seed=1)
    path = second.path / "config.yaml"
    content = yaml.safe_load(path.read_text())
    content["clip"] = dict(reversed(content["clip"].items()))
    path.write_text(yaml.safe_dump(dict(reversed(content.items())), sort_keys=False))
    assert [len(group.runs) for group in group_runs([first, second])] == [2]
