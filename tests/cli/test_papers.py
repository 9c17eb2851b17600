"""Papers of plans and runs: they keep to their schemas, say what the ledger proves, and promise nothing else."""

import json
import re
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import dp_accounting
import jsonschema
import numpy as np
import pytest
import yaml
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import dpfedmeta as dp
from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli import papers
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.planning.caveats import SIMULATION
from dpfedmeta.training.verification.verify import audit
from tests.conftest import dpfedmeta
from tests.reporting.test_page import chosen_run, written_run

SCHEMAS = yaml.safe_load(Path(__file__).with_name("paper_schemas.yaml").read_text())
TEMPLATE = Path(papers.__file__).with_name("papers.yaml").read_text()
CELLS = ("(client, public)", "(client, server)", "(record, server)", "(record, public)")
AGR = ("--algo", "dp-agr", "--clients", "40000", "--cohort", "150", "--rounds", "30", "--noise-multiplier", "1.0")
TASKS = Path(dp.__file__).parents[1] / "tasks"
REAL = ("--population.kind", "real")
SCHEDULE = ("--server.schedule", "[{from_round: 10, noise_scale: 0.8, cohort_scale: 2}]")
FEW = {"server.rounds": "2", "server.noise_multiplier": "1.0", "population.cohort": "30"}


