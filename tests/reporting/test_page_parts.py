"""Sentences of the pages one by one: every number is the one that was computed, and each is there where it holds."""

import itertools
import math
import time
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.compare.seed_groups import Measured
from dpfedmeta.reporting.html import evaluation_section, page, privacy_statement, run_page
from dpfedmeta.reporting.html.page import watch
from dpfedmeta.reporting.html.privacy_statement import plan_words, server_words
from dpfedmeta.reporting.html.run_page import ending_words, refresh, warning
from dpfedmeta.reporting.html.top_of_page import (
    clip_words,
    compared_words,
    observer_rows,
    promised_words,
    reached_words,
)
from dpfedmeta.training.results.round_rows import TOO_LONG

CELLS = (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))


def cells(*epsilons, delta=1e-5):
    return tuple(
        Guarantee(
            unit=unit, observer=observer, delta=delta, adjacency="zero-out",
            bounds=(Bound(method="none" if math.isinf(epsilon) else "pld", epsilon=epsilon, event="", formula=""),),
        )
        for (unit, observer), epsilon in zip(CELLS, epsilons, strict=True)
    )  # fmt: skip


def warned(words=None, **given):
    shown = {"stage": "completed", "rounds": 7, "go_on": "dpfedmeta train --resume runs/r"}
    proven = SimpleNamespace(rounds=7, content=SimpleNamespace(plan=SimpleNamespace(rounds=20)))
    return warning(SimpleNamespace(**shown | given), words, proven)


@pytest.mark.parametrize("done", [5, 7])
def test_an_interrupted_run_says_how_many_rounds_its_numbers_are_of_and_how_many_more_are_charged(done):
    said = warned(stage="interrupted", rounds=done)
    assert said.startswith(f"INTERRUPTED after {done} of 20 rounds")
    assert (" (2 more charged)" in said) == (done == 5)
    assert "dpfedmeta train --resume runs/r" in said


@pytest.mark.parametrize("words", [None, "running: 7 of 20 rounds so far"])
def test_a_page_of_a_run_that_goes_on_says_so_twice_and_one_of_its_end_how_long_it_took(words):
    summary = {"clients_per_second": 149.6, "seconds": 119.0, "status": "completed"}
    for times in (None, "coarse"):
        said = ending_words(words, summary | {"times": times})
        if words:
            assert said == f"{words}."
        elif times:
            assert said == "completed after at most 4 min of training (about 150 clients/s; coarse)."
        else:
            assert said == "completed after 2 min of training (150 clients/s)."
    assert warned(words) == (
        words
        and f"{words}. Accuracies and the epsilon spent are for these rounds; the epsilon promised is for all rounds."
    )


@pytest.mark.parametrize("stage", ["running", "stopped", "completed", "budget", "interrupted"])
def test_only_the_page_of_a_running_run_reads_itself_again(stage):
    assert bool(refresh(stage)) == (stage == "running")


@pytest.mark.parametrize("count", [0, 1, 5, 6, 9])
def test_of_many_rounds_that_are_too_long_the_first_five_are_shown_and_the_others_counted(monkeypatch, count):
    monkeypatch.setattr(run_page, "too_long_words", lambda row: f"round {row['round']}")
    rows = [{"round": n} | ({TOO_LONG: 1.0} if n % 2 else {}) for n in range(2 * count)]
    found = run_page.of_rows(rows)["too_long"]
    assert found[:5] == [f"Round {2 * n + 1}" for n in range(min(count, 5))]
    assert found[5:] == ([f"The same holds for {count - 5} more rounds (see rounds.jsonl)"] if count > 5 else [])


