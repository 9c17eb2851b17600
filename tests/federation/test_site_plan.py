"""The offline planner of a federation: its numbers are those of the plan that the server would make of its settings."""

import io
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from dpfedmeta.__main__ import main
from dpfedmeta.accounting.calibration import calibrate
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.cli import plan_sites
from dpfedmeta.config.load import resolve_text
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation import site_plan
from dpfedmeta.federation.server.federation_checks import check_agreements, check_federation
from dpfedmeta.federation.site_plan import (
    CELLS,
    LEARNS,
    MEASURED,
    TEACHES_NOTHING,
    Sites,
    noise_length,
    remedies,
    settings_of,
    tolerated,
)
from dpfedmeta.planning.run_plan import make_plan
from tests.documentation.pages import ROOT

TASK = """
name: clinics
source: {reader: vectors, path: public.csv}
features: 3
mean: [55, 75, 2]
deviation: [10, 10, 1]
labels: [well, ill]
"""


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"p-{split},{split},{label},{50 + n},70,1"
        for split in ("train", "val", "test")
        for label in ("well", "ill")
        for n in range(12)
    ]
    (tmp_path / "public.csv").write_text("\n".join(["client,split,class,age,pulse,oldpeak", *rows]))
    (tmp_path / "task.yaml").write_text(TASK)
    return "task.yaml"


def said(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["federate", "plan", *shlex.split(words)])
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("sites", "length"),
    [
        (Sites(sites=5, least=250, classes=5, weights=5904), 5.8),
        (Sites(sites=5, least=4800, classes=5, weights=5904), 0.30),
        (Sites(sites=4, least=40, classes=2, weights=28, rounds=10, record_delta=1e-4), 1.54),
    ],
)
def test_it_computes_what_the_pages_show_of_trained_federations(sites, length):
    """Of a record that counts as nothing, as those federations promised it; a deleted row takes twice as much noise."""
    epsilon = 1 if sites.sites == 4 else 2.5
    assert noise_length(sites, "record-sum", epsilon) == pytest.approx(2 * length, rel=0.02)


def test_its_measured_lines_stand_in_the_pages():
    federation, people = ((ROOT / "docs" / name).read_text() for name in ("federation.md", "people.md"))
    shown = " ".join(words for _, words in MEASURED)
    for number in re.findall(r"[0-9.]+%", shown):
        assert number in federation
    assert "| 7,200 (12 classes of 300 + 300, parts of 2 + 1) | 480 | 0.30 |" in federation
    assert "no better than untrained weights" in " ".join(people.split())
    lengths = [length for length, _ in MEASURED]
    assert lengths == sorted(lengths)
    assert LEARNS in lengths
    assert lengths[-1] >= TEACHES_NOTHING


@pytest.mark.parametrize(
    "sites",
    [
        pytest.param(2, marks=pytest.mark.slow),
        3,
        pytest.param(21, marks=pytest.mark.slow),
        pytest.param(50, marks=pytest.mark.slow),
    ],
)
def test_the_settings_it_writes_are_planned_as_it_said(sites, task, tmp_path, capsys):
    words = f"--sites {sites} --records 80..100 --dataset {task} --epsilon 2.5"
    told = json.loads(said(f"{words} --json --out plan.yaml", capsys))
    settings = resolve_text((tmp_path / "plan.yaml").read_text(), "plan.yaml")
    check_federation(settings, [number.to_bytes(32, "big") for number in range(sites)])
    plan = make_plan(settings, load_task(task)[0]).among_real_clients()
    check_agreements(plan)
    assert told["sites"]["weights"] == 8
    length = plan.privacy.at(0).total_noise * math.sqrt(8) / sites
    assert told["chosen"]["noise"] == pytest.approx(length, rel=1e-3)
    assert told["chosen"]["cell"] == ("record-messages" if sites == 2 else "record-sum")
    (record,) = (cell for cell in plan.planned if (cell.unit, cell.observer) == ("record", "server"))
    assert 2.4 < record.epsilon <= 2.5
    assert plan.privacy.record.query_records == told["sites"]["parts"] == 20


def test_every_number_of_sites_has_a_graph_or_a_reason():
    assert [tolerated(sites) for sites in range(3, 101)] == [0.2] * 98
    with pytest.raises(RefusedPlan, match="three sites are the fewest"):
        tolerated(2)
    with pytest.raises(RefusedPlan, match=r"at most .* clients have one sum"):
        tolerated(10**9)


