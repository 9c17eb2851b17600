"""Facts that a ledger proves, and the entries of the files beside it that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent, phases_of, spent
from dpfedmeta.accounting.ledger.published import not_verified
from dpfedmeta.accounting.observers.four_guarantees import guarantees, stated
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.private_selection import SelectionCost
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import cautions, simulation_words, weak_targets, who_the_clients_are, word_of_authors
from dpfedmeta.training.results.facts import Described, plan_facts, summary_facts
from dpfedmeta.training.state.extend import limited
from dpfedmeta.training.verification.chosen_run import cells_of_choice, choice_words, verified_selection
from dpfedmeta.training.verification.replan import settings_of_ledger

_NEVER = (
    "accuracies and what is drawn of them (measure again: dpfedmeta evaluate RUN --out DIR), names, and that what the "
    "ledger says of the data is true (whose records they are and how many, what a task or an encoder contains)"
)


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
        return simulation_words(self.settings.run.noise_seed)

    @property
    def word(self) -> str | None:
        """On whose word the guarantees rest; None: on nobody's."""
        return word_of_authors(self.settings)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Words to say above all numbers: on the run, its clients and data, its targets, and its further rounds."""
        settings, plan, described = self.settings, self.content.plan, self.described
        clients = who_the_clients_are(settings.population.kind, described.population.whose)
        said = [self.chosen, self.simulation, self.word, clients, *cautions(settings, described.task)]
        said += weak_targets(settings)
        ends = [counted_words(end, "round") for end in plan.ends]
        said += [f"it ended after {words}, and was extended (train --extend)" for words in ends]
        if plan.noise == "independent" and not limited(settings, plan):
            said.append("no target limits its rounds, so whoever runs it may extend it, and these numbers grow")
        return tuple(filter(None, dict.fromkeys(said)))

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

    @property
    def described(self) -> Described:
        """Description of the data, which the ledger holds and nobody proves."""
        return Described.of_ledger(self.content)

    def summary_facts(self) -> dict[str, Any]:
        """Entries of summary.json."""
        return summary_facts(self.settings, self.content, self.cells, self.promised, self.chosen)

    def facts(self, name: str) -> dict[str, Any]:
        """Entries of plan.json or summary.json."""
        if name == SUMMARY:
            return self.summary_facts()
        return plan_facts(self.settings, self.content.plan, self.promised, self.described)


def state_choice(run: RunDirectory, proven: Proven) -> None:
    """Write what holds with the choice into summary.json and plan.json, whose cells were those of the run alone."""
    for name in (SUMMARY, PLAN):
        if (run.path / name).exists():
            run.write_json(name, run.read_json(name) | proven.facts(name))
