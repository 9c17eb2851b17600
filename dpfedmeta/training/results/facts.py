"""Facts of a run: the entries of its public files, which follow from its ledger.

Whoever writes a file and whoever verifies it call the same functions, so a new entry needs no new check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.dataset_names import shipped_task
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import DESCRIBED, LEDGER
from dpfedmeta.data.encoders.encoding import EncoderFacts
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.data.task import Task
from dpfedmeta.learning.models.spec import beginning_words
from dpfedmeta.planning.caveats import TaskFacts, cautions, simulation_words
from dpfedmeta.planning.client_spec import sizes_of_clients
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum

# Constants of the plan that stand beside the guarantees.
_POPULATION = ("clients", "cohort", "sampler", "max_participations")
# Key of the number to report of a run that a private sweep chose.
CHOSEN = "chosen"


@dataclass(frozen=True, kw_only=True)
class Described:
    """Description of the data of a run, on the word of whoever ran it; every sentence about them is made of it.

    The ledger's first line holds it, so the files beside it cannot say something else.

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
        return asdict(self) | {"population": self.population.as_json()}

    @classmethod
    def of_ledger(cls, content: LedgerContent) -> Described:
        """The description that a ledger holds.

        Raises:
            InputError: It holds none, or one that lacks something.
        """
        held = content.identity.described
        try:
            encoder = None if held["encoder"] is None else EncoderFacts(**held["encoder"])
            population = PopulationStatement(**{**held["population"], "clients": content.plan.clients})
            found = cls(population=population, encoder=encoder, task=TaskFacts(**held["task"]))
            found.as_json()
        except DAMAGED_JSON as error:
            raise InputError(f"{LEDGER}, line 1: identity.{DESCRIBED}: incomplete ({error!r})") from error
        return found


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
    chosen: str | None = None,
) -> dict[str, Any]:
    """Entries of summary.json, and of the summary that a page holds.

    Args:
        settings: Of the run.
        content: Its ledger.
        cells: What its rounds cost.
        promised: What its plan costs.
        chosen: Words on the number to report of a run that a private sweep chose.
    """
    plan, encoder, described = content.plan, settings.model.encoder, Described.of_ledger(content)
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