def papers_of(folder, *words, code=0):
    """The papers that a command wrote, each checked by its schema, and what it printed."""
    said = dpfedmeta("account", *words, "--papers", str(folder), code=code)
    found = {path.name: yaml.safe_load(path.read_text()) for path in folder.glob("*")}
    assert code or found.keys() == SCHEMAS.keys()
    for name, paper in found.items():
        jsonschema.validate(paper, SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    return found, said


def assert_said_once(paper, name):
    """Who held the records stands among the cautions, wherever a paper has these, and nowhere else."""
    text = str(yaml.safe_load(TEMPLATE)[name])
    due = sum(map(text.count, ("{attention}", "{stated}", "{cautions}")))
    assert texts(paper).count("one machine held all records and played every client") == due, name


def loss(found):
    return found["registry.yaml"]["deployment"]["privacy_loss"]


def texts(node):
    if isinstance(node, dict):
        node = list(node.values())
    return "\n".join(map(texts, node)) if isinstance(node, list) else str(node)


def cells_of(found):
    content = found["model-card.yaml"]["quantitative_analyses"]["differential_privacy"]
    return {(each["unit"], each["towards"]): each for each in content}


def test_the_schemas_refuse_what_is_missing_or_made_up(tmp_path):
    found, _ = papers_of(tmp_path / "p", *AGR)
    for name, paper in found.items():
        for wrong in ({**paper, "made_up": 1}, {key: paper[key] for key in list(paper)[1:]}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, SCHEMAS[name])


def test_every_fact_is_used_by_a_paper_and_none_is_missing(tmp_path, monkeypatch):
    known = []
    filled = papers._filled
    monkeypatch.setattr(papers, "_filled", lambda node, facts: known.append(facts) or filled(node, facts))
    papers_of(tmp_path / "p", *AGR)
    assert {*re.findall(r"\{(\w+)\}", TEMPLATE)} - {"names"} == known[0].keys()


@pytest.mark.parametrize("words", [AGR, (*AGR, *SCHEDULE), ("--algo", "dp-agrlr-micro"), ("--algo", "dp-agr-secure")])
def test_each_paper_of_a_plan_names_unit_observer_and_relation_of_all_that_it_states(tmp_path, words):
    found, _ = papers_of(tmp_path / "p", *words, *REAL)
    stated = json.loads(dpfedmeta("account", *words, *REAL, "--json").out)["guarantees"]
    for cell in stated:
        data = cells_of(found)[cell["unit"], cell["observer"]]
        assert (data["epsilon"] is None) is (cell["epsilon"] is None)
        assert data["adjacency"] == cell["adjacency"]
        assert {name: each is None for name, each in data["relations"].items()} == {
            name: each is None for name, each in cell.get("relations", {}).items()
        }
        if cell["epsilon"] is not None:
            assert data["epsilon"] == float(rounded_up(cell["epsilon"], 4)) >= cell["epsilon"]
            assert data["delta"] == float(asked(cell["delta"]))
    for name, paper in found.items():
        assert all(cell in texts(paper) for cell in CELLS), name
        assert "A plan: nothing was spent yet." in texts(paper), name
    numbers = cells_of(found)["client", "public"]
    assert loss(found)["privacy_parameters"] == {"epsilon": numbers["epsilon"], "delta": numbers["delta"]}
    assert loss(found)["privacy_unit"] == "one client"
    assert "(client, public)" in loss(found)["privacy_unit_details"]


@pytest.mark.parametrize(("algo", "sums"), [("dp-agr", False), ("dp-agr-secure", True)])
def test_under_sums_the_clients_of_a_round_are_not_the_public(tmp_path, algo, sums):
    found, _ = papers_of(tmp_path / "p", "--algo", algo)
    for name in ("registry.yaml", "nist-800-226.yaml", "dpia.yaml"):
        assert ("was in no round; towards a round's clients the server's numbers hold" in texts(found[name])) is sums
        assert ("whoever sees what is released, other clients too" in texts(found[name])) is not sums


def test_a_run_of_several_phases_states_all_of_them(tmp_path):
    found, _ = papers_of(tmp_path / "p", *AGR, *SCHEDULE)
    for name in ("registry.yaml", "nist-800-226.yaml"):
        said = texts(found[name])
        assert "10 rounds (each client with q = 0.00375) with Gaussian noise of z = 1, then 20 rounds" in said
        assert "150 and later 300 of them in a round" in said


@pytest.mark.parametrize("more", [(), ("--population.kind", "disjoint"), ("--population.kind", "natural")])
def test_simulated_clients_are_never_said_to_be_people(tmp_path, more):
    words = ("--algo", "dp-agr", "--noise-multiplier", "1.0", "--clients", "100", "--cohort", "10", "--rounds", "5")
    found, said = papers_of(tmp_path / "p", *words, *more)
    assert "privacy_parameters" not in loss(found)
    for name, paper in found.items():
        assert "the clients are simulated (population.kind = " in texts(paper), name
        assert_said_once(paper, name)
        assert "Each client keeps its records" not in texts(paper), name
    assert "Attention: the clients are simulated" in said.out


def test_the_clients_that_own_data_name_are_people_whose_records_one_machine_held(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfedmeta.cli.papers.holds_rows", lambda kind, task: True)
    found, _ = papers_of(tmp_path / "p", *AGR, "--population.kind", "natural")
    assert loss(found)["privacy_parameters"]["epsilon"] > 0
    assert "The clients are those that the data name." in texts(found["dpia.yaml"])
    for name, paper in found.items():
        assert_said_once(paper, name)


def test_a_copy_of_a_shipped_task_makes_nobody_real(tmp_path):
    for name in ("omniglot.yaml", "omniglot-split.csv"):
        (tmp_path / name.replace("omniglot.", "hospital.")).write_text((TASKS / name).read_text())
    words = (*AGR[:2], "--dataset", str(tmp_path / "hospital.yaml"), "--population.kind", "natural", *AGR[6:])
    found, _ = papers_of(tmp_path / "p", *words, "--clients", "100", "--cohort", "10")
    assert "privacy_parameters" not in loss(found)
    assert "the clients are simulated (population.kind = natural)" in texts(found["registry.yaml"])


def test_a_chosen_seed_leaves_the_registry_without_a_number(tmp_path):
    found, _ = papers_of(tmp_path / "p", *AGR, *REAL, "--run.noise_seed", "3")
    assert "privacy_parameters" not in loss(found)
    assert all(SIMULATION in texts(paper) for paper in found.values())


def test_a_bound_that_protects_nobody_is_no_number_of_the_registry(tmp_path):
    found, _ = papers_of(tmp_path / "p", *AGR[:-1], "0.3", *REAL, "--cohort", "30000")
    assert "privacy_parameters" not in loss(found)
    assert loss(found)["privacy_unit"] == "none is protected towards the public"
    assert "This protects nobody" in texts(found["dpia.yaml"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--algo", "maml"), "maml on omniglot promises nothing in any cell"),
        (("--algo", "dp-agr", "--cohort", "0"), "cohort"),
        (("--run", "nowhere"), "nowhere"),
        ((*AGR, "--advise"), "--advise: does not go with --papers and --events"),
        ((*AGR, "--explain"), "--explain: does not go with --papers and --events"),
    ],
)
def test_what_promises_nothing_or_was_refused_has_no_papers(tmp_path, words, error):
    found, said = papers_of(tmp_path / "p", *words, code=2)
    assert error in said.error
    assert not found
    assert not (tmp_path / "p").exists()


def test_nothing_is_written_where_one_of_the_two_is_refused(tmp_path):
    events = tmp_path / "e.json"
    _, said = papers_of(tmp_path / "p", "--algo", "dp-agr-secure", "--events", str(events), code=2)
    assert "dp-accounting cannot account for dp-agr-secure on omniglot" in said.error
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "p").mkdir()
    assert "expected the name of a new folder" in dpfedmeta("account", *AGR, "--papers", tmp_path / "p", code=2).error


@pytest.mark.parametrize(("charged", "status", "spends"), [
    (2, "completed", "completed; stated is what it spent"),
    (1, "interrupted", "interrupted; stated is what it may spend"),
    (1, "budget", "budget; stated is what it spent"),
])  # fmt: skip
def test_the_papers_of_a_run_state_what_its_statement_states(tmp_path, charged, status, spends):
    run = written_run(tmp_path, algo="dp-agr", given=FEW, charged=charged, status=status)
    found, _ = papers_of(tmp_path / "p", "--run", str(run.path))
    content = json.loads(dpfedmeta("account", "--statement", str(run.path), "--json").out)
    for cell in content["guarantees"]:
        stated = cells_of(found)[cell["unit"], cell["observer"]]["epsilon"]
        assert stated == (None if cell["epsilon"] is None else float(rounded_up(cell["epsilon"], 4)))
    analyses = found["model-card.yaml"]["quantitative_analyses"]
    assert analyses["ledger_head"] == content["head"]
    for name, paper in found.items():
        assert content["head"] in texts(paper), name
        assert spends in texts(paper), name
        assert "ot verified: " in texts(paper), name
    lines = [line for line in content["statement"] if line.startswith("- (")]
    assert all(line in texts(found["dpia.yaml"]) for line in lines)


def test_of_a_federation_the_registry_gets_its_number(tmp_path):
    run = written_run(tmp_path, algo="dp-agr", given={**FEW, "population.kind": "real"}, charged=2)
    found, said = papers_of(tmp_path / "p", "--run", str(run.path))
    epsilon = audit(RunDirectory(run.path)).guarantees[0].epsilon
    assert loss(found)["privacy_parameters"]["epsilon"] == float(rounded_up(epsilon, 4)) >= epsilon
    assert all("Each client keeps its records" in texts(paper) for paper in found.values())
    assert "simulated" not in said.out
    two = ("--verify", run.path, run.path, "--papers", tmp_path / "q")
    assert "name one run" in dpfedmeta("account", *two, code=2).error


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("ledger.jsonl", '"multiplier": 1.0', '"multiplier": 9.0'),
        ("summary.json", r'"epsilon": [\d.]+', '"epsilon": 0.01'),
        ("config.yaml", "cohort: 30", "cohort: 3"),
    ],
)
def test_a_run_that_was_edited_has_no_papers(tmp_path, file, old, new):
    run = written_run(tmp_path, algo="dp-agr", given=FEW, charged=2)
    (run.path / "config.yaml").write_text(read_content(run.ledger).identity.config)
    assert papers_of(tmp_path / "whole", "--run", str(run.path))[0]
    path = run.path / file
    content, edited = re.subn(old, new, path.read_text(), count=1)
    assert edited == 1
    path.write_text(content)
    found, said = papers_of(tmp_path / "p", "--run", str(run.path), code=2)
    assert file in said.error
    assert not found


