"""Whole runs with correlated noise: resumed bit for bit, done again as something else, and refused."""

import json
import math
import shutil

import pytest
import torch

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import load_weights
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.verification.verify import audit
from tests.seams.trained import Impatient, gone_on, interrupted, trained

GIVEN = {
    "population.clients": "60",
    "population.cohort": "15",
    "server.noise": "blt",
    "server.buffers": "2",
    "server.noise_multiplier": "4.0",
    "privacy.client.epsilon": "null",
    "server.rounds": "6",
    "run.checkpoint_every": "2",
    "record.client_ledgers": "true",
}


@pytest.fixture(scope="module")
def runs(tiny_task_file, tmp_path_factory):
    """(a run, the same one cut off after three rounds)."""
    folder = tmp_path_factory.mktemp("correlated")
    return trained(tiny_task_file, folder / "whole", "dp-agr", GIVEN), interrupted(
        tiny_task_file, folder / "cut", "dp-agr", GIVEN, after=3
    )


@pytest.fixture(autouse=True)
def on_another_machine(tmp_path, monkeypatch):
    """Where nobody knows how far other copies of the run went."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def copy_of(run, folder):
    shutil.copytree(run.path, folder / "run")
    return type(run)(folder / "run")


def test_clients_keep_apart_and_the_ledger_says_what_the_noise_is(runs):
    whole, _ = runs
    noise = json.loads(whole.ledger.read_text().splitlines()[1])["event"]["noise"]
    assert (noise["kind"], noise["separation"], noise["participations"], len(noise["numbers"])) == ("blt", 4, 2, 4)
    joined = {}
    for line in (whole.secret / "participations.jsonl").read_text().splitlines():
        for client in json.loads(line)["clients"]:
            joined.setdefault(client, []).append(json.loads(line)["round"])
    assert all(len(rounds) <= 2 and rounds[-1] - rounds[0] in (0, 4, 5) for rounds in joined.values())
    # The clients keep count themselves.
    assert {int(path.stem) for path in (whole.secret / "clients").iterdir()} == set(joined)
    assert audit(whole).guarantees[0].epsilon == pytest.approx(audit(whole).proven.planned[0].epsilon)


def test_in_turns_a_run_that_was_cut_off_ends_bit_for_bit_the_same(tiny_task_file, tmp_path):
    turns = {"server.noise": "banded", "population.sampler": "cyclic", "population.separation": "3"}
    given = {**GIVEN, **turns, "population.cohort": "5"}
    whole = trained(tiny_task_file, tmp_path / "whole", "dp-agr", given)
    cut = interrupted(tiny_task_file, tmp_path / "cut", "dp-agr", given, after=3)
    gone_on(cut)
    left, right = load_weights(whole.weights), load_weights(cut.weights)
    assert all(torch.equal(left[name], right[name]) for name in left)
    for line in (cut.secret / "participations.jsonl").read_text().splitlines():
        assert {client % 3 for client in json.loads(line)["clients"]} <= {json.loads(line)["round"] % 3}
    plan, charges = read(cut.ledger)
    assert plan.at(0).rate == 3 * 5 / 60
    assert [(charge.round, charge.attempt) for charge in charges] == [(t, 0) for t in range(6)]
    # Two turns of each client, sampled: far below what the same noise promises without secret coins.
    assert audit(cut).guarantees[0].epsilon < 0.8 * gaussian_epsilon(plan.at(0).noise.mu(1.0), 1e-6)


class Remarks(Impatient):
    """Keeps what it is told, until it loses patience."""

    def __init__(self, after=0):
        super().__init__(after)
        self.told = []

    def on_remark(self, remark):
        self.told.append(remark)


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_behind_damaged_later_checkpoints_a_run_goes_on_from_what_it_wrote_last(runs, tmp_path, damage):
    whole, _ = runs
    run = copy_of(whole, tmp_path)
    for path in run.path.glob("checkpoint/round-*"):
        path.unlink() if damage == "lost" else path.write_bytes(b"damaged")
    first, second = Remarks(after=2), Remarks()
    assert run_training(settings_of_run(run, {}), RunOptions(resume=run), callbacks=[first])[1] == "interrupted"
    assert any(told.startswith("resuming at round 0 of 6") for told in first.told)
    assert [path.name[:12] for path in (run.secret / "noise").iterdir()] == ["round-000002"]
    assert run_training(settings_of_run(run, {}), RunOptions(resume=run), callbacks=[second])[1] == "completed"
    assert any(told.startswith("resuming at round 2 of 6") for told in second.told)
    left, right = load_weights(whole.weights), load_weights(run.weights)
    assert all(torch.equal(left[name], right[name]) for name in left)
    # One course, charged once.
    assert read(run.ledger)[1] == read(whole.ledger)[1]


@pytest.mark.parametrize("damage", ["lost", "other", "changed"])
def test_a_resume_with_other_noise_is_refused(runs, tmp_path, damage):
    whole, cut = runs
    run = copy_of(cut, tmp_path)
    (path,) = [path for path in (run.secret / "noise").iterdir() if "000003" in path.name]
    if damage == "lost":
        path.unlink()
    elif damage == "other":
        # Of the same form, and of another point of another run.
        source = next(iter(sorted((whole.secret / "noise").iterdir())))
        path.write_bytes(source.read_bytes())
    else:
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(bytes(content))
    words = {
        "lost": "no readable state of the noise",
        "other": "another run, or of another attempt",
        "changed": "is damaged",
    }
    with pytest.raises(InputError, match=words[damage]):
        gone_on(run)


def test_participations_that_lie_too_close_end_a_resume(runs, tmp_path):
    run = copy_of(runs[1], tmp_path)
    path = run.secret / "participations.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["clients"] = sorted({*lines[1]["clients"], lines[0]["clients"][0]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="takes part in round 1 again"):
        gone_on(run)


def test_a_round_that_comes_out_otherwise_is_a_further_attempt_and_charged_as_one(runs, tmp_path):
    run = copy_of(runs[1], tmp_path)
    # The row of a round that was released after the last checkpoint, as if the machine had computed something else.
    for path in run.path.glob("checkpoint/round-000003.safetensors"):
        path.unlink()
    rows = run.rounds()
    rows[2]["release"] = "0" * 16
    run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone_on(run)
    plan, charges = read(run.ledger)
    assert [(charge.round, charge.attempt) for charge in charges][2:4] == [(2, 0), (2, 1)]
    noise = plan.at(0).noise
    done = len({charge.round for charge in charges})
    squared = noise.sensitivity(done) ** 2 + (len(charges) - done) * noise.largest_row**2
    spent = audit(run).guarantees[0]
    assert spent.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(squared) / 4.0, spent.delta), rel=1e-6)
    # Within the promise: so it ends early, rather than spend more.
    assert spent.epsilon <= audit(run).proven.planned[0].epsilon


def test_a_resumed_run_is_the_same_bit_for_bit(runs, tmp_path):
    whole, cut = runs
    run = copy_of(cut, tmp_path)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (run.secret / "noise").iterdir())
    gone_on(run)
    left, right = load_weights(whole.weights), load_weights(run.weights)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert audit(run).guarantees == audit(whole).guarantees
