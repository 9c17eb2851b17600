"""Plan of a run as values that can be read before its first round: guarantees, noise, network, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.guarantee import FourGuarantees, Guarantee
from dpfedmeta.config.settings import Settings
from dpfedmeta.data.task import Task
from dpfedmeta.planning.caveats import cautions, word_of_authors
from dpfedmeta.planning.describe_trained_weights import trained_lines
from dpfedmeta.planning.public_weights import initial_words
from dpfedmeta.training.results.summary import SIMULATION
from dpfedmeta.training.state.private_timings import hides_times_of
from dpfedmeta.training.terminal.tables import as_text, guarantee_table, noise_lines, number

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.planning.run_plan import Plan


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
    minutes: float | None = None
    clients_per_second: float | None = None

    @property
    def statement(self) -> str:
        """The promise in one sentence."""
        held = [cell for cell in self.guarantees if cell.method != "none"]
        cells = [
            f"towards {_TOWARDS[cell.observer]}, epsilon = {number(cell.epsilon)} at delta = {cell.delta:g} for one "
            f"{cell.unit} ({cell.adjacency})"
            for cell in held
        ]
        promise = f"promises {'; '.join(cells)}" if cells else "promises no privacy"
        return f"{self.settings.algo} on {self.dataset} {promise}"

    def __repr__(self) -> str:
        said = (*self.noise, *self.network, self.begins_with, self.clients)
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
        cautions=cautions(settings, task),
        simulation=SIMULATION if settings.run.noise_seed is not None else None,
        hides_times=hides_times_of(settings, privacy),
        final_validations=_final_validations(settings, task),
    )


def _final_validations(settings: Settings, task: Task) -> float:
    """The trained and the untrained network adapt, where a validation has one; what does not adapt is nearly free."""
    if task.shared_classes is not None:
        return 2.0
    evaluation = settings.evaluation
    return 2.2 * evaluation.episodes / evaluation.validation_episodes