def test_the_papers_of_a_chosen_run_count_the_choice(tmp_path):
    run, cost = chosen_run(tmp_path, mean=5.0)
    found, _ = papers_of(tmp_path / "p", "--verify", str(run.path))
    assert cells_of(found)["client", "public"]["epsilon"] == float(rounded_up(cost.epsilon, 4)) > cost.single
    assert all(f"epsilon = {rounded_up(cost.epsilon, 4)}" in texts(paper) for paper in found.values())
    said = dpfedmeta("account", "--run", run.path, "--events", tmp_path / "e.json", code=2).error
    assert "a choice among runs costs more than its rounds" in said


def test_of_a_loop_the_papers_say_that_nobody_knows_who_its_clients_are(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=2, promise=dp.Promise(epsilon=6.0, delta=1e-4), like={"w": np.zeros(3)},
        clip=dp.clip.Constant(initial=1.0), run_dir=tmp_path / "mine",
    ) as private:  # fmt: skip
        for round_ in private:
            for client in round_.cohort:
                round_.add(client, None)
            round_.release()
    found, _ = papers_of(tmp_path / "p", "--run", str(tmp_path / "mine"))
    assert "privacy_parameters" not in loss(found)
    assert all("Who the clients are stands in no ledger" in texts(p) for p in found.values())
    read_back(tmp_path / "e.json", "--run", str(tmp_path / "mine"))


