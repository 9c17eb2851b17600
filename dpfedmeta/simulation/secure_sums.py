"""Secure aggregation in a simulation: what a cohort hands to it, and the ideal result, as honest parties compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.core.params import Params
from dpfedmeta.core.random.random_sources import IntArray, Purpose, SecretSource
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.privacy.discretised.stochastic_rounding import RoundedMessages, own_share
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.worker_backend import shares_of

# Name of the one tensor that a sum of whole numbers is.
_ROTATED = "rotated"
# What `rounded_messages` takes, and the source of these clients.
SumTask = tuple[ClientRunner, dict[str, npt.NDArray[np.float32]], tuple[float, float], int, list[int], SecretSource]


class Adder(Protocol):
    """Sum of the vectors that clients hand over, by the chosen protocol."""

    def __call__(
        self, clients: ClientRunner, workers: Workers, tasks: Sequence[SumTask], cohort: Cohort
    ) -> tuple[IntArray, int]:
        """SECRET: (the sum modulo 2^b, how many entered it); with too few it may be anything."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SecureSums:
    """Sums of whole numbers modulo 2^b, each client's with its share of the noise.

    Attributes:
        clients: What each of them runs.
        workers: Who runs them.
        added: Who adds up.
        abort_on_failure: Whether a round ends where an invited client failed.
    """

    clients: ClientRunner
    workers: Workers
    added: Adder
    abort_on_failure: bool = False

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[ClientUnit, Params]:
        """SECRET: the sum of the survivors' rounded messages, around 0, with the noise that they made.

        With fewer survivors than the noise needs, nothing is unmasked: the value is 0, and all noise of what is
        released is the server's own, so nobody but the server sees that.

        Guarantee:
            One honest client moves the value by at most its sensitivity, M Delta steps of the grid; nobody can see to
            it that a dishonest one does not move it further (planning.dishonest.reach). Towards a server that sees
            nothing else, the noise of any V - c honest survivors has the planned deviation
            (accounting.whole_sums.WholeSum.share).

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
        """
        whole = self.clients.whole
        assert whole is not None
        clients = replace(self.clients, source=self.clients.source.again(cohort.again, cohort.fresh))
        grid = _grid(clients, model, bound, cohort.round)
        ids, total, entered = cohort.clients.tolist(), np.zeros(whole.dimension, dtype=np.int64), 0
        enough = cohort.asked >= whole.least
        share = whole.share(cohort.asked) if enough else 0.0
        if enough:
            arrays = {name: value.cpu().numpy() for name, value in model.items()}
            bare, shares = shares_of(clients, self.workers, ids, cohort.round)
            tasks = [(bare, arrays, (bound, share), cohort.round, chunk, source) for chunk, source in shares]
            total, entered = self.added(clients, self.workers, tasks, cohort)
        if self.abort_on_failure and entered < len(ids):
            raise RoundAborted
        if not enough or entered < whole.fewest(cohort.asked):
            total, entered = np.zeros_like(total), 0
        return Bounded(
            value={_ROTATED: torch.from_numpy(grid.centred(total).astype(np.float64))},
            sensitivity=whole.of_a_client,
            noise_variance=entered * share,
            grid=grid,
        )


def added_up(clients: ClientRunner, workers: Workers, tasks: Sequence[SumTask], cohort: Cohort) -> tuple[IntArray, int]:
    """SECRET: the ideal result (an `Adder`): a plain sum, in the worker processes as far as it goes."""
    assert clients.whole is not None
    common = tasks[0][:4] if tasks else ()
    return workers.total(rounded_chunk, common, (task[4:] for task in tasks), (clients.whole.dimension,))


def rounded_chunk(
    clients: ClientRunner,
    model: dict[str, npt.NDArray[np.float32]],
    bound_and_share: tuple[float, float],
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> tuple[IntArray, int]:
    """(Sum of what these clients send, how many of them did), with plain arrays at both ends of the pipe."""
    assert clients.whole is not None
    total, entered = np.zeros(clients.whole.dimension, dtype=np.int64), 0
    for message in rounded_messages(clients, model, bound_and_share, round_, chunk, source):
        total += message
        entered += 1
    return total, entered


def rounded_messages(
    clients: ClientRunner,
    model: dict[str, npt.NDArray[np.float32]],
    bound_and_share: tuple[float, float],
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> Iterator[IntArray]:
    """SECRET: what each of these clients hands to the protocol: its rounded message and its share of the noise.

    A client whose message is not of the model's form hands over its noise alone: if it stayed away, its data would
    decide whether enough survive, and so over the whole sum.
    """
    clients, (bound, share) = replace(clients, source=source), bound_and_share
    params = {name: torch.from_numpy(value.copy()) for name, value in model.items()}
    grid = _grid(clients, params, bound, round_)
    for client, parts in zip(chunk, clients.bounded_parts(params, bound, round_, chunk), strict=True):
        rounded = grid.of(parts, source.generator(Purpose.ROUNDING, round_, client))
        yield rounded + own_share(rounded, grid, share, source.generator(Purpose.MESSAGE_NOISE, round_, client))


def _grid(clients: ClientRunner, model: Params, bound: float, round_: int) -> RoundedMessages:
    assert clients.whole is not None
    return RoundedMessages(
        whole=clients.whole,
        bound=clients.message_bound(bound),
        form=clients.form(model),
        seed=clients.weights_seed,
        round=round_,
    )
