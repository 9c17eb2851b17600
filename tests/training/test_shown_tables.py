"""Tables of the terminal: every number that was measured stands in them, in words, and no two of them are one."""

import copy
import io
import re

import pytest
from rich.console import Console

from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.plugins.plugin_names import names
from dpfedmeta.core.plugins.plugin_registry import find
from dpfedmeta.learning.evaluation.people import PersonScores
from dpfedmeta.learning.meta import target_kind
from dpfedmeta.learning.targets.classification import OWN_CLASSES
from dpfedmeta.training.terminal.evaluation_tables import (
    _MOST_ROWS,
    ROWS,
    _words,
    evaluation_tables,
    people_tables,
    selected,
)
from dpfedmeta.training.terminal.tables import ANSWERED, Moved, accuracy_table, error_table, lost_words, why_above

SIZES = {"ways": 4, "shots": 1, "queries": 6, "steps": 7, "episodes": 5, "protocol": "as usual"}


def text(*shown):
    console = Console(file=io.StringIO(), width=300, record=True)
    for each in shown:
        console.print(each)
    return console.export_text()


def score(number):
    return {"mean": 0.11 + 0.07 * number, "ci95": 0.011 + 0.002 * number, **SIZES}


def summary(name, *endings):
    keys = [name, *(f"{name}_{ending}" for ending in endings)]
    return {"dataset": "people", **{key: score(number) for number, key in enumerate(keys)}}


def evaluation(*shots):
    return {"protocol": "P", "note": "N", "results": [evaluated(number) for number in shots]}


def evaluated(shots):
    result = {"shots": shots, "ways": 4, "queries": 6, **{key: score(number) for number, (key, _) in enumerate(ROWS)}}
    result["accuracy_fine_tuned"] |= {"lr": 0.125, "validation": {"0.125": 0.9}, "validation_episodes": 33}
    result["by_steps"] = [{"steps": step, "accuracy": score(20 + step)} for step in (0, 3, 7)]
    result["clients"] = {
        key: {"worst_tenth": 0.123 + 0.1 * n} for n, key in enumerate(["accuracy", "accuracy_untrained"])
    }
    return result


MADE = {
    "accuracies": (
        lambda of: text(accuracy_table(of)),
        summary("accuracy", "before_adaptation", "untrained", "pixel_prototype", "pixel_neighbour", "own_majority"),
    ),
    "errors": (lambda of: text(error_table(of)), summary("error", "before_adaptation", "untrained", "own_mean")),
    "evaluation": (lambda of: text(*evaluation_tables("run", of)), evaluation(1)),
    "evaluations": (lambda of: text(*evaluation_tables("run", of)), evaluation(1, 5, 20)),
}
# Of the rows below the first the sizes are the first one's.
SAID_ONCE = {*SIZES}


