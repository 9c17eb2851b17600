"""What the machine itself can do: the two edges of the roofline."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from benchmarks.settings import Setting
from dpfedmeta.learning.models.layers.convolution import ConvolutionSpec, convolution_gradients

_HOW = ConvolutionSpec(stride=(1, 1), padding=(1, 1))


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A convolution of a setting's Conv4, on so many images."""

    images: Tensor
    kernel: Tensor
    grads: Tensor
    first: bool

    def run(self) -> None:
        """Forward, and the gradients that training needs."""
        conv2d(self.images, self.kernel, padding=1)
        convolution_gradients(self.grads, self.images, self.kernel, _HOW, (not self.first, True))

    @property
    def operations(self) -> float:
        """Multiplications and additions of one run."""
        once = 2.0 * self.grads.numel() * self.kernel[0].numel()
        return once * (2 if self.first else 3)


def _layers(setting: Setting, images: int) -> list[_Layer]:
    made, channels, side = [], setting.channels, setting.size
    last = torch.channels_last
    for block in range(4):
        shape = (images, channels, side, side)
        made.append(
            _Layer(
                images=torch.randn(shape).contiguous(memory_format=last),
                kernel=torch.randn(setting.width, channels, 3, 3),
                grads=torch.randn(images, setting.width, side, side).contiguous(memory_format=last),
                first=block == 0,
            )
        )
        channels, side = setting.width, side // 2
    return made


def client_operations(setting: Setting) -> float:
    """Multiplications and additions in the convolutions of a first-order client."""
    support, both = _layers(setting, 25), _layers(setting, 50)
    return setting.steps * sum(layer.operations for layer in support) + sum(layer.operations for layer in both)


def convolution_seconds(setting: Setting, seconds: float) -> float:
    """Time for the convolutions of a first-order client and nothing else: K steps on 25 images, then 50.

    Args:
        setting: Network and inner loop.
        seconds: The least to spend on measuring.
    """
    support, both = _layers(setting, 25), _layers(setting, 50)
    done, begun = 0, time.perf_counter()
    while True:
        for _ in range(setting.steps):
            for layer in support:
                layer.run()
        for layer in both:
            layer.run()
        done += 1
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            return elapsed / done


def bandwidth(repetitions: int = 20) -> float:
    """Gigabytes per second of one process that adds arrays too large for any cache."""
    torch.set_num_threads(1)
    one, two = torch.ones(16_000_000), torch.ones(16_000_000)
    fastest = float("inf")
    for _ in range(repetitions):
        begun = time.perf_counter()
        torch.add(one, two, out=one)
        fastest = min(fastest, time.perf_counter() - begun)
    return 3 * one.numel() * one.element_size() / fastest / 1e9
