"""The example for `flwr run`: Flower's own processes on loopback, and what they must not do to a plan's trial."""

import importlib
import json
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.identity.credentials import card_line, write_identity, write_node_keys
from dpfedmeta.federation.identity.invitation import make_operator
from dpfedmeta.federation.server.training_server import serve
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from tests.federation.in_process import InProcessChannel
from tests.federation.silos import NOISE, SMALL, make_silos

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
TWO = {"population.clients": "2", "population.cohort": "2", "model.name": "linear", "meta.learn": "all"}


def in_flowers_own_process(monkeypatch):
    """`flower_apps` as Flower imports it there, after what its heartbeats need."""
    from flwr.supercore import heartbeat
    from flwr.supercore.retry import retry_invoker

    for module in (heartbeat, retry_invoker):
        monkeypatch.setattr(module, "random", random)
    return importlib.reload(importlib.import_module("dpfedmeta.federation.flower.flower_apps")), heartbeat


def test_a_heartbeat_is_not_taken_for_a_network_that_draws(monkeypatch):
    _, heartbeat = in_flowers_own_process(monkeypatch)
    before, beaten = random.getstate(), threading.Event()
    sender = heartbeat.HeartbeatSender(lambda: beaten.set() or True)
    pause = sender._stop_event.wait
    drawn = threading.Event()
    sender._stop_event.wait = lambda seconds: drawn.set() or pause(seconds)
    sender.start()
    assert beaten.wait(20)
    assert drawn.wait(20)
    sender.stop()
    assert random.getstate() == before


def test_flower_s_log_says_why_an_app_ended(monkeypatch):
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.delenv("FLWR_HOME", raising=False)
    in_flowers_own_process(monkeypatch)
    assert logger.level == logging.INFO
    assert "FLWR_HOME" not in os.environ


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Trial:
    """The commands of the example's README, on this machine."""

    def __init__(self, root, silos):
        self.root, self.silos, self.port = root, silos, free_port()
        self.operator, self.settings = root / "operator", root / "settings.yaml"
        make_operator(self.operator, ["127.0.0.1"], self.port, silos.server)
        for number, key in enumerate(silos.keys[:2]):
            home = self.home(number)
            home.mkdir()
            write_identity(home / "id.pem", key)
            write_node_keys(home / "id.flower", key)
        cards = [card_line(key, f"c{number}") for number, key in enumerate(silos.keys[:2])]
        (root / "roster.txt").write_text("".join(f"{card}\n" for card in cards))
        self.environment = os.environ | {
            "FLWR_HOME": str(root / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        (root / "flower").mkdir()
        (root / "flower" / "config.toml").write_text(
            f'[superlink.mine]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.operator / "authority.pem"}"\n'
        )

    def home(self, number):
        return self.root / f"c{number}"

    @contextmanager
    def process(self, name, *words):
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, env=self.environment)
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def link(self):
        files = {"--ssl-ca-certfile": "authority.pem", "--ssl-certfile": "tls.pem", "--ssl-keyfile": "tls.key"}
        return self.process(
            "link",
            *("flower-superlink", "--host", "127.0.0.1", "--port", self.port, "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
            *(word for option, file in files.items() for word in (option, self.operator / file)),
        )

    def node(self, number):
        config = {
            "data": self.silos.folders[number],
            "identity": self.home(number) / "id.pem",
            "invitation": self.operator / "invitation.yaml",
            "home": self.home(number),
        }
        return self.process(
            f"node{number}",
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", free_port()),
            *("--root-certificates", self.operator / "authority.pem"),
            *("--auth-supernode-private-key", self.home(number) / "id.flower"),
            *("--node-config", " ".join(f'{key}="{value}"' for key, value in config.items()) + " participations=10"),
        )

    def flwr(self, *words):
        command = ["flwr", *(str(word) for word in words)]
        return subprocess.run(command, env=self.environment, text=True, capture_output=True, timeout=900)

    def log(self):
        return "\n".join(f"{path}\n{path.read_text(errors='replace')[-3000:]}" for path in self.root.glob("*.log"))


def listening(port):
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("no SuperLink")


@pytest.mark.slow
def test_flwr_run_ends_with_the_weights_of_a_server_in_one_process(tmp_path):
    silos = make_silos(tmp_path / "silos")
    trial = Trial(tmp_path, silos)
    tree: dict[str, Any] = {"algo": "dp-agr", "dataset": str(silos.public)}
    for name, value in (SMALL | TWO | {"run.noise_seed": str(NOISE)}).items():
        *groups, key = name.split(".")
        inside = tree
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[key] = yaml.safe_load(value)
    trial.settings.write_text(yaml.safe_dump(tree))
    config = {"keys": trial.operator, "roster": tmp_path / "roster.txt", "settings": trial.settings}
    config["folder"] = tmp_path / "run"
    with ExitStack() as running:
        running.enter_context(trial.link())
        listening(trial.port)
        for number in range(2):
            assert trial.flwr("supernode", "register", trial.home(number) / "id.flower.pub", "mine").returncode == 0
            running.enter_context(trial.node(number))
        words = " ".join(f'{key}="{value}"' for key, value in config.items())
        done = trial.flwr("run", EXAMPLE, "mine", "--stream", "--run-config", f"{words} seconds=300")
    said = done.stdout + done.stderr
    assert "round 1, vector: 2 of 2 clients answered, 0 declined" in said, said + trial.log()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed", said

    parties = {}
    for number in range(2):
        (kept,) = trial.home(number).glob("runs/*/noise.json")
        parties[silos.roster[number]] = RealClient(
            silos.folders[number],
            silos.keys[number],
            tmp_path / "alone" / f"c{number}" / "ledger.jsonl",
            server=Identity(silos.server).public,
            promise=Promise(participations=10),
            noise_seed=json.loads(kept.read_text())["seed"],
        )
    run, _ = serve(
        resolve(None, None, trial.settings, {}),
        InProcessChannel(parties=parties),
        tmp_path / "alone" / "run",
        identity=silos.server,
        roster=list(parties),
    )
    there, here = load_weights(RunDirectory(tmp_path / "run").weights), load_weights(run.weights)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in here)
    assert all((trial.home(number) / "personal.safetensors").exists() for number in range(2))
