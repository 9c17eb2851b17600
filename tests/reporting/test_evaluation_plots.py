"""What the pictures of evaluations and audits show, read from the axes before they are saved."""

import math

import matplotlib.pyplot as plt
import pytest

from dpfedmeta.reporting.plots import evaluation_plots
from dpfedmeta.reporting.plots.evaluation_plots import audit_plot, clients_plot, comparison_plot, steps_plot

KEYS = ("accuracy", "accuracy_untrained", "accuracy_fine_tuned", "accuracy_trained_prototype",
        "accuracy_untrained_prototype", "accuracy_pixel_prototype")  # fmt: skip


def measured(first, **more):
    return {"mean": first, "ci95": first / 10, "episodes": 1600, **more}


def result(place, steps=(0, 1, 5), **more):
    """One size of episodes, no number of which is that of another."""
    values = {key: measured(0.3 + 0.05 * number + 0.01 * place) for number, key in enumerate(KEYS)}
    values["accuracy"]["steps"] = steps[-1]
    rows = [
        {
            "steps": step,
            "accuracy": measured(0.2 + 0.1 * n + 0.01 * place),
            "accuracy_untrained": measured(0.1 + 0.1 * n),
        }
        for n, step in enumerate(steps)
    ]
    spread = {
        key: {"worst_tenth": 0.15 + 0.1 * n + 0.01 * place,
              "histogram": {"edges": [0.0, 0.4, 0.7, 1.0], "episodes": [1 + place, 2 + n, 5]}}
        for n, key in enumerate(KEYS[:2])
    }  # fmt: skip
    return {"ways": 5 + place, "shots": 1 + place, **values, "by_steps": rows, "clients": spread, **more}


def evaluation(*results, **more):
    return {"protocol": "p", "note": None, "results": list(results), **more}


@pytest.fixture
def axes_of(monkeypatch, tmp_path):
    def made(function, *given):
        kept = []
        for place in ("dpfedmeta.reporting.plots.evaluation_plots", "dpfedmeta.reporting.plots.style"):
            monkeypatch.setattr(f"{place}.save", lambda figure, path: kept.append((figure, path)))
        function(tmp_path / "p.png", *given)
        ((figure, path),) = kept
        assert path == tmp_path / "p.png"
        return figure, figure.axes

    yield made
    plt.close("all")


def lines(axis):
    """Labelled lines: (x, y), of a level across its height alone."""
    found = {}
    for line in axis.lines:
        label = line.get_label()
        if not label.startswith("_"):
            x, y = (list(map(float, each)) for each in (line.get_xdata(), line.get_ydata()))
            found[label] = y[0] if x == [0.0, 1.0] and y[0] == y[1] else (x, pytest.approx(y))
    return found


@pytest.mark.parametrize("count", [1, 4, 5])
def test_each_size_has_a_panel_with_its_own_paths_and_levels(axes_of, count):
    results = [result(place) for place in range(count)]
    figure, axes = axes_of(steps_plot, "mine", evaluation(*results))
    assert [axis.get_title() for axis in axes] == [f"{5 + place}-way {1 + place}-shot" for place in range(count)]
    for axis, each in zip(axes, results, strict=True):
        found = lines(axis)
        rows = each["by_steps"]
        for key, label in (("accuracy", "this run"), ("accuracy_untrained", "untrained, the same adaptation")):
            assert found[label] == ([0.0, 1.0, 5.0], [100 * row[key]["mean"] for row in rows])
        # What was asked at its end alone is a level.
        assert found["untrained, all layers fine-tuned"] == pytest.approx(100 * each["accuracy_fine_tuned"]["mean"])
        for key, label in (("accuracy_trained_prototype", "prototype, features of this run"),
                           ("accuracy_untrained_prototype", "prototype, untrained features"),
                           ("accuracy_pixel_prototype", "prototype, pixels")):  # fmt: skip
            assert found[label] == pytest.approx(100 * each[key]["mean"])
        assert any(list(line.get_xdata()) == [5, 5] for line in axis.lines)
        band = axis.collections[0].get_paths()[0].get_extents()
        low, high = (100 * (f(row["accuracy"]["mean"] + s * row["accuracy"]["ci95"] for row in rows))
                     for f, s in ((min, -1), (max, 1)))  # fmt: skip
        assert (band.y0, band.y1) == (pytest.approx(low), pytest.approx(high))
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("gradient steps", "accuracy, %")
        assert list(axis.xaxis.get_major_locator().locs) == [0, 1, 2, 5]
    assert "mine: p; 1,600 episodes; 95% intervals" in " ".join(figure.get_suptitle().split())


@pytest.mark.parametrize("key", KEYS[2:])
def test_what_was_not_measured_is_not_drawn(axes_of, key):
    one = result(0)
    del one[key]
    _, (axis,) = axes_of(steps_plot, "mine", evaluation(one))
    assert len(lines(axis)) == len(KEYS) - 1


@pytest.mark.parametrize(("more", "words"), [
    ({"note": "own note"}, "p; own note"), ({"status": "interrupted", "rounds": 3, "planned_rounds": 9}, "INTERRUPTED"),
])  # fmt: skip
def test_a_caption_says_the_protocol_and_what_is_odd(axes_of, more, words):
    figure, _ = axes_of(steps_plot, "mine", evaluation(result(0), **more))
    assert words in " ".join(figure.get_suptitle().split())


