"""Computation of clients in worker processes of this machine, or in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, dimension, unflatten
from dpfedmeta.core.random.random_sources import ClientKeys, IntArray, SecretSource
from dpfedmeta.core.worker_pool import Summand, Workers
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner

# Clients that a worker is given at a time.
CLIENTS_PER_CHUNK = 8
# Where clients are computed side by side: on a CPU few, so that every worker has some; on a GPU several times as many
# as have their data drawn together. At least run.chunk.
CLIENTS_PER_STACK = {"cpu": 64, "cuda": 1024}


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalBackend:
    """Simulates the cohort on this machine."""

    clients: ClientRunner
    workers: Workers
    abort_on_failure: bool = False

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[ClientUnit, Params]:
        """SECRET: the sum of the cohort's clipped messages.

        Guarantee:
            One client moves the value by at most its sensitivity (add/remove): the bound that clipped it, C,
            or C_q in shared mode, where each honest message also carries noise; the stated variance is that of all.

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
        """
        arrays = {name: value.cpu().numpy() for name, value in model.items()}
        ids = cohort.clients.tolist()
        clients = replace(self.clients, source=self.clients.source.again(cohort.again, cohort.fresh))
        form = self.clients.form(model)
        numbers = self.clients.whole_numbers(bound, dimension(form))
        common, shape = (arrays, bound, cohort.round), tuple(numbers.zero(dimension(form)).shape)
        total, entered = added_over(self.workers, sum_chunk, clients, common, ids, cohort.round, shape)
        if self.abort_on_failure and entered < len(ids):
            raise RoundAborted
        return Bounded(
            value=unflatten(numbers.values(torch.from_numpy(total)), form),
            sensitivity=self.clients.message_bound(bound),
            noise_variance=entered * self.clients.message_noise_variance(bound),
            left_out=len(ids) - entered,
        )


def added_over(
    workers: Workers,
    function: Summand,
    clients: ClientRunner,
    common: tuple[object, ...],
    ids: Sequence[int],
    round_: int,
    shape: tuple[int, ...],
) -> tuple[IntArray, int]:
    """SECRET: the sums of function(clients, *common, chunk, source) over chunks of the clients.

    Guarantee:
        Workers of another machine get the numbers of the clients that they compute, and these clients' own keys of this
        attempt at this round; no seed, and nothing of other clients.

    Args:
        workers: Who computes them.
        function: As `Workers.total` takes it.
        clients: What every client runs, with the source of this attempt.
        common: What every call takes besides.
        ids: The clients.
        round_: Number of the round.
        shape: Of one sum.
    """
    bare, shares = shares_of(clients, workers, ids, round_)
    return workers.total(function, (bare, *common), shares, shape)


def shares_of(
    clients: ClientRunner, workers: Workers, ids: Sequence[int], round_: int
) -> tuple[ClientRunner, Iterator[tuple[list[int], SecretSource]]]:
    """(What every client runs, without a source; chunks of the clients, each with the source of what it draws)."""
    step = clients_per_task(clients, len(ids), workers.count)
    chunks = (list(ids[i : i + step]) for i in range(0, len(ids), step))
    known, source = workers.trusted, clients.source
    shares = ((chunk, source if known else source.of_clients(round_, chunk)) for chunk in chunks)
    return replace(clients, source=nobody(round_)), shares


def nobody(round_: int) -> ClientKeys:
    """The streams of no client."""
    return ClientKeys(round=round_, keys={})


def clients_per_task(clients: ClientRunner, cohort: int, workers: int) -> int:
    """Clients of one call.

    Those that are computed one by one are handed out in smaller numbers where workers would else stand idle; others
    stay together, since their last bits may depend on it.
    """
    if clients.at_once:
        return max(CLIENTS_PER_STACK[clients.device.type], clients.chunk or 1)
    if clients.together != 1:
        return CLIENTS_PER_CHUNK
    return min(CLIENTS_PER_CHUNK, max(1, cohort // (2 * workers)))


def check_enough_work(workers: Workers, clients: ClientRunner, cohort: float) -> None:
    """Refuse more machines than a cohort has chunks; worker processes that stand idle cost nobody anything.

    Raises:
        InputError: There are more.
    """
    step = clients_per_task(clients, int(cohort), workers.count)
    chunks = math.ceil(cohort / step)
    if not workers.trusted and workers.count > chunks:
        raise InputError(
            f"{workers.count} ranks, but a cohort of {cohort:g} clients is dealt out in {chunks} chunks of {step}: "
            f"some would never get one; start at most {chunks} (--nproc-per-node, --nnodes), or raise --cohort"
        )


def sum_chunk(
    clients: ClientRunner,
    model: dict[str, npt.NDArray[np.float32]],
    bound: float,
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> tuple[npt.NDArray[np.int64], int]:
    """Compute the sum of one chunk of clients; models and sums pass between processes as plain arrays."""
    params = {name: torch.from_numpy(value.copy()) for name, value in model.items()}
    total, entered = replace(clients, source=source).clipped_sum(params, bound, round_, chunk)
    return total.numpy(), entered
