"""Other libraries' ways to the same meta-gradient, with the network as their users write it.

Not the product: what it is measured against. Nothing here gives a guarantee.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks.settings import Algorithm, Setting, problem
from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.models.functional import channels_last

Engine = Callable[[Episode], Params]


class SupportNorm(nn.Module):
    """Batch normalisation by the first `reference` images, of PyTorch's own operations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, images: Tensor, reference: int) -> Tensor:
        """The built-in kernel where all images count."""
        if reference == len(images):
            return nn.functional.batch_norm(images, None, None, self.weight, self.bias, training=True)
        variance, mean = torch.var_mean(images[:reference], (0, 2, 3), correction=0, keepdim=True)
        normal = (images - mean) * torch.rsqrt(variance + 1e-5)
        return normal * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class StockConv4(nn.Module):
    """Convolution, normalisation, ReLU, pooling, four times, and a linear layer (Vinyals et al. 2016)."""

    def __init__(self, setting: Setting, *, private: bool) -> None:
        super().__init__()
        channels, side = setting.channels, setting.size
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(4):
            self.convolutions.append(nn.Conv2d(channels, setting.width, 3, padding=1, bias=False))
            self.norms.append(nn.GroupNorm(4, setting.width) if private else SupportNorm(setting.width))
            channels, side = setting.width, side // 2
        self.head = nn.Linear(setting.width * side * side, 5)

    def forward(self, images: Tensor, reference: int = 0) -> Tensor:
        """Logits [n, 5]."""
        hidden = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            hidden = convolution(hidden)
            hidden = norm(hidden, reference) if isinstance(norm, SupportNorm) else norm(hidden)
            hidden = nn.functional.max_pool2d(torch.relu(hidden), 2)
        logits: Tensor = self.head(hidden.flatten(1))
        return logits


def stock_network(setting: Setting, algorithm: Algorithm) -> tuple[StockConv4, list[str]]:
    """With this project's initial weights, and the names that these have here, in the order of its parameters."""
    network = StockConv4(setting, private=algorithm == "dp-agrlr")
    with torch.device("cpu"):  # a device context around this would draw other weights
        _, weights = problem(setting, algorithm)
    mapping = {f"head.{part}": f"head.{part}" for part in ("weight", "bias")}
    for block in range(4):
        own = f"body.layers.{block}"
        mapping[f"convolutions.{block}.weight"] = f"{own}.convolution.weight"
        mapping |= {f"norms.{block}.{part}": f"{own}.norm.{part}" for part in ("weight", "bias")}
    network.load_state_dict({place: weights[name].clone() for place, name in mapping.items()})
    return network, [mapping[place] for place, _ in network.named_parameters()]


