import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "model.width": 4, "meta.steps": 1, "population.cohort": 6, "server.rounds": 3, "run.workers": 1,
    "evaluation.every": 3, "evaluation.validation_episodes": 2, "evaluation.episodes": 2,
}  # fmt: skip


# They train nothing by the library's loop, or have a test of their own.
OTHERS = (
    "secure_aggregation",
    "dp_agr_by_hand",
    "own_meta_learner",
    "own_loop",
    "lora_own_loop",
    "sklearn_own_loop",
    "strokes_encoder",
    "tail_encoder",
)
TRAINING = [path for path in sorted(EXAMPLES.glob("*.py")) if path.stem not in OTHERS]


def test_dp_agr_by_hand_keeps_its_promise_and_moves_its_bound(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("example_dp_agr_by_hand", EXAMPLES / "dp_agr_by_hand.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "COHORT", 4)
    bounds = module.main(rounds=6, width=4, episodes=2)
    assert "(client, public) = 1.5\n" in capsys.readouterr().out
    # As published: C_0 until four releases are known, then a percentile of their lengths.
    assert bounds[:4] == [0.3] * 4
    assert 0.3 not in bounds[4:]


def test_a_loop_of_ones_own_learns_keeps_its_promise_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    spec = importlib.util.spec_from_file_location("example_own_loop", EXAMPLES / "own_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.main(tmp_path / "mine", rounds=12)
    assert module.accuracy(model) > 0.8
    again = module.main(tmp_path / "mine", rounds=12)
    assert all((model[name] == again[name]).all() for name in model)
    assert capsys.readouterr().out.count("12 rounds, completed") == 2


def lora(folder, monkeypatch, rounds, **sizes):
    monkeypatch.setenv("DPFEDMETA_STATE", str(folder / "state"))
    spec = importlib.util.spec_from_file_location("example_lora", EXAMPLES / "lora_own_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    return module.main(folder / "mine", rounds=rounds), verify_rounds(RunDirectory(folder / "mine"))


def test_lora_in_a_loop_of_ones_own_releases_low_rank_changes_alone(tmp_path, monkeypatch, capsys):
    accuracy, found = lora(tmp_path, monkeypatch, 2, CLIENTS=200, COHORT=40)
    assert 0.0 <= accuracy <= 1.0
    assert "514 of 6,562 numbers are learned" in capsys.readouterr().out
    assert "2 rounds, hash chain intact" in found.remarks
    assert not (tmp_path / "mine/secret/left-out.jsonl").exists()


@pytest.mark.slow
def test_lora_in_a_loop_of_ones_own_learns(tmp_path, monkeypatch):
    accuracy, found = lora(tmp_path, monkeypatch, 40)
    assert accuracy > 0.8
    assert found.guarantees[0].epsilon <= 4.0


def test_a_classifier_of_scikit_learn_in_a_loop_of_ones_own(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    spec = importlib.util.spec_from_file_location("example_sklearn", EXAMPLES / "sklearn_own_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CLIENTS", 1000)
    model = {"coef": np.random.default_rng(0).normal(size=(10, 64)), "intercept": np.zeros(10)}
    before = {name: value.copy() for name, value in model.items()}
    moved = module.local_update(model, 3)
    assert all((model[name] == before[name]).all() for name in model)
    assert {name: value.shape for name, value in moved.items()} == {"coef": (10, 64), "intercept": (10,)}
    assert 0.0 < np.abs(moved["coef"]).max() < 1.0
    assert module.main(tmp_path / "mine", rounds=5) > 0.3
    assert "5 rounds, hash chain intact" in verify_rounds(RunDirectory(tmp_path / "mine")).remarks


KILLED = """
import hashlib, importlib.util, os, random, signal, sys, time

example, folder, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = importlib.util.spec_from_file_location("own_loop", example)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from dpfedmeta.privacy.rounds.private_round import PrivateRound

true, seen = PrivateRound.release, os.open(folder + "/seen", os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def release(self):
    found = true(self)
    bits = b"".join(found[name].tobytes() for name in sorted(found))
    os.write(seen, f"{self.number} {hashlib.sha256(bits).hexdigest()}\\n".encode())
    return found


def released():
    stored = folder + "/mine/releases"
    return len(os.listdir(stored)) if os.path.isdir(stored) else 0


PrivateRound.release = release
draw, code = random.Random(7), 1
# The noise is solved once, for all lives.
module.dp.PrivateRounds(
    clients=1000, cohort=100, rounds=ROUNDS, promise=module.dp.Promise(epsilon=4.0, delta=1e-5),
    clip=module.dp.clip.Window(initial=0.5, window=3), like={"w": [0.0]}, run_dir=folder + "/solved",
).close()
for life in range(kills + 1):
    child = os.fork()
    if child == 0:
        module.main(folder + "/mine", rounds=ROUNDS)
        os._exit(0)
    if life < kills:
        due = released() + draw.randint(0, 6)
        while released() < due:
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("a life ended by itself")
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
    code = os.waitpid(child, 0)[1]
sys.exit(code)
"""


# Quick siblings cut it off at every write: privacy/rounds/test_private_rounds.py.
@pytest.mark.slow
def test_a_loop_of_ones_own_that_is_killed_at_any_instant_releases_each_round_once(tmp_path, monkeypatch):
    """SIGKILL, whenever it comes: no round has two releases, and none is charged twice."""
    rounds, kills = 100, 25
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    given = [str(EXAMPLES / "own_loop.py"), str(tmp_path), str(kills)]
    done = subprocess.run([sys.executable, "-c", KILLED.replace("ROUNDS", str(rounds)), *given], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len({(number, digest) for number, digest in seen}) == len({number for number, _ in seen}) == rounds
    # Most lives began with what earlier ones had released.
    assert len(seen) > 3 * rounds
    run = RunDirectory(tmp_path / "mine")
    charges = read_content(run.ledger).charges
    assert [(charge.round, charge.attempt) for charge in charges] == [(number, 0) for number in range(rounds)]
    assert f"{rounds} rounds, hash chain intact" in verify_rounds(run).remarks


def test_the_round_of_secure_aggregation(capsys):
    spec = importlib.util.spec_from_file_location("example_secure_aggregation", EXAMPLES / "secure_aggregation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    shown = capsys.readouterr().out.splitlines()
    assert "9 arrived, client 7 fell silent" in shown[4]
    total = [sum(seat for seat in range(10) if seat != 7) * factor % 2**16 for factor in (1, 10, -1)]
    assert shown[-2:] == [
        f"sum of 9 vectors modulo 2^16: {[*total, 9]}",
        "which is what they add up to: True",
    ]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem == "sinusoids")) for path in TRAINING],
)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    window = {"clip.window": 2} if path.stem == "train_in_python" else {}
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    run = module.main({**TINY, **window, "run.dir": tmp_path, "run.name": "r"})
    assert run.status == "completed"
    assert len(RunDirectory(run.path).rounds()) == 3
    # One number for a name, of runs that predict numbers too.
    assert not [name for row in run.rounds for name, value in row.items() if isinstance(value, dict)]
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_a_meta_learner_of_ones_own_is_trained_charged_and_begins_at_its_means(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("own_meta_learner")
    monkeypatch.setitem(sys.modules, "own_meta_learner", module)
    run = module.main({**TINY, "meta.steps": 2, "run.dir": tmp_path, "run.name": "r"})
    assert run.status == "completed"
    assert run.guarantees.of("client", "public").epsilon <= 1.5
    assert "(record, server) epsilon 2.5" in capsys.readouterr().out
    # The head before its first step: each row is the direction of a class, as long as all others.
    features, labels = torch.tensor([[3.0, 0.0], [5.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    empty = {"head.weight": torch.zeros(2, 2), "head.bias": torch.ones(2)}
    head = module.TowardsMeans().start(empty, lambda: features, labels, 2)
    rows = head["head.weight"]
    assert torch.allclose(rows / rows.norm(dim=1, keepdim=True), torch.eye(2))
    assert torch.allclose(rows.norm(dim=1), rows.norm(dim=1)[0].expand(2))
    assert torch.equal(head["head.bias"], torch.zeros(2))
