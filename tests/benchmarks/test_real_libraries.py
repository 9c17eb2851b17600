"""Libraries beside the environment: learn2learn's and torchmeta's data and MAML, riskcal's account of attacks.

`make peers` installs them there. They are tried in a process of their own, since empty modules stand in for what they
import and what no longer installs (gym, an old torchvision, h5py).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.auditing.trade_off_function import GaussianCurve, SampledCurve
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_learn2learn, from_torchmeta
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.meta_gradients import meta_gradient

ROOT = Path(__file__).parents[2]
SHAPE = EpisodeShape(ways=3, shots=2, queries=1)
MOST = 1e-12


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(*names: str) -> None:
    """Modules whose every name is an empty class."""
    for name in names:
        sys.modules[name] = _Empty(name)
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, sys.modules[name])


def learn2learn_data() -> None:
    """A taskset of its own is a population."""
    data, steps = (importlib.import_module(f"learn2learn.data{part}") for part in ("", ".transforms"))
    images = torch.arange(60.0).reshape(60, 1, 1, 1).expand(60, 1, 8, 8) / 60
    meta = data.MetaDataset(torch.utils.data.TensorDataset(images, torch.arange(60) % 10))
    drawn = [steps.NWays(meta, 3), steps.KShots(meta, 3), steps.LoadData(meta)]
    population = from_learn2learn(data.Taskset(meta, drawn, num_tasks=20), SHAPE, 5)
    episode = population.episode(4)
    assert episode.support_images.shape == (6, 1, 8, 8)
    # Each class's shades are a class of that data set's: tens of 60ths from one another.
    tens = (episode.support_images[:, 0, 0, 0] * 60).round().int() % 10
    assert len({*zip(tens.tolist(), episode.support_labels.tolist(), strict=True)}) == 3


def torchmeta_data() -> None:
    """A meta-dataset of its own is a population."""
    data = importlib.import_module("torchmeta.utils.data")

    class OneClass(data.Dataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> Any:
            return torch.full((1, 8, 8), self.index / 10 + number / 100), (self.index, None)

    class Classes(data.ClassDataset):  # type: ignore[name-defined, misc]
        num_classes = 10

        def __getitem__(self, index: int) -> Any:
            return OneClass(index)

    population = from_torchmeta(data.CombinationMetaDataset(Classes(meta_train=True), 3), SHAPE, 100, seed=0)
    one, two = population.episode(5), population.episode(5)
    assert one.support_images.shape == (6, 1, 8, 8)
    assert torch.equal(one.support_images, two.support_images)


def torchmeta_gradient(order: Literal[1, 2]) -> float:
    """Largest difference of MAML's meta-gradient after three steps, of a network with a hidden layer, in float64."""
    modules = importlib.import_module("torchmeta.modules")
    update = importlib.import_module("torchmeta.utils.gradient_based").gradient_update_parameters
    torch.manual_seed(0)
    theirs = modules.MetaSequential(modules.MetaLinear(6, 5), nn.Tanh(), modules.MetaLinear(5, 3)).double()
    ours = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    ours.load_state_dict(theirs.state_dict())
    images, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 3
    episode = Episode(
        support_images=images[:6], support_labels=labels[:6], query_images=images[6:], query_labels=labels[6:]
    )
    params = None
    for _ in range(3):
        loss = cross_entropy(theirs(episode.support_images, params=params), episode.support_labels)
        params = update(theirs, loss, params=params, step_size=0.4, first_order=order == 1)
    cross_entropy(theirs(episode.query_images, params=params), episode.query_labels).backward()
    adaptation = Adaptation(adapt="all", steps=3, lr=0.4)
    found = meta_gradient(ours, dict(ours.named_parameters()), {}, episode, adaptation, order)
    return max(float((found[name] - each.grad).abs().max()) for name, each in theirs.named_parameters())


def attacks() -> float:
    """Largest difference of an attacker's advantage, between ours (an upper bound) and riskcal's."""
    known = importlib.import_module("riskcal.calibration.dpsgd").get_advantage_for_dpsgd
    of_mu = importlib.import_module("riskcal.analysis").get_advantage_for_mu
    found = [abs(GaussianCurve(mu=mu, delta=1e-5).total_variation(1.0) - of_mu(mu)) for mu in (0.1, 1.3, 6.0)]
    for clients, noise, rounds in ((100, 0.8, 100), (10, 2.0, 7), (3, 1.0, 1), (1000, 0.5, 300)):
        plan = PrivacyPlan(clients=clients, cohort=1, rounds=rounds, noise_multiplier=noise)
        curve = SampledCurve(phases=plan.phases, neighbours="add-remove", delta=1e-5)
        theirs = known(sample_rate=1 / clients, noise_multiplier=noise, num_steps=rounds)
        found.append(abs(curve.total_variation(1.0) - theirs))
    return max(found)


@pytest.mark.slow
def test_the_real_libraries_agree():
    peers = Path(sys.prefix) / "peers"
    if not (peers / "riskcal").exists():
        pytest.skip(f"{peers}: lacks riskcal; type make peers")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(peers)])}
    command = [sys.executable, "-m", "tests.benchmarks.test_real_libraries"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    print("\n" + done.stdout.strip())


def main() -> None:
    """All of it; a line of JSON with the versions and differences."""
    warnings.simplefilter("ignore")
    stand_in("learn2learn.gym", "learn2learn.text", "learn2learn.vision", "h5py", "torchvision")
    stand_in(*(f"torchvision.{part}" for part in ("transforms", "datasets")))
    stand_in("torchvision.transforms.functional", "torchvision.datasets.utils")
    learn2learn_data()
    torchmeta_data()
    found = {f"MAML, order {order}": torchmeta_gradient(order) for order in (1, 2)}  # type: ignore[arg-type]
    assert max(found.values()) <= MOST, found
    found["advantage"] = attacks()
    assert found["advantage"] <= 1e-3, found
    versions = {name: metadata.version(name) for name in ("learn2learn", "torchmeta", "riskcal")}
    print(json.dumps(versions | found))


if __name__ == "__main__":
    main()
