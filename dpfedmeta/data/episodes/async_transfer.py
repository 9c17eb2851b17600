"""Copies from host memory to a device that do not wait for the device's running work."""

from __future__ import annotations

import torch
from torch import Tensor


def placed(value: Tensor, device: torch.device) -> Tensor:
    """The same values on the device.

    A plain copy to a GPU lets the host wait until all that was asked of the GPU before is done, and then the GPU waits
    for the host. From pinned memory it takes its turn among the GPU's work instead.
    """
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
