"""The task that simulators share: its reference, its measure of distance, and what is counted."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from benchmarks.processes import Tree
from benchmarks.simulators import run, task


def arrays(clients=3, records=6):
    draw = np.random.default_rng(0)
    held = draw.normal(size=(clients, records, task.PIXELS)).astype(np.float32)
    return held, draw.integers(0, task.CLASSES, (clients, records))


def test_the_reference_is_federated_averaging_by_torch():
    records, labels = arrays()
    start = {name: torch.from_numpy(value).double() for name, value in task.initial_weights().items()}
    ends = []
    for own, said in zip(records, labels, strict=True):
        weights = {name: value.clone().requires_grad_() for name, value in start.items()}
        for _ in range(task.STEPS):
            hidden = torch.relu(
                torch.nn.functional.linear(
                    torch.from_numpy(own).double(), weights["hidden.weight"], weights["hidden.bias"]
                )
            )
            logits = torch.nn.functional.linear(hidden, weights["head.weight"], weights["head.bias"])
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(said))
            steps = torch.autograd.grad(loss, list(weights.values()))
            weights = {
                name: (value - task.LR * step).detach().requires_grad_()
                for (name, value), step in zip(weights.items(), steps, strict=True)
            }
        ends.append(weights)
    mean = {name: torch.stack([each[name] for each in ends]).mean(0).detach().numpy() for name in start}
    assert run.apart(mean, task.reference(records, labels, 1)) < 1e-6


@pytest.mark.parametrize("name", ["hidden.weight", "hidden.bias", "head.weight", "head.bias"])
def test_a_weight_that_moves_otherwise_is_seen(name):
    records, labels = arrays()
    known = task.reference(records, labels, 1)
    moved = known[name] - task.initial_weights()[name]
    found = {**known, name: known[name] + 0.05 * moved}
    assert run.apart(known, known) == 0.0
    assert run.apart(found, known) > run.MOST_APART


@pytest.mark.parametrize("own", run.SIMULATORS, ids=lambda own: own.module)
def test_the_users_lines_are_counted_without_the_measurement(own):
    path = run.ROOT / "benchmarks" / "simulators" / f"{own.module}.py"
    text = path.read_text()
    assert text.count("# -- the user's code") == text.count("# -- end") > 0
    assert 10 < own.lines < len(text.splitlines()) / 1.2


def test_seconds_and_memory_of_a_child_count():
    work = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(200_000_000); "
    work += "import time; end = time.process_time() + 0.5\\nwhile time.process_time() < end: pass\\ntime.sleep(1)'])"
    process = subprocess.Popen([sys.executable, "-S", "-c", work], env={**os.environ, "PYTHONPATH": ""})
    tree = Tree(root=process.pid)
    while process.poll() is None:
        tree.look()
        time.sleep(0.05)
    assert 0.5 <= tree.seconds(time.time()) < 5.0
    assert 200_000_000 < tree.most < 400_000_000
    assert tree.seconds(0.0) <= tree.seconds(time.time())


def test_who_fails_or_is_apart_is_not_timed(monkeypatch, tmp_path):
    sound, apart, broken = (
        run.Simulator(name=name, module="dpfedmeta_loop", environment=None) for name in ("sound", "apart", "broken")
    )
    records, labels = arrays(task.FEW)
    known = task.reference(records, labels, task.FEW_ROUNDS)
    np.savez(tmp_path / "data.npz", records=records, labels=labels)
    monkeypatch.setattr(run, "exported", lambda folder: tmp_path / "data.npz")
    timed = []

    def ran(own, data, environments, rounds, *, check):
        if own is broken:
            raise RuntimeError("broken: exit code 1")
        if check:
            return {name: value * (1.01 if own is apart else 1.0) for name, value in known.items()}
        timed.append(own.name)
        return {"clients_per_second": float(len(timed))}

    monkeypatch.setattr(run, "run", ran)
    found = run.compared([sound, apart, broken], tmp_path, 3, 3)
    assert timed == ["sound"] * 3
    assert found["rows"]["sound"]["clients_per_second"] == 2.0
    assert found["rows"]["apart"]["apart"] > run.MOST_APART
    assert "exit code 1" in found["rows"]["broken"]["failed"]
