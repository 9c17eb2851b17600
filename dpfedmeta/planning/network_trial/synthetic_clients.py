"""Trial runs of the clients' own functions on synthetic images, with as few records as show which affect which."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, ClientContext, NetworkTrial
from dpfedmeta.learning.meta.meta_gradients import drawn
from dpfedmeta.learning.meta.overridden import own_parts
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine
from dpfedmeta.planning.client_spec import clients_at_once

_CLIENTS = 2
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Setup of a trial run of the clients' computation; equal setups need to be tried only once.

    Attributes:
        network: The network.
        algorithm: What clients compute, shortened.
        engine: Of per-record gradients.
        side_by_side: Whether exact messages of several clients are computed at once.
        promise: Level of privacy that would not hold if the trial fails; None where nothing is promised.
    """

    network: NetworkSpec
    algorithm: ClientAlgorithm
    engine: Literal["auto", "vmap", "opacus"]
    side_by_side: bool
    promise: Literal["record-level", "client-level"] | None

    @property
    def trial(self) -> NetworkTrial:
        """Trial of the algorithm: which units must not affect each other."""
        return self.algorithm.trial(self.network)

    @property
    def own(self) -> tuple[str, str] | None:
        """(Setting and name of the user's own release or method, the functions that it overrides); None: built in."""
        release = self.algorithm
        for setting, member in (("record.release", release), ("meta.method", getattr(release, "method", release))):
            kind, parts = type(member), own_parts(member)
            if parts and (setting == "meta.method" or hasattr(release, "method")):
                network = f" with model.name = {self.network.name}" if ":" in self.network.name else ""
                return f"{setting} = {kind.__module__}:{kind.__qualname__}{network}", " or ".join(parts)
        return None

    @property
    def shape(self) -> EpisodeShape:
        """Shape of a client's episode."""
        trial = self.trial
        return EpisodeShape(ways=trial.ways, shots=trial.each, queries=trial.each)

    @property
    def outputs(self) -> int:
        """Outputs of the network that is tried out."""
        targets = self.algorithm.adaptation.targets
        return self.trial.ways if targets.masked else self.network.ways

    def weights(self, draw: int) -> tuple[Params, Params]:
        """Return (learned weights, other weights): the initial values for draw 0, else a random draw around them."""
        weights = self.algorithm.initial(self.network, 0)
        model = self.algorithm.learned(self.network, weights)
        rest = {name: value for name, value in weights.items() if name not in model}
        _, rest = with_ways(self.network, rest, self.outputs)
        return (drawn(model, 2 * draw), drawn(rest, 2 * draw + 1)) if draw else (model, rest)

    def episodes(self, seed: int) -> list[Episode]:
        """The clients' data: dark images, so that a bright one stands out."""
        generator, shape = torch.Generator().manual_seed(seed), self.shape
        numbers = self.algorithm.adaptation.targets.numbers
        labels = torch.linspace(-1.0, 1.0, shape.ways) if numbers else torch.arange(shape.ways)
        return [
            Episode(
                support_images=self._records(shape.support_records, generator, 0.25),
                support_labels=labels.repeat_interleave(shape.shots),
                query_images=self._records(shape.query_records, generator, 0.25),
                query_labels=labels.repeat_interleave(shape.queries),
            )
            for _ in range(_CLIENTS)
        ]

    def _records(self, count: int, generator: torch.Generator, brightness: float) -> Tensor:
        """[count, ...]; of tokens it is the ids that differ."""
        form = self.network.form
        if form.vocabulary is not None:
            return torch.randint(1, form.vocabulary, (count, *form.shape), generator=generator).float()
        return brightness * torch.rand(count, *form.shape, generator=generator)

    def changed(self, episodes: Sequence[Episode], seed: int, brightness: float) -> list[Episode]:
        """Return the episodes with other data in the first client, which belong to the first unit of every phase."""
        first, *others = episodes
        support, query = self.trial.changed
        generator = torch.Generator().manual_seed(seed)

        def other(images: Tensor, count: int | None) -> Tensor:
            images = images.clone()
            images[:count] = self._records(len(images[:count]), generator, brightness)
            return images

        return [
            replace(
                first,
                support_images=other(first.support_images, support),
                query_images=other(first.query_images, query),
            ),
            *others,
        ]


def rehearsal_of(settings: Settings, network: NetworkSpec, algorithm: ClientAlgorithm, *, private: bool) -> Rehearsal:
    """Build the trial run of what a plan has its clients compute.

    Args:
        settings: For the engine, and where clients are computed.
        network: The network.
        algorithm: What clients compute.
        private: Whether there is a client-level mechanism.
    """
    device = "cuda" if settings.run.device != "cpu" and torch.cuda.is_available() else "cpu"
    chunk = clients_at_once(settings, network, algorithm, device)
    together = algorithm.together(
        per_record_engine(settings.record.engine, algorithm.adaptation.targets), device, chunk
    )
    exact = not algorithm.releases and algorithm.parts == 1
    return Rehearsal(
        network=network,
        algorithm=algorithm.shortened(),
        engine=settings.record.engine,
        side_by_side=together != 1 and (exact or device == "cuda"),
        promise="record-level" if settings.record.enabled else "client-level" if private else None,
    )


class RehearsedClients:
    """A network in the hands of clients, as they use it; it keeps what it keeps from one call to the next."""

    def __init__(self, rehearsal: Rehearsal, device: torch.device = _CPU) -> None:
        self._spec = replace(rehearsal.network, ways=rehearsal.outputs)
        self._device = device
        self.network = build_network(self._spec).to(device)
        self._engine = per_record_engine(rehearsal.engine, rehearsal.algorithm.adaptation.targets)
        self._rehearsal = rehearsal

    def __call__(self, model: Params, fixed: Params, episodes: Sequence[Episode]) -> list[Tensor]:
        """[units, d] of every phase: records, micro-episodes or clients, that of the changed data first."""
        placed = [episode.to(self._device) for episode in episodes]
        return self._rehearsal.algorithm.units(self.context(model, fixed), placed)

    def context(self, model: Params, fixed: Params) -> ClientContext:
        """The state that they share."""
        return ClientContext(
            network=self._spec,
            module=self.network,
            learned={name: value.to(self._device) for name, value in model.items()},
            fixed={name: value.to(self._device) for name, value in fixed.items()},
            device=self._device,
            engine=self._engine,
            built=self._same,
            pieces=_at_once,
            side_by_side=self._rehearsal.side_by_side,
        )

    def _same(self, spec: NetworkSpec) -> nn.Module:
        return self.network


def _at_once(function: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]) -> list[Any]:
    return list(function(items))
