"""Plan of a run as values that can be read before its first round: guarantees, noise, network, weights, time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.guarantee import FourGuarantees, Guarantee
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.config.settings import Settings
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.user_sources.image_files import form_of_images
from dpfedmeta.data.user_sources.readers import READERS, public_image_files_of
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
from dpfedmeta.learning.meta.overridden import own_words
from dpfedmeta.learning.models.spec import HEAD, NetworkSpec
from dpfedmeta.planning.caveats import notes_of, simulation_words, word_of_authors
from dpfedmeta.planning.client_spec import algorithm_of, network_spec
from dpfedmeta.planning.network_trial.pretraining_overlap import initial_words
from dpfedmeta.planning.privacy.secure_sum_settings import countable_weights
from dpfedmeta.training.state.private_timings import hides_times_of
from dpfedmeta.training.terminal.tables import as_text, guarantee_table, noise_lines

if TYPE_CHECKING:
    from dpfedmeta.accounting.ledger.population_register import Room
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.planning.run_plan import Plan

_MOST_NAMES = 3


class Guarantees(FourGuarantees):
    """The four cells; printed as the table that a run shows.

    Attributes:
        word: On whose word they rest; None: on nobody's.
    """

    word: str | None = None

    def __repr__(self) -> str:
        return as_text(guarantee_table(self, "", word=self.word))


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned:
    """Plan of a run as values, before its first round.

    Attributes:
        settings: What it was asked for.
        dataset: Name of the data set.
        rounds: T; fewer than asked for where privacy.client.limit ends the run before.
        guarantees: The four cells.
        noise: The sizes and the noise that was solved, a line each.
        network: Its input and output, its learned weights, and the size that images are brought to.
        begins_with: Initial weights, which no guarantee covers; None: training begins with random weights.
        cautions: Limits of the guarantees that the epsilons alone do not show.
        simulation: A warning where the noise has a chosen seed, so that nothing is promised to who knows it.
        hides_times: Whether its rows have no times.
        final_validations: How many validations the final evaluation takes as long as, about.
        clients: What the clients are made of; None: the data were not opened.
        room: Answer of its population's register; None: it has none, or was not asked.
        minutes: Of training on this machine; None: not measured.
        clients_per_second: Likewise.
    """

    settings: Settings
    dataset: str
    rounds: int
    guarantees: Guarantees
    noise: tuple[str, ...]
    network: tuple[str, ...]
    begins_with: str | None
    cautions: tuple[str, ...]
    simulation: str | None
    hides_times: bool
    final_validations: float
    clients: str | None = None
    room: Room | None = None
    minutes: float | None = None
    clients_per_second: float | None = None

    @property
    def statement(self) -> str:
        """The promise in one sentence."""
        held = [cell for cell in self.guarantees if cell.method != "none"]
        cells = [
            f"towards {_TOWARDS[cell.observer]}, epsilon = {rounded_up(cell.epsilon)} at delta = "
            f"{asked(cell.delta)} for one {cell.unit} ({cell.adjacency})"
            for cell in held
        ]
        promise = f"promises {'; '.join(cells)}" if cells else "promises no privacy"
        return f"{self.settings.algo} on {self.dataset} {promise}"

    def __repr__(self) -> str:
        said = (*self.noise, *self.network, self.begins_with, self.clients, self.room and self.room.words)
        lines = [f"{self.settings.algo} on {self.dataset}", *(f"  {line}" for line in said if line)]
        lines += [repr(self.guarantees), *(f"note: {caution}" for caution in self.cautions)]
        return "\n".join([*lines, *filter(None, (self.simulation,))])


_TOWARDS = {"public": "everybody who sees the releases", "server": "the server"}


def planned_of(plan: Plan, task: Task) -> Planned:
    """Return the plan's guarantees and constants as values; no data is needed."""
    return planned_with(plan.settings, plan.privacy, plan.planned, task)


