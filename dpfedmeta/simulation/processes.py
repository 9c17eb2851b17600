"""Where clients run: worker processes of this machine, or this process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.parameters import Params, dimension, unflatten
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, Client
from dpfedmeta.simulation.aggregation import RoundAborted
from dpfedmeta.simulation.client_side import ClientSide
from dpfedmeta.workers import Workers

# Clients that a worker is given at a time.
CLIENTS_PER_CHUNK = 8
# Where clients are computed side by side: on a CPU few, so that every worker has some; on a GPU several times as many
# as have their data drawn together. At least run.chunk.
CLIENTS_PER_STACK = {"cpu": 64, "cuda": 1024}


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalBackend:
    """Simulates the cohort on this machine."""

    clients: ClientSide
    workers: Workers
    abort_on_failure: bool = False

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[Client, Params]:
        """SECRET: the sum of the cohort's clipped messages.

        Guarantee:
            One client moves the value by at most its sensitivity (add/remove): the bound that clipped it, C,
            or C_q in shared mode, where each honest message also carries noise; the stated variance is that of all.

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
        """
        arrays = {name: value.cpu().numpy() for name, value in model.items()}
        ids = cohort.clients.tolist()
        size = clients_per_task(self.clients)
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        clients = replace(self.clients, source=self.clients.source.again(cohort.again))
        tasks = ((clients, arrays, bound, cohort.round, chunk) for chunk in chunks)
        form = self.clients.form(model)
        numbers = self.clients.whole_numbers(bound, dimension(form))
        total, entered = numbers.zero(dimension(form)), 0
        for part, count in self.workers.map(sum_chunk, tasks) if chunks else ():
            total += torch.from_numpy(part)
            entered += count
        if self.abort_on_failure and entered < len(ids):
            raise RoundAborted
        return Bounded(
            value=unflatten(numbers.values(total), form),
            sensitivity=self.clients.message_bound(bound),
            noise_variance=entered * self.clients.message_noise_variance(bound),
        )


def clients_per_task(clients: ClientSide) -> int:
    """Clients of one call of `sum_chunk`."""
    if not clients.stacks:
        return CLIENTS_PER_CHUNK
    return max(CLIENTS_PER_STACK[clients.device.type], clients.chunk or 1)


def sum_chunk(
    clients: ClientSide,
    model: dict[str, npt.NDArray[np.float32]],
    bound: float,
    round_: int,
    chunk: list[int],
) -> tuple[npt.NDArray[np.int64], int]:
    """One chunk, with plain arrays at both ends of the pipe."""
    params = {name: torch.from_numpy(value.copy()) for name, value in model.items()}
    total, entered = clients.clipped_sum(params, bound, round_, chunk)
    return total.numpy(), entered
