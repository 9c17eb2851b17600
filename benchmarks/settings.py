"""What is measured: episodes, networks and inner loops, by name."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.layers.stateless_layers import FewShotNetwork
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec, Precision
from dpfedmeta.learning.releases.steps import Steps

Algorithm = Literal["maml-1", "maml-2", "dp-agr", "dp-agrlr"]
ALGORITHMS: tuple[Algorithm, ...] = ("maml-1", "maml-2", "dp-agr", "dp-agrlr")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A network and the clients that train it. All parameters adapt, as in the paper.

    Attributes:
        name: As on the command line.
        channels: Of an image.
        size: Of an image, pixels a side.
        width: Channels of a convolution of Conv4.
        steps: K.
        lr: Of the inner loop; small, so that engines can be compared after several steps in float32.
    """

    name: str
    channels: int
    size: int
    width: int
    steps: int = 5
    lr: float = 0.05

    @property
    def shape(self) -> EpisodeShape:
        """5-way 5-shot with 25 query records."""
        return EpisodeShape(ways=5, shots=5, queries=5)

    @property
    def adaptation(self) -> Adaptation:
        """Of all parameters."""
        return Adaptation(adapt="all", steps=self.steps, lr=self.lr)

    def network(self, algorithm: Algorithm, precision: Precision = "float32") -> NetworkSpec:
        """Conv4 with batch normalisation, or without coupling between records where these are private."""
        return NetworkSpec(
            name="conv4",
            channels=self.channels,
            image_size=self.size,
            ways=5,
            width=self.width,
            norm="group" if algorithm == "dp-agrlr" else "batch",
            precision=precision,
        )

    def meta(self, algorithm: Algorithm) -> Maml:
        """Of an exact meta-gradient; that of DP-AGR is of first order here."""
        return Maml(order=2 if algorithm == "maml-2" else 1, adaptation=self.adaptation)

    def record(self) -> Steps:
        """Record-level steps, with noise so small that engines can be compared."""
        return Steps(
            method=Maml(order=1, adaptation=self.adaptation),
            support_noise=1e-6,
            query_noise=1e-6,
            support_clip=None,
            support_clip_ratio=1.0,
            support_records=25,
            query_records=25,
        )


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(name="paper", channels=1, size=28, width=64),
        Setting(name="cifar-fs", channels=3, size=32, width=32),
        # So many maxima that rounding tips some over; larger steps would make more of it than engines may differ by.
        Setting(name="mini-imagenet", channels=3, size=84, width=32, lr=0.002),
    )
}

# For a look at whether everything runs; measures nothing.
TINY = Setting(name="tiny", channels=3, size=16, width=8, steps=2)


@lru_cache(maxsize=8)
def episodes(setting: Setting, count: int) -> list[Episode]:
    """Random images around one random pattern for each class: as hard to compute with as real ones."""
    made, shape = [], setting.shape
    for client in range(count):
        generator = torch.Generator().manual_seed(client)
        size = (setting.channels, setting.size, setting.size)
        patterns = torch.rand(shape.ways, 1, *size, generator=generator)
        images = patterns + 0.3 * torch.randn(shape.ways, shape.shots + shape.queries, *size, generator=generator)
        labels = torch.arange(shape.ways)
        made.append(
            Episode(
                support_images=images[:, : shape.shots].flatten(0, 1),
                support_labels=labels.repeat_interleave(shape.shots),
                query_images=images[:, shape.shots :].flatten(0, 1),
                query_labels=labels.repeat_interleave(shape.queries),
            )
        )
    return made


@lru_cache(maxsize=8)
def problem(setting: Setting, algorithm: Algorithm, precision: Precision = "float32") -> tuple[FewShotNetwork, Params]:
    """The network and its initial weights."""
    spec = setting.network(algorithm, precision)
    network = build_network(spec)
    assert isinstance(network, FewShotNetwork)
    return network, initial_weights(spec, 0)


def moved_problem(
    setting: Setting, algorithm: Algorithm, device: torch.device, precision: Precision = "float32"
) -> tuple[FewShotNetwork, Params]:
    """A copy of the problem on a device."""
    network, weights = problem(setting, algorithm, precision)
    return copy.deepcopy(network).to(device), {name: value.to(device) for name, value in weights.items()}
