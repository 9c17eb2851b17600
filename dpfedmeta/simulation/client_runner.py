"""The clients' side of a round: a pure function from (model, bound, clients) to their clipped sum."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import Noise
from dpfedmeta.core.errors import InputError, OwnCodeFailed
from dpfedmeta.core.params import Params, dimension, flatten, unflatten, zeros_like
from dpfedmeta.core.plugins.own_function import spread_over
from dpfedmeta.core.plugins.user_code import is_own, own_failures
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, KeyedSource, Purpose, SecretSource
from dpfedmeta.data.episodes.episode import Episode, null_episode
from dpfedmeta.data.populations.population import Population
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, ClientContext, ClientNoise, form_problem, message_form
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
from dpfedmeta.privacy.charged import check_record_release
from dpfedmeta.privacy.clip_policy import Attachment, clipped_message, moved_by_a_client, with_attachment
from dpfedmeta.privacy.clipping import clip
from dpfedmeta.privacy.discretised.fixed_point import WholeNumbers
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import RecordUnit, pieces_of
from dpfedmeta.simulation.client_data import DataForm
from dpfedmeta.simulation.gpu_batches import (
    Chunks,
    RowSum,
    ahead,
    chunks_of,
    engine_of,
    fixed_weights,
    network_on,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientRunner:
    """Computation of every client, picklable so that a worker process can run it.

    Attributes:
        network: The network.
        weights_seed: Seed of the initial weights, hence of those that are not learned.
        population: Maps a client number to its data.
        algorithm: Algorithm that each client computes.
        message_clip_ratio: C/C_q if the server clips a noisy message again (stacked mode), else None.
        engine: Per-record gradient engine.
        attachment: Values that the clip policy requests besides the message, or None.
        scope: Whether a message is clipped as a whole or layer by layer.
        message_noise: Deviation of the noise that each client adds to its clipped message, over its sensitivity.
        source: Secret randomness of the clients.
        device: Device that computes.
        chunk: Clients computed at once; None: see simulation.gpu_batches.
        whole: Rounding of messages for secure aggregation; None if the server sees messages.
        record_noises: Noise of each release about its records that a participation is charged with; empty without a
            record-level layer, and where clients are made up (audits).

    Guarantee:
        What an algorithm releases about records leaves no client with other noise than is charged.
    """

    network: NetworkSpec
    weights_seed: int
    population: Population
    algorithm: ClientAlgorithm
    message_clip_ratio: float | None
    engine: Literal["auto", "vmap", "opacus"]
    source: SecretSource
    device: torch.device
    attachment: Attachment | None = None
    scope: Literal["flat", "per-layer"] = "flat"
    message_noise: float = 0.0
    chunk: int | None = None
    whole: WholeSum | None = None
    record_noises: tuple[Noise, ...] = ()

    @property
    def stacks(self) -> bool:
        """True if one call computes the exact messages of several clients."""
        return not self.algorithm.releases and self.parts == 1 and self.together != 1

    @property
    def draws_there(self) -> bool:
        """True if records are made on the device, for populations that support it."""
        return self.device.type == "cuda"

    @property
    def at_once(self) -> bool:
        """True if one call computes as many clients as the device holds; a CPU's arithmetic does not change."""
        return self.stacks or (self.device.type == "cuda" and self.together != 1)

    @property
    def as_rows(self) -> bool:
        """True if messages are clipped and added many at a time, as on a GPU; a CPU's arithmetic does not change."""
        return self.device.type == "cuda" and self.parts == 1 and self.together != 1

    @property
    def parts(self) -> int:
        """Number of vectors that a message averages, each clipped on its own."""
        return self.algorithm.parts

    @property
    def together(self) -> int | None:
        """Number of clients that one call computes; None: all."""
        return self.algorithm.together(self._engine, self.device.type, self.chunk)

    @property
    def _engine(self) -> PerRecordGradients:
        return engine_of(self.engine, self.algorithm.adaptation.targets)

    @property
    def chunk_found(self) -> int | None:
        """Number of clients computed at once; None until it is known."""
        return self._chunks.size

    @property
    def _chunks(self) -> Chunks:
        return chunks_of(self.network, self.algorithm, self.device, self.chunk)

    def message_bound(self, bound: float) -> float:
        """Largest norm by which one client moves the sum: C, or C_q in shared mode; more with an attachment."""
        return moved_by_a_client(bound, self.attachment, self.message_clip_ratio)

    def form(self, model: Params) -> Params:
        """Return the form of a message, with the attachment."""
        return with_attachment(message_form(self.algorithm, model), self.attachment)

    def message_noise_variance(self, bound: float) -> float:
        """Variance per coordinate of one message's own noise that counts at the server, else 0."""
        if self.message_noise:
            return (self.message_noise * self.message_bound(bound)) ** 2
        if self.message_clip_ratio is not None:
            return 0.0
        own = self.algorithm.message_deviation
        # An infinite bound times no noise is no number.
        return (own * bound) ** 2 if own else 0.0

    def whole_numbers(self, bound: float, size: int) -> WholeNumbers:
        """The conversion of a round's messages (see `WholeNumbers.for_bounded`)."""
        own_noise = math.sqrt(self.message_noise_variance(bound))
        return WholeNumbers.for_bounded(self.message_bound(bound), own_noise, size)

    def clipped_sum(self, model: Params, bound: float, round_: int, clients: Sequence[int]) -> tuple[Tensor, int]:
        """SECRET: (sum over the clients, as `whole_numbers` says; number of messages that entered it).

        A message that is not finite, not of the model's form, or longer than an honest one is set to 0 and brings no
        noise (privacy rule 4).
        """
        model = {name: value.to(self.device) for name, value in model.items()}
        if self.as_rows:
            form = message_form(self.algorithm, model)
            raw = (m if m is None else self._value(m, form) for m in self._raw(model, bound, round_, clients))
            return RowSum(clients=self, model=model, bound=bound, round_=round_).of(clients, raw)
        size = dimension(self.form(model))
        messages = self.sent(model, bound, round_, clients)
        return self.whole_numbers(bound, size).total(messages, size)

    def sent(self, model: Params, bound: float, round_: int, clients: Sequence[int]) -> Iterator[Tensor | None]:
        """SECRET: what each client sends to a server that sees messages, [d]; None where it is not of the model's form.

        Clipped, and with the noise that the plan has a client add itself.
        """
        model = {name: value.to(self.device) for name, value in model.items()}
        form = self.form(model)
        for message in self._messages(model, bound, round_, clients):
            yield None if form_problem(message, form) else flatten(message)

    def bounded_parts(
        self, model: Params, bound: float, round_: int, clients: Sequence[int]
    ) -> Iterator[list[FloatArray]]:
        """SECRET: what each client has to round: vectors [d] of length `message_bound` at most.

        Of a message that is not of the model's form there are none. A part that is not finite is 0.
        """
        model = {name: value.to(self.device) for name, value in model.items()}
        longest = self.message_bound(bound)
        for message in self._messages(model, bound, round_, clients):
            pieces = _parts(message, self.parts) if message else []
            yield [flatten(clip(piece, longest)).double().cpu().numpy() for piece in pieces]

    def whole_messages(self, round_: int, clients: Sequence[int], source: SecretSource) -> Iterator[IntArray | None]:
        """SECRET: what each client adds to a sum of whole numbers; None: it has no sound data."""
        sends: Any = self.algorithm
        for client in clients:
            (held,) = self.held_by([client])
            own = source.generator(Purpose.ROUNDING, round_, client)
            yield None if held is None else sends.whole_message(held, own)

    def exact_messages(self, model: Params, round_: int, clients: Sequence[int]) -> Iterator[Params | None]:
        """SECRET unless the population is public: messages before clipping, of algorithms that release none.

        None for a client whose data do not have the form that the plan states.
        """
        form = message_form(self.algorithm, model)
        for message in self._raw(model, math.inf, round_, clients):
            yield None if message is None or self.algorithm.releases else self._value(message, form) or None

    def _messages(self, model: Params, bound: float, round_: int, clients: Sequence[int]) -> Iterator[Params]:
        """Yield the clients' messages, the data clipped to `message_bound`; if `parts` > 1, callers clip each part.

        One that is not of the model's form is {}.
        """
        own = message_form(self.algorithm, model)
        for client, raw in zip(clients, self._raw(model, bound, round_, clients), strict=True):
            message = None if raw is None else self._value(raw, own)
            if message == {}:
                yield message
                continue
            if self.algorithm.releases and message is not None:
                yield self._clipped_again(message, bound)
                continue
            # A client without sound data sends zeros, which are no failure: it must not show who holds what.
            if self.parts > 1:
                # Whoever rounds them clips each on its own.
                nothing = {name: value.new_zeros(self.parts, *value.shape) for name, value in own.items()}
                yield nothing if message is None else message
                continue
            clipped = zeros_like(self.form(model)) if message is None else self._clipped(message, bound)
            yield self._with_own_noise(clipped, bound, round_, client)

    def _raw(
        self, model: Params, bound: float, round_: int, clients: Sequence[int]
    ) -> Iterator[Params | Released[RecordUnit, Params] | None]:
        """Yield the algorithm's messages; with several clients in one call, the next ones' data are drawn meanwhile."""
        context = self.context(model)
        size = self.together or max(len(clients), 1)
        groups = [clients[start : start + size] for start in range(0, len(clients), size)]
        drawn = ahead(self.held_by, groups) if self.at_once else map(self.held_by, groups)
        for group, held in zip(groups, drawn, strict=True):
            yield from self._of_group(context, bound, round_, group, held)

    def _of_group(
        self, context: ClientContext, bound: float, round_: int, group: Sequence[int], held: Sequence[Episode | None]
    ) -> Iterator[Params | Released[RecordUnit, Params] | None]:
        if (null := self._null) is not None:
            # Data that are not sound are null records, as at a real client. Its message is noise then: one record more
            # or less moves what is seen by no more than that record. (To a sum that carries the noise it adds 0.)
            held = [null if episode is None else episode for episode in held]
        private = math.isfinite(bound) or bool(self.record_noises)
        computing = [(client, episode) for client, episode in zip(group, held, strict=True) if episode]
        noises = [self._noise(round_, client) for client, _ in computing]
        found = iter(self.algorithm.messages(context, [episode for _, episode in computing], bound, noises))
        for place, episode in enumerate(held):
            with own_failures("while a client computed", private=private):
                try:
                    message = next(found) if episode else None
                except Exception as error:
                    if not private or not is_own(error):
                        raise
                    # One of the group may have failed for all that were computed at once.
                    left = computing[sum(map(bool, held[:place])) :]
                    found = (self._alone(context, bound, round_, *each) for each in left)
                    message = next(found)
            yield message

    @property
    def _null(self) -> Episode | None:
        """Null records, of which a message under promises for records is noise alone; None without such a message."""
        layer, form = self.algorithm.record_layer(), self.data_form
        if layer is None or layer.of_sum:
            return None
        return null_episode(form.image, *(self.algorithm.needs.counts or (1, 1)), form.targets.blank)

    def _alone(
        self, context: ClientContext, bound: float, round_: int, client: int, episode: Episode
    ) -> Params | Released[RecordUnit, Params]:
        """A client's message; where code of the user's own fails on its data, that of a client without any.

        Under a promise an end of the run would tell of the data, so only what fails on made-up data too is raised.
        Nothing of these is the client's, neither records nor how many there are.
        """
        try:
            return self._message(context, bound, round_, client, episode)
        except Exception as error:
            if not is_own(error):
                raise
            try:
                self._message(context, bound, round_, client, self._made_up())
            except Exception:
                raise error from None
            null = self._null
            return {} if null is None else self._message(context, bound, round_, client, null)

    def _message(
        self, context: ClientContext, bound: float, round_: int, client: int, episode: Episode
    ) -> Params | Released[RecordUnit, Params]:
        (message,) = self.algorithm.messages(context, [episode], bound, [self._noise(round_, client)])
        return message

    def _made_up(self) -> Episode:
        """Made-up records and labels, as many as the plan states, or two for each output of the network."""
        vocabulary, ways, numbers = self.network.form.vocabulary, self.network.ways, self.data_form.targets.numbers
        generator, parts = torch.Generator().manual_seed(0), dict[str, Tensor]()
        sizes = self.algorithm.needs.counts or (2 * ways, 2 * ways)
        for part, size in zip(("support", "query"), sizes, strict=True):
            images = torch.rand(size, *self.data_form.image, generator=generator)
            parts[f"{part}_images"] = images if vocabulary is None else (1 + images * (vocabulary - 1)).floor()
            # Class by class, as episodes have them.
            classes = torch.arange(size) * ways // size
            parts[f"{part}_labels"] = torch.linspace(-1.0, 1.0, size) if numbers else classes
        return Episode(**parts).to(self.device)

    def check_own_code(self) -> None:
        """Refuse code of the user's own that fails for all of a few clients, before a round is charged.

        One client's data decide over it only where all others that are tried fail too. Messages are thrown away, so
        their noise has a seed that everybody knows; the run's own is drawn for charged attempts alone.

        Raises:
            InputError: It fails for all; says where, if that is the same for all.
        """
        weights, problems = self.algorithm.initial(self.network, self.weights_seed), set[str]()
        learned = self.algorithm.learned(self.network, weights)
        context = self.context({name: value.to(self.device) for name, value in learned.items()})
        tried = replace(self, source=KeyedSource(0))
        for client in (few := spread_over(self.population.clients)):
            try:
                (episode,) = self.held_by([client])
                if episode is not None:
                    with own_failures("while a client computed", private=True):
                        tried._message(context, 1.0, 0, client, episode)
                    return
            except OwnCodeFailed as error:
                problems.add(str(error))
        if problems:
            same = f": {problems.pop()}" if len(problems) == 1 else ""
            raise InputError(
                f"code of your own fails for each of {len(few)} clients, picked from "
                f"all {self.population.clients:,}; nothing was charged{same}"
            )

    def context(self, model: Params) -> ClientContext:
        """Return the state that clients of this machine share while they compute."""
        return ClientContext(
            network=self.network,
            module=network_on(self.network, self.device),
            learned=model,
            fixed=fixed_weights(self.algorithm, self.network, self.weights_seed, self.device),
            device=self.device,
            engine=self._engine,
            built=lambda spec: network_on(spec, self.device),
            pieces=self._chunks.compute,
            side_by_side=self.at_once,
        )

    @cached_property
    def data_form(self) -> DataForm:
        """Form of the data that every client must hold."""
        network, needs = self.network, self.algorithm.needs
        return DataForm(
            image=network.form.shape,
            vocabulary=network.vocabulary,
            ways=network.ways,
            counts=needs.counts,
            queries=needs.queries,
            divided=needs.division,
            targets=self.algorithm.adaptation.targets,
            nulls=self.algorithm.record_layer() is not None,
        )

    def held_by(self, clients: Sequence[int]) -> list[Episode | None]:
        """SECRET: the data of some clients; None for one whose data do not have the form of the plan."""
        if self.draws_there:
            return self.data_form.held_on(self.population, clients, self.device)
        return [self.data_form.held(self.population, client) for client in clients]

    def _with_own_noise(self, message: Params, bound: float, round_: int, client: int) -> Params:
        if not self.message_noise:
            return message
        noise = self.own_noise(bound, round_, client, dimension(message), lambda: pieces_of(message))
        return unflatten(flatten(message).double() + torch.from_numpy(noise).to(self.device), message)

    def own_noise(
        self, bound: float, round_: int, client: int, size: int, exact: Callable[[], Iterable[bytes]]
    ) -> FloatArray:
        """SECRET: a client's share of the noise of the sum, [size], for one exact message that `exact` gives."""
        deviation = self.message_noise * self.message_bound(bound)
        own = self.source.generator(Purpose.MESSAGE_NOISE, round_, client)
        return deviation * for_message(own, lambda: (repr(deviation).encode(), *exact())).normal(size)

    def _clipped(self, message: Params, bound: float) -> Params:
        return clipped_message(message, bound, self.attachment, per_layer=self.scope == "per-layer")

    def _value(self, message: Params | Released[RecordUnit, Params], form: Params) -> Params:
        """The message by name in the order of its form, in which it becomes a vector; {} if it is not of this form."""
        if self.record_noises:
            check_record_release(message, self.record_noises)
        value = message.value if isinstance(message, Released) else message
        return {} if form_problem(value, form, self.parts) else {name: value[name] for name in form}

    def _noise(self, round_: int, client: int) -> ClientNoise:
        return ClientNoise(
            support=self.source.generator(Purpose.SUPPORT_NOISE, round_, client),
            query=self.source.generator(Purpose.QUERY_NOISE, round_, client),
            batches=self.source.generator(Purpose.LOCAL_BATCHES, round_, client),
        )

    def _clipped_again(self, message: Params, bound: float) -> Params:
        """Stacked mode clips the noisy message; shared mode takes it as it is."""
        return message if self.message_clip_ratio is None else clip(message, self.message_bound(bound))


def _parts(message: Params, parts: int) -> list[Params]:
    """[parts, ...], or a message that is one."""
    if parts == 1:
        return [message]
    return [{name: value[place] for name, value in message.items()} for place in range(parts)]
