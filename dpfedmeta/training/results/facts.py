"""Facts of a run: the entries of its public files that follow from its ledger, its settings and a description of data.

Whoever writes a file and whoever verifies it call the same functions, so a new entry needs no new check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent, phases_of, spent
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.ledger.published import not_verified
from dpfedmeta.accounting.observers.four_guarantees import guarantees, stated
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.private_selection import SelectionCost
from dpfedmeta.config.dataset_names import shipped_task, task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY, RunDirectory
from dpfedmeta.data.encoders.encoding import EncoderFacts
from dpfedmeta.data.episodes.shape import ASKED, OWN
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.data.task import Task
from dpfedmeta.learning.models.spec import beginning_words
from dpfedmeta.planning.caveats import SIMULATION, TaskFacts, cautions, word_of_authors
from dpfedmeta.planning.client_spec import sizes_of_clients
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum
from dpfedmeta.training.verification.chosen_run import CHOSEN, cells_of_choice, choice_words, verified_selection
from dpfedmeta.training.verification.replan import settings_of_ledger

_NEVER = (
    "accuracies, what is drawn of them, names, and how many records clients have (measure again: dpfedmeta evaluate "
    "RUN --out DIR)"
)
_POPULATION = ("clients", "cohort", "sampler", "max_participations")
DESCRIBED = "described"


@dataclass(frozen=True, kw_only=True)
class Described:
    """Description of the data of a run, which no ledger proves; every sentence about them is made of it.

    Attributes:
        population: The clients.
        encoder: The public encoder; None: there is none.
        task: The records.
    """

    population: PopulationStatement
    encoder: EncoderFacts | None
    task: TaskFacts

    @classmethod
    def of(cls, population: PopulationStatement, settings: Settings, task: Task) -> Described:
        """The description of these clients, and of a task that is here."""
        encoder = None if task.encoding is None else task.encoding.facts(shipped_task(settings.dataset))
        return cls(population=population, encoder=encoder, task=TaskFacts.of(settings, task))

    def as_json(self) -> dict[str, Any]:
        """The facts, with the sentence about the clients."""
        encoder = None if self.encoder is None else asdict(self.encoder)
        return {"population": self.population.as_json(), "encoder": encoder, "task": asdict(self.task)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], settings: Settings, plan: PrivacyPlan) -> Described:
        """The description that a file states, with what the ledger and a task that is here know better.

        Raises:
            InputError: It is of another kind of clients than the settings name.
            TypeError: It lacks something, or has an entry more.
            LookupError: Likewise.
        """
        population = PopulationStatement.from_json(found["population"])
        population = replace(population, clients=plan.clients)
        if population.kind not in (OWN, ASKED):
            population = replace(population, kind=settings.population.kind)
        if population.kind != ASKED:
            population = replace(population, own_test=settings.population.own_test)
        try:
            return cls.of(population, settings, task_of(settings)[0])
        except InputError:  # it is not here
            name, said, label = settings.model.encoder, found["encoder"], shipped_task(settings.dataset)
        if (name is None) != (said is None):
            raise InputError(f"{DESCRIBED}.encoder: states {said!r}, but model.encoder is {name!r}")
        encoder = None if name is None else replace(EncoderFacts(**said), name=name, task=label)
        return cls(population=population, encoder=encoder, task=TaskFacts(**found["task"]))


@dataclass(frozen=True, kw_only=True)
class Proven:
    """Facts that a ledger proves; every other file is compared with them.

    Attributes:
        content: The ledger.
        settings: What the run was asked for, from its first line.
        spent: The four cells of its rounds, of the run alone.
        planned: The four cells of its plan, of the run alone.
        choice: The price of the private sweep that chose the run; None: none did.
    """

    content: LedgerContent
    settings: Settings
    spent: tuple[Guarantee, ...]
    planned: tuple[Guarantee, ...]
    choice: SelectionCost | None = None

    @classmethod
    def of(cls, run: RunDirectory, content: LedgerContent) -> Proven:
        """Compute the facts from a run's ledger, and the price of a choice from its list.

        Raises:
            InputError: As `verified_selection` says.
        """
        settings, cells = settings_of_ledger(run.ledger, content), spent(content.plan, content.charges, content.lines)
        choice = verified_selection(run, content, cells)
        return cls(content=content, settings=settings, spent=cells, planned=guarantees(content.plan), choice=choice)

    @property
    def cells(self) -> tuple[Guarantee, ...]:
        """The four cells to state of the run: those of its rounds, or of the choice where a private sweep chose it."""
        return cells_of_choice(self.spent, self.choice)

    @property
    def promised(self) -> tuple[Guarantee, ...]:
        """The four cells to state of its plan, likewise."""
        return cells_of_choice(self.planned, self.choice)

    @property
    def chosen(self) -> str | None:
        """Words on the number to report of a run that a private sweep chose; None: none did."""
        return None if self.choice is None else choice_words(self.choice)

    @property
    def simulation(self) -> str | None:
        """Warning that nothing is promised, where the noise seed was chosen; else None."""
        return SIMULATION if self.settings.run.noise_seed is not None else None

    @property
    def word(self) -> str | None:
        """On whose word the guarantees rest; None: on nobody's."""
        return word_of_authors(self.settings)

    @property
    def unverified(self) -> str:
        """Words on what no comparison with the ledger shows."""
        return not_verified(self.content, "the last release and the weights", _NEVER)

    @property
    def rounds(self) -> int:
        """Rounds that were charged, each once however often it was done again."""
        return sum(not event.attempt for event in self.content.charges)

    def as_of(self, head: object) -> Proven:
        """Return what the ledger proved when its last line had this hash; itself if it never had."""
        content = self.content.until(head)
        if content is self.content:
            return self
        return replace(self, content=content, spent=stated(phases_of(content.charges), Terms.of(content.plan)))


