import json
import re

import pytest
import yaml
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.compare.seed_groups import Measured, group_runs
from dpfedmeta.reporting.plots import epsilon_plot as module
from dpfedmeta.reporting.plots.epsilon_plot import Curve, draw_curves, epsilon_plot, tick_words


@pytest.fixture
def make_run(tmp_path):
    def made(name, algo, mean, cells, dataset="strokes", seed=0, **more):
        path = tmp_path / name
        path.mkdir()
        config = {"algo": algo, "privacy": {"cells": cells}, "run": {"seed": seed}}
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        accuracy = {"mean": mean, "ci95": 0.004}
        names = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]
        stated = [{"unit": u, "observer": o, "epsilon": e} for (u, o), e in zip(names, cells, strict=True)]
        # The plot goes by name: the order in the file says nothing.
        summary = {"status": "completed", "algo": algo, "dataset": dataset, "guarantees": stated[::-1], **more}
        names = ("accuracy", "accuracy_untrained", "accuracy_pixel_prototype")
        (path / "summary.json").write_text(json.dumps(summary | dict.fromkeys(names, accuracy if mean else None)))
        return RunDirectory(path)

    return made


def drawn(monkeypatch, path, runs):
    """The picture's axes, as they are saved."""
    kept = []
    save = module.save  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "save", lambda figure, path: (kept.extend(figure.axes), save(figure, path)))
    epsilon_plot(path, group_runs(runs))
    return kept


def test_each_algorithm_is_drawn_over_the_cell_that_it_is_for(make_run, monkeypatch, tmp_path):
    runs = [
        make_run("a", "dp-agr", 0.8, [1.5, None, None, 0.8]),
        make_run("b", "dp-agr", 0.9, [8.0, None, None, 4.0]),
        make_run("b1", "dp-agr", 0.92, [8.0, None, None, 4.0], seed=1),
        make_run("c", "dp-agrlr-micro", 0.7, [0.01, 40.0, 2.5, 0.02]),
        make_run("d", "maml", 0.95, [None, None, None, None]),
    ]
    of_client, of_record = drawn(monkeypatch, tmp_path / "out.png", runs)
    lines = [
        {container.get_label(): container.lines[0].get_xydata().tolist() for container in axis.containers}
        for axis in (of_client, of_record)
    ]
    # Two guarantees are two axes: an epsilon of one says nothing beside an epsilon of the other.
    assert lines == [{"dp-agr": [[1.5, 80.0], [8.0, pytest.approx(91.0)]]}, {"dp-agrlr-micro": [[2.5, 70.0]]}]
    assert "(client, public)" in of_client.get_xlabel()
    assert "(record, server)" in of_record.get_xlabel()
    labels = of_client.get_legend_handles_labels()[1]
    assert set(labels) == {"maml, no privacy", "pixel prototypes", "dp-agr, untrained", "dp-agr"}
    assert [tick.get_text() for tick in of_client.get_xticklabels()] == ["1.5", "8"]
    assert [tick.get_text() for tick in of_record.get_xticklabels()] == ["2.5"]
    with Image.open(tmp_path / "out.png") as image:
        assert image.width > 300


def test_over_an_encoder_the_line_before_training_is_the_public_encoder(make_run, monkeypatch, tmp_path):
    run = make_run("a", "encoder-agr", 0.8, [1.5, None, None, 0.8], encoder="lite0")
    (axis,) = drawn(monkeypatch, tmp_path / "out.png", [run])
    labels = axis.get_legend_handles_labels()[1]
    assert set(labels) == {"encoder-agr, public encoder, no client", "encoder-agr"}


def test_runs_on_two_data_sets_are_refused(make_run, tmp_path):
    names = ["strokes", "omniglot", "zeros", "birds"]
    runs = [make_run(name, "dp-agr", 0.8, [1.5, None, None, 0.8], name) for name in names]
    with pytest.raises(InputError, match="expected evaluated runs on one data set") as error:
        epsilon_plot(tmp_path / "out.png", group_runs(runs))
    # In an order that does not change from call to call.
    assert [name for name in re.findall("[a-z]+", str(error.value)) if name in names] == sorted(names)


def test_runs_that_nobody_evaluated_are_refused(make_run, tmp_path):
    runs = [make_run("a", "dp-agr", None, [1.5, None, None, 0.8])]
    with pytest.raises(InputError, match="expected evaluated runs"):
        epsilon_plot(tmp_path / "out.png", group_runs(runs))
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], []),
        ([0.0, 1.5], ["1.5"]),
        ([1.5], ["1.5"]),
        ([8, 2.5, 2.34, 2.5], ["2.34", "", "8"]),
        ([1.499, 1.5], ["1.5", ""]),
        ([0.5, 1, 1.499, 1.5, 3, 8, 100.4], ["0.5", "1", "1.5", "", "3", "8", "101"]),
    ],
)
def test_no_number_under_the_axis_runs_into_another_one(places, words):
    found = tick_words(places)
    assert list(found) == sorted({*places} - {0.0})
    assert list(found.values()) == words


def test_every_line_and_point_is_in_percent_in_the_panel_of_its_cell(monkeypatch, tmp_path):
    """No privacy is a level in each panel; intervals are of their points."""
    kept = []
    monkeypatch.setattr(module, "save", lambda figure, path: kept.extend(figure.axes))
    public, server = ("client", "public"), ("record", "server")
    accuracy = lambda mean: Measured(mean=mean, ci95=mean / 10)  # noqa: E731
    curves = [
        Curve(algo="maml", cell=None, points=((0.0, accuracy(0.9)),)),
        Curve(algo="dp-agr", cell=public, points=((1.0, accuracy(0.5)), (2.0, accuracy(0.6))), untrained=accuracy(0.3)),
        Curve(algo="dp-agrlr", cell=server, points=((4.0, accuracy(0.7)),), untrained=accuracy(0.2), before="encoder"),
    ]
    draw_curves(tmp_path / "p.png", curves, "strokes", accuracy(0.45))
    assert [axis.get_xlabel() for axis in kept] == [
        "epsilon of (client, public)",
        "epsilon of (record, server), zero-out",
    ]
    for axis, own in zip(kept, curves[1:], strict=True):
        levels = {line.get_label(): float(line.get_ydata()[0]) for line in axis.lines if line.get_label()[0] != "_"}
        assert levels == {
            "maml, no privacy": pytest.approx(90.0), "pixel prototypes": pytest.approx(45.0),
            f"{own.algo}, {own.before}": pytest.approx(100 * own.untrained.mean),
        }  # fmt: skip
        (bars,) = axis.containers
        assert bars.lines[0].get_xydata().tolist() == [[e, pytest.approx(100 * a.mean)] for e, a in own.points]
        spans = [(bar[1][1] - bar[0][1]) / 2 for bar in bars.lines[2][0].get_segments()]
        assert spans == pytest.approx([100 * a.ci95 for _, a in own.points])
        assert list(axis.get_xticks()) == [e for e, _ in own.points]
