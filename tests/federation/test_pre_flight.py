"""`federate client --check`: a round of the plan by the run's code, on every kind of a broken table."""

import csv
import random
import shutil

import pytest
import yaml

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.participation_cost import Spending
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import claim, note_answered
from dpfedmeta.federation.pre_flight import pre_flight
from dpfedmeta.federation.site_plan import Sites, settings_of
from tests.conftest import dpfedmeta
from tests.federation.silos import private_key

HEADER = ["class", "age", "pulse", "oldpeak"]
TASK = {
    "name": "clinics", "source": {"reader": "vectors", "path": "public.csv"}, "features": 3,
    "mean": [55, 75, 2], "deviation": [10, 10, 1], "labels": ["well", "ill"],
}  # fmt: skip


def rows(count, seed=0):
    draw = random.Random(seed)
    return [
        [("well", "ill")[n % 2], f"{draw.gauss(55, 10):.1f}", f"{draw.gauss(75, 9):.1f}", f"{draw.gauss(2, 1):.1f}"]
        for n in range(count)
    ]


def write(path, header, lines):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    parts = [[f"p-{part}", part, *row] for part in ("train", "val", "test") for row in rows(24)]
    write(folder / "public.csv", ["client", "split", *HEADER], parts)
    (folder / "task.yaml").write_text(yaml.safe_dump(TASK))
    # Two sites each make noise, and of three a sum is seen.
    for sites in (2, 3):
        plan = settings_of(Sites(sites=sites, least=60, classes=2, weights=8, rounds=2), 2.5, "task.yaml", images=False)
        (folder / f"plan-{sites}.yaml").write_text(yaml.safe_dump(plan))
    return folder


def column(name, change):
    place = HEADER.index(name)
    return lambda lines: [[change(each) if at == place else each for at, each in enumerate(line)] for line in lines]