def numbers(value, at=()):
    """Places of the numbers, without sizes that stand in the title."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in SAID_ONCE:
                yield from numbers(each, (*at, key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from numbers(each, (*at, place))
    elif isinstance(value, float):
        yield at


@pytest.mark.parametrize("kind", MADE)
def test_whatever_number_is_another_the_table_is_another(kind):
    show, content = MADE[kind]
    shown, places = show(content), [at for at in numbers(content) if "validation" not in at]
    assert len(places) > 7
    for at in places:
        changed = copy.deepcopy(content)
        *before, last = at
        place = changed
        for key in before:
            place = place[key]
        place[last] *= 1.5
        assert show(changed) != shown, at


@pytest.mark.parametrize("kind", MADE)
def test_a_model_that_does_not_adapt_by_itself_has_one_row(kind):
    """Whatever else stands beside the number: steps, episodes, measures."""
    show, content = MADE[kind][0], copy.deepcopy(MADE[kind][1])
    assert "before adaptation" in show(content)
    for of in content.get("results", [content]):
        name = "error" if "error" in of else "accuracy"
        of[f"{name}_before_adaptation"] = {**of[name], "steps": 0, "further": 0.3}
    assert "before adaptation" not in show(content)


@pytest.mark.parametrize(
    ("name", "sign", "shown"), [("accuracy", 1.0, "accuracy 50% against"), ("error", -1.0, "error 0.5 against")]
)
def test_a_run_that_is_worse_than_its_untrained_weights_says_so(name, sign, shown):
    for apart, worse in ((0.1, False), (0.0, False), (-0.1, True)):
        of = {name: {"mean": 0.5}, f"{name}_untrained": {"mean": 0.5 - sign * apart}}
        found = lost_words(of)
        assert (found is not None and shown in found) == worse
    assert lost_words({name: {"mean": 0.5}}) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_model_has_a_column_wherever_the_client_stands_that_was_not_judged(place):
    """As `judge` leaves a client whose records cannot be split."""
    values = {"ours": 0.61, "alone": 0.47}
    measures = {name: dict(values) for name in OWN_CLASSES.measure_names}
    sound = [
        PersonScores(name=name, records={"a": 3, "b": 3}, judged=6, measures=measures, ci95=dict.fromkeys(values, 0.01))
        for name in ("one", "two")
    ]
    few = PersonScores(name="few", records={"a": 1}, judged=0, measures={name: {} for name in measures}, ci95={})
    shown = text(*people_tables([*sound[:place], few, *sound[place:]]))
    (heads,) = (line for line in shown.splitlines() if "client" in line and "records" in line and "classes" in line)
    assert all(name in heads for name in values)
    assert shown.count("61.0 ± 1.0") == 2
    assert "not judged, with fewer than two classes of two records each: 1 (few)" in shown


def test_one_split_says_nothing_of_others():
    measures = {name: {"ours": 0.61} for name in OWN_CLASSES.measure_names}
    people = [
        PersonScores(name=name, records={"a": 3, "b": 3}, judged=6, measures=measures, ci95={"ours": None})
        for name in ("one", "two")
    ]
    each, every = (text(table) for table in people_tables(people) if not isinstance(table, str))
    assert "61.0" in each
    assert "±" not in each
    assert "±" in every


@pytest.mark.parametrize("most", [2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 20, 1000])
def test_of_many_steps_the_first_the_last_and_as_many_as_fit_are_shown(count, most):
    steps = list(range(0, 3 * count, 3))
    found = selected(steps, most)
    assert found == sorted(set(found) & set(steps))
    assert len(found) <= min(count, most)
    assert {found[0], found[-1]} == {steps[0], steps[-1]}
    # Denser at the beginning.
    assert len(found) < 4 or found[1] - found[0] <= found[-1] - found[-2]
    assert len(found) == min(count, most) or most == 8


@pytest.mark.parametrize("kind", names(target_kind.KINDS))
def test_a_measure_is_said_in_words(kind):
    """Not by the name that files have for it."""
    for name in find("task.kind", kind, target_kind.KINDS).measure_names:
        assert _words(name) == {
            "auc": "AUC", "mae": "mean absolute error", "rmse": "RMSE", "r2": "R2", "accuracy": "accuracy",
            "balanced": "balanced",
        }[name]  # fmt: skip


@pytest.mark.parametrize(("moved", "said"), [
    (Moved(), ("moves a sum by one clip bound;", "a client sends another message, which may move it by two")),
    (ANSWERED, ("moves a sum by one answer;", "a client answers otherwise, which may move it by two")),
])  # fmt: skip
def test_why_a_record_lies_above_its_client_is_said_of_what_is_summed(moved, said):
    plan = PrivacyPlan(clients=100, cohort=10.0, rounds=2, noise_multiplier=2.0, client_delta=1e-5, record_delta=1e-5)
    (why,) = why_above(guarantees(plan), moved)
    assert all(words in why for words in said)


@pytest.mark.parametrize("trained", [3, 5, 64, 1000])
def test_steps_are_in_their_order_and_those_of_the_run_among_them(trained):
    steps = [0, 1, 2, 3, 5, 64, 33, 1000, 200, 7, 129, 18]
    one = evaluated(1)
    one["accuracy"]["steps"] = trained
    one["by_steps"] = [{"steps": step, "accuracy": score(step % 9)} for step in sorted(steps)]
    shown = text(*evaluation_tables("run", {"protocol": "P", "note": None, "results": [one]}))
    table = shown[shown.index("by gradient steps") :]
    own = rf"{trained} \(the run's own\)"
    found = [int(line) for line in re.findall(r"^│? *(\d+)(?: \(the run's own\))? +│", table, re.M)]
    assert found == sorted(found)
    assert trained in found
    assert len(found) in (7, 8, 9)
    assert len(re.findall(own, table)) == 1


@pytest.mark.parametrize("count", [_MOST_ROWS - 1, _MOST_ROWS, _MOST_ROWS + 1, _MOST_ROWS + 7])
def test_of_many_clients_the_first_are_shown_and_the_others_counted(count):
    measures = {name: {"ours": 0.61} for name in OWN_CLASSES.measure_names}
    each = [
        PersonScores(name=f"c{n:03}", records={"a": 3, "b": 3}, judged=6, measures=measures, ci95={"ours": 0.01})
        for n in range(count)
    ]
    shown = text(*people_tables(each))
    assert [f"c{n:03}" in shown for n in range(count)] == [n < _MOST_ROWS for n in range(count)]
    assert (f"... and {count - _MOST_ROWS} more; all of them are in the files" in shown) == (count > _MOST_ROWS)
    assert ("more; all" in shown) == (count > _MOST_ROWS)
