"""Sums of a cohort's messages on this machine, plain or under secure aggregation as honest parties compute it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Arrays, Params, arrays_of, dimension, tensors_of, unflatten
from dpfedmeta.core.random.random_sources import ClientKeys, IntArray, Purpose, SecretSource
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.learning.record_dp.whole_moments import MomentGrid, WholeMoments
from dpfedmeta.privacy.discretised.fixed_point import WholeTotal
from dpfedmeta.privacy.discretised.stochastic_rounding import RoundedMessages, own_share
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit, Grid
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner

# Clients that a worker is given at a time.
CLIENTS_PER_CHUNK = 8
# Where clients are computed side by side: on a CPU few, so that every worker has some; on a GPU several times as many
# as have their data drawn together. At least run.chunk.
CLIENTS_PER_STACK = {"cpu": 64, "cuda": 1024}
# Name of the one tensor that a sum of whole numbers is.
_ROTATED = "rotated"
# What `rounded_messages` takes, and the source of these clients.
SumTask = tuple[ClientRunner, Arrays, tuple[float, float], int, list[int], SecretSource]


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
        clients, shares = shares_of(self.clients, self.workers, cohort)
        size = dimension(clients.form(model))
        shape = tuple(clients.whole_numbers(bound, size).zero(size).shape)
        total, entered = self.workers.total(sum_chunk, (clients, arrays_of(model), bound, cohort.round), shares, shape)
        if self.abort_on_failure and entered < len(cohort.clients):
            raise RoundAborted
        return plain_sum(clients, model, bound, (torch.from_numpy(total), entered), len(cohort.clients))


def plain_sum(
    clients: ClientRunner, model: Params, bound: float, added: WholeTotal, sent: int
) -> Bounded[ClientUnit, Params]:
    """SECRET: a sum of clipped messages, as the value that a mechanism releases.

    Args:
        clients: What each of them runs; here for its public constants.
        model: The released initialisation.
        bound: C, or C_q.
        added: The messages as whole numbers.
        sent: How many messages there were to add.

    Guarantee:
        One client moves the value by at most its sensitivity, as long as each message that was added is clipped to it
        (`ClientRunner.clipped_sum`), or is no longer than an honest one (`WholeNumbers.accepted`). The stated variance
        is that of the messages that entered.
    """
    form, (total, entered) = clients.form(model), added
    return Bounded(
        value=unflatten(clients.whole_numbers(bound, dimension(form)).values(total), form),
        sensitivity=clients.message_bound(bound),
        noise_variance=entered * clients.message_noise_variance(bound),
        left_out=sent - entered,
    )


def shares_of(
    clients: ClientRunner, workers: Workers, cohort: Cohort
) -> tuple[ClientRunner, Iterator[tuple[list[int], SecretSource]]]:
    """(What every client runs, without a source; chunks of the cohort, each with the source of what it draws).

    Guarantee:
        Workers of another machine get the numbers of the clients that they compute, and these clients' own keys of this
        attempt at this round; no seed, and nothing of other clients.
    """
    ids, source = cohort.clients.tolist(), clients.source.again(cohort.again, cohort.fresh)
    step = clients_per_task(clients, len(ids), workers.count)
    chunks = (ids[i : i + step] for i in range(0, len(ids), step))
    known = workers.trusted
    shares = ((chunk, source if known else source.of_clients(cohort.round, chunk)) for chunk in chunks)
    return replace(clients, source=nobody(cohort.round)), shares


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
            f"{workers.count} ranks, but a cohort of {cohort:g} clients is computed in {chunks} chunks of {step}, so "
            f"some ranks would have no work; start at most {chunks} (--nproc-per-node, --nnodes), or raise --cohort"
        )


def sum_chunk(
    clients: ClientRunner,
    model: Arrays,
    bound: float,
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> tuple[IntArray, int]:
    """Compute the sum of one chunk of clients; models and sums pass between processes as plain arrays."""
    total, entered = replace(clients, source=source).clipped_sum(tensors_of(model), bound, round_, chunk)
    return total.numpy(), entered


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

        Guarantee:
            One honest client moves the value by at most its sensitivity, M Delta steps of the grid; nobody can see to
            it that a dishonest one does not move it further (planning.caveats.reach). Towards a server that
            sees nothing else, the noise of any V - c honest survivors has the planned deviation
            (accounting.events.integer_sum.WholeSum.share).

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
        """
        whole = self.clients.whole
        assert whole is not None
        total, entered = np.zeros(whole.dimension, dtype=np.int64), 0
        if cohort.asked >= whole.least:
            clients, shares = shares_of(self.clients, self.workers, cohort)
            common = (clients, arrays_of(model), (bound, whole.share(cohort.asked)), cohort.round)
            total, entered = self.added(clients, self.workers, [(*common, *share) for share in shares], cohort)
        if self.abort_on_failure and entered < len(cohort.clients):
            raise RoundAborted
        grid = grid_of(self.clients, model, bound, cohort.round)
        return survivors_sum(_ROTATED, whole, grid, lambda: total, entered=entered, invited=cohort.asked)


