"""Epsilons for people: an upper bound is never printed below its value, whatever prints it."""

import ast
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dpfedmeta.accounting.events.guarantee import Bound, FourGuarantees, Guarantee
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.accounting.rounded import asked, rounded_down, rounded_up
from tests.parsed import PACKAGE, modules, nodes_of

HARD = (1.4999, 1.00005, 3.14159265, 2.4951, 0.0304049, 99.94999, 613.2, 1234.01)
DELTA = 1 / 299_999


@given(value=st.floats(1e-300, 1e300), digits=st.integers(1, 9))
def test_what_is_printed_is_never_on_the_wrong_side(value, digits):
    up, down = float(rounded_up(value, digits)), float(rounded_down(value, digits))
    assert down <= value <= up
    assert up - down <= 1.01 * 10.0 ** (math.floor(math.log10(value)) + 1 - digits)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (1.4999, "1.5", "1.49"),
        (1.00005, "1.01", "1"),
        (2.4951, "2.5", "2.49"),
        (999.1, "1000", "999"),
        (1e-5, "1e-05", "1e-05"),
        (0.1, "0.1", "0.1"),
        (0.0, "0", "0"),
        (None, "inf", "inf"),
        (math.inf, "inf", "inf"),
    ],
)
def test_how_bounds_are_written(value, up, down):
    assert (rounded_up(value), rounded_down(value)) == (up, down)


def test_what_was_asked_for_has_more_digits():
    assert [asked(value) for value in (1.00005, 1 / 3, 1e-6, 1.0000001)] == ["1.00005", "0.333334", "1e-06", "1.00001"]


def bound(method, epsilon):
    return Bound(method=method, epsilon=epsilon, event="seen", formula="formula")


def cells(epsilon):
    """Four cells with this epsilon in every place where a cell has one."""
    bounds = (bound("pld", epsilon), bound("gdp", epsilon * 1.5))
    return FourGuarantees(
        Guarantee(
            unit=unit,
            observer=observer,
            delta=DELTA,
            adjacency="zero-out",
            bounds=bounds,
            relations=dict.fromkeys(RELATIONS, epsilon),
        )
        for unit, observer in (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))
    )


def terminal(four):
    from dpfedmeta.training.terminal.tables import as_text, guarantee_table, guarantee_words

    return as_text(guarantee_table(four, "t"), *guarantee_words(four))


def lines_of_rounds(four):
    from dpfedmeta.training.terminal.progress import _spent

    return _spent({"epsilons": {f"{cell.unit}_{cell.observer}": cell.epsilon for cell in four}})


def python(four):
    return repr(four)


def rows_in_python(four):
    from dpfedmeta.api.run import _shown

    return _shown("epsilon_client_public", four[0].epsilon)


def statement(four):
    from dpfedmeta.cli.run_statement import _of_cell

    return "\n".join(line for cell in four for line in _of_cell(cell, "messages") if "epsilon =" in line)


def papers(four):
    """Every paper, and the number of the registry."""
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.cli.papers import Account, papers_of

    plan = PrivacyPlan(clients=7, cohort=7.0, rounds=7, noise_multiplier=7.0, sampler="fixed", client_delta=7e-7)
    made = papers_of(Account(name="r", plan=plan, cells=tuple(four), phases=plan.phases, clients="real"))
    lines = "\n".join(made[name] for name in ("dpia.yaml", "model-card.yaml")).splitlines()
    return "\n".join(line for line in lines if re.search(r"epsilon[:=] |epsilon = |^ +[a-z-]+: [0-9.]+e?", line))


def analysis(four):
    from dpfedmeta.analytics.statement import cell_words

    return "\n".join(cell_words(cell.as_json()) for cell in four)


def model_card(four):
    from dpfedmeta.training.results.model_card import _lines

    plan = SimpleNamespace(clients=7, cohort=7.0, sampler="fixed", noise="independent")
    proven = SimpleNamespace(cautions=())
    found = SimpleNamespace(plan=plan, proven=proven, guarantees=four, unverified="not verified: x")
    summary = {"algo": "dp-agr", "dataset": "strokes", "rounds": 7, "begins_with": None}
    return "\n".join(line for line in _lines("r", summary, found, "0") if line.startswith("| "))


def report(four):
    from dpfedmeta.reporting.html.privacy_statement import guarantee_rows
    from dpfedmeta.reporting.html.top_of_page import observer_rows, promised_words

    settings = SimpleNamespace(
        server=SimpleNamespace(noise="independent"),
        aggregation=SimpleNamespace(mode="messages"),
        population=SimpleNamespace(sampler="poisson"),
        record=SimpleNamespace(enabled=False),
    )
    proven = SimpleNamespace(promised=four, cells=four, settings=settings)
    shown = [*guarantee_rows(proven), *observer_rows(four, "messages")]
    return "\n".join([promised_words(proven), *(text for row in shown for text in row.values())])