def test_papers_show_no_path_of_this_machine(tmp_path):
    run = written_run(tmp_path, algo="dp-agr", given=FEW, charged=2)
    found, _ = papers_of(tmp_path / "p", "--run", str(run.path))
    assert str(tmp_path) not in texts(found)


def read_back(path, *words):
    """(what the file says that dp-accounting computes, what dp-accounting computes from it, what is promised)."""
    dpfedmeta("account", *words, "--events", str(path))
    found = json.loads(path.read_text(), object_hook=lambda each: namedtuple("Read", each)(**each))
    by = found.read_by
    arguments = by.arguments._asdict()
    arguments["neighboring_relation"] = dp_accounting.NeighboringRelation[by.arguments.neighboring_relation]
    accountant = {"PLDAccountant": PLDAccountant, "RdpAccountant": RdpAccountant}[by.accountant](**arguments)
    accountant.compose(dp_accounting.DpEvent.from_named_tuple(found.event))
    assert accountant.get_epsilon(by.delta) == by.epsilon
    assert (found.of.unit, found.of.observer) == ("client", "public")
    return by.epsilon, found.promised


@pytest.mark.parametrize(
    ("words", "looser"),
    [
        (AGR, 1.01),
        ((*AGR, *SCHEDULE), 1.01),
        ((*AGR, "--population.sampler", "fixed"), 20.0),  # by RDP alone
        (("--algo", "dp-agr-correlated"), 1.01),
        (("--algo", "dp-agr-cyclic", "--dataset", "cifar-fs"), 1.01),
        (("--algo", "dp-agrlr-micro"), 1.01),  # rare events are taken off delta
    ],
)
def test_dp_accounting_reads_the_events_back_to_the_same_epsilon(tmp_path, words, looser):
    epsilon, promised = read_back(tmp_path / "e.json", *words)
    stated = json.loads(dpfedmeta("account", *words, "--json").out)["guarantees"][0]
    assert (promised.epsilon, promised.delta) == (stated["epsilon"], stated["delta"])
    assert promised.epsilon <= 1.01 * epsilon
    assert epsilon <= looser * promised.epsilon
    told = dpfedmeta("account", *words, "--events", tmp_path / "f.json").out
    why = f", for our {rounded_up(promised.epsilon)}: of cohorts of a fixed size it has RDP alone"
    assert f"reads epsilon {rounded_up(epsilon)} from it{why if looser > 2 else chr(10)}" in told
    # Where clients' noise counts, more of them may come than it was counted for.
    delta = json.loads((tmp_path / "e.json").read_text())["read_by"]["delta"]
    assert 0.95 * promised.delta <= delta <= promised.delta
    assert (delta < promised.delta) is ("dp-agrlr-micro" in words)