BROKEN = {
    "NaN": (HEADER, column("pulse", lambda value: "nan"), "no sound record"),
    "infinity": (HEADER, column("pulse", lambda value: "inf"), "no sound record"),
    "blank": (HEADER, column("pulse", lambda value: ""), "no sound record"),
    "a mark": (HEADER, column("pulse", lambda value: "?"), "no sound record"),
    "1e30": (HEADER, column("pulse", lambda value: "1e30"), "no sound record"),
    "renamed": ([*HEADER[:2], "puls", HEADER[3]], list, "column pulse: missing; column puls: unknown; did you mean"),
    "missing": (HEADER[:3], lambda lines: [line[:3] for line in lines], "column oldpeak: missing"),
    "one more": ([*HEADER, "bmi"], lambda lines: [[*line, "22"] for line in lines], "column bmi: unknown"),
    "labels": (HEADER, column("class", lambda value: f"{value}?"), "outside the task's public list (well, ill)"),
    "few": (HEADER, lambda lines: lines[:2], "no rows that could be taken together"),
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_table_would_send_only_noise_and_is_told_why(site, which, tmp_path):
    header, change, why = BROKEN[which]
    found = pre_flight(write(tmp_path / "own.csv", header, change(rows(60))), site / "plan-3.yaml")
    assert not found.sound
    (line,) = (line for line in found.lines if line.startswith("ONLY NOISE"))
    assert why in line


@pytest.mark.parametrize("sites", [2, 3])
def test_a_sound_table_takes_part_and_nothing_is_left(site, tmp_path, sites):
    data = write(tmp_path / "own.csv", HEADER, rows(60))
    found = pre_flight(data, site / f"plan-{sites}.yaml")
    assert found.sound
    assert found.lines[1:] == (
        "60 records of 2 classes take part: ill (30), well (30)",
        "no limit was given (--epsilon), so none was compared with what this plan spends",
        "the message of the first round was computed here, and nothing was sent: this client takes part",
    )
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["own.csv"]


ONE_SIDED = {
    "one label alone": (["ill"] * 60, ["none of well: the message says nothing of what this client lacks"]),
    "few": (["well"] * 57 + ["ill"] * 3, ["3 of ill: at most 1 of 15 micro-episodes hold that label"]),
    "fewer": (["well"] * 46 + ["ill"] * 14, ["14 of ill: at most 7 of 15 micro-episodes hold that label"]),
    "both": (["well"] * 44 + ["ill"] * 16, []),
}


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("which", ONE_SIDED)
def test_a_table_with_few_of_a_label_says_how_much_of_a_message_that_is(site, tmp_path, which, sites):
    """It takes part: its owner may decide."""
    labels, due = ONE_SIDED[which]
    lines = [[label, *line[1:]] for label, line in zip(labels, rows(60), strict=True)]
    found = pre_flight(write(tmp_path / "own.csv", HEADER, lines), site / f"plan-{sites}.yaml")
    assert found.sound
    assert [line for line in found.lines if line.startswith("none of") or " hold that label" in line] == due


def test_rows_in_another_order_of_columns_are_the_same(site, tmp_path):
    turned = write(tmp_path / "own.csv", HEADER[::-1], [line[::-1] for line in rows(60)])
    assert pre_flight(turned, site / "plan-3.yaml").sound


def test_what_its_owner_may_not_have_meant_is_asked(site, tmp_path):
    lines = column("age", lambda value: str(12 * float(value)))(rows(60))
    lines[3][2] = "nan"
    found = pre_flight(write(tmp_path / "own.csv", HEADER, lines + lines[:2]), site / "plan-3.yaml")
    assert found.sound
    said = " ".join(found.lines)
    assert "records that repeat another one: 2" in said
    assert "column age: its mean lies" in said
    assert "is it in another unit?" in said
    assert "1 row(s) are wrong and left out" in said


def test_half_of_a_column_in_another_unit_is_asked_about(site, tmp_path):
    """Its mean and spread were near the task's."""
    lines = [
        [label, str(float(age) * (12 if n % 4 < 2 else 1)), *more] for n, (label, age, *more) in enumerate(rows(60))
    ]
    found = pre_flight(write(tmp_path / "own.csv", HEADER, lines), site / "plan-3.yaml")
    assert found.sound
    assert any(
        "column age: 30 values from" in line and "a part of them in another unit?" in line for line in found.lines
    )


def test_missing_values_are_counted_and_take_part_where_the_task_says_what_they_are(site, tmp_path):
    """Every row lacks something, as in real tables."""
    for name in ("plan-3.yaml", "public.csv"):
        shutil.copy(site / name, tmp_path)
    lines = [[label, "-999" if n % 2 else age, "?", peak] for n, (label, age, _, peak) in enumerate(rows(60))]
    own = write(tmp_path / "own.csv", HEADER, lines)
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(TASK))
    found = pre_flight(own, tmp_path / "plan-3.yaml")
    assert "ONLY NOISE" in " ".join(found.lines)
    assert any("column age: -999 in 30 records, far from all others" in line for line in found.lines)
    assert any("no number in some columns: pulse 60 (?)" in line and 'missing: ["?"]' in line for line in found.lines)
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(TASK | {"missing": ["?", -999]}))
    found = pre_flight(own, tmp_path / "plan-3.yaml")
    assert found.sound
    assert any(
        line.startswith("missing values: of 60 records 60 miss something: age 30, pulse 60; all")
        for line in found.lines
    )
    assert "60 records of 2 classes take part: ill (30), well (30)" in found.lines


