"""Test before the first charge that made-up clients send something: a run on zeros alone releases nothing but noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose, global_generators_at
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, ClientNoise
from dpfedmeta.learning.meta.whole_clients import WholeClients
from dpfedmeta.planning.network_trial.independence_test import in_one_line
from dpfedmeta.planning.network_trial.method_test import check_sent
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal, RehearsedClients
from dpfedmeta.privacy.mechanisms import Released

# More records of a class show nothing more, where their number is free.
_ENOUGH = 3
# So little noise that with the bound below it is far from any gradient.
_QUIET, _NOTHING = 1e-30, 1e-12
# Messages have lengths of 0.1 to 100; one beyond this grew from step to step.
_LONGEST = 1e6
_BOUND = 1e9


@dataclass(frozen=True, kw_only=True)
class MessageTrial:
    """Computation of made-up clients, with all of its steps; equal ones need to be tried only once.

    Attributes:
        rehearsal: Network, engine and algorithm, which is not shortened here.
        shape: Of a client's episode.
        method: The name of the method, for errors.
    """

    rehearsal: Rehearsal
    shape: EpisodeShape
    method: str


def trial_of(rehearsal: Rehearsal, algorithm: ClientAlgorithm, shape: EpisodeShape, method: str) -> MessageTrial:
    """The trial of what a plan has its clients compute, without its noise."""
    if algorithm.needs.counts is None or isinstance(algorithm, WholeClients):
        ways = rehearsal.trial.ways if isinstance(algorithm, WholeClients) else shape.ways
        shape = EpisodeShape(ways=ways, shots=min(_ENOUGH, shape.shots), queries=min(_ENOUGH, shape.queries))
    quiet = algorithm.quiet(support=False, noise=_QUIET)
    return MessageTrial(rehearsal=replace(rehearsal, algorithm=quiet), shape=shape, method=method)


@lru_cache(maxsize=256)
def check_messages(trial: MessageTrial) -> None:
    """Refuse a plan under which no made-up client sends anything that can be used.

    Two clients hold standard normal numbers, or random pixels or tokens, with labels of their own. They are public, so
    what they send may be told; of real clients nobody would be.

    Raises:
        InputError: Their messages are not finite or diverge, are zero, or are the same.
    """
    with global_generators_at(python=0, numpy=0, torch=0), in_one_line(trial.rehearsal):
        found = _messages(trial, 0)
        lengths = found.norm(dim=1)
        # What is not finite is no number below it either.
        if not bool((lengths < _LONGEST).any()):
            adaptation = trial.rehearsal.algorithm.adaptation
            raise InputError(
                f"meta.lr = {adaptation.lr:g}, meta.steps = {adaptation.steps}: the steps of every made-up client "
                f"diverge (its message has a length of {float(lengths.max()):.3g}), so that nothing but noise would be "
                "released; lower --meta.lr"
            )
        # Behind zeros of the initial weights a gradient may hide.
        later = _messages(trial, 1)
    if all(bool((own.nan_to_num().abs() <= _NOTHING).all()) for own in (found, later)):
        raise InputError(
            f"meta.method = {trial.method}: the message of every made-up client is zero, so nothing would be learned; "
            "what adapts (meta.adapt) must be among what is learned (meta.learn), or reach it: --meta.learn all "
            "--meta.adapt all"
        )
    if all(torch.allclose(own[0], own[1], rtol=0.0, atol=_NOTHING) for own in (found, later)):
        raise InputError(
            f"meta.method = {trial.method}: made-up clients with other records send the same message; it must depend "
            "on what a client holds"
        )


def _messages(trial: MessageTrial, draw: int) -> Tensor:
    """[clients, d], of the parts of a message one after the other."""
    rehearsal = trial.rehearsal
    clients, episodes = RehearsedClients(rehearsal), [_episode(trial, 10 * draw + place) for place in range(2)]
    # What nobody learns stays as it begins.
    context = clients.context(rehearsal.weights(draw)[0], rehearsal.weights(0)[1])
    draws = [KeyedSource(0).generator(Purpose.LOCAL_BATCHES, draw, place) for place in range(len(episodes))]
    noises = [ClientNoise(support=own, query=own, batches=own) for own in draws]
    # One at a time, which every engine takes.
    algorithm, (where, what) = rehearsal.algorithm, rehearsal.own or (f"meta.method = {trial.method}", "messages")
    sent = []
    for own, noise in zip(episodes, noises, strict=True):
        found = [
            each.value if isinstance(each, Released) else each
            for each in algorithm.messages(context, [own], _BOUND, [noise])
        ]
        sent += check_sent(f"{where}: its {what}", algorithm, context.learned, found, 1)
    return torch.stack([flatten(each).detach().double() for each in sent])


def _episode(trial: MessageTrial, seed: int) -> Episode:
    generator, shape = torch.Generator().manual_seed(seed), trial.shape
    if trial.rehearsal.algorithm.adaptation.targets.numbers:
        every: Sequence[Tensor] = [
            2.0 * torch.rand(count, generator=generator) - 1.0 for count in (shape.support_records, shape.query_records)
        ]
    else:
        # Shared classes may be fewer than those of an episode.
        labels = torch.arange(shape.ways) % trial.rehearsal.outputs
        every = [labels.repeat_interleave(count) for count in (shape.shots, shape.queries)]
    return Episode(
        support_images=_records(trial, shape.support_records, generator),
        support_labels=every[0],
        query_images=_records(trial, shape.query_records, generator),
        query_labels=every[1],
    )


def _records(trial: MessageTrial, count: int, generator: torch.Generator) -> Tensor:
    form = trial.rehearsal.network.form
    if form.vocabulary is not None:
        return torch.randint(1, form.vocabulary, (count, *form.shape), generator=generator).float()
    return torch.randn(count, *form.shape, generator=generator)
