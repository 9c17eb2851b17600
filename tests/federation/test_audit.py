import json
import shutil

import pytest
from rich.console import Console

from dpfedmeta.config import resolve
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.federation.audit import audit, realised
from dpfedmeta.federation.run import RunOptions, run_training
from dpfedmeta.privacy.gaussian import gaussian_epsilon
from dpfedmeta.tracking.run_directory import RunDirectory

TINY = {
    "model.width": "4", "server.rounds": "6", "population.cohort": "6", "population.clients": "40", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "6", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "run.noise_seed": "3", "privacy.client.delta": "0.001",
    "population.max_participations": "2", "record.client_ledgers": "true", "clip.window": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tiny_task_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = resolve("dp-agrlr", str(tiny_task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r"})
    run, status = run_training(settings, RunOptions(), Console(quiet=True))
    assert status == "completed"
    return run


@pytest.fixture
def run(finished, tmp_path):
    return RunDirectory(shutil.copytree(finished.path, tmp_path / "r"))


def test_an_untouched_run_verifies_and_says_what_was_checked(run):
    found = audit(run)
    assert len(found.events) == 6
    summary = run.read_json("summary.json")
    assert [cell.as_json() for cell in found.guarantees] == summary["guarantees"] == summary["planned"]
    assert found.remarks[0].startswith("6 rounds")
    assert any("dp-accounting PLD" in remark for remark in found.remarks)
    assert "summary.json agrees" in found.remarks


def test_lines_lost_at_the_end_are_noticed(run):
    lines = run.ledger.read_text().splitlines()
    run.ledger.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(InputError, match="round 5 was released"):
        audit(run)
    run.rounds_file.unlink()
    with pytest.raises(InputError, match=r"does not end as summary\.json says"):
        audit(run)


def test_an_unfinished_run_is_said_to_be_one(run):
    (run.path / "summary.json").unlink()
    assert any("not finished" in remark for remark in audit(run).remarks)


def test_a_summary_that_states_less_is_found(run):
    summary = run.read_json("summary.json")
    summary["guarantees"][2]["epsilon"] /= 2
    run.write_json("summary.json", summary)
    with pytest.raises(InputError, match="the ledger adds up to"):
        audit(run)


def test_a_rewritten_chain_with_less_noise_is_not_the_plans_mechanism(run):
    from dpfedmeta.privacy.hash_chain import HashChain, read_chain

    bodies, _ = read_chain(run.ledger, "ledger")
    run.ledger.unlink()
    bodies[3]["noise_multiplier"] = 0.5
    chain = HashChain.start(run.ledger, bodies[0])
    for body in bodies[1:]:
        chain.append(body)
    with pytest.raises(RefusedPlan, match="line 4: round 2"):
        audit(run)


def test_what_really_happened_is_in_the_private_folder_only(run):
    plan = audit(run).plan
    found = realised(run, plan)
    drawn = [json.loads(line)["clients"] for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert found.most_participations == 2
    assert found.cohort_sizes[0] == min(map(len, drawn))
    assert found.record_server == pytest.approx(gaussian_epsilon(2**0.5 / plan.record.query_noise, 1e-5))
    public = "".join(p.read_text(errors="ignore") for p in run.path.glob("*") if p.is_file())
    assert "most_participations" not in public
    (run.secret / "participations.jsonl").unlink()
    with pytest.raises(InputError, match="only the server"):
        realised(run, plan)


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
        realised(run, plan)