def plan_facts(
    settings: Settings, plan: PrivacyPlan, promised: Sequence[Guarantee], described: Described
) -> dict[str, Any]:
    """Entries of plan.json."""
    return {
        "planned": [cell.as_json() for cell in promised],
        "begins_with": beginning_words(settings.model.initial, described.encoder),
        "cautions": list(cautions(settings, described.task)),
        "privacy": constants(plan),
        DESCRIBED: described.as_json(),
        "phases": [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in plan.phases],
    }


def summary_facts(proven: Proven, described: Described) -> dict[str, Any]:
    """Entries of summary.json, and of the summary that a page holds."""
    plan, settings, encoder = proven.content.plan, proven.settings, proven.settings.model.encoder
    return {
        "algo": settings.algo,
        "dataset": settings.dataset,
        "task": sizes_of_clients(settings),
        **({"extended_from": list(plan.ends)} if plan.ends else {}),
        "population": {name: getattr(plan, name) for name in _POPULATION} | {"kind": described.population.kind},
        "aggregation": aggregation(settings.aggregation.mode, plan),
        "begins_with": beginning_words(settings.model.initial, described.encoder),
        **({"encoder": encoder} if encoder else {}),
        DESCRIBED: described.as_json(),
        "guarantees": [cell.as_json() for cell in proven.cells],
        "planned": [cell.as_json() for cell in proven.promised],
        "ledger": {"rounds": len(proven.content.charges), "head": proven.content.heads[-1]},
        "simulation": proven.simulation,
        **({CHOSEN: proven.chosen} if proven.chosen else {}),
    }


def facts_of(name: str, proven: Proven, file: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of plan.json or summary.json that follow from the ledger and from the description in the file.

    Raises:
        InputError: As `Described.from_json` says.
        TypeError: Likewise.
        LookupError: Likewise.
    """
    described = Described.from_json(file[DESCRIBED], proven.settings, proven.content.plan)
    if name == SUMMARY:
        return summary_facts(proven, described)
    return plan_facts(proven.settings, proven.content.plan, proven.promised, described)


def state_choice(run: RunDirectory, proven: Proven) -> None:
    """Write what holds with the choice into summary.json and plan.json, whose cells were those of the run alone."""
    for name in (SUMMARY, PLAN):
        if (run.path / name).exists():
            content = run.read_json(name)
            run.write_json(name, content | facts_of(name, proven, content))


def aggregation(mode: str, plan: PrivacyPlan) -> dict[str, object]:
    """Return how messages are added up, and the constants of the plan that this rests on.

    How many rounds were aborted for want of survivors is not among them: nobody but the server may tell such a round
    from another one.
    """
    secure = plan.secure
    return {
        "mode": mode,
        "server_sees": plan.server_sees,
        "dimension": secure.dimension if secure else None,
        "dropout": secure.dropout if secure else None,
        "adversarial": secure.adversarial if secure else None,
        **constants_of_the_sum(plan),
    }
