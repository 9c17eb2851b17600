"""Facts of a run: the entries of its public files that follow from its ledger, its settings and a description of data.

Whoever writes a file and whoever verifies it call the same functions, so a new entry needs no new check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.dataset_names import shipped_task, task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import DESCRIBED
from dpfedmeta.data.encoders.encoding import EncoderFacts
from dpfedmeta.data.episodes.shape import ASKED, OWN
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.data.task import Task
from dpfedmeta.data.task_file import task_names
from dpfedmeta.learning.models.spec import beginning_words
from dpfedmeta.planning.caveats import TaskFacts, cautions, simulation_words
from dpfedmeta.planning.client_spec import records_of_a_client, sizes_of_clients
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum

# Constants of the plan that stand beside the guarantees.
_POPULATION = ("clients", "cohort", "sampler", "max_participations")
# Key of the number to report of a run that a private sweep chose.
CHOSEN = "chosen"


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
            InputError: Its encoder or its number of records is not that of the settings.
            TypeError, LookupError, ValueError: It lacks something, has an entry more, or words where a number stands.
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
        task = TaskFacts(**found["task"])
        if Path(settings.dataset).suffix not in (".yaml", ".yml"):  # a task file may be of a benchmark's images
            task = replace(task, own=settings.dataset not in task_names())
        due = {records_of_a_client(settings, shared=each) for each in (True, False)}
        if task.records not in due:
            raise InputError(f"{DESCRIBED}.task.records: states {task.records!r}, but the settings give {max(due)}")
        return cls(population=population, encoder=encoder, task=task)


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


def summary_facts(
    settings: Settings,
    content: LedgerContent,
    cells: Sequence[Guarantee],
    promised: Sequence[Guarantee],
    described: Described,
    chosen: str | None = None,
) -> dict[str, Any]:
    """Entries of summary.json, and of the summary that a page holds.

    Args:
        settings: Of the run.
        content: Its ledger.
        cells: What its rounds cost.
        promised: What its plan costs.
        described: Its data.
        chosen: Words on the number to report of a run that a private sweep chose.
    """
    plan, encoder = content.plan, settings.model.encoder
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
        "guarantees": [cell.as_json() for cell in cells],
        "planned": [cell.as_json() for cell in promised],
        "ledger": {"rounds": len(content.charges), "head": content.heads[-1]},
        "simulation": simulation_words(settings.run.noise_seed),
        **({CHOSEN: chosen} if chosen else {}),
    }


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