def learn2learn_loop(setting: Setting, algorithm: Algorithm) -> Engine:
    """`MAML(...).clone().adapt(...)`.

    Raises:
        ImportError: Not installed.
    """
    folder = str(Path(sys.prefix) / "peers")  # where `make peers` puts it
    if folder not in sys.path:
        sys.path.append(folder)
    # The package imports its reinforcement learning, vision and text parts, whose own dependencies are no longer there,
    # and its data sets, which have to be compiled. None of them is measured.
    for part in ("data", "gym", "text", "vision"):
        sys.modules.setdefault(f"learn2learn.{part}", types.ModuleType(f"learn2learn.{part}"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithms = importlib.import_module("learn2learn.algorithms")
    network, names = stock_network(setting, algorithm)
    maml = algorithms.MAML(network, lr=setting.lr, first_order=algorithm != "maml-2")

    def engine(episode: Episode) -> Params:
        learner = maml.clone()
        for _ in range(setting.steps):
            logits = learner(episode.support_images, len(episode.support_labels))
            learner.adapt(cross_entropy(logits, episode.support_labels))
        maml.zero_grad()
        _query_loss(learner, episode).backward()  # type: ignore[no-untyped-call]
        return {name: _gradient(own) for name, own in zip(names, network.parameters(), strict=True)}

    return engine


def higher_loop(setting: Setting, algorithm: Algorithm) -> Engine:
    """`higher.innerloop_ctx`.

    Raises:
        ImportError: Not installed.
    """
    higher = importlib.import_module("higher")
    network, names = stock_network(setting, algorithm)
    second = algorithm == "maml-2"

    def engine(episode: Episode) -> Params:
        optimizer = torch.optim.SGD(network.parameters(), lr=setting.lr)
        with higher.innerloop_ctx(network, optimizer, copy_initial_weights=False, track_higher_grads=second) as opened:
            learner, steps = opened
            for _ in range(setting.steps):
                logits = learner(episode.support_images, len(episode.support_labels))
                steps.step(cross_entropy(logits, episode.support_labels))
            at = list(network.parameters() if second else learner.parameters())
            gradients = torch.autograd.grad(_query_loss(learner, episode), at)
        return dict(zip(names, gradients, strict=True))

    return engine


def plain_loop(setting: Setting, algorithm: Algorithm) -> Engine:
    """Autograd by hand, with images in the layout that convolutions like best."""
    network, names = stock_network(setting, algorithm)
    second = algorithm == "maml-2"

    def engine(episode: Episode) -> Params:
        support, query = channels_last(episode.support_images), episode.query_images
        start: Params = dict(network.named_parameters())
        theta = start
        for _ in range(setting.steps):
            logits = functional_call(network, theta, (support, len(support)))
            loss = cross_entropy(logits, episode.support_labels)
            theta = _stepped(theta, torch.autograd.grad(loss, list(theta.values()), create_graph=second), setting.lr)
            if not second:
                theta = {name: value.detach().requires_grad_() for name, value in theta.items()}
        both = channels_last(torch.cat([episode.support_images, query]))
        loss = cross_entropy(
            functional_call(network, theta, (both, len(support)))[len(support) :], episode.query_labels
        )
        return dict(zip(names, torch.autograd.grad(loss, list((start if second else theta).values())), strict=True))

    return engine


def opacus_hooks(setting: Setting, algorithm: Algorithm) -> Engine:
    """`GradSampleModule` for one client after the other, clipping and noise as in DP-SGD."""
    from opacus import GradSampleModule

    network, names = stock_network(setting, algorithm)
    wrapped = GradSampleModule(network, loss_reduction="sum")
    start = [parameter.detach().clone() for parameter in network.parameters()]

    def gradients(images: Tensor, labels: Tensor) -> list[Tensor]:
        wrapped.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            cross_entropy(wrapped(images), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        samples: Any = [parameter.grad_sample for parameter in network.parameters()]  # type: ignore[attr-defined]
        return _clipped_mean(samples)

    def engine(episode: Episode) -> Params:
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), start, strict=True):
                parameter.copy_(value)
        for _ in range(setting.steps):
            found = gradients(episode.support_images, episode.support_labels)
            with torch.no_grad():
                for parameter, gradient in zip(network.parameters(), found, strict=True):
                    parameter.sub_(setting.lr * gradient)
        return dict(zip(names, gradients(episode.query_images, episode.query_labels), strict=True))

    return engine


def record_loop(setting: Setting, algorithm: Algorithm) -> Engine:
    """One call of autograd for each record, as in the paper's released code."""
    network, names = stock_network(setting, algorithm)

    def gradients(theta: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> list[Tensor]:
        each = []
        for image, label in zip(images, labels, strict=True):
            loss = cross_entropy(functional_call(network, dict(theta), (image[None],)), label[None])
            each.append(torch.autograd.grad(loss, list(theta.values())))
        return _clipped_mean([torch.stack(values) for values in zip(*each, strict=True)])

    def engine(episode: Episode) -> Params:
        theta: Params = dict(network.named_parameters())
        for _ in range(setting.steps):
            moved = _stepped(theta, gradients(theta, episode.support_images, episode.support_labels), setting.lr)
            theta = {name: value.detach().requires_grad_() for name, value in moved.items()}
        return dict(zip(names, gradients(theta, episode.query_images, episode.query_labels), strict=True))

    return engine


PEERS: Mapping[str, tuple[Callable[[Setting, Algorithm], Engine], tuple[Algorithm, ...]]] = {
    "learn2learn": (learn2learn_loop, ("maml-1", "maml-2")),
    "higher": (higher_loop, ("maml-1", "maml-2")),
    "plain loop": (plain_loop, ("maml-1", "maml-2")),
    "opacus hooks": (opacus_hooks, ("dp-agrlr",)),
    "record loop": (record_loop, ("dp-agrlr",)),
}

CLIP = 1.0


def _clipped_mean(samples: list[Tensor]) -> list[Tensor]:
    """Each record clipped to CLIP over all its tensors, noise that changes nothing visible, and the mean."""
    lengths = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples]).norm(dim=0)
    factors = (CLIP / lengths.clamp_min(1e-12)).clamp_max(1.0)
    sums = [torch.tensordot(factors, sample, 1) for sample in samples]
    return [(total + 1e-6 * CLIP * torch.randn_like(total)) / len(factors) for total in sums]


def _query_loss(learner: Any, episode: Episode) -> Tensor:
    both = torch.cat([episode.support_images, episode.query_images])
    reference = len(episode.support_labels)
    return cross_entropy(learner(both, reference)[reference:], episode.query_labels)


def _stepped(theta: Mapping[str, Tensor], gradients: Any, lr: float) -> Params:
    return {name: value - lr * g for (name, value), g in zip(theta.items(), gradients, strict=True)}


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()