def trackers(four):
    from dpfedmeta.training.tracking.flatten_rows import guarantee_sheet

    found = [cell.as_json() for cell in four]
    return "\n".join(str(row[-1]) for row in guarantee_sheet({"planned": found, "guarantees": found}).rows)


def logs_of_clients(four):
    from dpfedmeta.federation.client.client_log import cell_words, epsilon_words

    return "\n".join([epsilon_words(four[0].epsilon), *(cell_words(cell) for cell in four)])


def labels_of_settings(four):
    from dpfedmeta.reporting.compare.seed_groups import describe

    return describe({"privacy.client.epsilon": four[0].epsilon, "privacy.client.delta": four[0].delta})


def pictures(four):
    from dpfedmeta.reporting.plots.epsilon_plot import tick_words

    return " ".join(tick_words([cell.epsilon for cell in four]).values())


def tables_of_papers(four):
    from dpfedmeta.reporting.compare.latex_tables import _epsilon

    cell = ("client", "public")
    group = SimpleNamespace(epsilons={cell: four[0].epsilon}, relations={cell: {"in-place": four[0].epsilon}})
    return _epsilon(group, cell, "in-place")


OUTPUTS = (
    terminal, lines_of_rounds, python, rows_in_python, statement, papers, analysis, model_card, report, trackers,
    logs_of_clients, pictures, tables_of_papers, labels_of_settings,
)  # fmt: skip


@pytest.mark.parametrize("value", HARD)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_prints_an_epsilon_below_its_value(output, value):
    numbers = [float(found) for found in re.findall(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", output(cells(value)))]
    near = [number for number in numbers if 0.9 * value < number < 1.1 * value]
    assert near, numbers
    assert min(near) >= value
    deltas = [number for number in numbers if 0.99 * DELTA < number < 1.01 * DELTA]
    assert all(number >= DELTA for number in deltas)


def test_an_audit_is_rounded_down_and_its_promise_up():
    from dpfedmeta.auditing.rounds.audit_rounds import RoundsVerdict, badge_words
    from dpfedmeta.privacy.rounds.promise import PromisedCell

    promised = PromisedCell(epsilon=1.4999, delta=1e-5)
    verdict = RoundsVerdict(
        promised=promised, audited=2.4959, confirmed=2.4959, relation="add-remove", rounds=1, calls=10,
        runs=10, seed=0,
    )  # fmt: skip
    assert "epsilon is at least 2.49," in str(verdict)
    assert "epsilon >= 2.49 " in badge_words(verdict, "day")
    assert "lower bound 1.49 " in badge_words(replace(verdict, audited=1.4999, confirmed=None), "day")


# The least and the most that may be asked for; a rare event of a formula in ledgers.
ECHOES = {"config/fields.py", "accounting/observers/server_observer.py"}
COUNTS = ("max(1.0, delta * records)", "float(beyond.abs().max())", "beyond[0]")
NAMES = re.compile(r"epsilon|delta|spent|promised|audited|confirmed|beyond")
# Programs beside the package, and tests of tables on pages.
BESIDE = ("benchmarks", "examples", "scripts", "tests/documentation")


def formatted(nodes):
    """Pieces of f-strings that format what is called like a bound."""
    for node in nodes:
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec, shown = ast.unparse(node.format_spec), ast.unparse(node.value)
            if re.search(r"[gfe]'?$", spec) and NAMES.search(shown) and shown not in COUNTS:
                yield shown


def test_bounds_are_written_by_one_function():
    own = [path for path in modules() if str(path.relative_to(PACKAGE)) not in ECHOES]
    root = PACKAGE.parent
    beside = [path for folder in BESIDE for path in sorted((root / folder).rglob("*.py"))]
    assert {path.relative_to(root).parts[0] for path in beside} == {folder.split("/")[0] for folder in BESIDE}
    wrong = {f"{path.relative_to(root)}: {shown}" for path in (*own, *beside) for shown in formatted(nodes_of(path))}
    assert not wrong


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
def test_the_page_of_a_server_rounds_up_in_every_form():
    """Small and large numbers have fewer digits there; a delta is always small."""
    page = (PACKAGE / "federation/server/page.html").read_text(encoding="utf-8")
    script = page[page.index("const number") : page.index("function table")]
    values = [*HARD, DELTA, 1.2344e-5, 1.0004e-3, 9.9999e-4, 1e-5, 0.1, 8.0, 999.97, 3730673.2]
    run = f"{script} console.log(JSON.stringify({values}.map(upper)))"
    shown = json.loads(subprocess.run(["node", "-e", run], capture_output=True, check=True).stdout)
    for value, text in zip(values, shown, strict=True):
        assert value <= float(text) <= 1.01 * value
    assert shown[values.index(1e-5)] == "1.00e-5"
