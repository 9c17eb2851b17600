from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from dpfedmeta.cli.sweeps import results
from dpfedmeta.reporting.compare.seed_groups import Measured, pooled


def group(*means):
    """Runs with these accuracies."""
    values = [Measured(mean=mean, ci95=0.01) for mean in means]
    summaries = [{"accuracy": value.as_json()} for value in values]
    return SimpleNamespace(accuracy=lambda: pooled(values), summaries=summaries)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The axes of a sweep's picture."""

    def of(name, groups):
        kept = []
        monkeypatch.setattr(results, "finish", lambda figure, axis, path: kept.append(axis))
        results.sweep_plot(
            tmp_path / "p.png", [SimpleNamespace(parameters={name: value}, group=found) for value, found in groups]
        )
        return kept[0]

    yield of
    plt.close("all")


@pytest.mark.parametrize(
    ("values", "scale"),
    [((2, 4, 8, 16), "log"), ((1, 2, 3, 4), "linear"), ((0.1, 0.3, 3), "log"), ((2, 4), "linear"), ((0, 1), "linear")],
)
def test_values_that_double_stand_evenly(drawn, values, scale):
    axis = drawn("clip.window", [(value, group(0.5, 0.7)) for value in values])
    assert axis.get_xscale() == scale
    assert [label.get_text() for label in axis.get_xticklabels()] == [f"{value:g}" for value in values]


def test_every_seed_is_a_dot_beside_the_mean_and_its_number(drawn):
    axis = drawn("clip.window", [(2, group(0.5, 0.6, 0.7)), (3, group(0.8, 0.8, 0.9))])
    dots = {(float(x), round(float(y))) for line in axis.lines[-2:] for x, y in line.get_xydata()}
    assert dots == {(2.0, 50), (2.0, 60), (2.0, 70), (3.0, 80), (3.0, 90)}
    assert [text.get_text() for text in axis.texts] == ["60.0", "83.3"]
    assert "3 seeds" in axis.get_title(loc="left")


def setting(label, validation, test):
    """A setting of a sweep with these accuracies; None: not measured."""
    found = [None if mean is None else Measured(mean=mean, ci95=0.01) for mean in (validation, test)]
    return SimpleNamespace(
        group=SimpleNamespace(label=label, runs=[1, 2], validation=found[0], accuracy=lambda: found[1])
    )


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ([(0.6, 0.5), (0.5, 0.9)], "a"),
        ([(0.5, 0.9), (0.6, 0.5)], "b"),
        ([(0.5, 0.9), (0.6, None)], "b"),
        ([(None, 0.9), (0.0, 0.1)], "b"),
        ([(0.5, 0.1), (0.5, 0.9)], "a"),
        ([(None, None), (0.1, 0.1), (0.3, 0.2), (0.2, 0.3)], "c"),
    ],
)
def test_the_best_setting_is_marked_by_validation_classes_alone(accuracies, best):
    """Test classes choose nothing."""
    table = results.results_table([setting("abcd"[place], *each) for place, each in enumerate(accuracies)])
    names, seeds, *measured = ([*column.cells] for column in table.columns)
    assert [name for name in names if name.endswith(" *")] == [f"{best} *"]
    assert [row.style for row in table.rows] == ["bold" if name[0] == best else "" for name in names]
    assert seeds == ["2"] * len(accuracies)
    words = [[f"{100 * mean:.1f} ± 1.0" if mean is not None else "none" for mean in each] for each in accuracies]
    assert measured == [list(column) for column in zip(*words, strict=True)]
