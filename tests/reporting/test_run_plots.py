"""What pictures show, read from the figure before it is saved."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpfedmeta.reporting.compare.seed_groups import Measured, pooled
from dpfedmeta.reporting.plots import comparison_plots
from dpfedmeta.reporting.plots import run_plots as plots
from dpfedmeta.reporting.plots.style import MARKS, looks, looks_of, mark, show_zero

SUMMARY = {
    "algo": "dp-agr",
    "dataset": "strokes",
    "accuracy": {"mean": 0.9, "ci95": 0.01},
    "accuracy_untrained": {"mean": 0.5, "ci95": 0.01},
    "accuracy_pixel_prototype": {"mean": 0.6, "ci95": 0.01},
}


def row(number, signal, **more):
    return {
        "round": number,
        "clip": 0.3,
        "aggregate_norm": 1.0,
        "noise_norm_expected": 1.0,
        "signal_to_noise": signal,
        "epsilons": {"client_public": 0.1 * (number + 1)},
        **more,
    }


ROWS = [
    row(0, 0.0, validation_accuracy_untrained={"mean": 0.4, "ci95": 0.02}),
    row(1, 0.2, validation_accuracy={"mean": 0.7, "ci95": 0.02}),
    {"round": 2, "aborted": True, "clip": 0.3, "epsilons": {"client_public": 0.3}},
    row(3, 0.0, validation_accuracy={"mean": 0.8, "ci95": 0.02}),
]


@pytest.fixture
def figure_of(monkeypatch, tmp_path):
    """The figure that a function saves, by its axes."""

    def made(module, function, *given):
        kept = []
        monkeypatch.setattr(module, "save", lambda figure, _: kept.append(figure))
        # Where `finish` saves.
        monkeypatch.setattr("dpfedmeta.reporting.plots.style.save", lambda figure, _: kept.append(figure))
        function(tmp_path / "p.png", *given)
        return kept[0].axes

    yield made
    plt.close("all")


def points(axis, label):
    return next(found.lines[0].get_xydata() for found in axis.containers if found.get_label().startswith(label))


def test_accuracy_is_in_percent_and_begins_before_round_0(figure_of):
    by_round, by_epsilon = figure_of(plots, plots.accuracy_plot, ROWS, SUMMARY)
    assert points(by_round, "validation").tolist() == [[0.0, 40.0], [2.0, 70.0], [4.0, 80.0]]
    assert points(by_round, "test").tolist() == [[0.0, 50.0], [4.0, 90.0]]
    assert points(by_epsilon, "validation")[:, 0] == pytest.approx([0.0, 0.2, 0.4])
    assert "%" in by_round.get_ylabel()


def cell(unit, observer, epsilon):
    return {"unit": unit, "observer": observer, "epsilon": epsilon, "delta": 1e-5}


@pytest.mark.parametrize(
    ("planned", "axis"),
    [
        ([cell("client", "public", 1.0), cell("record", "server", 1.0)], "client, public"),
        ([cell("client", "public", 4000.0), cell("record", "server", 1.0)], "record, server"),
        ([cell("client", "public", None), cell("record", "public", 1.0)], "record, public"),
        ([cell("client", "public", 4000.0), cell("record", "server", None)], None),
    ],
)
def test_the_axis_is_a_cell_that_was_promised(figure_of, planned, axis):
    """(client, public) of three silos is finite, and hides nobody."""
    cells = ("client_public", "record_server", "record_public")
    rows = [{**each, "epsilons": dict.fromkeys(cells, each["epsilons"]["client_public"])} for each in ROWS]
    found = figure_of(plots, plots.accuracy_plot, rows, {**SUMMARY, "planned": planned})
    assert [each.get_xlabel() for each in found] == ["rounds done", *([f"epsilon of ({axis}) spent"] if axis else [])]


def test_a_baseline_far_below_presses_nothing_together(figure_of):
    high = [{**each, **{name: {"mean": 0.95, "ci95": 0.01} for name in each if "validation" in name}} for each in ROWS]
    summary = {**SUMMARY, "accuracy_untrained": {"mean": 0.94, "ci95": 0.01}, "accuracy": {"mean": 0.96, "ci95": 0.01}}
    by_round, _ = figure_of(plots, plots.accuracy_plot, high, summary)
    assert by_round.get_ylim()[0] > 90
    assert "pixel prototypes, test classes: 60.0%, outside" in by_round.get_legend_handles_labels()[1]
    by_round, _ = figure_of(plots, plots.accuracy_plot, ROWS, SUMMARY)
    assert "pixel prototypes, test classes" in by_round.get_legend_handles_labels()[1]


def test_over_an_encoder_the_start_is_called_the_public_encoder(figure_of):
    by_round, _ = figure_of(plots, plots.accuracy_plot, ROWS, {**SUMMARY, "encoder": "lite0"})
    labels = " ".join(by_round.get_legend_handles_labels()[1])
    assert "test classes, public encoder, no client; and at the end" in labels
    assert "raw features" in labels
    assert "pixel" not in labels


def test_an_older_run_has_no_round_0_and_none_is_made_up(figure_of):
    older = [{name: value for name, value in each.items() if "untrained" not in name} for each in ROWS]
    by_round, _ = figure_of(plots, plots.accuracy_plot, older, {"algo": "dp-agr", "dataset": "strokes"})
    assert points(by_round, "validation")[:, 0].tolist() == [2.0, 4.0]


def test_lines_upon_each_other_are_both_seen(figure_of):
    norms, signal = figure_of(plots, plots.clip_plot, ROWS)
    lines = {line.get_label(): line for line in norms.lines}
    noise, release = lines["expected norm of its noise"], lines["norm of the released mean"]
    assert np.array_equal(noise.get_ydata(), release.get_ydata(), equal_nan=True)
    assert noise.get_linewidth() >= 3 * release.get_linewidth()
    assert norms.lines.index(noise) < norms.lines.index(release)
    zeros = next(line for line in signal.lines if line.get_label().startswith("0:"))
    assert zeros.get_xydata().tolist() == [[1.0, 0.0], [4.0, 0.0]]
    assert signal.get_ylim()[0] < 0


class Setting:
    """What a comparison's pictures ask of a group."""

    summaries = (SUMMARY,)
    label = "a"
    rows = (ROWS, [row(number, 0.0) for number in range(4)])
    planned_rounds = 4

    def accuracy(self):
        return None