def survivors_sum(
    name: str, whole: WholeSum, grid: Grid, total: Callable[[], IntArray], *, entered: int, invited: int
) -> Bounded[ClientUnit, Params]:
    """SECRET: what secure aggregation gives, around 0, with the noise that the survivors made.

    Args:
        name: Of the one tensor that it becomes.
        whole: Public constants of the sum.
        grid: How whole numbers are read.
        total: The sum modulo 2^b; looked at where enough survived.
        entered: How many survived.
        invited: How many clients were asked.

    Guarantee:
        One client moves the value by at most its sensitivity. With fewer survivors than the noise needs, nothing is
        unmasked: the value is 0, and all noise of what is released is the server's own, so nobody but the server sees
        that.
    """
    enough = invited >= whole.least and entered >= whole.fewest(invited)
    found = grid.centred(total()) if enough else np.zeros(whole.dimension, dtype=np.int64)
    return Bounded(
        value={name: torch.from_numpy(found.astype(np.float64))},
        sensitivity=whole.of_a_client,
        noise_variance=entered * whole.share(invited) if enough else 0.0,
        grid=grid,
    )


def added_up(clients: ClientRunner, workers: Workers, tasks: Sequence[SumTask], cohort: Cohort) -> tuple[IntArray, int]:
    """SECRET: the ideal result (an `Adder`): a plain sum, in the worker processes as far as it goes."""
    assert clients.whole is not None
    common = tasks[0][:4] if tasks else ()
    return workers.total(rounded_chunk, common, (task[4:] for task in tasks), (clients.whole.dimension,))


def rounded_chunk(
    clients: ClientRunner,
    model: Arrays,
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
    model: Arrays,
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
    params = tensors_of(model)
    grid = grid_of(clients, params, bound, round_)
    for client, rounded in zip(chunk, _exact(clients, grid, params, bound, round_, chunk, source), strict=True):
        yield rounded + own_share(rounded, grid, share, source.generator(Purpose.MESSAGE_NOISE, round_, client))


def _exact(
    clients: ClientRunner,
    grid: RoundedMessages | MomentGrid,
    model: Params,
    bound: float,
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> Iterator[IntArray]:
    """SECRET: the whole numbers of each of these clients, without noise; 0 without sound data."""
    if isinstance(grid, MomentGrid):
        nothing = np.zeros(grid.whole.dimension, dtype=np.int64)
        for whole in clients.whole_messages(round_, chunk, source):
            yield nothing if whole is None else grid.steps * whole
        return
    for client, parts in zip(chunk, clients.bounded_parts(model, bound, round_, chunk), strict=True):
        yield grid.of(parts, source.generator(Purpose.ROUNDING, round_, client))


def grid_of(clients: ClientRunner, model: Params, bound: float, round_: int) -> RoundedMessages | MomentGrid:
    """How whole numbers of a round are made and read."""
    assert clients.whole is not None
    whole: WholeMoments | None = getattr(clients.algorithm, "whole", None)
    if whole is not None:
        return whole.grid(clients.whole, next(iter(model.values())))
    return RoundedMessages(
        whole=clients.whole,
        bound=clients.message_bound(bound),
        form=clients.form(model),
        seed=clients.weights_seed,
        round=round_,
    )