@pytest.mark.parametrize("lasts", [(1, 3), (3, 1), (1, 1), (2, 2)])
def test_a_watch_writes_what_changed_while_runs_go_on_and_the_page_of_each_end(monkeypatch, tmp_path, lasts):
    """The page of the end is written after the end was seen, and once."""
    runs = [RunDirectory(tmp_path / name) for name in "ab"]
    for run in runs:
        run.path.mkdir()
    looks, written, pauses = dict.fromkeys(runs, 0), [], []

    def stage(run):
        looks[run] += 1
        return "running" if looks[run] < lasts[runs.index(run)] else "completed"

    monkeypatch.setattr(page, "stage_of", stage)
    monkeypatch.setattr(page, "write_report", lambda run: written.append((run.path.name, looks[run])))
    watch(runs, 0.5, pauses.append)
    for run, last in zip(runs, lasts, strict=True):
        own = [look for name, look in written if name == run.path.name]
        # Nothing changed between: the first look and the last one.
        assert own == sorted({1, last})
    assert len(pauses) == max(lasts) - 1
    assert all(pause >= 0.5 for pause in pauses)


@pytest.mark.parametrize(("took", "pause"), [(0.05, 0.5), (0.1, 0.5), (0.3, 1.5), (2.0, 10.0)])
def test_a_watch_rests_four_times_as_long_as_its_pages_take(monkeypatch, tmp_path, took, pause):
    """At most a fifth of the time goes into pages."""
    stages, clock, pauses = iter(["running", "completed"]), iter([100.0, 100.0 + took, 200.0]), []
    monkeypatch.setattr(page, "stage_of", lambda run: next(stages))
    monkeypatch.setattr(page, "write_report", lambda run: None)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch([RunDirectory(tmp_path)], 0.5, pauses.append)
    assert pauses == [pytest.approx(pause)]


@pytest.mark.parametrize("participations", [None, 3])
@pytest.mark.parametrize("earlier", [(), ("a", "b")])
def test_the_sizes_that_guarantees_are_for(participations, earlier):
    plan = SimpleNamespace(cohort=12.5, clients=40_000, earlier=earlier, max_participations=participations)
    said = plan_words(SimpleNamespace(content=SimpleNamespace(plan=plan)), 7)
    assert said.startswith("7 rounds, expected cohort 12.5 of 40,000 clients")
    assert (", after 2 analyses of the same clients, which every cell counts" in said) == bool(earlier)
    assert (", at most 3 participation(s) each" in said) == (participations is not None)


@pytest.mark.parametrize("sees", ["messages", "sum"])
@pytest.mark.parametrize("whole", [None, SimpleNamespace(bits=17)])
@pytest.mark.parametrize("degree", [None, 6])
def test_what_the_server_sees_is_as_its_sums_are_made(monkeypatch, sees, whole, degree):
    monkeypatch.setattr(
        privacy_statement, "constants_of_the_sum", lambda plan: {"degree": degree, "fewest_survivors": 9}
    )
    plan = SimpleNamespace(server_sees=sees, cohort=12.0, at=lambda round_: SimpleNamespace(whole=whole))
    said = server_words(SimpleNamespace(content=SimpleNamespace(plan=plan)))
    assert ("who sent it" in said) == (sees == "messages")
    masked = sees == "sum" and whole is not None
    assert ("modulo 2^17" in said) == ("if 9 of 12 answer" in said) == masked
    assert ("shares masks with 6 others" in said) == (masked and degree is not None)


@pytest.mark.parametrize("held", list(itertools.product([False, True], repeat=4)))
def test_every_cell_stands_in_the_promise_with_its_bound_or_among_those_that_hide_nobody(held):
    first, second = ([n + place if kept else math.inf for place, kept in enumerate(held, 1)] for n in (0.25, 0.125))
    said = promised_words(SimpleNamespace(promised=cells(*first), cells=cells(*second)))
    for (unit, observer), kept, one, two in zip(CELLS, held, first, second, strict=True):
        due = f"one {unit}, towards the {observer}: epsilon {rounded_up(one)} at delta 1e-05 ({rounded_up(two)} spent)"
        assert due in said if kept else due not in said
        if any(held):
            assert (f"a {unit} towards the {observer}" in said) == (not kept)
    assert (said == "nothing: no bound hides anybody.") == (not any(held))
    assert ("Not hidden" in said) == (any(held) and not all(held))


