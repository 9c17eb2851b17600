"""Effect of each noise on the direction of a round's aggregate. For simulations: it reads secret messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfedmeta.core.params import Params, dimension
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.client_runner import ClientRunner

# A mechanism without noise does not exist; beside clipped gradients this is none.
_NONE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Cosines between the aggregate of one cohort and the direction that it would have without noise.

    1 is what infinitely many clients without noise send; the sampling of L clients is in all four.

    Attributes:
        parameters: d.
        support_noise: z_s; None without noisy support steps.
        query_noise: Deviation of the noise of the aggregate over what one client can add to it.
        agreement: Length of the mean message without noise, over the root mean square of the messages.
        without: Neither noise.
        support_only: Noise in the support steps alone.
        query_only: Noise on messages and aggregate alone.
        both: As released.
    """

    parameters: int
    support_noise: float | None
    query_noise: float
    agreement: float
    without: float
    support_only: float
    query_only: float
    both: float


def decompose(plan: Plan, side: ClientRunner, model: Params, bound: float, clients: Sequence[int]) -> Decomposition:
    """Measure it on some clients; the cohort's size and the noise of the aggregate come from the plan.

    With G_i a message without any noise, S_i one with noise in its support steps, and expectations estimated over
    pairs of different clients (so that no client's own scatter counts as signal), the cosine is

        E[S_i . G_j] / (|E G| sqrt(|E S|^2 + (E|S|^2 - |E S|^2)/L + d sigma^2/L^2)).

    Args:
        plan: The plan.
        side: Its clients.
        model: Weights to measure at.
        bound: Clip bound.
        clients: Numbers of at least 10 clients.

    Guarantee:
        None: a function of secret messages, for simulated clients only.
    """
    exact = _messages(_quiet(side, support=False), model, bound, clients)
    noisy = _messages(_quiet(side, support=True), model, bound, clients)
    constants = plan.privacy.at(0)
    size, deviation = constants.cohort, constants.total_noise or 0.0
    direction = math.sqrt(max(_between(exact, exact), 0.0))

    def cosine(sent: Tensor, noise: float) -> float:
        signal, own = _between(sent, sent), float(sent.square().sum(1).mean())
        power = max(signal, 0.0) + max(own - signal, 0.0) / size + dimension(model) * (noise * bound / size) ** 2
        if not direction or not power:
            return 0.0
        # The estimates of numerator and denominator err on their own.
        return max(-1.0, min(1.0, _between(sent, exact) / (direction * math.sqrt(power))))

    return Decomposition(
        parameters=dimension(model),
        support_noise=plan.privacy.record.support_noise if plan.privacy.record else None,
        query_noise=deviation,
        agreement=direction / max(math.sqrt(float(exact.square().sum(1).mean())), 1e-30),
        without=cosine(exact, 0.0),
        support_only=cosine(noisy, 0.0),
        query_only=cosine(exact, deviation),
        both=cosine(noisy, deviation),
    )


def _quiet(side: ClientRunner, *, support: bool) -> ClientRunner:
    """Clients whose messages bear no noise of their own, and whose support steps do if `support` says so."""
    algorithm = side.algorithm.quiet(support=support, noise=_NONE)
    return replace(side, algorithm=algorithm, message_noise=0.0, record_noises=())


def _messages(side: ClientRunner, model: Params, bound: float, clients: Sequence[int]) -> Tensor:
    """SECRET: [clients, d]."""
    numbers = side.whole_numbers(bound, dimension(side.form(model)))
    return torch.stack([numbers.values(side.clipped_sum(model, bound, 0, [client])[0]) for client in clients])


def _between(one: Tensor, other: Tensor) -> float:
    """Mean of one_i . other_j over pairs of different clients."""
    count = len(one)
    return float((one.sum(0) @ other.sum(0) - (one * other).sum()) / (count * (count - 1)))
