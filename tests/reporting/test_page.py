import base64
import json
import math
import re
import shlex
from dataclasses import replace
from functools import partial

import pytest

from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, read_content, spent
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.private_selection import RunCount, selection_cost
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.api.run import Run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import SELECTION, RunDirectory, append_lines, create
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.secure_sum_settings import noise_of_unit_bound
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.reporting.compare import seed_groups
from dpfedmeta.reporting.compare.latex_tables import csv_table, latex_table, row_of
from dpfedmeta.reporting.compare.seed_groups import group_runs
from dpfedmeta.reporting.html.page import write_comparison, write_report
from dpfedmeta.reporting.html.privacy_statement import plan_words, server_words
from dpfedmeta.reporting.html.run_page import AGREES, check_report, embedded
from dpfedmeta.training.results.facts import aggregation, plan_facts
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.results.summary import ACCURACIES
from dpfedmeta.training.terminal.tables import HOLDS
from dpfedmeta.training.verification.chosen_run import choice_words, selection_content
from dpfedmeta.training.verification.proven import Proven, state_choice
from dpfedmeta.training.verification.replan import settings_of_ledger
from dpfedmeta.training.verification.verify import audit
from tests.training.described import described, identity

GIVEN = {
    "server.rounds": "3", "server.noise_multiplier": "3.0", "record.query_noise": "1.6",
    "population.max_participations": "1", "population.cohort": "300", "population.clients": "400000",
}  # fmt: skip


CHOSEN = {
    "privacy.client.epsilon": "null", "privacy.client.delta": "1e-4", "population.clients": "400",
    "population.cohort": "40", "server.noise_multiplier": "0.6",
}  # fmt: skip
KINDS = ("spent", "planned")


def accuracy(mean):
    return {"mean": mean, "ci95": 0.004, "episodes": 600, "protocol": "single model"}


@pytest.fixture
def make_run(tmp_path):
    return partial(written_run, tmp_path)