def test_two_sites_are_told_the_command_that_helps(task, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            shlex.split(
                f"account --config cross-silo --clients 2 --cohort 2 --dataset {task} --ways 2 --model.name linear"
            )
        )
    assert ended.value.code == 2
    error = capsys.readouterr().err
    remedy = (
        re.search(r"dpfedmeta federate plan (.*?) writes", error)[1].replace("A..B", "80..100").replace("TASK", task)
    )
    assert "settings for dpfedmeta federate server" in said(remedy, capsys)


def test_a_remedy_is_as_short_as_it_says():
    sites = Sites(sites=4, least=400, classes=2, weights=100)
    length = noise_length(sites, "record-messages", 2.5)
    found = remedies(sites, length)
    assert len(found) == 4
    for remedy in found:
        # Noise of messages falls with the root of the sites alone.
        if remedy.sites.sites == sites.sites:
            assert noise_length(remedy.sites, "record-messages", 2.5) <= LEARNS * 1.001, remedy.changed
    assert remedies(sites, LEARNS) == []


def test_records_that_are_to_help_fill_whole_micro_episodes():
    """1,573 records were said to be enough, of which 1,572 were used."""
    sites = Sites(sites=2, least=200, classes=2, weights=100)
    length = noise_length(sites, "record-messages", 1.0)
    (found,) = (remedy.sites for remedy in remedies(sites, length) if remedy.sites.least != 200)
    assert found.least % 4 == 0
    assert noise_length(found, "record-messages", 1.0) <= LEARNS
    assert noise_length(replace(found, least=found.least - 4), "record-messages", 1.0) > LEARNS * 0.999


def test_it_says_cells_reasons_and_commands_that_can_be_typed(capsys):
    text = said("--sites 3 --records 60..90 --weights 100 --epsilon 1", capsys)
    assert all(words.split(",")[0] in text for words in CELLS.values())
    commands = re.findall(r"dpfedmeta federate plan (.*)", text)
    assert len(commands) >= 2
    assert " short" in said(commands[0], capsys)


