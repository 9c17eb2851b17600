"""Objects that a process keeps from one round to the next; none holds data of a client."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import nn

from dpfedmeta.core.params import Params
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients, per_record_engine
from dpfedmeta.simulation.gpu_batches import Chunks


@lru_cache(maxsize=4)
def network_on(spec: NetworkSpec, device: torch.device) -> nn.Module:
    """The network, built once."""
    return build_network(spec).to(device)


@lru_cache(maxsize=4)
def fixed_weights(algorithm: ClientAlgorithm, spec: NetworkSpec, seed: int, device: torch.device) -> Params:
    """The weights that nobody sends."""
    weights = algorithm.initial(spec, seed)
    learned = algorithm.learned(spec, weights)
    return {name: value.to(device) for name, value in weights.items() if name not in learned}


@lru_cache(maxsize=4)
def engine_of(name: Literal["auto", "vmap", "opacus"]) -> PerRecordGradients:
    """Return the engine of per-record gradients."""
    return per_record_engine(name)


@lru_cache(maxsize=4)
def chunks_of(_: NetworkSpec, __: ClientAlgorithm, device: torch.device, chunk: int | None) -> Chunks:
    """Return the chunk sizes found so far; they are kept for each network and algorithm separately."""
    return Chunks(device=device, fixed=chunk)