def test_the_command_ends_with_2_where_only_noise_would_leave(site, tmp_path):
    for name in ("plan-3.yaml", "task.yaml", "public.csv"):
        shutil.copy(site / name, tmp_path)
    words = ("federate", "client", "--check", "plan-3.yaml", "--data", "own.csv")
    write(tmp_path / "own.csv", HEADER, rows(60))
    assert "this client takes part" in dpfedmeta(*words, folder=tmp_path).out
    write(tmp_path / "own.csv", HEADER[:3], [line[:3] for line in rows(60)])
    assert "ONLY NOISE" in dpfedmeta(*words, folder=tmp_path, code=2).out
    (tmp_path / "task.yaml").unlink()
    assert "put them beside it" in dpfedmeta(*words, folder=tmp_path, code=2).error


@pytest.mark.parametrize("chosen", ["maml", "dp-agr", "record epsilon 500"])
def test_what_the_plan_promises_is_said_before_somebody_takes_part(site, tmp_path, chosen):
    for name in ("task.yaml", "public.csv"):
        shutil.copy(site / name, tmp_path)
    plan = yaml.safe_load((site / "plan-2.yaml").read_text())
    if chosen == "record epsilon 500":
        plan["privacy"]["record"]["epsilon"] = 500
    else:
        kept = {name: plan[name] for name in ("dataset", "population", "task", "meta", "model") if name in plan}
        kept["meta"] = {name: each for name, each in kept.get("meta", {}).items() if name != "method"}
        plan = {"algo": chosen, "server": {"rounds": 2}} | kept
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    write(tmp_path / "own.csv", HEADER, rows(60))
    words = ("federate", "client", "--check", "plan.yaml", "--data", "own.csv")
    said = dpfedmeta(*words, folder=tmp_path).out
    assert all(f"- ({unit}, {towards}): " in said for unit in ("client", "record") for towards in ("public", "server"))
    assert ("No bound is stated" in said) == (chosen != "record epsilon 500")
    assert ("note: privacy.record.epsilon = 500" in said) == (chosen == "record epsilon 500")
    refused = dpfedmeta(*words, "--epsilon", "0.5", folder=tmp_path, code=2).out
    assert "your limit allows 0 of 2 rounds: a single round would cost" in refused
    assert "this client takes part" not in refused
    assert "--stay: does not go with --check" in dpfedmeta(*words, "--stay", folder=tmp_path, code=2).error
    assert "--home h: has no ledger" in dpfedmeta(*words, "--home", "h", folder=tmp_path, code=2).error


def test_a_limit_that_allows_some_rounds_says_how_many(site, tmp_path):
    for name in ("plan-3.yaml", "task.yaml", "public.csv"):
        shutil.copy(site / name, tmp_path)
    write(tmp_path / "own.csv", HEADER, rows(60))
    words = ("federate", "client", "--check", "plan-3.yaml", "--data", "own.csv", "--participations", "1")
    assert "your limit allows 1 of 2 rounds\n" in dpfedmeta(*words, folder=tmp_path).out
    refused = dpfedmeta(*words, "--colluding", "2", folder=tmp_path, code=2).out
    assert "your limit allows 0 of 2 rounds: the plan counts with" in refused


