"""The clients' side of a round: a pure function from (model, bound, clients) to their clipped sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from dpfedmeta.data.episode import Episode, blank_episode
from dpfedmeta.data.population import Population
from dpfedmeta.meta import (
    MetaSpec,
    MicroSpec,
    PrivateSteps,
    RecordSpec,
    contribution,
    local_update,
    micro_contributions,
    private_contributions,
    private_local_update,
    stacked,
    stacked_query_gradients,
)
from dpfedmeta.meta.dp_steps import ClientNoise
from dpfedmeta.models.initial import initial_weights
from dpfedmeta.models.registry import build_network, learned_part
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.models.ways import with_ways
from dpfedmeta.parameters import Params, dimension, flatten, length_of, norm, unflatten, zeros_like
from dpfedmeta.privacy.clipping import clip, clip_per_layer
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.per_record import PerRecordGradients, per_record_engine
from dpfedmeta.privacy.policies import ATTACHED, Attachment
from dpfedmeta.privacy.units import Record
from dpfedmeta.privacy.whole_numbers import WholeNumbers
from dpfedmeta.randomness import Purpose, SecretSource
from dpfedmeta.simulation.chunks import Chunks, ahead
from dpfedmeta.simulation.client_data import DataForm

# Clients computed side by side have their data drawn so many at a time (or run.chunk), twice that being held. No more
# are computed at once, whatever a GPU's memory holds.
_DRAWN_TOGETHER = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSide:
    """What every client runs. Picklable, so that a worker process can run it.

    Attributes:
        network: The network.
        weights_seed: Seed of the initial weights, hence of those that are not learned.
        population: From client number to data.
        meta: The exact meta-gradient.
        record: The record-level client instead, or None.
        message_clip_ratio: C/C_q where the server clips a noisy message again (stacked mode), else None.
        engine: Per-record gradient engine.
        attachment: What the clip policy asks for beside the message, or None.
        scope: Whether a message is clipped as a whole or layer by layer.
        message_noise: Deviation of the noise that each client adds to its clipped message, over its sensitivity.
        source: The clients' own secret randomness.
        device: Where to compute.
        chunk: Clients computed at once; None: see simulation.chunks.
    """

    network: NetworkSpec
    weights_seed: int
    population: Population
    meta: MetaSpec
    record: RecordSpec | MicroSpec | None
    message_clip_ratio: float | None
    engine: Literal["auto", "vmap", "opacus"]
    source: SecretSource
    device: torch.device
    attachment: Attachment | None = None
    scope: Literal["flat", "per-layer"] = "flat"
    message_noise: float = 0.0
    private_steps: PrivateSteps | None = None
    chunk: int | None = None

    @property
    def stacks(self) -> bool:
        """Whether clients are computed several at a time, by torch.func."""
        return self.record is None and self.meta.stacks(self.device.type, self.chunk)

    def message_bound(self, bound: float) -> float:
        """Largest norm by which one client moves the sum: C, or C_q in shared mode; more with an attachment."""
        attached = self.attachment.scale * self.attachment.sensitivity if self.attachment else 0.0
        return bound * (self.message_clip_ratio or 1.0) * math.sqrt(1.0 + attached**2)

    def form(self, model: Params) -> Params:
        """What a message looks like: the model's parameters, and the attachment."""
        return {**model, ATTACHED: torch.zeros(self.attachment.size)} if self.attachment else dict(model)

    def message_noise_variance(self, bound: float) -> float:
        """Variance per coordinate of one message's own noise that counts at the server, else 0."""
        if self.message_noise:
            return (self.message_noise * self.message_bound(bound)) ** 2
        if self.record is None or self.message_clip_ratio is not None:
            return 0.0
        return (self.record.message_deviation * bound) ** 2

    def whole_numbers(self, bound: float, size: int) -> WholeNumbers:
        """An honest message (a bounded part, and Gaussian noise) is longer with probability below exp(-50)."""
        own_noise = math.sqrt(self.message_noise_variance(bound))
        longest = self.message_bound(bound) * (1.0 + 1e-5) + own_noise * (math.sqrt(size) + 10.0)
        return WholeNumbers.for_messages(longest)

    def clipped_sum(self, model: Params, bound: float, round_: int, clients: Sequence[int]) -> tuple[Tensor, int]:
        """SECRET: (sum over the clients, as `whole_numbers` says; number of messages that entered it).

        A message that is not finite, not of the model's form, or longer than an honest one is set to 0 and brings no
        noise (privacy rule 4).
        """
        model = {name: value.to(self.device) for name, value in model.items()}
        form = self.form(model)
        numbers = self.whole_numbers(bound, dimension(form))
        total, entered = numbers.zero(dimension(form), self.device), 0
        for message in self._messages(model, bound, round_, clients):
            if not _of_form(message, form):
                continue
            values = flatten(message).double()
            # In float64 a norm is finite where every scalar is.
            if math.isfinite(length := length_of(values)) and length <= numbers.longest:
                total += numbers.of(values)
                entered += 1
        return total.cpu(), entered

    def exact_messages(self, model: Params, round_: int, clients: Sequence[int]) -> Iterator[Params | None]:
        """SECRET unless the population is public: the clients' messages before clipping, without record-level steps.

        None for a client whose data do not have the form that the plan states.
        """
        network = _network(self.network, self.device)
        fixed = _fixed(self.network, self.weights_seed, self.device)
        if self.stacks:
            yield from self._stacked_messages(network, model, fixed, clients)
            return
        for client in clients:
            episode = self._held(client)
            if episode is None:
                yield None
            else:
                yield self._message(network, model, fixed, episode.to(self.device), round_, client)

    def _stacked_messages(
        self, network: nn.Module, model: Params, fixed: Params, clients: Sequence[int]
    ) -> Iterator[Params | None]:
        """Clients of the form of the first sound one together, others one by one; while some are computed, the next
        ones' data are drawn."""
        size = max(_DRAWN_TOGETHER, self.chunk or 1)
        blocks = [clients[start : start + size] for start in range(0, len(clients), size)]
        for episodes in ahead(lambda block: [self._held(client) for client in block], blocks):
            yield from self._stacked_block(network, model, fixed, episodes)

    def _stacked_block(
        self, network: nn.Module, model: Params, fixed: Params, episodes: Sequence[Episode | None]
    ) -> Iterator[Params | None]:
        form = next((_form(episode) for episode in episodes if episode is not None), None)

        def together(part: Sequence[Episode]) -> list[Params]:
            own, spec = stacked(part).to(self.device), self.meta
            found = stacked_query_gradients(network, model, fixed, own, spec.adaptation, spec.order)
            return [{name: value[index] for name, value in found.items()} for index in range(len(part))]

        same = [episode for episode in episodes if episode is not None and _form(episode) == form]
        computed = iter(_chunks(self.network, self.device, self.chunk).compute(together, same))
        for episode in episodes:
            if episode is None:
                yield None
            elif _form(episode) == form:
                yield next(computed)
            else:
                yield contribution(network, model, fixed, episode.to(self.device), self.meta)

    def _messages(self, model: Params, bound: float, round_: int, clients: Sequence[int]) -> Iterator[Params]:
        """What the clients send, with the norm of each data part at most `message_bound`."""
        if self.record is None:
            for client, message in zip(clients, self.exact_messages(model, round_, clients), strict=True):
                # A client without sound data sends zeros, which are no failure: it must not show who holds what.
                clipped = zeros_like(self.form(model)) if message is None else self._clipped(message, bound)
                yield self._with_own_noise(clipped, bound, round_, client)
            return
        together = isinstance(self.record, MicroSpec) or self.record.adaptation.one_body
        size = len(clients) if together and _engine(self.engine).batches else 1
        for start in range(0, len(clients), max(size, 1)):
            group = clients[start : start + size]
            held = [self._held(client) for client in group]
            # Others in the group are computed as if this client were a sound one.
            blank = blank_episode(self.data_form.image, *self.record.counts)
            episodes = [(blank if episode is None else episode).to(self.device) for episode in held]
            noises = [self._noise(round_, client) for client in group]
            messages = self._private_messages(model, episodes, bound, noises)
            for released, episode in zip(messages, held, strict=True):
                yield {} if episode is None else self._clipped_again(released.value, bound)

    def _private_messages(
        self, model: Params, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> list[Released[Record, Params]]:
        fixed = _fixed(self.network, self.weights_seed, self.device)
        if isinstance(self.record, MicroSpec):
            # The head, which starts at zero for any number of classes.
            spec, rest = with_ways(self.network, fixed, self.record.shape.ways)
            queries = [noise.query for noise in noises]
            return micro_contributions(_network(spec, self.device), model, rest, episodes, bound, queries, self.record)
        assert self.record is not None
        network, engine = _network(self.network, self.device), _engine(self.engine)
        return private_contributions(network, model, fixed, episodes, bound, noises, self.record, engine)

    @property
    def data_form(self) -> DataForm:
        """What every client must hold."""
        network, record = self.network, self.record
        return DataForm(
            image=(network.channels, network.image_size, network.image_size),
            ways=network.ways,
            counts=None if record is None else record.counts,
            queries=self.meta.message != "local",
            divided=record if isinstance(record, MicroSpec) else self.meta.divisions,
        )

    def _held(self, client: int) -> Episode | None:
        """SECRET: a client's data; None: they are not of the plan's form, so it sends nothing of them."""
        return self.data_form.held(self.population, client)

    def _message(
        self, network: nn.Module, model: Params, fixed: Params, episode: Episode, round_: int, client: int
    ) -> Params:
        """Before clipping: exact, or private towards the server by local DP-SGD."""
        if self.meta.message != "local":
            return contribution(network, model, fixed, episode, self.meta)
        batches = self.source.generator(Purpose.LOCAL_BATCHES, round_, client)
        if self.private_steps is None:
            return local_update(network, model, fixed, episode, self.meta.local, batches)
        engine = _engine(self.engine)
        return private_local_update(network, model, fixed, episode, self.private_steps, batches, engine).value

    def _with_own_noise(self, message: Params, bound: float, round_: int, client: int) -> Params:
        """The client's share of the noise of the sum, on all that it sends."""
        if not self.message_noise:
            return message
        noise = self.source.generator(Purpose.MESSAGE_NOISE, round_, client).normal(dimension(message))
        deviation = self.message_noise * self.message_bound(bound)
        noisy = flatten(message).double() + deviation * torch.from_numpy(noise).to(self.device)
        return unflatten(noisy, message)

    def _clipped(self, message: Params, bound: float) -> Params:
        clipped = clip(message, bound) if self.scope == "flat" else clip_per_layer(message, bound)
        if self.attachment is None:
            return clipped
        # A message that is set to 0 attaches nothing either.
        length = norm(message)
        values = self.attachment.values(length, bound) if math.isfinite(length) else [0.0] * self.attachment.size
        attached = torch.tensor(values, dtype=torch.float64, device=self.device) * (self.attachment.scale * bound)
        return {**clipped, ATTACHED: attached}

    def _noise(self, round_: int, client: int) -> ClientNoise:
        return ClientNoise(
            support=self.source.generator(Purpose.SUPPORT_NOISE, round_, client),
            query=self.source.generator(Purpose.QUERY_NOISE, round_, client),
        )

    def _clipped_again(self, message: Params, bound: float) -> Params:
        """Stacked mode clips the noisy message; shared mode takes it as it is."""
        return message if self.message_clip_ratio is None else clip(message, self.message_bound(bound))


def _of_form(message: Params, form: Params) -> bool:
    shapes = {name: value.shape for name, value in form.items()}
    real = all(value.dtype in (torch.float32, torch.float64) for value in message.values())
    return real and {name: value.shape for name, value in message.items()} == shapes


def _form(episode: Episode) -> tuple[torch.Size, torch.Size]:
    return episode.support_images.shape, episode.query_images.shape


@lru_cache(maxsize=4)
def _chunks(_: NetworkSpec, device: torch.device, chunk: int | None) -> Chunks:
    """What is found for one network says nothing about another."""
    return Chunks(device=device, fixed=chunk)


@lru_cache(maxsize=4)
def _network(spec: NetworkSpec, device: torch.device) -> nn.Module:
    return build_network(spec).to(device)


@lru_cache(maxsize=4)
def _fixed(spec: NetworkSpec, seed: int, device: torch.device) -> Params:
    weights = initial_weights(spec, seed)
    learned = learned_part(spec, weights)
    return {name: value.to(device) for name, value in weights.items() if name not in learned}


@lru_cache(maxsize=4)
def _engine(name: Literal["auto", "vmap", "opacus"]) -> PerRecordGradients:
    return per_record_engine(name)
