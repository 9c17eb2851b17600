import json

import pytest
import yaml

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.compare.seed_groups import Measured, describe, group_runs, pooled
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
