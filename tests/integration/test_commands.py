"""The commands as a user types them, on a tiny task that needs no data."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import decompose
from benchmarks.command import main as bench
from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.cli.arguments import parse_with_settings, parser
from dpfedmeta.cli.commands import account_command as account
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import being_written
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.html import page as page_module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.state.resume import reported, settings_of_run
from tests.faults.kills import ended, start

ROOT = Path(__file__).parents[2]
TINY = [
    "--model.width=4", "--rounds=4", "--cohort=6", "--clients=2000", "--delta=1e-4", "--ways=3", "--shots=2",
    "--task.queries=2", "--evaluation.every=2", "--evaluation.validation_episodes=4", "--evaluation.episodes=8",
    "--run.workers=1", "--window=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def train(dpfedmeta, tiny_task_file):
    def run(folder, *words, algo="dp-agrlr-micro", code=0):
        return dpfedmeta("train", "--algo", algo, "--dataset", tiny_task_file, *TINY, *words, folder=folder, code=code)

    return run


@pytest.fixture(scope="module")
def seeded(train, tmp_path_factory):
    """A finished run with a noise seed, to be read; a test that changes it takes a copy."""
    folder = tmp_path_factory.mktemp("seeded")
    train(folder, "--run.name=a", "--run.noise_seed=7")
    return folder / "runs" / "a"


@pytest.mark.parametrize(
    "algo", [*(pytest.param(algo, marks=pytest.mark.slow) for algo in ("maml", "dp-agr")), "dp-agrlr-micro"]
)
def test_train_evaluate_account_report(dpfedmeta, train, tmp_path, algo):
    train(tmp_path, "--run.name=r", "--track.tensorboard=true", algo=algo)
    run = tmp_path / "runs" / "r"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["guarantees"] == summary["planned"]
    assert len(summary["guarantees"]) == 4
    assert summary["accuracy"]["episodes"] == 8
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    released = {
        "round", "clip", "clip_mode", "aggregate_norm", "noise_norm_expected", "signal_to_noise", "epsilons", "seconds",
        "clients_per_second", "validation_accuracy", "validation_accuracy_untrained", "release",
    }  # fmt: skip
    assert all(set(row) <= released for row in rows)
    assert stat.S_IMODE((run / "secret").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (run / "secret").iterdir())
    dpfedmeta("evaluate", run, "--shots", 1, 2, "--episodes", 6, "--workers", 1, "--no-fine-tuning")
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert [result["shots"] for result in evaluation["results"]] == [1, 2]
    assert (run / "evaluation-steps.png").exists()
    refused = dpfedmeta("evaluate", run, "--steps", -1, code=2)
    assert refused.error == "error: steps = -1: a number of gradient steps is 0 or more"
    verified = json.loads(dpfedmeta("account", "--verify", run, "--json").out)
    assert verified["guarantees"] == summary["guarantees"]
    assert verified["simulation"] is None
    dpfedmeta("report", run)
    assert (run / "report.html").stat().st_size > 10_000


def test_a_run_is_repeated_bit_for_bit_from_its_config_and_noise_seed(dpfedmeta, seeded, tmp_path):
    words = ["--config", seeded / "config.yaml", "--run.name=b", "--run.workers=1"]
    assert "simulation" in dpfedmeta("train", *words, folder=tmp_path).out
    again = tmp_path / "runs" / "b"
    weights = [(run / "checkpoint/model.safetensors").read_bytes() for run in (seeded, again)]
    assert weights[0] == weights[1]
    assert read(seeded / "ledger.jsonl") == read(again / "ledger.jsonl")


def test_a_run_whose_report_a_crash_kept_away_gets_it_on_the_next_try(dpfedmeta, seeded, tmp_path):
    run = shutil.copytree(seeded, tmp_path / "a")
    assert "nothing is left to do" in dpfedmeta("train", "--resume", run).out
    page = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert "only its report is left to do" in dpfedmeta("train", "--resume", run).out
    assert (run / "report.html").read_text() == page
    # What was written while it trained is not of its end.
    os.utime(run / "report.html", (0, 0))
    assert not reported(RunDirectory(run))


def test_the_last_page_is_written_before_somebody_else_may_write_the_run(dpfedmeta, train, tmp_path, monkeypatch):
    held, write = [], page_module.write_report

    def writes(run):
        held.append(being_written(run.path))
        return write(run)

    monkeypatch.setattr(page_module, "write_report", writes)
    run = tmp_path / "runs" / "r"
    train(tmp_path, "--run.name=r")
    (run / "report.html").unlink()
    dpfedmeta("train", "--resume", run)
    assert held == [True, True]
    assert (run / "report.html").exists()


def test_the_workers_that_a_run_began_with_are_not_those_of_ranks(seeded):
    def workers(given, **brought):
        return settings_of_run(RunDirectory(seeded), given, **brought).run.workers

    assert (workers({}), workers({}, brought=True)) == (1, None)
    assert workers({"run.workers": "2"}, brought=True) == 2  # and refused, since somebody asks for it


def test_an_altered_claim_is_refused_by_every_command_that_states_it(dpfedmeta, seeded, tmp_path):
    run = shutil.copytree(seeded, tmp_path / "a")
    verified = dpfedmeta("account", "--verify", run).out
    assert "simulation: no guarantee towards whoever knows the seed" in verified
    for words in ("its settings give its plan", "plan.json agrees", "rounds.jsonl agrees", "report.html agrees"):
        assert f"verified: {words}" in verified
    for option in ("--verify", "--run"):
        assert json.loads(dpfedmeta("account", option, run, "--json").out)["simulation"].startswith("simulation")
    page = (run / "report.html").read_text()
    (run / "report.html").write_text(page.replace("of 2,000 clients", "of 400,000 clients"))
    assert "report.html, line " in dpfedmeta("account", "--verify", run, code=2).error
    # Written anew, the page is the ledger's again; beside a summary that is not, none is written.
    dpfedmeta("report", run)
    assert (run / "report.html").read_text() == page
    summary = json.loads((run / "summary.json").read_text())
    summary["guarantees"][2]["delta"] = 1e-9
    (run / "summary.json").write_text(json.dumps(summary))
    for words in (("report", run), ("account", "--run", run), ("account", "--verify", run, run)):
        refused = dpfedmeta(*words, code=2)
        assert "summary.json: guarantees (record, server).delta: states 1e-09" in refused.error
    assert (run / "report.html").read_text() == page


def test_two_runs_without_a_noise_seed_differ_and_config_holds_no_secret(train, tmp_path):
    for name in "ab":
        train(tmp_path, f"--run.name={name}")
    weights = [(tmp_path / f"runs/{name}/checkpoint/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] != weights[1]
    seed = json.loads((tmp_path / "runs/a/secret/noise_seed.json").read_text())["seed"]
    public = [file for file in (tmp_path / "runs/a").glob("*") if file.is_file()]
    assert public
    assert not any(str(seed) in file.read_text(errors="ignore") for file in public)


def test_secure_rng_keeps_no_seed(train, tmp_path):
    train(tmp_path, "--run.name=r", "--secure-rng")
    assert not (tmp_path / "runs/r/secret/noise_seed.json").exists()


def test_a_dry_run_shows_the_plan_and_writes_nothing(train, tmp_path):
    shown = train(tmp_path, "--dry-run", "--calibration", "0.5").out
    assert "promised" in shown
    assert re.search(r"about \d+ (s|min): .* at \d+ clients/s, .* at most [\d,]+ MB in all processes", shown)
    assert not (tmp_path / "runs").exists()


def test_account_prints_json_and_nothing_else(dpfedmeta):
    words = ["--algo", "dp-agr", "--clients", 400000, "--cohort", 1500, "--rounds", 266, "--noise-multiplier", 1.0]
    content = json.loads(dpfedmeta("account", *words, "--json").out)
    assert content["guarantees"][0]["epsilon"] == pytest.approx(0.475, rel=0.01)
    assert content["parameters"]["support_noise"] is None
    assert set(content["parameters"]) == {
        "noise_multiplier", "support_noise", "query_noise", "total_noise", "rounds", "clients", "cohort",
        "max_participations", "observer_of_server", "bits", "sensitivity_factor", "fewest_survivors", "degree",
        "threshold",
    }  # fmt: skip
    assert content["parameters"]["observer_of_server"] == "messages"
    assert content["parameters"]["degree"] is None


SUMS = ["--algo", "dp-agr-secure", "--cohort", "1500", "--aggregation.dimension", "32768", "--noise-multiplier", "1"]


def test_account_states_a_sum(dpfedmeta):
    """`--solve bits` is to say 16 here, and the published bound stands beside ours."""
    words = [*SUMS, "--clients", "400000", "--rounds", "266"]
    content = json.loads(dpfedmeta("account", *words, "--solve", "bits", "--json").out)
    assert content["parameters"]["sensitivity_factor"] == pytest.approx(1.0065, abs=1e-4)
    known = {"observer_of_server": "sum", "bits": 16, "fewest_survivors": 1350, "degree": 38, "threshold": 20}
    assert {name: content["parameters"][name] for name in known} == known
    for cell in content["guarantees"]:
        assert cell["epsilon"] == min(cell["bounds"].values()) < cell["bounds"]["zcdp"]
    shown = dpfedmeta("account", *words, "--solve", "bits", "--explain").out
    assert "the fewest bits: 16" in shown
    assert "shares masks with 38 others" in shown
    assert "(Zhu, Wang 2019), 266-fold" in shown


@pytest.mark.pictures
def test_account_takes_runs_and_draws(dpfedmeta, train, tmp_path):
    train(tmp_path, "--run.name=r", "--population.sampler=fixed", "--noise-multiplier=1", algo="dp-agr")
    run = tmp_path / "runs" / "r"
    stated = dpfedmeta("account", "--run", run, "--plot", tmp_path / "curve.png").out
    assert "What was promised for 4 rounds" in stated
    assert "replace-one" in stated
    assert (tmp_path / "curve.png").stat().st_size > 5000
    for option, said in (("--verify", "verified: summary.json agrees"), ("--realised", "do not publish")):
        assert said in dpfedmeta("account", option, run).out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--algo", "dp-agr", "--delta", "1"], "privacy.client.delta"),
        (["--algo", "dp-agr", "--epsilon", "0"], "privacy.client.epsilon"),
        (["--algo", "dp-agr", "--noise-multiplier", "0"], "infinite"),
        (["--algo", "dp-agr", "--noise-multiplier", "nan"], "server.noise_multiplier"),
        (["--algo", "dp-agr", "--population.sampler", "shuffle"], "population.sampler"),
        (["--algo", "dp-agr", "--population.sampler", "fixed", "--cohort", "10.5"], "whole number"),
        (["--algo", "dp-agr", "--solve", "rounds"], "give the noise too"),
        (["--algo", "dp-agr", "--server.schedule", "[{from_round: -1}]"], "from_round"),
        (["--algo", "dp-agr", "--server.schedule", "3"], "server.schedule"),
        (["--algo", "dp-agr", "--privacy.record.epsilon", "1"], "(record, server)"),
        (["--verify", "nowhere"], "there is no such run directory"),
        (["--verify", "nowhere", "--algo", "dp-agr"], "take no --algo"),
        (["--verify", "nowhere", "--solve", "rounds"], "--solve: does not go with --verify"),
        (["--run", "nowhere", "--dataset", "strokes"], "--dataset: does not go with --run"),
        (["--population", "nowhere", "--plot", "x.png"], "--plot: does not go with --population"),
        (["--compare-paper", "--explain"], "--explain: does not go with --compare-paper"),
        (["--realised", "nowhere"], "there is no such run directory"),
        (["--algo", "dp-agr", "--solve", "bits"], "use --aggregation secure"),
        ([*SUMS, "--aggregation.adversarial", "0.95"], "fewer than two honest clients stay"),
        ([*SUMS, "--aggregation.adversarial", "1"], "aggregation.adversarial"),
    ],
)
def test_account_refuses_with_the_reason(words, reason):
    with pytest.raises(InputError, match=re.escape(reason)) as refusal:
        account.main(words, Console(quiet=True))
    assert "\n" not in str(refusal.value)


def test_account_solves_rounds_and_takes_schedules(capsys):
    words = "--algo dp-agr --cohort 1500 --noise-multiplier 1.0 --epsilon 0.475 --json --solve rounds"
    assert account.main(words.split(), Console(quiet=True)) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["rounds"] == pytest.approx(266, abs=2)
    schedule = "[{from_round: 2, noise_scale: 2.0, cohort_scale: 0.5}]"
    words = ["--algo", "dp-agr", "--rounds", "4", "--noise-multiplier", "1", "--server.schedule", schedule, "--json"]
    assert account.main(words, Console(quiet=True)) == 0
    assert "then 2 rounds" in json.loads(capsys.readouterr().out)["guarantees"][0]["event"]


def test_account_compares_with_the_paper(capsys):
    assert account.main(["--compare-paper", "--json"], Console(quiet=True)) == 0
    content = json.loads(capsys.readouterr().out)
    assert {published["cell"] for published in content["published"]} == {"(client, public)", "(record, server)"}


BAD = [
    (["--rounds", "-1"], "server.rounds"),
    (["--meta.lr", "nan"], "meta.lr"),
    (["--metal.lr", "1"], "did you mean"),
    (["--algo", "dp-agrlr", "--order", "2"], "Hessian"),
    (["--algo", "dp-agrlr", "--model.norm", "batch"], "--model.norm group"),
    (["--record.micro_shots", "9"], "do not fit"),
    (["--cohort", "5000"], "population.cohort"),
    (["--shots", "40"], "task.shots"),
    (["--ways", "30"], "task.ways"),
    (["--run.name", "../x"], "run.name"),
    (["--device", "cuda"], "cuda"),
    (["--run.precision", "tf32"], "needs an NVIDIA GPU"),
    (["--epsilon", "1", "--noise-multiplier", "1"], "both given"),
]


@pytest.mark.parametrize(("words", "reason"), BAD)
def test_bad_input_names_what_is_wrong_and_writes_nothing(tiny_task_file, tmp_path, words, reason):
    base = ["--algo=dp-agrlr-micro", "--dataset", str(tiny_task_file), *TINY, f"--run.dir={tmp_path}/runs"]
    with pytest.raises(InputError, match=re.escape(reason)):
        words = [*base, *words]
        _, settings = parse_with_settings(parser("", settings=True), words)
        run_training(settings)
    assert not (tmp_path / "runs").exists()


def test_bad_input_is_one_line_and_exit_code_2_of_the_process(tmp_path):
    words = [sys.executable, ROOT / "scripts/train.py", "--algo", "dp-agrlr", "--dataset", "strokes", "--metal.lr", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --metal.lr: unknown option; did you mean --meta.lr?\n"
    assert not any(tmp_path.iterdir())


def test_an_existing_run_is_never_overwritten(train, seeded):
    before = (seeded / "summary.json").read_bytes()
    assert "exists already" in train(seeded.parents[1], "--run.name=a", code=2).error
    assert (seeded / "summary.json").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_and_sigterm_leave_a_clean_checkpoint_and_what_was_spent(tiny_task_file, tmp_path, number):
    words = [*TINY, "--rounds=5000", "--noise-multiplier=1", "--run.name=r", "--evaluation.every=5"]
    running = start(["--algo=dp-agr", f"--dataset={tiny_task_file}", *words], tmp_path)
    rounds, code = tmp_path / "runs/r/rounds.jsonl", None
    deadline = time.monotonic() + 120
    while code is None and not (rounds.exists() and rounds.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        code = ended(running, 0.05)
    assert code is None, (tmp_path / "output.txt").read_text()
    os.killpg(running, number)
    code, output = ended(running, 60.0), (tmp_path / "output.txt").read_text()
    assert code == 130, output
    assert "Traceback" not in output
    assert re.search(r"interrupted after \d+ of \d+ rounds, at most", output), output
    assert "go on with: dpfedmeta train --resume runs/r" in output
    summary = json.loads((tmp_path / "runs/r/summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert 0 < summary["guarantees"][0]["epsilon"] < summary["planned"][0]["epsilon"]
    assert (tmp_path / "runs/r/checkpoint/model.safetensors").stat().st_size > 0


@pytest.mark.pictures
def test_decompose_tells_what_each_noise_costs(dpfedmeta, tiny_task_file, tmp_path):
    words = ["--algo=dp-agrlr", "--dataset", tiny_task_file, "--model.width=4", "--ways=3", "--sample=20"]
    shown = dpfedmeta("decompose", *words, "--vary=meta.steps=2", "--out=noise.png", folder=tmp_path).out
    as_it_is, changed = (line for line in shown.splitlines() if line.startswith(("as it is", "meta.steps = 2")))
    values = [float(word) for word in as_it_is.split()[-5:]]
    assert all(-1 <= value <= 1 for value in values)
    assert float(as_it_is.split()[4]) < float(changed.split()[4])  # z_s grows with the root of the steps
    assert (tmp_path / "noise.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--vary=meta.steps"], "expected a setting and its values"),
        (["--weights=nowhere"], "nowhere"),
    ],
)
def test_decompose_refuses_with_the_reason(tiny_task_file, tmp_path, monkeypatch, words, reason):
    base = ["--algo=dp-agrlr", "--dataset", tiny_task_file, "--ways=3", "--model.width=4", "--sample=10"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refusal:
        decompose.main([*map(str, base), *words], Console(quiet=True))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "remark"),
    [(["--workers", "0"], "--workers 0: at least 1"), (["--workers", "9999"], "cores, one thread each"),
     (["--setting", "none"], "invalid choice"), (["--repetitions", "x"], "invalid int")],
)  # fmt: skip
def test_bench_refuses_what_it_cannot_measure(words, remark, capsys):
    with pytest.raises((InputError, SystemExit)) as refusal:
        bench(words, Console(quiet=True))
    assert remark in f"{refusal.value} {capsys.readouterr().err}".replace("\n", " ")
