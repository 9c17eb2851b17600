"""Messages of clients that a GPU computes side by side: clipped, rounded and added as rows of one matrix.

The same values as one after the other, but for the order in which a norm is added up; the host waits for the device
once for all of them, or twice where a clip policy asks for something beside the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.params import Params, dimension, placed
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.clip_policy import bounded_numbers
from dpfedmeta.privacy.per_example.clip_rows import clip_rows, clip_rows_per_layer

if TYPE_CHECKING:
    from dpfedmeta.simulation.client_runner import ClientRunner

# Values of a matrix, in float64 a quarter of a gigabyte; several are held at once.
_MOST_VALUES = 2**25


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
            sound = [message for message in messages if message is not None and is_of_form(message, self.model)]
            rows = self._stacked(sound)
            again = self.clients.message_clip_ratio is not None
            return (clip_rows(rows, self.clients.message_bound(self.bound)) if again else rows).double()
        # A client without sound data sends zeros, which are no failure: it must not show who holds what.
        nothing = {name: torch.zeros_like(value) for name, value in self.model.items()}
        sent = [(number, nothing if message is None else message) for number, message in held]
        sent = [(number, message) for number, message in sent if is_of_form(message, self.model)]
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


def is_of_form(message: Params, form: Params) -> bool:
    """Return whether a message has real numbers, of the names and shapes of `form`."""
    real = all(value.dtype in (torch.float32, torch.float64) for value in message.values())
    shapes = {name: value.shape for name, value in form.items()}
    return real and {name: value.shape for name, value in message.items()} == shapes
