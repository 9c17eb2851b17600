"""Clients several at a time: what a process keeps between rounds, and on a GPU as many as its memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

import torch
from torch import nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients, per_record_engine

T = TypeVar("T")
R = TypeVar("R")

# Of the free memory, for what the measurement on few clients did not see.
_SHARE = 0.7
_FIRST = 4


@dataclass(kw_only=True)
class Chunks:
    """Splits what is to be computed into as many pieces as the device needs.

    Attributes:
        device: Where to compute.
        fixed: Clients at once; None: 1 on a CPU, on a GPU found from its free memory and halved if it was too many.
    """

    device: torch.device
    fixed: int | None = None
    _found: int | None = field(default=None, init=False)

    @property
    def size(self) -> int | None:
        """Clients at once, once that is known."""
        if self.fixed is not None or self.device.type != "cuda":
            return self.fixed or 1
        return self._found

    def compute(self, function: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> list[R]:
        """The concatenation of function(piece) over pieces of `items`, in their order.

        Raises:
            InputError: One client alone does not fit into the GPU's memory.
        """
        done: list[R] = []
        while len(done) < len(items):
            size = self.size or _FIRST
            piece = items[len(done) : len(done) + size]
            try:
                done.extend(self._measured(function, piece))
                continue
            except torch.cuda.OutOfMemoryError:
                self._check_smaller_is_possible(size)
            # Only now nothing holds what the failed attempt left.
            torch.cuda.empty_cache()
            self._found = size // 2
        return done

    def _check_smaller_is_possible(self, size: int) -> None:
        if self.fixed is not None and size > 1:
            raise InputError(
                f"run.chunk = {self.fixed}: this many clients do not fit into the GPU's free memory; lower it, "
                "or leave it out to use as many as fit"
            )
        if size == 1:
            raise InputError(
                "run.device: not even one client fits into the GPU's free memory; free some of it, lower "
                "model.width or task.queries, or use --device cpu"
            )

    def _measured(self, function: Callable[[Sequence[T]], Sequence[R]], piece: Sequence[T]) -> Sequence[R]:
        if self.size is not None:
            return function(piece)
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        results = function(piece)
        each = max(1, (torch.cuda.max_memory_allocated(self.device) - before) // len(piece))
        free, _ = torch.cuda.mem_get_info(self.device)
        self._found = max(1, int(_SHARE * free / each))
        return results


def ahead(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """function(item) for each item, in order; the next one is under way in a thread while the caller uses this one."""
    if len(items) == 1:
        yield function(items[0])
        return
    with ThreadPoolExecutor(1) as thread:
        waiting = None
        for item in items:
            following = thread.submit(function, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


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
def engine_of(name: Literal["auto", "vmap", "opacus"], targets: TargetKind) -> PerRecordGradients:
    """Return the engine of per-record gradients."""
    return per_record_engine(name, targets)


@lru_cache(maxsize=4)
def chunks_of(_: NetworkSpec, __: ClientAlgorithm, device: torch.device, chunk: int | None) -> Chunks:
    """Return the chunk sizes found so far; they are kept for each network and algorithm separately."""
    return Chunks(device=device, fixed=chunk)
