"""The task with this toolkit."""

from __future__ import annotations

import os

import torch

import dpfedmeta as dp
from benchmarks.simulators import task

ASKED = None


def mlp(channels: int, image_size: int, ways: int, width: int, norm: str) -> torch.nn.Module:
    """The network (`model.name`)."""
    # -- the user's code
    network = torch.nn.Sequential()
    network.add_module("flat", torch.nn.Flatten())
    network.add_module("hidden", torch.nn.Linear(task.PIXELS, task.HIDDEN))
    network.add_module("relu", torch.nn.ReLU())
    network.add_module("head", torch.nn.Linear(task.HIDDEN, task.CLASSES))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in task.initial_weights().items()})
    return network
    # -- end


def main() -> None:
    """Train, and say when rounds ended."""
    asked = task.asked(__doc__)

    class Clock(dp.Callback):
        def on_round(self, row: object) -> None:
            asked.round_ended()

    # -- the user's code
    values = {
        **{"model.name": "benchmarks.simulators.dpfedmeta_loop:mlp", "meta.learn": "all"},
        **{"meta.steps": task.STEPS, "meta.batch": None, "meta.lr": task.LR},
        **{"server.lr": 1.0, "server.final_lr": None, "evaluation.every": 10_000},
        **{"population.clients": asked.clients, "population.cohort": asked.cohort, "population.records": 50},
        **{"server.rounds": asked.rounds},
    }
    settings = dp.Settings.preset(
        "dp-fedavg-fixed", "mnist-shards", values, noise_multiplier=task.NOISE, clip=task.CLIP
    )
    # -- end
    if not asked.private:
        alike = {
            "meta.method": "fedavg",
            "meta.order": 1,
            "meta.adapt": "all",
            "model.norm": "none",
            "model.initial": None,
        }
        server = {"server.optimizer": "sgd", "server.beta1": 0.0, "population.sampler": "fixed"}
        settings = dp.Settings.preset("maml", "mnist-shards", {**values, **alike, **server})
    # -- the user's code
    run = dp.train(settings, callbacks=[Clock()], data_folder=os.environ["DPFEDMETA_DATA"], quiet=True)
    # -- end
    asked.answer({name: value.numpy() for name, value in run.initialisation.weights.items()})


if __name__ == "__main__":
    main()