def test_zeros_are_part_of_the_signal_curve_and_of_its_mean(figure_of):
    (axis,) = figure_of(comparison_plots, comparison_plots.signal_plot, [Setting()])
    drawn = next(line for line in axis.lines if line.get_label() == "a").get_ydata()
    # The aborted round of one seed is left out; the zeros of both count.
    assert drawn == pytest.approx([0.0, 0.1, 0.0, 0.0])
    assert axis.get_ylim()[0] < 0


def test_every_picture_has_a_title_and_named_axes(figure_of):
    four = [{"unit": "client", "observer": "public", "epsilon": each, "delta": 1e-6} for each in (1.5, None)]
    calls = [
        (plots, plots.accuracy_plot, ROWS, SUMMARY),
        (plots, plots.clip_plot, ROWS),
        (plots, plots.guarantee_plot, four),
        (comparison_plots, comparison_plots.validation_plot, [Setting()]),
        (comparison_plots, comparison_plots.bound_plot, [Setting()]),
        (comparison_plots, comparison_plots.signal_plot, [Setting()]),
    ]
    for module, function, *given in calls:
        axes = figure_of(module, function, *given)
        assert all(axis.get_title(loc="left") for axis in axes), function
        assert axes[-1].get_xlabel(), function


def test_lines_differ_by_their_marks_too_for_who_sees_no_colours(figure_of):
    assert len({mark(place) for place in range(8)}) == 8
    groups = [Setting(), Setting(), Setting()]
    for draw in (comparison_plots.validation_plot, comparison_plots.bound_plot, comparison_plots.signal_plot):
        (axis,) = figure_of(comparison_plots, draw, groups)
        marks = [line.get_marker() for line in axis.get_lines() if line.get_marker() in MARKS]
        assert len(set(marks)) == 3, draw


def test_an_algorithm_keeps_its_colour_and_no_two_lines_look_alike():
    both, one = looks_of(["maml", "dp-agr"]), looks_of(["dp-agr"])
    assert both[1] == one[0]
    many = looks_of(["dp-agr"] * 5 + ["mine", "maml"] + ["other"] * 20)
    assert len(set(many)) == len(many)
    assert many[0] == one[0]
    assert len(set(looks(32))) == 32