def test_how_accuracy_spreads_is_in_shares_of_clients(axes_of):
    results = [result(place) for place in range(2)]
    _, axes = axes_of(clients_plot, "mine", evaluation(*results))
    for axis, each in zip(axes, results, strict=True):
        for patch, key in zip(axis.patches, KEYS[:2], strict=True):
            found = each["clients"][key]
            values, edges, _ = patch.get_data()
            total = sum(found["histogram"]["episodes"])
            assert list(values) == pytest.approx([100 * count / total for count in found["histogram"]["episodes"]])
            assert list(edges) == pytest.approx([0, 40, 70, 100])
        levels = [line.get_xdata()[0] for line in axis.lines]
        assert levels == pytest.approx([100 * each["clients"][key]["worst_tenth"] for key in KEYS[:2]])
        assert axis.get_xlim() == (0, 100)
    assert axes[0].get_ylabel() == "share of clients, %"


@pytest.mark.parametrize("count", [1, 2])
def test_runs_on_the_same_episodes_stand_in_one_panel_for_each_size(axes_of, count):
    first, second = (evaluation(*(result(place + shift) for place in range(count))) for shift in (0, 3))
    _, axes = axes_of(comparison_plot, {"one": first, "two": second})
    for place, axis in enumerate(axes):
        found = lines(axis)
        for name, each in (("one", first), ("two", second)):
            rows = each["results"][place]["by_steps"]
            assert found[name] == ([0.0, 1.0, 5.0], [100 * row["accuracy"]["mean"] for row in rows])
            untrained = [100 * row["accuracy_untrained"]["mean"] for row in rows]
            assert found[f"{name}, untrained"] == ([0.0, 1.0, 5.0], untrained)
        # The images are the same, so one line says what pixels give.
        pixels = 100 * first["results"][place]["accuracy_pixel_prototype"]["mean"]
        assert found["prototype, pixels"] == pytest.approx(pixels)


def test_where_nothing_adapts_each_run_has_a_trained_and_an_untrained_dot(axes_of):
    runs = {name: evaluation({"accuracy": measured(0.5 + n / 10), "accuracy_untrained": measured(0.1 + n / 10)})
            for n, name in enumerate(("one", "two", "three"))}  # fmt: skip
    _, (axis,) = axes_of(comparison_plot, runs)
    assert [text.get_text() for text in axis.get_yticklabels()] == list(runs)
    for container, key in zip(axis.containers, KEYS[:2], strict=True):
        dots, _, (bars,) = container.lines
        values = [each["results"][0][key] for each in runs.values()]
        assert list(dots.get_xdata()) == pytest.approx([100 * value["mean"] for value in values])
        assert [round(float(y)) for y in dots.get_ydata()] == [0, 1, 2]
        widths = [segment[1][0] - segment[0][0] for segment in bars.get_segments()]
        assert widths == pytest.approx([200 * value["ci95"] for value in values])


def cell(promised, audited, confidence, **more):
    return {"unit": "client", "observer": "public", "promised": promised, "audited": audited, "confidence": confidence,
            "audit": "distinguish", "runs": 1, "canaries": 1, **more}  # fmt: skip


def test_an_audit_has_a_bar_for_each_promise_and_a_mark_for_what_was_found(axes_of):
    cells = [cell(2.0, 1.0, 0.95, runs=1234), cell(None, 1.0, 0.95), cell(3.0, None, None),
             cell(4.0, 0.0, 0.999, unit="record"), cell(5.0, 2.5, None, audit="one-shot", canaries=500)]  # fmt: skip
    _, (axis,) = axes_of(audit_plot, cells)
    assert [bar.get_width() for bar in axis.patches] == [2.0, 4.0, 5.0]
    assert [bar.get_y() + bar.get_height() / 2 for bar in axis.patches] == pytest.approx([2, 1, 0])
    found = lines(axis)
    # A bound of 0 has no place on a logarithmic axis.
    assert found["audited: lower bound"] == ([1.0, evaluation_plots._LEAST], [2, 1])
    assert found["audited: estimate"] == ([2.5], [0])
    names = {round(y): text.get_text() for y, text in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)}
    assert names == {2: "(client, public) distinguish, 1,234 runs", 1: "(record, public) distinguish, 1 canaries",
                     0: "(client, public) one-shot, 500 canaries"}  # fmt: skip
    assert axis.get_xscale() == "log"


@pytest.mark.parametrize("entries", [1, 2, 9])
@pytest.mark.parametrize("width", [2.0, 3.0, 9.0, 12.0])
def test_a_legend_has_as_many_columns_as_fit(monkeypatch, tmp_path, entries, width):
    figure, axis = plt.subplots(figsize=(width, 4.0))
    for number in range(entries):
        axis.plot([0], [0], label=f"line {number}")
    monkeypatch.setattr(evaluation_plots, "save", lambda figure, path: None)
    evaluation_plots._finish(figure, axis, tmp_path / "p.png", "a title", entries)
    (legend,) = figure.legends
    assert legend._ncols == max(1, min(entries, math.floor(width / 2.9)))
    assert [each.get_text() for each in legend.get_texts()] == [f"line {number}" for number in range(entries)]
    plt.close("all")