def written_run(tmp_path, name="r", algo="dp-agrlr-micro", dataset="strokes", charged=3, given=GIVEN, **changes):
    """A run directory without training: its files say what its ledger adds up to."""
    *parents, plain = name.split("/")
    folder = tmp_path.joinpath("runs", *parents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    run = create(folder, plain)
    settings = resolve(algo, dataset, None, given)
    task = load_task(dataset)[0]
    plan = make_privacy(settings, task)
    ledger = Ledger(run.ledger, plan, identity(settings, plan))
    for place in range(charged):
        ledger.charge(planned_charge(plan, place))
    noise = noise_of_unit_bound(settings, task, plan) if plan.noise_multiplier else 0.0
    append_lines(run.path / "rounds.jsonl", [line(plan, number, noise) for number in range(charged)])
    run.write_json("summary.json", summary_of(run, settings, plan) | changes)
    return run


def chosen_run(tmp_path, mean=3.0, **changes):
    """A run as a private sweep releases it, and its price."""
    left_out = ("record.query_noise", "population.max_participations")
    given = {name: value for name, value in GIVEN.items() if name not in left_out}
    run = written_run(tmp_path, algo="dp-agr", given=given | CHOSEN, **changes)
    content = read_content(run.ledger)
    (run.path / "config.yaml").write_text(content.identity.config)
    cost = selection_cost([content.plan], RunCount(mean=mean))
    run.write_json(SELECTION, selection_content(cost, [content.plan]))
    state_choice(run, Proven.of(run, content))
    return run, cost


def line(plan, number, noise):
    after = guarantees(plan, rounds=number + 1)
    return {
        "round": number,
        "clip": 0.3 if plan.noise_multiplier else None,
        "aggregate_norm": 0.2,
        "noise_norm_expected": noise * 0.3 * planned_deviation(plan.at(number), number) / plan.cohort,
        "epsilons": {f"{cell.unit}_{cell.observer}": cell.as_json()["epsilon"] for cell in after},
        "seconds": 1.0,
        "clients_per_second": 150.0,
        **({"validation_accuracy": accuracy(0.5 + 0.1 * number)} if number else {}),
    }


def summary_of(run, settings, plan):
    proven = Proven.of(run, read_content(run.ledger))
    return {
        "status": "completed" if proven.rounds == plan.rounds else "interrupted",
        "rounds": proven.rounds,
        **proven.summary_facts(),
        "accuracy": accuracy(0.91),
        "accuracy_before_adaptation": accuracy(0.2),
        "accuracy_untrained": accuracy(0.55),
        "accuracy_pixel_prototype": accuracy(0.66),
        "accuracy_pixel_neighbour": accuracy(0.64),
        "seconds": 120.0,
        "clients_per_second": 150.0,
        "peak_memory_mb": 300.0,
        "versions": {"dpfedmeta": "0.1.0", "torch": "2.13.0"},
    }


def assert_self_contained(page):
    # Data may be embedded, programs not.
    page = re.sub(r'<script type="application/json" id="shown">[^<]*</script>', "", page)
    assert not re.search(r"https?://|@import|<script|<link|url\(", page)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    for source in sources:
        kind, _, content = source.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(content, validate=True).startswith(b"\x89PNG\r\n\x1a\n")
    return len(sources)


def rows_of(page):
    """Texts of the cells of each table row."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[re.sub(r"<.*?>", "", c).strip() for c in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", r, re.S)] for r in rows]


def tables_of(page):
    """Rows of each table."""
    return [rows_of(table) for table in re.findall(r"<table[^>]*>(.*?)</table>", page, re.DOTALL)]


def test_the_report_is_one_file_with_its_pictures_inside_and_beside(make_run):
    run = make_run()
    path = write_report(run)
    assert path == run.path / "report.html"
    page = path.read_text(encoding="utf-8")
    assert assert_self_contained(page) == 3
    assert_described(page, run.path.name)
    assert "no git commit: an installed package, or git is not at hand" in page
    assert "The server sees every message, and who sent it. A dishonest client" in " ".join(page.split())
    assert {p.name for p in run.path.glob("*.png")} == {"accuracy.png", "clip.png", "guarantees.png"}


def test_the_four_cells_stand_in_it_with_inf_where_nothing_is_promised(make_run):
    run = make_run(algo="dp-agr", given={"server.rounds": "3", "server.noise_multiplier": "1.0"}, charged=2)
    page = write_report(run).read_text(encoding="utf-8")
    assert "lies above" not in page
    rows = rows_of(page)
    found = {tuple(row[:2]): row[2:4] for row in rows if row[0] in ("client", "record")}
    promised, so_far = (run.read_json("summary.json")[name] for name in ("planned", "guarantees"))
    assert found == {
        (one["unit"], one["observer"]): [rounded_up(one["epsilon"]), rounded_up(two["epsilon"])]
        for one, two in zip(promised, so_far, strict=True)
    }
    assert found["client", "server"] == found["record", "server"] == ["inf", "inf"]
    assert found["client", "public"][0] != found["client", "public"][1]


def test_what_it_embeds_is_what_it_shows(make_run):
    run = make_run()
    page = write_report(run).read_text(encoding="utf-8")
    block = json.loads(re.search(r'<script type="application/json" id="shown">(.*?)</script>', page).group(1))[
        "summary"
    ]
    assert block == run.read_json("summary.json")
    shown = [row[:4] for row in rows_of(page) if row[0] in ("client", "record")]
    both = zip(block["planned"], block["guarantees"], strict=True)
    assert shown == [
        [two["unit"], two["observer"], rounded_up(one["epsilon"]), rounded_up(two["epsilon"])] for one, two in both
    ]
    assert check_report(read_run(run), audit(run).proven) == [f"report.html {AGREES}"]


def test_errors_and_majorities_stand_beside_what_was_learned(make_run):
    scores = {
        f"error{end}": accuracy(1.0 + place) for place, end in enumerate(("", "_before_adaptation", "_untrained"))
    }
    none = {f"accuracy{end}": None for end in ACCURACIES}
    run = make_run(**none, **scores, error_own_mean=accuracy(7.25))
    page = write_report(run).read_text(encoding="utf-8")
    assert "Mean absolute error of personalised adaptation" in page
    shown = {row[0]: row[1] for row in rows_of(page) if len(row) == 2}
    assert shown["mean of a client&#39;s own targets"].startswith("7.25 ±")
    assert "not evaluated" not in page
    page = write_report(make_run("other", accuracy_own_majority=accuracy(0.8125))).read_text(encoding="utf-8")
    assert "majority of a client's own records" in page.replace("&#39;", "'")
    assert "81.2%" in page


def test_cautions_are_those_of_the_settings_whatever_plan_json_says(make_run, monkeypatch):
    given = {
        "server.rounds": "3",
        "server.noise_multiplier": "1.0",
        "population.clients": "10",
        "population.cohort": "10",
    }
    run = make_run(algo="dp-agr", given=given)
    (run.path / "plan.json").write_text('{"cautions": ["an auditor certified it"]}')
    monkeypatch.setattr("dpfedmeta.training.verification.verify.check_plan_file", lambda run, by: [])
    page = " ".join(write_report(run).read_text(encoding="utf-8").split())
    assert "noise that hides one client of so few leaves little to learn" in page
    assert "an auditor certified it" not in page


def test_a_first_paragraph_with_more_words_is_no_paragraph_of_the_ledger(make_run):
    run = make_run(algo="dp-agr", given={"server.rounds": "3", "server.noise_multiplier": "1.0"})
    page = write_report(run).read_text(encoding="utf-8")
    words = plan_words(audit(run).proven, 3)
    for more in (", at most 1 participation(s) each", " (verified)"):
        (run.path / "report.html").write_text(page.replace(words, words + more))
        with pytest.raises(InputError, match=r"report\.html, line \d+: states"):
            check_report(read_run(run), audit(run).proven)


def test_a_chosen_run_without_its_summary_is_still_stated_at_the_price_of_the_choice(tmp_path):
    run, cost = chosen_run(tmp_path)
    (run.path / "summary.json").unlink()
    content = read_content(run.ledger)
    settings = settings_of_ledger(run.ledger, content)
    said = plan_facts(settings, content.plan, guarantees(content.plan), described(settings, content.plan))
    run.write_json("plan.json", said)
    found = seed_groups._summary(run)
    for cells in (found["guarantees"], found["planned"]):
        assert {cell["epsilon"] for cell in cells} == {cost.epsilon, None}


def test_what_contradicts_the_ledger_gets_no_report(make_run):
    cells = make_run("other").read_json("summary.json")["guarantees"]
    run = make_run(guarantees=[*cells[:2], cells[2] | {"delta": 1e-9}, cells[3]])
    with pytest.raises(InputError, match=r"summary\.json: guarantees \(record, server\)\.delta: states 1e-09"):
        write_report(run)
    assert not (run.path / "report.html").exists()


SUMS = {
    "server.rounds": "3", "server.noise_multiplier": "2.0", "population.cohort": "300", "aggregation.dimension": "2000",
}  # fmt: skip


@pytest.fixture
def run_of_sums(make_run):
    settings = resolve("dp-agr-secure", "strokes", None, SUMS)
    plan = make_privacy(settings, load_task("strokes")[0])
    stated = aggregation("secure", plan)
    return make_run(algo="dp-agr-secure", given=SUMS, aggregation=stated)


def test_what_a_page_and_a_summary_say_of_sums_is_the_ledgers(run_of_sums):
    words = server_words(audit(run_of_sums).proven)
    assert "the sum of their messages modulo 2^16" in words
    assert "if 270 of 300 answer" in words
    assert "shares masks with 28 others" in words
    summary = run_of_sums.read_json("summary.json")
    stated = summary["aggregation"]
    assert stated == {
        "mode": "secure", "server_sees": "sum", "dimension": 2000, "dropout": 0.1, "adversarial": 0.05, "bits": 16,
        "sensitivity_factor": stated["sensitivity_factor"], "fewest_survivors": 270, "degree": 28, "threshold": 14,
    }  # fmt: skip
    for name, value in (("bits", 20), ("fewest_survivors", 299)):
        run_of_sums.write_json("summary.json", summary | {"aggregation": stated | {name: value}})
        with pytest.raises(InputError, match=f"aggregation.{name}: states"):
            audit(run_of_sums)


def test_accuracies_and_their_references_stand_in_it(make_run):
    rows = rows_of(write_report(make_run()).read_text(encoding="utf-8"))
    shown = {row[0]: row[1] for row in rows if len(row) == 2}
    assert shown["this run, adapted"] == "91.0% ± 0.4"
    assert shown["untrained weights, same adaptation"] == "55.0% ± 0.4"
    assert shown["nearest class prototype in pixels"] == "66.0% ± 0.4"


def test_a_comparison_says_where_the_untrained_model_is_a_public_encoder(make_run, tmp_path):
    runs = [make_run("a", encoder="lite0"), make_run("b")]
    give_configs(runs)
    page = write_comparison(group_runs(runs), tmp_path / "out.html").read_text(encoding="utf-8")
    assert [row[4] for row in tables_of(page)[0][1:]] == ["55.0% ± 0.4 (public encoder, no client)", "55.0% ± 0.4"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "inf"), (float("inf"), "inf"), (1.4951, "1.5"), (1.451, "1.46"), (0.0, "0"), (1234.5, "1235")],
)
def test_how_an_epsilon_is_written(value, text):
    assert rounded_up(value) == text


def test_an_epsilon_of_zero_is_not_infinite(make_run):
    rows = rows_of(write_report(make_run(charged=0)).read_text(encoding="utf-8"))
    found = {tuple(row[:2]): row[3] for row in rows if row[0] in ("client", "record")}
    assert found["client", "public"] == "0"


def test_a_simulation_is_marked(make_run):
    said = "simulation: no guarantee"
    assert said not in write_report(make_run()).read_text(encoding="utf-8")
    run = make_run("s", given=GIVEN | {"run.noise_seed": "3"})
    assert said in write_report(run).read_text(encoding="utf-8")


def test_a_run_without_privacy_and_without_a_clip(make_run):
    page = write_report(make_run(algo="maml", given={"server.rounds": "3"})).read_text(encoding="utf-8")
    assert assert_self_contained(page) == 3
    assert [row[3] for row in rows_of(page) if row[0] in ("client", "record")] == ["inf"] * 4


@pytest.mark.parametrize("charged", [0, 1])
def test_an_interrupted_run_without_evaluation(make_run, charged):
    names = ("", "_before_adaptation", "_untrained", "_pixel_prototype", "_pixel_neighbour")
    missing = {f"accuracy{name}": None for name in names}
    page = write_report(make_run(charged=charged, **missing)).read_text(encoding="utf-8")
    assert "interrupted after" in page
    assert page.count("not evaluated") == 2


def test_a_page_of_an_interrupted_run_agrees_also_in_a_folder_with_a_blank(make_run):
    run = make_run("my runs/i", charged=1)
    assert "my runs/i" in write_report(run).read_text(encoding="utf-8")
    assert check_report(read_run(run), audit(run).proven) == [f"report.html {AGREES}"]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    forged = page.replace("--resume '", "--resume \u03b5\u28000.01\u2800guaranteed'").replace("'my runs/i'", "x")
    (run.path / "report.html").write_text(forged, encoding="utf-8")
    with pytest.raises(InputError, match=r"report\.html"):
        check_report(read_run(run), audit(run).proven)


def test_a_page_shows_a_row_twice_neither_nor_hides_that_its_run_lost(make_run):
    page = write_report(make_run("same", accuracy_before_adaptation=accuracy(0.91))).read_text(encoding="utf-8")
    assert "this run, before adaptation" not in page
    assert "worse than its untrained weights" not in page
    page = write_report(make_run("lost", accuracy_untrained=accuracy(0.95))).read_text(encoding="utf-8")
    assert "this run, before adaptation" in page
    assert "Attention: this run is worse than its untrained weights (accuracy 91% against 95%)" in page


def test_names_cannot_put_markup_into_the_page(make_run):
    run = make_run()
    named = RunDirectory(run.path.rename(run.path.with_name("<b>bold")))
    page = write_report(named).read_text(encoding="utf-8")
    assert "<b>bold" not in page
    assert "<h1>-b-bold</h1>" in page
    assert embedded({"a": "</script>"}) == '{"a": "\\u003c/script>"}'


def test_the_same_run_gives_the_same_bytes(make_run):
    run = make_run()
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def give_configs(runs):
    """One that differs from run to run."""
    for place, run in enumerate(runs):
        (run.path / "config.yaml").write_text(f"algo: a{place}\nserver: {{lr: 0.{place}, rounds: 3}}\n")


def test_two_runs_side_by_side(make_run, tmp_path):
    out = tmp_path / "comparison.html"
    runs = [make_run("a"), make_run("b", algo="maml", given={"server.rounds": "3"}, accuracy=accuracy(0.97))]
    give_configs(runs)
    assert write_comparison(group_runs(runs), out) == out
    page = out.read_text(encoding="utf-8")
    assert assert_self_contained(page) == 3
    assert_described(page, "a, b")
    reached, spent_, differing = tables_of(page)
    assert [row[0] for row in reached] == [row[0] for row in spent_] == ["run", "a", "b"]
    assert differing == [["setting", "a", "b"], ["server.lr", "0.0", "0.1"]]
    assert [row[1] for row in reached[1:]] == ["dp-agrlr-micro", "maml"]
    assert [row[3] for row in reached[1:]] == ["91.0% ± 0.4", "97.0% ± 0.4"]
    cells = runs[0].read_json("summary.json")["guarantees"]
    *clients, of_server, of_public = (rounded_up(cell["epsilon"]) for cell in cells)
    beside = [rounded_up(cell["relations"]["in-place"]) for cell in cells[2:]]
    assert spent_[1][1:] == [*clients, f"{of_server} ({beside[0]})", f"{of_public} ({beside[1]})"]
    assert spent_[2][1:] == ["inf", "inf", "inf (inf)", "inf (inf)"]
    beside = {path.name for path in tmp_path.glob("*.png")}
    assert beside >= {"comparison-accuracy.png", "comparison-validation.png", "comparison-clip.png"}


def test_runs_of_one_name_in_different_folders_are_both_shown(make_run, tmp_path):
    runs = [make_run("here/a"), make_run("there/a")]
    page = write_comparison(group_runs(runs), tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert [row[0] for row in tables_of(page)[0][1:]] == [str(run.path) for run in runs]


def test_a_comparison_is_no_wider_than_a_screen(make_run, tmp_path, monkeypatch):
    """Few columns, names that break, and rows that become cards where the screen is narrow."""
    for name in ("final_plot", "validation_plot", "bound_plot", "signal_plot"):
        monkeypatch.setattr(f"dpfedmeta.reporting.plots.comparison_plots.{name}", lambda *_: False)
    name = "a-name-that-is-long-enough-to-push-every-column-of-the-table-off-the-screen"
    runs = [make_run(name), *(make_run(f"b{number}") for number in range(1, 7))]
    give_configs(runs)
    page = write_comparison(group_runs(runs), tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert max(len(row) for row in rows_of(page)) <= 8
    assert "epsilon (" not in page
    assert f'<td class="name" data-name="run">{name}</td>' in page
    assert re.search(r"td\.name \{ overflow-wrap: anywhere", page)


MADE_BY = {
    "commit": "1234abcd + changes", "source": "feed5eed" * 2, "day": "2026-11-22", "system": "Linux x86_64",
    "processor": "a processor", "cores": 2,
}  # fmt: skip


def test_a_page_says_how_to_make_the_run_again(make_run):
    run = make_run(made_by=MADE_BY, given=GIVEN | {"run.noise_seed": "987654321"})
    page = write_report(run).read_text(encoding="utf-8")
    words = shlex.split(re.sub("</?span>", "", re.search(r"<pre>(.*?)</pre>", page, re.S).group(1)))
    assert words[:6] == ["dpfedmeta", "train", "--algo", "dp-agrlr-micro", "--dataset", "strokes"]
    given = dict(word.removeprefix("--").split("=", 1) for word in words[6:])
    assert resolve("dp-agrlr-micro", "strokes", None, given) == resolve("dp-agrlr-micro", "strokes", None, GIVEN)
    shown = {row[0]: row[1:] for row in rows_of(page) if len(row) == 3}
    assert shown["server.rounds"] == ["3", "60"]
    assert "meta.method" not in shown
    for said in ("1234abcd + changes", "2026-11-22", "a processor, 2 cores", "run.seed = 0", "dpfedmeta 0.1.0", HOLDS):
        assert said in page
    # Whoever knows the seed of the noise has no noise in the way.
    assert "987654321" not in page
    assert shown["run.noise_seed"] == ["chosen (a simulation)", "secret, drawn"]
    assert "(record, public) lies above (client, public): the latter adds or removes a client" in page


def assert_described(page, name):
    """Pictures have words for whoever does not see them; the page has a title, a dark form and a printed one."""
    texts = re.findall(r'<img class="tall" src="[^"]*" alt="([^"]*)"', page)
    assert len(texts) == page.count("<img") >= 3
    assert all(len(text.split()) > 5 for text in texts)
    assert name in re.search("<title>(.*?)</title>", page).group(1)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


DAMAGES = {
    "no rounds": lambda run: (run.path / "rounds.jsonl").unlink(),
    "half a summary": lambda run: (run.path / "summary.json").write_text('{"status": '),
    "an empty summary": lambda run: run.write_json("summary.json", {}),
    "a summary that is a list": lambda run: (run.path / "summary.json").write_text("[1]"),
    "a summary without sizes": lambda run: run.write_json("summary.json", {"guarantees": [], "planned": []}),
    "half a line": lambda run: (run.path / "rounds.jsonl").write_text('{"round": 0'),
    "a line without its keys": lambda run: (run.path / "rounds.jsonl").write_text(json.dumps({"round": 0}) + "\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_or_damaged_files_are_bad_input(make_run, damage):
    run = make_run()
    DAMAGES[damage](run)
    with pytest.raises(InputError, match=r"summary\.json|rounds\.jsonl") as caught:
        write_report(run)
    assert str(run.path) in str(caught.value)
    assert not (run.path / "report.html").exists()


@pytest.mark.parametrize("damage", ["half a line", "an empty summary"])
def test_a_comparison_with_a_damaged_run_is_bad_input(make_run, tmp_path, damage):
    runs = [make_run("a"), make_run("b")]
    DAMAGES[damage](runs[1])
    with pytest.raises(InputError, match=r"summary\.json|rounds\.jsonl"):
        write_comparison(group_runs(runs), tmp_path / "comparison.html")
    assert not (tmp_path / "comparison.html").exists()


def test_the_page_of_a_chosen_run_says_which_number_to_report(tmp_path):
    made_by = {name: value for name, value in MADE_BY.items() if name != "day"}
    run, cost = chosen_run(tmp_path, made_by=made_by)
    page = write_report(run).read_text(encoding="utf-8")
    assert "<td>day</td>" not in page
    assert choice_words(cost) in page.split("<table>")[0]
    found = audit(run)
    assert check_report(found.snapshot, found.proven) == [f"report.html {AGREES}"]
    (run.path / "report.html").write_text(page.replace(f"Attention: {choice_words(cost)}.", "The best of all."))
    found = audit(run)
    with pytest.raises(InputError, match=r"report\.html, line \d+: states .*The best of all"):
        check_report(found.snapshot, found.proven)
    for cells in (Run(run.path).guarantees, Run(run.path).planned):
        assert [cell.epsilon for cell in cells if cell.name == "(client, public)"] == [cost.epsilon]
        assert sum(math.isfinite(cell.epsilon) for cell in cells) == 1
    run.write_json(SELECTION, selection_content(replace(cost, epsilon=0.01), [read_content(run.ledger).plan]))
    with pytest.raises(InputError, match=r"selection.json: epsilon = 0.01, but"):
        write_report(run)


def test_whatever_states_an_epsilon_of_a_chosen_run_states_that_of_the_choice(tmp_path):
    run, cost = chosen_run(tmp_path)
    own = spent(read_content(run.ledger).plan, read_content(run.ledger).charges)[0].epsilon
    assert own < cost.epsilon < math.inf
    groups = group_runs([run])
    assert groups[0].epsilons[("client", "public")] == cost.epsilon
    assert [value for cell, value in groups[0].epsilons.items() if cell != ("client", "public")] == [None] * 3
    page = write_report(run).read_text(encoding="utf-8")
    both = {row_of(groups[0], run, groups[0].summaries[0])[f"{kind}.client_public.epsilon"] for kind in KINDS}
    assert both == {cost.epsilon}
    shown = re.search(r"<td[^>]*>client</td>\s*<td[^>]*>public</td>\s*(.*?)</tr>", page, re.S)[1]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", shown)[:2] == [rounded_up(cost.epsilon)] * 2
    compared = write_comparison(groups, tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert rounded_up(cost.epsilon) in compared
    for text in (latex_table(groups), compared, csv_table(groups)):
        assert not re.search(rf"(?<![\d.]){re.escape(rounded_up(own))}(?!\d)", text)


@pytest.mark.parametrize("states", [lambda run: run.guarantees, lambda run: audit(RunDirectory(run.path)), Run.report])
def test_a_chosen_run_whose_price_is_gone_states_nothing(tmp_path, states):
    run, _ = chosen_run(tmp_path)
    states(Run(run.path))
    content = (run.path / SELECTION).read_text()
    (run.path / SELECTION).unlink()
    with pytest.raises(InputError, match=r"selection.json: is missing, but summary.json says that the run was chosen"):
        states(Run(run.path))
    (run.path / SELECTION).write_text(content)
    # Nor does a summary of the run alone pass beside a price.
    summary = run.read_json("summary.json")
    plan = read_content(run.ledger).plan
    own = [cell.as_json() for cell in spent(plan, read_content(run.ledger).charges)]
    run.write_json("summary.json", summary | {"guarantees": own})
    with pytest.raises(InputError, match=r"summary.json: guarantees"):
        audit(run)
    del summary["chosen"]
    run.write_json("summary.json", summary)
    with pytest.raises(InputError, match=r"summary.json: chosen"):
        audit(run)