def test_the_events_of_a_run_are_those_of_its_ledger(tmp_path):
    run = written_run(tmp_path, algo="dp-agr", given=FEW, charged=2)
    epsilon, promised = read_back(tmp_path / "e.json", "--run", str(run.path))
    assert promised.epsilon == audit(RunDirectory(run.path)).guarantees[0].epsilon
    assert epsilon == pytest.approx(promised.epsilon, rel=0.01)
    assert json.loads((tmp_path / "e.json").read_text())["attention"][0].startswith("the clients are simulated")
    stopped = written_run(tmp_path, name="s", algo="dp-agr", given=FEW, charged=1)
    whole, promised = read_back(tmp_path / "f.json", "--run", str(stopped.path))
    assert promised.epsilon == guarantees(audit(RunDirectory(stopped.path)).plan)[0].epsilon
    assert whole == epsilon


def test_what_was_released_before_is_in_the_events_and_said(tmp_path):
    first = PrivacyPlan(clients=4000, cohort=40.0, rounds=20, noise_multiplier=1.0, client_delta=1e-5)
    plan = replace(first, earlier=(Earlier(run="a", head="b", phases=first.phases),))
    account = papers.Account(
        name="mine", plan=plan, cells=guarantees(plan), phases=plan.phases, clients="real", stage="planned"
    )
    content = json.loads(papers.events_of(account))
    assert content["promised"]["epsilon"] > 1.1 * guarantees(first)[0].epsilon
    assert content["read_by"]["epsilon"] == pytest.approx(content["promised"]["epsilon"], rel=0.01)
    assert sum(each["count"] for each in content["event"]["events"]) == 40
    assert "The plan counts 1 earlier ledger." in papers.papers_of(account)["dpia.yaml"]


@pytest.mark.parametrize("algo", ["dp-agr-secure", "dp-agrlr-secure", "dp-agr-checkins", "maml"])
def test_rounds_that_no_event_states_whole_are_refused(tmp_path, algo):
    said = dpfedmeta("account", "--algo", algo, "--events", tmp_path / "e.json", code=2).error
    assert f"dp-accounting cannot account for {algo} on omniglot" in said
    assert [*tmp_path.iterdir()] == []


def test_where_a_record_is_stated_delta_is_said_of_records_and_its_relation_once():
    plan = PrivacyPlan(clients=4000, cohort=40.0, rounds=20, noise_multiplier=1.0, client_delta=1e-5)
    cell = replace(guarantees(plan)[0], unit="record", adjacency="row-deleted")
    account = papers.Account(name="mine", plan=plan, cells=(cell,), phases=plan.phases, clients="real", stage="planned")
    said = "\n".join(papers.papers_of(account).values())
    whole = " ".join(said.split())
    assert "Delta of (record, public) is the probability of a failure for one record: over the 4,000 clients'" in whole
    assert "n x 1e-05 failures" in whole
    assert whole.count("(row-deleted)") >= 2
    assert "(row-deleted) (row-deleted)" not in whole
    assert "row-deleted), row-deleted" not in whole