def planned_with(settings: Settings, privacy: PrivacyPlan, cells: Sequence[Guarantee], task: Task) -> Planned:
    """The same of a plan's parts; of built-in networks no PyTorch is needed either."""
    promised = Guarantees(cells)
    promised.word = word_of_authors(settings)
    return Planned(
        settings=settings,
        dataset=task.name,
        rounds=privacy.rounds,
        guarantees=promised,
        noise=tuple(noise_lines(privacy)),
        network=trained_lines(settings, task),
        begins_with=initial_words(settings),
        cautions=notes_of(settings, task),
        simulation=simulation_words(settings.run.noise_seed),
        hides_times=hides_times_of(settings, privacy),
        final_validations=_final_validations(settings, task),
    )


def _final_validations(settings: Settings, task: Task) -> float:
    """The trained and the untrained network adapt, where a validation has one; what does not adapt is nearly free."""
    if task.shared_classes is not None:
        return 2.0
    evaluation = settings.evaluation
    return 2.2 * evaluation.episodes / evaluation.validation_episodes


def trained_lines(settings: Settings, task: Task) -> tuple[str, ...]:
    """Describe the network's input and output, its learned weights, and the size that images are brought to."""
    algorithm, spec = algorithm_of(settings, task), network_spec(settings, task)
    return (
        f"network {spec.name}: {spec.form.words}, {spec.ways} outputs; {_learned_words(algorithm, spec, settings)}",
        *own_words(settings.meta.method, getattr(algorithm, "method", algorithm)),
        *_image_words(settings.dataset, task),
        *_read_words(task),
    )


def _learned_words(algorithm: ClientAlgorithm, spec: NetworkSpec, settings: Settings) -> str:
    weights: Any = countable_weights(algorithm, spec, settings.run.seed)
    learned, frozen = algorithm.learned(spec, weights), _frozen(spec)
    kept = [name for name in weights if name not in learned and name not in frozen]
    said = [f"learns {_words(weights, learned)}"]
    if kept:
        said.append(
            f"leaves {_words(weights, kept)} " + ("at zero" if _begin_at_zero(spec, weights, kept) else "as they begin")
        )
    if frozen:
        said.append(f"keeps {_words(weights, sorted(frozen))} frozen (requires_grad_(False))")
    return ", ".join(said)


def _frozen(spec: NetworkSpec) -> frozenset[str]:
    if ":" not in spec.name:
        return frozenset()
    from dpfedmeta.learning.models.registry import build_network
    from dpfedmeta.learning.models.trainable import frozen_names

    return frozen_names(build_network(spec))


def _begin_at_zero(spec: NetworkSpec, weights: Mapping[str, Any], kept: Collection[str]) -> bool:
    if ":" not in spec.name:
        # As `initial_weights` makes them: a linear head that is not learned begins at zero, and nothing else.
        return all(name.startswith(HEAD) for name in kept)
    return not any(bool(weights[name].any()) for name in kept)


def _read_words(task: Task) -> tuple[str, ...]:
    """Describe how the user's own data were read.

    The text is printed for anybody, so it is made of names and public records alone. Where a list of the task file says
    who trains, the data alone do not say which records are public.
    """
    source = task.source
    if not isinstance(source, OwnSource) or task.split is not None or not Path(source.path).exists():
        return ()
    return tuple(
        f"{task.name}: {said}" for said in READERS[source.reader].remarks(Path(source.path), task, public=True)
    )


def _image_words(dataset: str, task: Task) -> tuple[str, ...]:
    """Describe the size of images where no task file gives it; it then comes from the headers of public files."""
    source = task.source
    if not isinstance(source, OwnSource) or Path(source.path) != Path(dataset):
        return ()
    files = public_image_files_of(source.reader, Path(source.path))
    if not files:
        return ()
    return (f"images of {task.name} are resized to {form_of_images(files).words}; give a task file for another size",)


def _words(weights: Mapping[str, Any], names: Collection[str]) -> str:
    """Describe a set of weights by their number and place: parts of the network, or the first few tensors."""
    count = sum(math.prod(weights[name].shape) for name in names)
    parts = {name.partition(".")[0] for name in names}
    whole = {name for name in weights if name.partition(".")[0] in parts}
    told = sorted(parts) if whole == {*names} and len(parts) <= _MOST_NAMES else sorted(names)
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"{count:,} weights ({', '.join(told[:_MOST_NAMES])}{more})"