def test_a_home_that_spent_already_has_less_left(site, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    data, home = write(tmp_path / "own.csv", HEADER, rows(60)), tmp_path / "home"
    home.mkdir()
    promise, words = Promise(epsilon=30.0, participations=3), ("federate", "client", "--data", str(data))
    words += ("--check", str(site / "plan-2.yaml"), "--home", str(home))
    ledger = ClientLedger(home / "ledger.jsonl", promise.budget())
    for number, due in ((0, "allows 2 of 2 rounds beside the 1 participation of before"), (1, "allows 1 of 2 rounds")):
        ledger.charge(number, Spending(mus=dict.fromkeys(RELATIONS, 0.1), relation="row-deleted"), run="ab")
        before = (home / "ledger.jsonl").read_bytes()
        assert f"your limit {due}" in dpfedmeta(*words).out
        assert (home / "ledger.jsonl").read_bytes() == before
    ledger.charge(2, Spending(mus=dict.fromkeys(RELATIONS, 0.1), relation="row-deleted"), run="ab")
    assert "your limit allows 0 of 2 rounds beside the 3 participations of before" in dpfedmeta(*words, code=2).out
    assert "has the limit a record: epsilon <= 30" in dpfedmeta(*words, "--epsilon", "2", code=2).error


@pytest.fixture
def clinics(site, tmp_path, monkeypatch):
    """Two clinics that took part from homes of this machine; the first one's limit is used up."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    for number, (name, limit) in enumerate((("own", 1.0), ("other", 30.0))):
        data, home = write(tmp_path / f"{name}.csv", HEADER, rows(60, number)), tmp_path / f"{name}.home"
        claim(home, data, private_key(name))
        ledger = ClientLedger(home / "ledger.jsonl", Promise(epsilon=limit).budget())
        ledger.charge(0, Spending(mus=dict.fromkeys(RELATIONS, 0.2), relation="row-deleted"), run="ab")
        note_answered(home)

    def look(*words, code=0):
        own = ("--data", tmp_path / "own.csv", "--check", site / "plan-2.yaml")
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        said = dpfedmeta("federate", "client", *own, *words, folder=tmp_path, code=code)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return said

    return look


def test_a_look_finds_the_home_by_the_records_as_a_start_does(clinics, tmp_path):
    """Without --home it said that all rounds are left, of a limit that was used up."""
    said = clinics(code=2).out
    assert (
        f"home {tmp_path / 'own.home'}: a record: epsilon <= 1 at delta = 1e-05 towards the server is its limit" in said
    )
    assert "your limit allows 0 of 2 rounds beside the 1 participation of before" in said
    assert "has the limit a record: epsilon <= 1 " in clinics("--epsilon", "2.5", code=2).error
    assert "1 participation of before" in clinics("--epsilon", "1", code=2).out


def test_a_look_refuses_the_home_of_other_records(clinics, tmp_path):
    """A start refuses it too; the look computed with what another clinic had spent."""
    said = clinics("--home", "other.home", code=2).error
    assert f"--home other.home: these records took part from {tmp_path / 'own.home'}, where what they spent" in said
    shutil.move(tmp_path / "own.home", tmp_path / "moved")
    assert "no ledger is there now: what they spent is not known" in clinics(code=2).error
    assert "your limit allows 0 of 2 rounds" in clinics("--home", "moved", code=2).out


def test_records_that_nobody_knows_have_no_home(clinics, tmp_path):
    write(tmp_path / "own.csv", HEADER, rows(60, 7))
    for path in (tmp_path / "state").rglob("homes/*.json"):
        path.unlink()
    assert "home " not in clinics().out


def test_the_effect_of_another_limit_is_seen_before_it_is_written(clinics, tmp_path):
    """What is not given stays as the home has it."""
    said = clinics("--epsilon", "30", "--change-limit").out
    assert "a record: epsilon <= 30 at delta = 1e-05 towards the server would hold from then on" in said
    assert "your limit allows 2 of 2 rounds beside the 1 participation of before" in said
    assert "counts what a record spends" in clinics("--unit", "client", "--change-limit", code=2).error
    assert "your limit allows 0 of 2 rounds" in clinics("--participations", "1", "--change-limit", code=2).out


REFUSED = {"population.sampler": "check-ins"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_clients_refuse_is_one_line(site, tmp_path, name):
    """It was a traceback."""
    for each in ("task.yaml", "public.csv"):
        shutil.copy(site / each, tmp_path)
    plan, (section, key) = yaml.safe_load((site / "plan-2.yaml").read_text()), name.split(".")
    plan[section][key] = REFUSED[name]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    write(tmp_path / "own.csv", HEADER, rows(60))
    said = dpfedmeta("federate", "client", "--data", "own.csv", "--check", "plan.yaml", folder=tmp_path, code=2).error
    assert said.startswith("error: plan.yaml: no client takes part in this plan: ")
    assert name in said