@pytest.mark.parametrize("style", ["-", "--"])
@pytest.mark.parametrize("twins", [0, 1, 2])
def test_a_line_that_lies_on_others_has_gaps_for_each_of_them(style, twins):
    assert comparison_plots._over(style, twins) == ((0, (4, 4 * twins)) if twins else style)


@pytest.mark.parametrize(("count", "width"), [(5, 1), (39, 1), (40, 2), (60, 3)])
def test_the_signal_is_the_mean_over_rounds_near_by_without_those_that_released_nothing(count, width):
    values = [None if n == 3 else float(n % 7) for n in range(count)]
    found = comparison_plots._smooth_signal([{"signal_to_noise": each} for each in values])
    for place in range(count):
        near = [min(max(each, 0), count - 1) for each in range(place - width // 2, place + (width + 1) // 2)]
        known = [values[each] for each in near if values[each] is not None]
        assert found[place] == pytest.approx(sum(known) / len(known) if known else float("nan"), nan_ok=True)
    assert len(found) == count


def test_looks_repeat_only_when_colours_and_styles_are_used_up():
    assert len({*looks(32)}) == 32
    assert looks(33)[32] == looks(1)[0]
    assert [mark(place) for place in range(8)] == list(MARKS)
    assert mark(8) == mark(0)
    found = looks_of(["dp-agr", "unknown", "dp-agr", "maml", *["x"] * 40])
    assert len({*found[:32]}) == 32
    assert found[0] == looks_of(["dp-agr"])[0]
    assert found[3] == looks_of(["maml"])[0]
    known = ["maml", "dp-agr", "dp-agrlr-micro", "dp-agrlr", "dp-const", "dp-aqc", "dp-fedavg", "local-dp"]
    assert len({*looks_of(known)}) == 8
    # Each has the colour that it has alone.
    assert looks_of(known) == [looks_of([name])[0] for name in known]
    assert len({look[0] for look in looks_of(known)}) == 8


class Seeds:
    """A setting of several runs, for pictures."""

    def __init__(self, label, *rows, accuracy=None, planned=None):
        self.label, self.rows, self.summaries = label, rows, [{"algo": "dp-agr"}]
        self.planned_rounds = planned or max(map(len, rows), default=0)
        self.accuracy = lambda: accuracy


def validated(*means):
    return [{"round": n, "clip": 2.0 ** (n + mean), "validation_accuracy": {"mean": mean, "ci95": mean / 10}}
            for n, mean in enumerate(means)]  # fmt: skip


def test_final_accuracies_are_in_percent_each_at_its_place(figure_of):
    groups = [Seeds("a", accuracy=Measured(mean=0.512, ci95=0.034, runs=3)), Seeds("b", accuracy=None),
              Seeds("c", accuracy=Measured(mean=0.75, ci95=0.05))]  # fmt: skip
    (axis,) = figure_of(comparison_plots, comparison_plots.final_plot, groups)
    dots = [tuple(map(float, each.lines[0].get_xydata()[0])) for each in axis.containers]
    assert dots == [(pytest.approx(51.2), 0), (pytest.approx(75.0), 1)]
    widths = [each.lines[2][0].get_segments()[0] for each in axis.containers]
    assert [bar[1][0] - bar[0][0] for bar in widths] == pytest.approx([6.8, 10.0])
    words = [text.get_text() for text in axis.texts]
    assert {"51.2% ± 3.4", "75.0% ± 5.0", "a (3 seeds)", "c (1 seed)"} == {*words}


def test_validation_is_the_mean_over_seeds_at_the_share_of_the_rounds(figure_of):
    groups = [Seeds("a", validated(0.2, 0.4, 0.6, 0.8), validated(0.3, 0.6, 0.6, 1.0)), Seeds("b", validated(0.5, 0.7))]
    (axis,) = figure_of(comparison_plots, comparison_plots.validation_plot, groups)
    first, second = (each.lines[0].get_xydata() for each in axis.containers)
    assert first[:, 1].tolist() == pytest.approx([25.0, 50.0, 60.0, 90.0])
    assert first[:, 0].tolist() == pytest.approx([25, 50, 75, 100], abs=0.2)
    assert second[:, 1].tolist() == pytest.approx([50.0, 70.0])
    assert second[:, 0].tolist() == pytest.approx([50, 100], abs=0.2)
    due = [100 * pooled([Measured(mean=a, ci95=a / 10), Measured(mean=b, ci95=b / 10)]).ci95
           for a, b in ((0.2, 0.3), (0.4, 0.6), (0.6, 0.6), (0.8, 1.0))]  # fmt: skip
    bars = axis.containers[0].lines[2][0].get_segments()
    assert [(bar[1][1] - bar[0][1]) / 2 for bar in bars] == pytest.approx(due)


def test_bounds_are_averaged_in_logarithms_over_the_seeds_that_got_so_far(figure_of):
    groups = [Seeds("a", validated(1, 2, 3), validated(3, 2)), Seeds("b", [{"round": 0, "clip": None}])]
    (axis,) = figure_of(comparison_plots, comparison_plots.bound_plot, groups)
    line = next(each for each in axis.lines if each.get_label() == "a").get_xydata()
    assert line.tolist() == [[1, pytest.approx(2.0**2)], [2, pytest.approx(2.0**3)], [3, pytest.approx(2.0**5)]]
    band = axis.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == (pytest.approx(2.0), pytest.approx(32.0))
    assert "b" not in {each.get_label() for each in axis.lines}


@pytest.mark.parametrize("stopped", [0, 1, 3])
@pytest.mark.parametrize("curve", ["validation_plot", "bound_plot", "signal_plot"])
def test_a_run_that_was_stopped_is_neither_stretched_nor_does_it_cut_a_line(figure_of, curve, stopped):
    whole = [{**line, "signal_to_noise": 1.0} for line in validated(*(0.1 * n for n in range(10)))]
    groups = [Seeds("cut", whole[:stopped], planned=10), Seeds("both", whole, whole[:stopped], planned=10)]
    (axis,) = figure_of(comparison_plots, getattr(comparison_plots, curve), groups)
    if curve == "validation_plot":
        reached = [each.lines[0].get_xdata().max(initial=0.0) / 10 for each in axis.containers]
    else:
        lines = {each.get_label(): len(each.get_xdata()) for each in axis.lines}
        reached = [lines.get("cut", 0), lines["both"]]
    assert reached == pytest.approx([stopped, 10], abs=0.05)


@pytest.mark.parametrize(
    ("values", "limit"), [([0.0, 0.5], 0.65), ([], 0.2), ([float("nan"), 0.05], 0.2), ([10.0], 13.0)]
)
def test_an_axis_with_a_zero_reaches_over_all_that_is_drawn(values, limit):
    _, axis = plt.subplots()
    show_zero(axis, values)
    assert axis.get_ylim() == (pytest.approx(-0.012), pytest.approx(limit))
    locator: Any = axis.yaxis.get_major_locator()
    ticks = list(locator.locs)
    assert ticks[:3] == pytest.approx([0.0, 0.05, 0.1])
    assert max(ticks) <= limit
    plt.close("all")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("function", [comparison_plots.validation_plot, comparison_plots.bound_plot])
def test_a_picture_is_drawn_where_any_setting_has_what_it_shows(figure_of, function, order):
    """Whichever stands first; and of none nothing."""
    has, lacks = Seeds("a", validated(0.2, 0.4)), Seeds("b", [{"round": 0, "clip": None}])
    said = []
    figure_of(comparison_plots, lambda *given: said.append(function(*given)), [(has, lacks)[place] for place in order])
    assert said == [True]


@pytest.mark.parametrize("function", [comparison_plots.validation_plot, comparison_plots.bound_plot])
def test_a_picture_of_nothing_is_said_to_be_one(figure_of, function):
    said = []
    nothing = [Seeds("b", [{"round": 0, "clip": None}])]
    figure_of(comparison_plots, lambda *given: said.append(function(*given)), nothing)
    assert said == [False]


def test_a_run_without_its_accuracies_has_the_level_that_was_measured():
    """Whatever is missing of what it is compared with: the untrained model, the end, or both."""
    value = {"mean": 0.5, "ci95": 0.1}
    untrained = {"accuracy_untrained": value}
    for summary in ({}, {"accuracy": value}, untrained, {"accuracy_untrained": None, "accuracy": value}):
        _, axis = plt.subplots()
        plots._level(axis, [], summary, 50.5, "prototypes")
        assert axis.get_legend_handles_labels()[1] == ["prototypes"]
        assert list(axis.lines[0].get_ydata()) == [50.5, 50.5]
    plt.close("all")


def test_zero_is_a_line_on_an_axis_that_shows_it():
    _, axis = plt.subplots()
    show_zero(axis, [0.0, 0.5])
    assert any(set(map(float, line.get_ydata())) == {0.0} for line in axis.lines)