@pytest.mark.parametrize("sees", ["messages", "sum"])
def test_who_sees_what_has_each_cell_in_its_place(sees):
    rows = observer_rows(cells(0.5, 1.5, math.inf, 3.5), sees)
    assert [row["who"] for row in rows] == ["the public", "the server"]
    assert (rows[0]["one client"], rows[1]["one client"]) == ("epsilon 0.5", "epsilon 1.5")
    assert (rows[1]["one record"], rows[0]["one record"]) == ("not hidden", "epsilon 3.5")
    assert ("Every message" in rows[1]["sees"]) == (sees == "messages")
    # A bound that hides nobody is said to be one.
    (public, _) = observer_rows(cells(800.0, 1.5, 2.5, 3.5), sees)
    assert public["one client"] == f"not hidden (epsilon {rounded_up(800.0)})"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_bound_is_said_from_its_first_to_its_last_round(rows):
    bounds = [0.5, 0.125, 0.25][:rows]
    told = [{"clip": bound, "signal_to_noise": None} for bound in bounds]
    said = clip_words([{"clip": None}, *told, {}])
    assert said.startswith(f"The clip bound began at 0.5 and ended at {bounds[-1]:.3g}")
    assert ("lowest 0.125, highest 0.5" in said) == (rows == 3)
    assert "told from noise" not in said
    assert f"In 1 of {rows} rounds" in clip_words([*told[1:], told[0] | {"signal_to_noise": 0.0}])


def setting(label, client, record, algo="dp-agr", dataset="data/strokes"):
    epsilons = {("client", "public"): client, ("record", "server"): record}
    return SimpleNamespace(label=label, epsilons=epsilons, summaries=[{"algo": algo, "dataset": dataset}])


def test_settings_are_compared_by_the_least_and_the_largest_epsilon_of_each_cell():
    groups = [setting("a", 2.0, None), setting("b", 1.5, 3.0, algo="maml"), setting("c", 2.5, None)]
    assert compared_words(groups) == (
        "3 settings of dp-agr, maml on strokes; one client, towards the public: epsilon 1.5 to 2.5; one record, "
        "towards the server: epsilon 3 (2 without)."
    )
    assert compared_words(groups[:1] * 2) == (
        "2 settings of dp-agr on strokes; one client, towards the public: epsilon 2."
    )


@pytest.mark.parametrize(("summary", "said"), [
    ({}, "not evaluated; 7 of 20 rounds are done."),
    ({"error": {"mean": 0.5123, "ci95": 0.0456}}, "mean absolute error 0.5123 ± 0.046 after 7 of 20 rounds."),
    ({"accuracy": {"mean": 0.912, "ci95": 0.0151}}, "91.2% ± 1.5 on d, after 7 of 20 rounds."),
])  # fmt: skip
def test_what_was_reached_is_said_of_what_was_measured(summary, said):
    assert reached_words({"rounds": 7, "dataset": "x/d", **summary}, 20) == said


def test_a_percentage_is_of_a_summary_or_of_seeds():
    assert run_page._percent({"mean": 0.1234, "ci95": 0.0567}) == "12.3% ± 5.7"
    assert run_page._percent(Measured(mean=0.1234, ci95=0.0567, runs=2)) == "12.3% ± 5.7"
    assert run_page._percent(None) == run_page._percent({}) == "not evaluated"


def test_an_evaluation_says_all_that_it_measured_on_and_of_which_state():
    accuracy = {"episodes": 1600, "steps": 30}
    content = {
        "results": [{"ways": 5, "shots": 2, "queries": 15, "accuracy": accuracy}],
        "seeds": [3, 4],
        "note": "mine",
    }
    content |= {"status": "interrupted", "rounds": 7, "planned_rounds": 20}
    assert evaluation_section._measured(content) == (
        "5-way 2-shot; 15 queries per class; 30 steps; 1,600 episodes, seed 3, 4; "
        "INTERRUPTED after 7 of 20 rounds; mine"
    )
