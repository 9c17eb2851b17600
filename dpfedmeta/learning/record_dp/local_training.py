"""Local training in mini-batches: what a client of federated averaging does, with or without record-level noise."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params, added, detached, difference, scaled, zeros_like
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.fedavg import LocalDpSgd
from dpfedmeta.learning.meta.target_kind import Balance, TargetKind, mean_loss, record_weights
from dpfedmeta.learning.models.functional import apply_often, channels_last
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
from dpfedmeta.learning.targets.classification import OWN_CLASSES
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released, post_process
from dpfedmeta.privacy.per_example.clip_rows import clipped_record_sum
from dpfedmeta.privacy.units import Bounded, RecordUnit


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """Local training of a client on all its records.

    Attributes:
        steps: K, the number of gradient steps.
        batch: B, records of a step; with record-level privacy the expected number. None: all records.
        lr: Step size of the mean loss over a mini-batch.
        targets: Kind of the labels, for its loss.
        balance: Whether every record of a client weighs the same, or every class.
    """

    steps: int
    batch: int | None
    lr: float
    targets: TargetKind = OWN_CLASSES
    balance: Balance = "records"


def local_update(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    steps: LocalSteps,
    generator: SecretGenerator,
) -> Params:
    """theta_0 - theta_K of federated averaging, as a gradient for the server's optimizer.

    McMahan et al. 2017 (https://arxiv.org/abs/1602.05629).

    Args:
        network: The module that `model` and `fixed` belong to.
        model: theta_0 of what is learned.
        fixed: The rest of the weights.
        episode: The client's data; support and query records are used alike.
        steps: Number, size and rate of the steps. Each pass over the records is in a new random order.
        generator: For these orders.

    Guarantee:
        None by itself: the value is secret and unbounded until it is clipped, summed and released.
    """
    images, labels = records(episode)
    # Of its own: the steps write into it.
    theta = {name: value.detach().clone().requires_grad_() for name, value in model.items()}
    weights = record_weights(labels, int(labels.max()) + 1) if steps.balance == "classes" else None
    batches = _shuffled(len(labels), steps.batch or len(labels), generator)

    def descend(logits_of: Callable[[Tensor], Tensor]) -> None:
        for _ in range(steps.steps):
            rows = next(batches)
            logits = logits_of(channels_last(images[rows]))
            if weights is None:
                loss = mean_loss(logits, labels[rows], "records", steps.targets)
            else:
                loss = (weights[rows] * steps.targets.loss(logits, labels[rows], "none")).mean()
            gradients = torch.autograd.grad(loss, tuple(theta.values()))
            with torch.no_grad():
                for value, gradient in zip(theta.values(), gradients, strict=True):
                    value.sub_(gradient * steps.lr)

    apply_often(network, {**fixed, **theta}, descend)
    return difference(detached(model), detached(theta))


def private_local_update(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    steps: LocalSteps,
    count: int,
    private: LocalDpSgd,
    generator: SecretGenerator,
    per_record: PerRecordGradients,
) -> Released[RecordUnit, Params]:
    """theta_0 - theta_K after K noisy steps on mini-batches that only the client knows.

    Abadi et al. 2016 (https://arxiv.org/abs/1607.00133).

    Args:
        network: The module that `model` and `fixed` belong to.
        model: theta_0 of what is learned.
        fixed: The rest of the weights.
        episode: The client's data.
        steps: Number, expected size and rate of the steps.
        count: n, a public constant.
        private: C_s and z_s.
        generator: For mini-batches and noise.
        per_record: The engine for per-record gradients.

    Guarantee:
        (record, server), zero-out: the K-fold composition of the Poisson-sampled Gaussian with rate B/n and multiplier
        z_s; the update is post-processing of the released steps, whose denominator B is public.
    """
    images, labels = records(episode)
    batch = steps.batch or count
    mechanism = GaussianMechanism(total_multiplier=private.noise, charged_multiplier=private.noise, denominator=batch)
    theta = detached(model)
    released: list[Released[RecordUnit, Params]] = []
    for _ in range(steps.steps):
        rows = _coins(len(labels), min(1.0, batch / count), generator)
        total = Bounded[RecordUnit, Params](value=zeros_like(theta), sensitivity=private.clip)
        if len(rows):
            gradients = per_record(network, theta, dict(fixed), frozenset(), images[rows], labels[rows])
            total = clipped_record_sum(gradients, private.clip)
        released.append(mechanism.release(total, generator))
        theta = difference(theta, scaled(released[-1].value, steps.lr))
    deviation = steps.lr * steps.steps**0.5 * released[-1].noise_deviation
    return post_process(lambda *gradients: scaled(added(gradients), steps.lr), released, deviation)


def records(episode: Episode) -> tuple[Tensor, Tensor]:
    """All records of a client, support first: images [n, channels, height, width] and labels [n]."""
    return (
        torch.cat([episode.support_images, episode.query_images]),
        torch.cat([episode.support_labels, episode.query_labels]),
    )


def _shuffled(count: int, batch: int, generator: SecretGenerator) -> Iterator[Tensor | slice]:
    """Mini-batches of endless passes, each in a new order; the last of a pass may be smaller."""
    if batch >= count:
        # No order matters, and no row has to be copied.
        yield from repeat(slice(None))
    while True:
        order = torch.from_numpy(generator.sample(count, count))
        yield from torch.split(order, batch)


def _coins(count: int, rate: float, generator: SecretGenerator) -> Tensor:
    """The records whose independent coins fell on heads."""
    return torch.from_numpy(generator.sample(count, generator.binomial(count, rate)))
