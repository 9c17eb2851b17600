"""Clients several at a time: what a process keeps between rounds, and on a GPU as many as its memory holds.

Their messages are clipped, rounded and added as rows of one matrix: the same values as one after the other, but for
the order in which a norm is added up; the host waits for the device once for all of them, or twice where a clip policy
asks for something beside the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, dimension, placed
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients, per_record_engine
from dpfedmeta.privacy.clip_policy import bounded_numbers
from dpfedmeta.privacy.per_example.clip_rows import clip_rows, clip_rows_per_layer

if TYPE_CHECKING:
    from dpfedmeta.simulation.client_runner import ClientRunner

T = TypeVar("T")
R = TypeVar("R")

# Of the free memory, for what the measurement on few clients did not see.
_SHARE = 0.7
_FIRST = 4
# Values of a matrix, in float64 a quarter of a gigabyte; several are held at once.
_MOST_VALUES = 2**25


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


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSum:
    """Conversion of messages to rows, and of rows to a sum of whole numbers.

    Attributes:
        clients: What every client runs.
        model: The released initialisation, on the device: the form of a message before anything is attached.
        bound: Clip bound: C, or C_q.
        round_: Number of the round.
    """

    clients: ClientRunner
    model: Params
    bound: float
    round_: int

    def of(self, numbers: Sequence[int], messages: Iterator[Params | None]) -> tuple[Tensor, int]:
        """SECRET: what `ClientRunner.clipped_sum` gives, from the messages of these clients before the message clip.

        Guarantee:
            As of `ClientRunner.clipped_sum`: each row is clipped by its own norm, no row enters another one, and whole
            numbers are added without any rounding.
        """
        size = dimension(self.clients.form(self.model))
        whole, at_once = self.clients.whole_numbers(self.bound, size), max(1, _MOST_VALUES // size)
        total = whole.zero(size, self.clients.device)
        entered = torch.zeros((), dtype=torch.int64, device=self.clients.device)
        for start in range(0, len(numbers), at_once):
            part = numbers[start : start + at_once]
            rows = self._rows(part, [next(messages) for _ in part])
            norms = torch.linalg.vector_norm(rows, dim=1)
            sound = torch.isfinite(norms) & (norms <= whole.longest)
            total += whole.of(torch.where(sound[:, None], rows, 0.0)).sum(1)
            entered += sound.sum()
        return total.cpu(), int(entered)

    def _rows(self, numbers: Sequence[int], messages: Sequence[Params | None]) -> Tensor:
        """Return the rows to be added, [clients, d] in float64, without messages that lack the model's form."""
        held = list(zip(numbers, messages, strict=True))
        if self.clients.algorithm.releases:
            rows = self._stacked([message for message in messages if message])
            again = self.clients.message_clip_ratio is not None
            return (clip_rows(rows, self.clients.message_bound(self.bound)) if again else rows).double()
        # A client without sound data sends zeros, which are no failure: it must not show who holds what.
        nothing = {name: torch.zeros_like(value) for name, value in self.model.items()}
        sent = [(number, nothing if message is None else message) for number, message in held if message != {}]
        rows = self._stacked([message for _, message in sent])
        return self._with_own_noise(self._clipped(rows), [number for number, _ in sent])

    def _stacked(self, messages: Sequence[Params]) -> Tensor:
        if not messages:
            return torch.zeros(0, dimension(self.model), device=self.clients.device)
        parts = [torch.stack([message[name] for message in messages]).reshape(len(messages), -1) for name in self.model]
        return torch.cat(parts, dim=1).detach()

    def _clipped(self, rows: Tensor) -> Tensor:
        """Clip the rows and append the values that the clip policy requests."""
        flat, attachment = self.clients.scope == "flat", self.clients.attachment
        clipped = clip_rows(rows, self.bound) if flat else clip_rows_per_layer(rows, self.bound, self.model)
        if attachment is None:
            return clipped.double()
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).tolist()
        values = [bounded_numbers(attachment, length, self.bound) for length in lengths]
        attached = torch.tensor(values, dtype=torch.float64).view(len(rows), attachment.size).to(rows.device)
        return torch.cat([clipped.double(), attached * (attachment.scale * self.bound)], dim=1)

    def _with_own_noise(self, rows: Tensor, numbers: Sequence[int]) -> Tensor:
        """Each client's share of the noise of the sum, on all that it sends."""
        clients = self.clients
        if not clients.message_noise or not numbers:
            return rows
        exact = cache(lambda: rows.cpu().numpy())

        def own(place: int, number: int) -> FloatArray:
            return clients.own_noise(self.bound, self.round_, number, rows.shape[1], lambda: [exact()[place].tobytes()])

        noise = np.stack([own(place, number) for place, number in enumerate(numbers)])
        return rows + placed(torch.from_numpy(noise), rows.device)