@pytest.mark.parametrize(("words", "measured"), [("", True), ("--weights 100", False), ("--dataset task.yaml", False)])
def test_it_says_learns_only_of_what_was_trained_like_that(words, measured, task, capsys):
    """The small network on images was; a table of 8 weights was not."""
    text = said(f"--sites 5 --records 4800 --epsilon 2.5 60 {words}", capsys)
    assert ("learns: up to" in text) == (" learns" in text) == measured
    assert ("For such a model and such data nothing was measured" in text) == (not measured)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--sites 1 --records 9", "--sites 1: expected 2 or more"),
        ("--sites 3 --records 9..3", "--records 9..3: expected A..B"),
        ("--sites 3 --records many", "--records many: expected A..B"),
        ("--sites 3 --records 3", "--records 3: a site needs 2 records of each of 2 classes"),
        ("--sites 3 --records 9 --out plan.yaml", "--out: settings name the server's task"),
        ("--sites 3 --records 9 --epsilon 0", "--epsilon: expected numbers above 0"),
        ("--sites 3 --records 9 --dataset none.yaml", "none.yaml"),
        ("--sites 3 --records 9 --dataset task.yaml --out no/plan.yaml", "there is no folder no"),
        (
            "--sites 3 --records 60000 --dataset task.yaml --epsilon 1 --out plan.yaml",
            "task.shots = 15,000: a client of a federation takes at most 10,000",
        ),
    ],
)
def test_bad_input_is_one_line(words, error, task, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["federate", "plan", *shlex.split(words)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line
    assert not Path("plan.yaml").exists()


def test_settings_of_images_keep_the_network_of_silos():
    sites = Sites(sites=8, least=250, classes=5, weights=5904)
    chosen = settings_of(sites, 2.5, "cifar-fs", images=True)
    silos = yaml.safe_load((ROOT / "configs/federations/cross-silo.yaml").read_text())
    assert chosen["model"] == silos["model"]
    assert (chosen["task"]["shots"], chosen["population"]["cohort"]) == (25, 8)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sites", [3, 4, 60])
def test_a_cell_is_solved_for_itself_and_for_whom_it_names(cell, sites):
    """The noise that is found keeps this epsilon in this cell, and a little less does not."""
    asked, plan = 2.0, site_plan._plan(Sites(sites=sites, least=40, classes=2, weights=28), cell)
    unit, towards = cell.split("-")
    observer = "public" if towards == "public" else "server"
    found = calibrate(plan, site_plan._targets(cell, asked))
    (own,) = (each for each in guarantees(found) if (each.unit, each.observer) == (unit, observer))
    assert asked * 0.99 < own.epsilon <= asked
    assert plan.server_sees == ("sum" if towards == "sum" else "messages")


@pytest.mark.parametrize("sites", [2, 3, 19, 20, 21, 40, 41, 60, 500])
def test_no_fewer_colluders_are_counted_with_than_the_plan_says(sites):
    """A twentieth of the sites, rounded up, and one at least."""
    planned = Sites(sites=sites, least=40, classes=2, weights=28)
    assert planned.colluding == max(1, -(-sites // 20))
    settings = settings_of(planned, 2.5, "clinics", images=False)
    assert settings["privacy"]["client"]["colluding"] == planned.colluding


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_s_plan_is_of_what_it_protects(cell):
    """Records in their parts and at their delta, clients whole and at theirs; masks only where there is a sum."""
    sites = Sites(sites=7, least=41, classes=3, weights=29, rounds=11, client_delta=1e-7, record_delta=1e-4)
    plan = site_plan._plan(sites, cell)
    records, summed = cell.startswith("record"), cell.endswith("sum")
    assert sites.parts == 6
    assert (plan.clients, plan.cohort, plan.rounds, plan.sampler) == (7, 7, 11, "fixed")
    assert (plan.client_delta, plan.record_delta, plan.colluding) == (1e-7, 1e-4, 1)
    assert (plan.record is not None, plan.secure is not None) == (records, summed)
    if records:
        own = plan.record
        assert (own.query_records, own.parts, own.of_sum) == (6, "micro-episodes", summed)
        assert (own.query_noise is None) == summed
    if summed:
        assert (plan.secure.parts, plan.secure.dimension) == (6 if records else 1, 29)
        assert (plan.secure.dropout, plan.secure.malicious) == (tolerated(7), True)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_settings_of_two_sites_let_each_add_noise_and_of_three_have_sums(count, images):
    sites = Sites(sites=count, least=41, classes=3, weights=29, rounds=11, client_delta=1e-7, record_delta=1e-4)
    chosen = settings_of(sites, 2.5, "clinics", images=images)
    assert chosen["algo"] == ("dp-agrlr-secure" if count > 2 else "dp-agrlr-micro")
    assert (chosen["dataset"], chosen["server"]["rounds"]) == ("clinics", 11)
    assert chosen["task"] | {"ways": 3, "shots": 6, "queries": 6} == chosen["task"]
    assert chosen["population"] | {"clients": count, "cohort": count} == chosen["population"]
    client, record = chosen["privacy"]["client"], chosen["privacy"]["record"]
    assert (client["epsilon"], client["delta"], client["colluding"]) == (None, 1e-7, 1)
    assert record == {"epsilon": 2.5, "delta": 1e-4}
    if count > 2:
        assert chosen["aggregation"] == {"dropout": tolerated(count), "adversarial": 0.05, "bits": 16}
        assert "hostile" not in client
    else:
        # Their own noise is all there is, so each of the two is taken to add it.
        assert client["hostile"] == 0.0
        assert "aggregation" not in chosen
        assert chosen["server"]["noise_multiplier"] == 1e-3
    assert (chosen["model"].get("name") == "linear") == (not images)
    assert None not in chosen["model"].values()


@pytest.mark.parametrize(("name", "least"), [("sites", 2), ("classes", 2), ("weights", 1), ("rounds", 1)])
def test_each_size_has_a_least_value(name, least):
    given = {"sites": 5, "least": 40, "classes": 2, "weights": 9, "rounds": 3}
    Sites(**given | {name: least})
    with pytest.raises(InputError, match=f"^--{name} {least - 1}: expected {least} or more"):
        Sites(**given | {name: least - 1})


@pytest.mark.parametrize(("least", "parts"), [(6, 1), (11, 1), (12, 2), (5, None)])
def test_a_micro_episode_takes_two_records_of_each_class(least, parts):
    given = {"sites": 5, "classes": 3, "weights": 9}
    if parts is None:
        with pytest.raises(InputError, match="--records 5: a site needs 2 records of each of 3 classes, 6 at least"):
            Sites(least=least, **given)
    else:
        assert Sites(least=least, **given).parts == parts


@pytest.mark.parametrize(("scale", "weights", "rounds"), [(1.0, None, None), (2.0, 25, 5), (5.0, 4, None)])
def test_what_helps_alone_is_as_much_as_the_noise_is_too_long(scale, weights, rounds):
    """Noise in a mean of n sites is as 1/n; it is as the root of rounds and weights."""
    sites = Sites(sites=5, least=41, classes=2, weights=100, rounds=20)
    found = {each.changed: each.sites for each in remedies(sites, scale * LEARNS)}
    if scale == 1.0:
        assert found == {}
        return
    due = {f"{5 * scale:.0f} sites": ("sites", 5 * scale),
           f"{40 * scale:.0f} records at the smallest site": ("least", 40 * scale),
           f"a model of {weights} weights": ("weights", weights)}  # fmt: skip
    if rounds:
        due[f"{rounds} rounds"] = ("rounds", rounds)
    assert found == {words: replace(sites, **{name: round(value)}) for words, (name, value) in due.items()}


def test_settings_of_tables_are_those_that_train_the_hospitals():
    """Each of them: with a default in its place another network, or another learner, would be trained."""
    chosen = settings_of(Sites(sites=5, least=41, classes=3, weights=29), 2.5, "clinics", images=False)
    assert (
        chosen["meta"] | {"method": "maml", "order": 2, "adapt": "all", "learn": "all", "steps": 5, "lr": 0.1}
        == chosen["meta"]
    )
    due = {"name": "linear", "norm": "none", "features": "raw"}
    assert {name: chosen["model"].get(name) for name in due} == due
    assert "width" not in chosen["model"]
    due = {"optimizer": "adam", "beta1": 0.9, "lr": 0.1, "final_lr": 0.03, "rounds": 20}
    assert {name: chosen["server"].get(name) for name in due} == due
    assert chosen["evaluation"]["queries"] == 5


@pytest.mark.parametrize(
    ("sites", "found", "chosen"),
    [
        (4, {1.0: 3 * LEARNS, 2.0: 0.9 * LEARNS, 4.0: 0.4 * LEARNS}, 2.0),
        (4, {1.0: 3 * LEARNS, 2.0: LEARNS, 4.0: "refused"}, 2.0),
        (4, {1.0: 3 * LEARNS, 2.0: 4 * LEARNS, 4.0: 2 * LEARNS, 8.0: "refused"}, 4.0),
        (2, {1.0: 3 * LEARNS, 2.0: 0.9 * LEARNS}, 2.0),
    ],
)
def test_of_the_epsilons_that_teach_the_smallest_is_written(sites, found, chosen):
    cell = "record-sum" if sites > 2 else "record-messages"
    other = "record-messages" if sites > 2 else "record-sum"
    facts = Sites(sites=sites, least=40, classes=2, weights=28)
    assert plan_sites._chosen(facts, {other: {0.5: 0.1 * LEARNS}, cell: found}) == (cell, chosen, found[chosen])
    with pytest.raises(RefusedPlan, match="why not"):
        plan_sites._chosen(facts, {cell: {1.0: "why not", 2.0: "neither"}})


@pytest.mark.parametrize("dataset", [False, True])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--classes", "0"], "--classes 0: expected 2 or more"),
        (["--classes", "1"], "--classes 1: expected 2 or more"),
        (["--weights", "0"], "--weights 0: expected 1 or more"),
        (["--rounds", "0"], "--rounds 0: expected 1 or more"),
        (["--sites", "0"], "--sites 0: expected 2 or more"),
    ],
)
def test_a_number_that_is_given_is_not_replaced(task, words, reason, dataset):
    """Zero is a number, and a wrong one."""
    options = ["--sites", "5", "--records", "300..2000", *words, *(["--dataset", task] if dataset else [])]
    with pytest.raises(InputError) as found:
        plan_sites.main(options, None)
    assert str(found.value) == reason


@pytest.mark.parametrize("dataset", [False, True])
def test_numbers_that_are_not_given_are_those_of_the_task_or_the_usual_ones(task, capsys, dataset):
    words = "--sites 5 --records 400 --json" + (f" --dataset {task}" if dataset else "")
    usual = json.loads(said(words, capsys))["sites"]
    # Three numbers and a constant for each of two labels; or a small network for images.
    assert (usual["classes"], usual["weights"]) == ((2, 8) if dataset else (2, 5904))
    given = json.loads(said(f"{words} --classes 3 --weights 1", capsys))["sites"]
    assert (given["classes"], given["weights"]) == (3, 1)


def shown(sites, most, found, chosen):
    console = Console(width=300, record=True, file=io.StringIO())
    plan_sites._show(console, sites, most, found, chosen, measured=True)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_every_number_of_a_plan_s_sentences_is_one_of_the_plan():
    """Of sites, records, classes, weights and rounds no two are equal."""
    sites = Sites(sites=7, least=1250, classes=6, weights=2345, rounds=31)
    found = {
        cell: {2.0: (place + 1) * LEARNS, 5.25: "refused because" if place == 2 else LEARNS / 2}
        for place, cell in enumerate(CELLS)
    }
    lines = shown(sites, 4321, found, ("record-sum", 2.0, LEARNS))
    assert lines[:2] == [
        "7 sites of 1,250 to 4,321 records in 6 classes, 2,345 weights, 31 rounds in which all take part",
        "each takes part with all its records, in 104 micro-episodes by a hash of each record; at the smallest site "
        "one gets 2 records of each class in the mean",
    ]
    table = [[part.strip() for part in line.split("│")] for line in lines if "│" in line]
    assert [row[1:-1] for row in table] == [
        [CELLS["record-sum"], "0.3 learns", "0.15 learns"],
        [CELLS["record-messages"], "0.6 perhaps", "0.15 learns"],
        [CELLS["client-sum"], "0.9 perhaps", "refused"],
        [CELLS["client-public"], "1.2 perhaps", "0.15 learns"],
    ]
    assert [line for line in lines if line.startswith("refused: ")] == ["refused: refused because"]
    assert "secure sums: 1 site may be missing in a round, and 1 may tell the server what it sent" in lines
    assert f"  {MEASURED[1][0]:.2f}: {MEASURED[1][1]}" in lines
    assert lines[-1] == f"chosen: {CELLS['record-sum']}, epsilon 2; noise 0.3"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (3, "secure sums: no sites may be missing in a round, and 1 may tell the server what it sent"),
        (10, "secure sums: 2 sites may be missing in a round, and 1 may tell the server what it sent"),
        (41, "secure sums: 8 sites may be missing in a round, and 3 may tell the server what it sent"),
        (2, None),
    ],
)
def test_as_many_sites_may_be_missing_as_there_are_whole_ones_in_the_share(count, words):
    lines = shown(
        Sites(sites=count, least=40, classes=2, weights=9), 50, {"record-sum": {1.0: 0.2}}, ("record-sum", 1.0, 0.2)
    )
    assert [line for line in lines if line.startswith("secure sums: ")] == ([words] if words else [])


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (LEARNS, "learns"),
        (LEARNS * 1.01, "perhaps"),
        (1.49, "perhaps"),
        (TEACHES_NOTHING, "nothing"),
        ("no", "refused"),
    ],
)
def test_lengths_of_noise_are_judged_at_what_was_measured(value, word):
    assert plan_sites._word(value, measured=True).split()[-1] == word


def test_commands_of_remedies_have_each_number_of_theirs():
    sites = Sites(sites=7, least=1250, classes=6, weights=2345, rounds=31)
    lines = shown(sites, 1250, {"record-sum": {5.25: 2 * LEARNS}}, ("record-sum", 5.25, 2 * LEARNS))
    commands = [line.partition(":  ")[2] for line in lines if ":  dpfedmeta" in line]
    usual = {"sites": 7, "records": 1250, "classes": 6, "weights": 2345, "rounds": 31, "epsilon": 5.25}
    for command, change in zip(
        commands, ({"sites": 14}, {"records": 2496}, {"weights": 586}, {"rounds": 7}), strict=True
    ):
        words = [word for name, value in (usual | change).items() for word in (f"--{name}", str(value))]
        assert shlex.split(command) == ["dpfedmeta", "federate", "plan", *words]
