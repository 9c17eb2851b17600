import json
import math
import re
import shutil
from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_delta
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.charges import Closing, planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, read_content, spent
from dpfedmeta.accounting.ledger.published import published
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.caveats import SIMULATION
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.reporting.html.run_page import AGREES, check_report
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.verification.file_claims import check_summary
from dpfedmeta.training.verification.row_claims import _chosen, check_rows
from dpfedmeta.training.verification.verify import audit, realised
from tests.reporting.test_page import written_run

TINY = {
    "model.width": "4", "server.rounds": "6", "population.cohort": "6", "population.clients": "40", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "6", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "run.noise_seed": "3", "privacy.client.delta": "0.001",
    "population.max_participations": "2", "record.client_ledgers": "true", "clip.window": "2",
}  # fmt: skip


def trained(task_file, folder, algo="dp-agrlr-micro", **given):
    settings = resolve(algo, str(task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r", **given})
    run, status = run_training(settings)
    assert status == "completed"
    write_report(run)
    return run


@pytest.fixture(scope="module")
def finished(tiny_task_file, tmp_path_factory):
    return trained(tiny_task_file, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run_of_secret_seed(tiny_task_file, tmp_path):
    return trained(tiny_task_file, tmp_path, **{"run.noise_seed": "null"})


@pytest.fixture
def run(finished, tmp_path):
    return RunDirectory(shutil.copytree(finished.path, tmp_path / "r"))


def test_an_untouched_run_verifies_and_says_what_was_checked(run):
    found = audit(run)
    assert len(found.charges) == 6
    summary = run.read_json("summary.json")
    assert [cell.as_json() for cell in found.guarantees] == summary["guarantees"] == summary["planned"]
    assert found.remarks[0].startswith("6 rounds")
    assert any("dp-accounting PLD" in remark for remark in found.remarks)
    assert "summary.json agrees" in found.remarks


def test_lines_lost_at_the_end_are_noticed(run):
    lines = run.ledger.read_text().splitlines()
    run.ledger.write_text("\n".join(lines[:-2]) + "\n")
    with pytest.raises(InputError, match="round 5 was released"):
        audit(run)
    for left in (1, 2):
        run.rounds_file.unlink(missing_ok=True)
        run.ledger.write_text("\n".join(lines[:-left]) + "\n")
        with pytest.raises(InputError, match=r"does not end as summary\.json states"):
            audit(run)


def test_a_summary_that_was_removed_is_missed(run):
    (run.path / "summary.json").unlink()
    assert any("no summary.json, though the ledger is closed" in remark for remark in audit(run).remarks)


def test_a_summary_that_states_less_is_found(run):
    summary = run.read_json("summary.json")
    summary["guarantees"][2]["epsilon"] /= 2
    run.write_json("summary.json", summary)
    with pytest.raises(InputError, match=r"guarantees \(record, server\)\.epsilon: .* the ledger gives"):
        audit(run)


@pytest.mark.parametrize("spoiled", ["missing", None, "x", 7, []])
def test_whatever_a_summary_lacks_is_one_line_about_it(run, spoiled):
    proven, summary = audit(run).proven, run.read_json("summary.json")
    refused = []
    for name in summary:
        content = {key: value for key, value in summary.items() if key != name}
        run.write_json("summary.json", content if spoiled == "missing" else content | {name: spoiled})
        try:
            check_summary(read_run(run), proven)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) >= 6
    assert all("summary.json" in line for line in refused)


def test_a_rewritten_chain_with_less_noise_is_not_the_plans_mechanism(run):
    from dpfedmeta.accounting.ledger.hash_chain import HashChain, read_chain

    bodies, _ = read_chain(run.ledger, "ledger")
    run.ledger.unlink()
    bodies[3]["event"]["noise"]["multiplier"] = 0.5
    chain = HashChain.start(run.ledger, bodies[0])
    for body in bodies[1:]:
        chain.append(body)
    with pytest.raises(RefusedPlan, match="line 4: round 2"):
        audit(run)


def test_what_really_happened_is_in_the_private_folder_only(run):
    proven = audit(run)
    plan = proven.plan
    found = realised(run, plan, proven.charges)
    drawn = [json.loads(line)["clients"] for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert found.most_participations == 2
    assert found.cohort_sizes[0] == min(map(len, drawn))
    assert found.record_server == pytest.approx(gaussian_epsilon(2**0.5 / plan.record.query_noise, 1e-5))
    public = "".join(p.read_text(errors="ignore") for p in run.path.glob("*") if p.is_file())
    assert "most_participations" not in public
    (run.secret / "participations.jsonl").unlink()
    with pytest.raises(InputError, match="only the server"):
        realised(run, plan, ())


@pytest.mark.parametrize("algo", ["dp-agrlr-secure", "dp-agr-secure", "dp-agrlr-micro"])
def test_what_happened_to_a_record_is_the_cell_of_so_many_participations(tmp_path, algo):
    """Under sums it was 0, and what discrete noise costs was missing."""
    given = {"server.rounds": 3, "privacy.client.epsilon": None, "server.noise_multiplier": 1.0}
    plan = make_plan(Settings.preset(algo, "strokes", given), load_task("strokes")[0]).privacy
    place = RunDirectory(tmp_path)
    place.secret.mkdir()
    lines = [{"round": round_, "clients": clients} for round_, clients in enumerate(([3, 4], [4], [4, 5]))]
    (place.secret / "participations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    charges = [planned_charge(plan, round_) for round_ in range(3)]
    cell = record_server(plan.phases, replace(Terms.of(plan), max_participations=3))
    assert realised(place, plan, charges).record_server == cell.epsilon > 1


def test_clients_held_the_server_to_its_promise(run):
    ledgers = sorted((run.secret / "clients").iterdir())
    drawn = [json.loads(line)["clients"] for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert {int(file.stem) for file in ledgers} == {client for cohort in drawn for client in cohort}
    assert max(len(file.read_text().splitlines()) for file in ledgers) == 1 + 2


@pytest.mark.parametrize(
    ("file", "content"), [("summary.json", "{}"), ("summary.json", '{"ledger": 3}'), ("rounds.jsonl", '{"a": 1}\n')]
)
def test_a_damaged_file_beside_the_ledger_is_named(run, file, content):
    (run.path / file).write_text(content)
    with pytest.raises(InputError, match=file):
        audit(run)


def test_a_damaged_list_of_participants_is_named(run):
    plan = audit(run).plan
    (run.secret / "participations.jsonl").write_text("[3]\n")
    with pytest.raises(InputError, match="damaged"):
        realised(run, plan, ())


def edited(file, *place, to):
    """Change one value of a JSON file: `to` is the new one, or a function of the old one."""

    def alter(run):
        content = run.read_json(file)
        inside = content
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = to(inside[place[-1]]) if callable(to) else to
        run.write_json(file, content)

    return alter


def row(number, *place, to):
    """Change one value of a line of rounds.jsonl."""

    def alter(run):
        rows = run.rounds()
        inside = rows[number]
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = to(inside[place[-1]]) if callable(to) else to
        write_rows(run, rows)

    return alter


def rows_as(change):
    return lambda run: write_rows(run, change(run.rounds()))


def write_rows(run, rows):
    run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def replaced(file, old, new, count=1):
    """Change a text file."""

    def alter(run):
        text = (run.path / file).read_text()
        assert old in text
        (run.path / file).write_text(text.replace(old, new, count))

    return alter


def in_block(*place, to):
    """Change one value of the JSON that report.html embeds."""

    def alter(run):
        path = run.path / "report.html"
        before, block, after = re.fullmatch(
            r'(.*<script type="application/json" id="shown">)(.*?)(</script>.*)', path.read_text(), re.DOTALL
        ).groups()
        content = json.loads(block)
        inside = content
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = to(inside[place[-1]]) if callable(to) else to
        path.write_text(before + json.dumps(content) + after)

    return alter


def swapped(cells):
    return [cells[2], *cells[1:2], cells[0], cells[3]]


# A line that is not what the ledger gives.
PAGE = r"report\.html, line \d+: states"


OF_CLIENTS = r"described\.population\."


def half(value):
    return value / 2


OTHER = {
    "unit": "client", "observer": "public", "epsilon": half, "delta": 1e-6, "adjacency": "replace-one",
    "method": "rdp", "bounds": {"gdp": 0.1}, "event": "no release at all", "formula": "magic",
}  # fmt: skip

# What is changed alone -> (the change, file and words of the error).
ALTERATIONS = {
    **{
        f"summary, {which}: {name}": (edited("summary.json", which, 2, name, to=to), rf"summary\.json: {which}")
        for which in ("guarantees", "planned")
        for name, to in OTHER.items()
    },
    **{
        f"plan.json, planned: {name}": (edited("plan.json", "planned", 2, name, to=to), r"plan\.json: planned")
        for name, to in OTHER.items()
    },
    "summary: order": (edited("summary.json", "guarantees", to=swapped), r"summary\.json: guarantees: the cells"),
    "summary: order of the promise": (edited("summary.json", "planned", to=swapped), r"summary\.json: planned: the c"),
    "summary: a cell twice": (
        edited("summary.json", "guarantees", to=lambda cells: [*cells[:3], cells[2]]),
        r"summary\.json: guarantees: the cells",
    ),
    "summary: a cell more": (
        edited("summary.json", "guarantees", to=lambda cells: [*cells, cells[2] | {"epsilon": 0.1}]),
        r"summary\.json: guarantees: the cells",
    ),
    "summary: a cell less": (
        edited("summary.json", "guarantees", to=lambda cells: cells[:3]), r"summary\.json: guarantees: the cells"
    ),
    "summary: a claim more": (
        edited("summary.json", "guarantees", 0, to=lambda cell: cell | {"epsilon_of_all_runs": 0.1}),
        r"summary\.json: guarantees \(client, public\)\.epsilon_of_all_runs",
    ),
    "summary: a thousandth less": (
        edited("summary.json", "guarantees", 2, "epsilon", to=lambda e: 0.999 * e), r"\(record, server\)\.epsilon"
    ),
    "summary: another bound": (
        edited("summary.json", "guarantees", 3, "bounds", "pld", to=half), r"\(record, public\)\.bounds\.pld"
    ),
    "summary: N": (edited("summary.json", "population", "clients", to=4000), r"summary\.json: population\.clients"),
    "summary: L": (edited("summary.json", "population", "cohort", to=3.0), r"summary\.json: population\.cohort"),
    "summary: sampler": (edited("summary.json", "population", "sampler", to="fixed"), r"summary\.json: .*sampler"),
    "summary: R": (edited("summary.json", "population", "max_participations", to=1), r"\.max_participations"),
    "summary: R, taken away": (edited("summary.json", "population", "max_participations", to=None), r"\.max_partic"),
    "summary: N of the description": (
        edited("summary.json", "described", "population", "clients", to=4000),
        r"summary\.json: described\.population\.clients",
    ),
    "summary: N in its words": (
        edited("summary.json", "described", "population", "text", to=lambda text: text.replace("40 ", "4,000 ", 1)),
        r"summary\.json: described\.population\.text",
    ),
    "summary: rounds": (edited("summary.json", "rounds", to=3), r"summary\.json: rounds"),
    "summary: algorithm": (edited("summary.json", "algo", to="dp-agr"), r"summary\.json: algo"),
    "summary: data set": (edited("summary.json", "dataset", to="textures"), r"summary\.json: dataset"),
    "summary: records": (edited("summary.json", "task", "queries", to=20), r"summary\.json: task\.queries"),
    "summary: not a simulation": (edited("summary.json", "simulation", to=None), r"summary\.json: simulation"),
    "summary: charges": (edited("summary.json", "ledger", "rounds", to=5), r"summary\.json: ledger\.rounds"),
    "summary: public weights": (edited("summary.json", "begins_with", to="begins with x"), r"summary\.json: begins_w"),
    "plan.json: N": (edited("plan.json", "privacy", "clients", to=4000), r"plan\.json: privacy\.clients"),
    "plan.json: delta": (edited("plan.json", "privacy", "client_delta", to=1e-6), r"plan\.json: privacy\.client_d"),
    "plan.json: z": (edited("plan.json", "privacy", "noise_multiplier", to=9.0), r"plan\.json: privacy\.noise_mul"),
    "plan.json: z_q": (edited("plan.json", "privacy", "record", "query_noise", to=9.0), r"privacy\.record\.query_n"),
    "plan.json: colluding": (edited("plan.json", "privacy", "colluding", to=5), r"plan\.json: privacy\.colluding"),
    "plan.json: rate": (edited("plan.json", "phases", 0, "event", "rate", to=0.01), r"phases\[0\]\.event\.rate"),
    "plan.json: z_eff": (edited("plan.json", "phases", 0, "event", "noise", "multiplier", to=9.0), "noise.multiplier"),
    "plan.json: no phase": (edited("plan.json", "phases", to=[]), r"plan\.json: phases"),
    "plan.json: cautions": (
        edited("plan.json", "cautions", to=["every record is protected entirely"]), r"plan\.json: cautions"
    ),
    "plan.json: public weights": (edited("plan.json", "begins_with", to="begins with x"), r"plan\.json: begins_w"),
    **{
        f"{file}, {what} of the description": (edited(file, "described", *keys, to=to), rf"{file}: {said}")
        for file in ("plan.json", "summary.json")
        for what, keys, to, said in (
            ("promise", ("population", "text"), lambda text: f"{text}; nothing can be learned of them", OF_CLIENTS),
            ("people", ("population", "text"), "40 real patients, of whom nothing can be learned", OF_CLIENTS),
            ("kind", ("population", "kind"), "natural", OF_CLIENTS),
            ("strange kind", ("population", "kind"), "real", OF_CLIENTS),
            ("records", ("population", "records"), 7, OF_CLIENTS),
            ("images", ("population", "images"), None, OF_CLIENTS),
            ("share kept back", ("population", "own_test"), 0.5, OF_CLIENTS),
            ("sentence", ("population", "form"), 1, OF_CLIENTS),
            ("words in a number", ("population", "numbers"), {"most": "nothing"}, OF_CLIENTS),
            ("task", ("task", "name"), "patients", r"described\.task\.name"),
            ("owner", ("task", "own"), True, r"described\.task\.own"),
            ("encoder", ("encoder",), {"name": "lite0"}, r"described\.encoder: states"),
            ("less", ("task",), {}, r"described\.task"),
            ("more", ("population", "vouched_by"), "an auditor", OF_CLIENTS),
        )
    },
    "summary.json, kind": (edited("summary.json", "population", "kind", to="natural"), r"population\.kind"),
    "plan.json: N of the description": (
        edited("plan.json", "described", "population", "clients", to=4000), r"described\.population\.clients"
    ),
    "plan.json: N in its words": (
        edited("plan.json", "described", "population", "text", to=lambda text: text.replace("40 ", "4,000 ", 1)),
        r"plan\.json: described\.population\.text",
    ),
    "config.yaml: N": (replaced("config.yaml", "clients: 40", "clients: 4000"), r"config\.yaml, line \d+: .*4000"),
    "config.yaml: no seed": (replaced("config.yaml", "noise_seed: 3", "noise_seed: null"), r"config\.yaml, line"),
    "config.yaml: one line more": (replaced("config.yaml", "\ntask:", "\n# harmless\ntask:"), r"config\.yaml, line"),
    "rounds: epsilon lowered": (row(3, "epsilons", "client_public", to=lambda e: 0.97 * e), r"rounds\.jsonl, line 4"),
    "rounds: epsilon raised": (row(3, "epsilons", "client_public", to=lambda e: 1.03 * e), r"rounds\.jsonl, line 4"),
    "rounds: finite": (row(5, "epsilons", "client_server", to=1.0), r"rounds\.jsonl, line 6: epsilons\.client_server"),
    "rounds: infinite": (row(0, "epsilons", "record_public", to=None), r"rounds\.jsonl, line 1: epsilons\.rec"),
    "rounds: below zero": (row(0, "epsilons", "record_public", to=-1.0), r"rounds\.jsonl: .*round 0 states"),
    "rounds: a cell less": (row(2, "epsilons", to=lambda e: {"client_public": e["client_public"]}), r"rounds\.jsonl: "),
    "rounds: a line less": (rows_as(lambda rows: rows[:2] + rows[3:]), r"rounds\.jsonl, line 3: has round 3"),
    "rounds: the last line less": (rows_as(lambda rows: rows[:-1]), r"rounds\.jsonl: ends with line 5"),
    "rounds: two lines swapped": (rows_as(lambda rows: [rows[1], rows[0], *rows[2:]]), r"rounds\.jsonl, line 1"),
    "rounds: noise": (row(2, "noise_norm_expected", to=half), r"rounds\.jsonl, line 3: noise_norm_expected"),
    "rounds: no noise": (
        rows_as(lambda rows: [row | {"noise_norm_expected": 0.0} for row in rows]), r"line 1: noise_norm_expected"
    ),
    "rounds: a hundredth of the noise": (
        rows_as(lambda rows: [row | {"noise_norm_expected": row["noise_norm_expected"] / 100} for row in rows]),
        r"rounds\.jsonl, line 1: noise_norm_expected: states .* but the ledger's noise gives",
    ),
    "rounds: twice the noise in every row": (
        rows_as(lambda rows: [row | {"noise_norm_expected": row["noise_norm_expected"] * 2} for row in rows]),
        r"rounds\.jsonl, line 1: noise_norm_expected: states .* but the ledger's noise gives",
    ),
    "rounds: noise that is not said": (row(0, "clip", to=None), r"rounds\.jsonl, line 1: clip: is missing"),
    "rounds: a bound without its noise": (
        rows_as(lambda rows: [{k: v for k, v in row.items() if k != "noise_norm_expected"} for row in rows]),
        r"rounds\.jsonl, line 1: noise_norm_expected: is missing",
    ),
    "rounds: clip bound": (row(4, "clip", to=half), r"rounds\.jsonl, line 5: noise_norm_expected"),
    "report: delta shown": (
        replaced("report.html", 'data-name="delta" class="number">0.001</td>', ">0</td>"), PAGE
    ),
    "report: adjacency shown": (replaced("report.html", ">zero-out</td>", ">replace-one</td>"), PAGE),
    "report: unit shown": (replaced("report.html", ">record</td>", ">client</td>"), PAGE),
    "report: method shown": (
        replaced("report.html", 'data-name="method">gdp</td>', ">pld</td>"), PAGE
    ),
    "report: N shown": (replaced("report.html", "of 40 clients", "of 4,000 clients"), PAGE),
    "report: rounds shown": (replaced("report.html", "6 rounds, exp", "3 rounds, exp"), PAGE),
    "report: R shown": (replaced("report.html", "at most 2 part", "at most 1 part"), PAGE),
    "report: no warning": (replaced("report.html", SIMULATION, "a real run"), r"report\.html: simulation"),
    "report: no table": (replaced("report.html", "<th>towards</th>", "<th>to</th>"), PAGE),
    "report: JSON, delta": (in_block("summary", "guarantees", 0, "delta", to=1e-9), r"report\.html: guarantees \(cl"),
    "report: JSON, epsilon": (in_block("summary", "guarantees", 2, "epsilon", to=half), r"report\.html: guarantees"),
    "report: JSON, promise": (in_block("summary", "planned", 2, "epsilon", to=half), r"report\.html: planned \(rec"),
    "report: JSON, order": (in_block("summary", "guarantees", to=swapped), r"report\.html: guarantees: the cells"),
    "report: JSON, N": (in_block("summary", "population", "clients", to=4000), r"report\.html: population\.clients"),
    "report: JSON, simulation": (in_block("summary", "simulation", to=None), r"report\.html: simulation"),
    "report: JSON, of an earlier state": (in_block("summary", "ledger", "head", to="0" * 64), r"report\.html: ledger"),
    "report: JSON, empty": (in_block("summary", "guarantees", to=[]), r"report\.html: guarantees: the cells"),
}  # fmt: skip


def verify(run):
    found = audit(run)
    return found, check_report(read_run(run), found.proven)


@pytest.fixture(scope="module")
def proven(finished):
    return audit(finished).proven


@pytest.mark.parametrize("name", ALTERATIONS)
def test_whatever_states_a_guarantee_is_compared(run, proven, name):
    alter, words = ALTERATIONS[name]
    alter(run)
    with pytest.raises(InputError, match=words) as caught:
        check_report(read_run(run), proven) if name.startswith("report") else audit(run)
    assert str(run.path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", [2, 3])
@pytest.mark.parametrize("cell", range(4))
def test_every_epsilon_that_the_report_shows_is_compared(run, proven, cell, column):
    path = run.path / "report.html"
    head, *lines = re.split(r"(?=<tr><td[^>]*>(?:client|record)</td>)", path.read_text())
    cells = re.split(r'(?<=class="number">)', lines[cell])
    cells[column - 1] = "0.01" + cells[column - 1][cells[column - 1].index("<") :]
    lines[cell] = "".join(cells)
    path.write_text(head + "".join(lines))
    with pytest.raises(InputError, match=PAGE):
        check_report(read_run(run), proven)


def test_what_stays_as_it_was_verifies_with_or_without_a_report(run):
    found, shown = verify(run)
    assert shown == [f"report.html {AGREES}"]
    assert {"plan.json agrees", "rounds.jsonl agrees", "its settings give its plan"} <= {*found.remarks}
    assert found.simulation == SIMULATION
    (run.path / "report.html").unlink()
    assert verify(run)[1] == []


def test_a_secret_seed_is_not_called_a_simulation_and_nobody_may_say_so(run_of_secret_seed):
    run = run_of_secret_seed
    assert verify(run)[0].simulation is None
    edited("summary.json", "simulation", to=SIMULATION)(run)
    with pytest.raises(InputError, match=r"summary\.json: simulation"):
        verify(run)
    edited("summary.json", "simulation", to=None)(run)
    replaced("report.html", "<h2>Guarantees</h2>", f"<p>{SIMULATION}</p><h2>Guarantees</h2>")(run)
    with pytest.raises(InputError, match=PAGE):
        verify(run)


def rewritten(run, plan=None, config=None):
    """All files anew, as if the run had had this plan: what whoever may write the directory can do."""
    content = read_content(run.ledger)
    plan = plan or content.plan
    identity = content.identity if config is None else replace(content.identity, config=config)
    events = [replace(planned_charge(plan, event.round), inputs=event.inputs) for event in content.charges]
    run.ledger.unlink()
    ledger = Ledger(run.ledger, plan, identity)
    for event in events:
        ledger.charge(event)
    for path in run.weights.parent.glob("round-*"):
        path.unlink()
    ledger.close(Closing(rounds=len(events), weights=published(run)))
    cells = [cell.as_json() for cell in spent(plan, events)]
    summary, stated, rows = run.read_json("summary.json"), run.read_json("plan.json"), run.rounds()
    summary |= {"guarantees": cells, "planned": cells, "ledger": {"rounds": len(events), "head": ledger.head}}
    for name in ("clients", "cohort", "sampler", "max_participations"):
        summary["population"][name] = getattr(plan, name)
    stated |= {
        "planned": cells,
        "privacy": asdict(plan),
        "phases": [{"rounds": p.rounds, "event": p.event.as_json()} for p in plan.phases],
    }
    for statement in (summary["described"]["population"], stated["described"]["population"]):
        statement["text"] = statement["text"].replace(f"{statement['clients']:,}", f"{plan.clients:,}", 1)
        statement["clients"] = plan.clients
    before, after = (each.at(0).total_noise / each.at(0).cohort for each in (content.plan, plan))
    quieter = after / before
    for line in rows:
        after = guarantees(plan, rounds=line["round"] + 1)
        line["epsilons"] = {f"{cell.unit}_{cell.observer}": cell.as_json()["epsilon"] for cell in after}
        line["noise_norm_expected"] *= quieter
    run.write_json("summary.json", summary)
    run.write_json("plan.json", stated)
    write_rows(run, rows)
    if config is not None:
        (run.path / "config.yaml").write_text(config)
    (run.path / "report.html").unlink()


OTHER_PLANS = {
    "clients": lambda plan: {"clients": 80},
    "cohort": lambda plan: {"cohort": 12.0},
    "noise_multiplier": lambda plan: {"noise_multiplier": 1.001 * plan.noise_multiplier},
    "client_delta": lambda plan: {"client_delta": 0.002},
    "record_delta": lambda plan: {"record_delta": 2e-5},
    "max_participations": lambda plan: {"max_participations": 1},
    "colluding": lambda plan: {"colluding": 2},
    "record.query_noise": lambda plan: {"record": replace(plan.record, query_noise=1.001 * plan.record.query_noise)},
    "record.query_records": lambda plan: {"record": replace(plan.record, query_records=7)},
}


def test_the_same_plan_written_anew_verifies(run):
    rewritten(run)
    verify(run)


@pytest.mark.parametrize("name", OTHER_PLANS)
def test_a_ledger_with_another_plan_than_its_settings_give_is_refused(run, name):
    plan = read_content(run.ledger).plan
    rewritten(run, replace(plan, **OTHER_PLANS[name](plan)))
    with pytest.raises(InputError, match=rf"ledger\.jsonl, line 1: plan\.{re.escape(name)}: states .* settings give"):
        verify(run)


def test_solved_noise_may_differ_in_its_last_digits_only(run):
    plan = read_content(run.ledger).plan
    rewritten(run, replace(plan, noise_multiplier=plan.noise_multiplier * (1 + 1e-8)))
    verify(run)


def test_a_ledger_without_settings_is_refused(run):
    rewritten(run, config="")
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 1: identity\.config: is empty"):
        verify(run)


def test_settings_that_cannot_be_read_are_named(run):
    rewritten(run, config=read_content(run.ledger).identity.config.replace("noise_seed:", "nose_seed:"))
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 1: identity\.config: run\.nose_seed: unknown key"):
        verify(run)


def test_a_data_set_that_is_gone_is_said(run):
    config = read_content(run.ledger).identity.config
    name = run.read_json("summary.json")["dataset"]
    rewritten(run, config=config.replace(name, "gone/folder.yaml"))
    edited("summary.json", "dataset", to="gone/folder.yaml")(run)
    found, _ = verify(run)
    assert any("not be derived again" in remark and "gone/folder.yaml" in remark for remark in found.remarks)


def test_settings_that_are_refused_today_are_refused_with_the_reason(run):
    config = read_content(run.ledger).identity.config
    rewritten(run, config=config.replace("sampler: poisson", "sampler: fixed"))
    with pytest.raises(RefusedPlan, match=r"ledger\.jsonl: this version refuses the settings .*: population\.sa"):
        verify(run)


def with_a_further_attempt(run):
    """Round 2 charged once more before rounds 3 to 5; rows that count it, and what a check of them compares with."""
    content = read_content(run.ledger)
    events = list(content.charges)
    events.insert(3, replace(events[2], attempt=1))
    proven = audit(run).proven
    after = [events[: number + 1 + (number > 1)] for number in range(6)]
    rows = run.rounds()
    for line, charged in zip(rows, after, strict=True):
        line["epsilons"] = {f"{c.unit}_{c.observer}": c.as_json()["epsilon"] for c in spent(content.plan, charged)}
    write_rows(run, rows)
    content = replace(content, charges=tuple(events))
    return replace(proven, content=content, spent=spent(content.plan, events)), rows


def test_rows_count_further_attempts(run):
    proven, rows = with_a_further_attempt(run)
    check_rows(read_run(run), proven)
    rows[4]["epsilons"]["client_public"] = 1.02 * proven.planned[0].epsilon + rows[5]["epsilons"]["client_public"]
    write_rows(run, rows)
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 5: epsilons\.client_public"):
        check_rows(read_run(run), proven)


def test_rows_that_leave_out_an_attempt_are_refused(run):
    before = run.rounds()
    proven, _ = with_a_further_attempt(run)
    write_rows(run, before)
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 3: epsilons\.client_public: states"):
        check_rows(read_run(run), proven)


@pytest.mark.parametrize(
    ("algo", "given", "words"),
    [
        ("dp-agr", {"server.noise_multiplier": "0.05"}, "closed bound"),
        pytest.param(
            "dp-agr-secure",
            {"server.noise_multiplier": "0.05", "population.cohort": "60"},
            "zCDP of a sum",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_loose_bound_far_above_another_accountant_verifies_and_shows_both(
    tiny_task_file, tmp_path, monkeypatch, algo, given, words
):
    # As of more rounds than are composed: only a closed bound is known of such little noise.
    monkeypatch.setattr("dpfedmeta.accounting.divergences.pld_composition.MOST_ROUNDS", 0)
    more = {
        "population.clients": "400000",
        "record.client_ledgers": "false",
        "population.max_participations": "null",
        "privacy.client.delta": "1e-6",
    }
    found = audit(trained(tiny_task_file, tmp_path, algo, **more, **given))
    assert words in found.guarantees[0].binding.formula
    (said,) = (remark for remark in found.remarks if "another library's accountant" in remark)
    assert f"and {rounded_up(found.guarantees[0].epsilon)} here" in said
    assert found.guarantees[0].binding.loose


@pytest.mark.parametrize("beside", [False, True])
def test_a_distribution_above_another_accountant_is_an_error(run, monkeypatch, beside):
    below = guarantees(read_content(run.ledger).plan)[0].epsilon / 2
    monkeypatch.setattr("dpfedmeta.accounting.other_accountants.second_opinion", lambda *_: ("planted", below))
    if beside:
        # A loose bound that is the smallest excuses nothing while another bound of the cell is not loose.
        loose = property(lambda cell: replace(min(cell.bounds, key=lambda bound: bound.epsilon), loose=True))
        monkeypatch.setattr(Guarantee, "binding", loose)
    with pytest.raises(InputError, match="by planted: please report this"):
        audit(run)


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 60, 1000])
def test_rows_that_are_computed_again_begin_and_end_with_those_of_the_run(rows):
    """In between no two of them are far apart, as a share of all, and early ones are close."""
    chosen = _chosen(rows)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (0, rows - 1)
    assert max((after - before for before, after in pairwise(chosen)), default=0) <= max(1, math.ceil((rows - 1) / 15))
    assert len(chosen) >= min(rows, 16)
    # Early ones, where epsilon grows fastest: one of each eighth of the logarithm.
    assert {round(rows ** (step / 8)) - 1 for step in range(8)} <= set(chosen)


def test_no_rows_are_none_to_compute_again():
    assert _chosen(0) == []


def test_the_last_row_is_computed_like_the_first(run, proven):
    """Also where a run of many rounds is looked at in some of them."""
    row(5, "epsilons", "client_public", to=lambda value: value * 1.03)(run)
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 6: epsilons\.client_public"):
        check_rows(read_run(run), proven)


@pytest.mark.parametrize("changed", [None, 0, 1, 2])
def test_delta_at_a_limit_is_no_smaller_than_that_of_the_ledger(tmp_path, changed):
    given = {"server.rounds": "3", "server.noise_multiplier": "1.5", "privacy.client.epsilon": "null"}
    run = written_run(tmp_path, algo="dp-agr", given={**given, "privacy.client.limit": "1.5"})
    proven = audit(run).proven
    rows = run.rounds()
    for number, each in enumerate(rows):
        delta = sampled_delta(proven.content.plan.first(number + 1), "add-remove", 1.5)
        each["delta_at_limit"] = delta * (0.9 if number == changed else 1.0)
    write_rows(run, rows)
    if changed is None:
        assert "rounds.jsonl agrees" in audit(run).remarks
        return
    with pytest.raises(InputError, match=rf"rounds\.jsonl, line {changed + 1}: delta_at_limit: states"):
        audit(run)
