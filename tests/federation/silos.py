"""A small federation on disk: folders of strokes at five clients, public folders at the server, keys, and a wire."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from dpfedmeta.config.load import resolve
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.sources.strokes import draw_character
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.server.training_server import serve
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.training.personal.personal_model import load_personal
from dpfedmeta.training.run_training import run_training
from tests.federation.in_process import InProcessChannel

CLIENTS, SEED, NOISE = 5, 3, 11
SMALL = {
    "population.clients": "5", "population.cohort": "5", "population.sampler": "fixed", "server.rounds": "2",
    "population.max_participations": "null", "population.kind": "natural",
    "run.seed": str(SEED), "run.workers": "1", "run.device": "cpu", "task.ways": "2", "task.shots": "2",
    "task.queries": "2", "evaluation.episodes": "2", "evaluation.validation_episodes": "2", "evaluation.queries": "2",
    "evaluation.every": "2", "privacy.client.delta": "1.0e-3", "clip.window": "2", "model.width": "4",
    "model.name": "conv3-blur", "meta.steps": "2", "privacy.client.hostile": "0.0", "evaluation.steps": "1",
    "privacy.client.epsilon": "null", "privacy.record.epsilon": "null", "server.noise_multiplier": "2.0",
}  # fmt: skip
# Record-level noise, and sums that nobody looks into. Noises are given, since solving them takes a second.
MICRO = {"record.micro_shots": "1", "record.micro_queries": "1", "record.query_noise": "3.0"}
# Fewer than five could not agree on who survived where one may be silent and one may tell the server all.
SECURE = {"record.micro_shots": "1", "record.micro_queries": "1", "aggregation.dropout": "0.2"}


def private_key(name):
    return hashlib.sha256(f"identity {name}".encode()).digest()


def write_classes(folder, numbers, images=6):
    """Drawn characters as PNG files, a folder each."""
    for number in numbers:
        drawn = draw_character(1, number, images, 28, 1.0)
        inside = folder / f"character{number:03d}"
        inside.mkdir(parents=True)
        for place, image in enumerate(drawn):
            Image.fromarray(np.asarray(image[0])).save(inside / f"{place}.png")


def task_of(folder):
    path = folder / "task.yaml"
    content = {
        "name": folder.name,
        "source": {"reader": "folder", "path": str(folder / "images")},
        "image_size": 28,
        "channels": 1,
    }
    path.write_text(yaml.safe_dump(content))
    return path


@dataclass(kw_only=True)
class Silos:
    """Where everything lies; `everybody` is the data set of a simulation, `public` what a server has."""

    root: Path
    everybody: Path
    public: Path
    folders: tuple[Path, ...]
    server: bytes = private_key("server")
    keys: tuple[bytes, ...] = tuple(private_key(number) for number in range(CLIENTS))
    clients: dict[int, RealClient] = field(default_factory=dict)

    @property
    def roster(self):
        return tuple(Identity(key).public for key in self.keys)

    def settings(self, algo, dataset=None, **given):
        return resolve(algo, str(dataset or self.public), command_line=SMALL | given)

    def client(self, number, home, promise=None, noise_seed=NOISE, **given):
        return RealClient(
            self.folders[number],
            self.keys[number],
            home / f"client{number}" / "ledger.jsonl",
            server=given.pop("server", Identity(self.server).public),
            promise=promise or Promise(participations=10),
            noise_seed=noise_seed,
            **given,
        )

    def parties(self, home, **given):
        return {self.roster[number]: self.client(number, home, **given) for number in range(CLIENTS)}

    def simulated(self, algo, folder, **given):
        given |= {"run.noise_seed": str(NOISE), "run.dir": str(folder), "run.name": "simulation"}
        return run_training(self.settings(algo, self.everybody, **given))[0]

    def check_simulated(self, algo, home, **given):
        """A federation of the real clients ends with the weights of their simulation, and each has its own model."""
        expected = self.simulated(algo, home, **given)
        run, status = self.serve(self.settings(algo, **given, **{"run.noise_seed": str(NOISE)}), home)
        assert status == "completed"
        assert run.weights.read_bytes() == expected.weights.read_bytes()
        for number in range(CLIENTS):
            own = home / f"client{number}"
            assert "round 1: one vector" in (own / "log.txt").read_text()
            assert len(load_personal(own / "personal.safetensors").class_names) == 3

    def serve(self, settings, home, channel=None, *, parties=None, **given):
        channel = channel or InProcessChannel(parties=self.parties(home) if parties is None else parties)
        return serve(settings, channel, home / "run", identity=self.server, roster=self.roster, **given)


def make_silos(root, clients=CLIENTS):
    """Clients are named so that number i of the simulation is number i of the roster."""
    names = [f"silo{place}" for place in range(clients)]
    order = public_generator(SEED, Purpose.CLIENT_DATA, 1, 4).permutation(clients)
    after = max(20, 3 * clients)
    for place, name in enumerate(names):
        write_classes(root / "all" / "images" / "train" / name, range(3 * place, 3 * place + 3))
    for split, first in (("val", after), ("test", after + 10)):
        for base in (root / "all", root / "public"):
            write_classes(base / "images" / split / f"{split}-client", range(first, first + 3))
    write_classes(root / "public" / "images" / "train" / "nobody", range(after + 20, after + 23))
    folders = tuple(root / "all" / "images" / "train" / names[place] for place in order.tolist())
    keys = tuple(private_key(number) for number in range(clients))
    everybody, public = task_of(root / "all"), task_of(root / "public")
    return Silos(root=root, everybody=everybody, public=public, folders=folders, keys=keys)
