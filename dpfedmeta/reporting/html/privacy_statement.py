"""Sentences and tables of report.html about privacy, from the ledger."""

from __future__ import annotations

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import word_of_authors
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum
from dpfedmeta.training.terminal.tables import method_words
from dpfedmeta.training.verification.proven import Proven


def plan_words(proven: Proven, rounds: int) -> str:
    """The sizes that the guarantees are for."""
    plan = proven.content.plan
    words = f"{counted_words(rounds, 'round')}, expected cohort {plan.cohort} of {plan.clients:,} clients"
    if plan.earlier:
        words += f", after {len(plan.earlier)} analyses of the same clients, which every cell counts"
    return words + (f", at most {plan.max_participations} participation(s) each" if plan.max_participations else "")


def chosen_words(proven: Proven) -> str | None:
    """Say of a run that a private sweep chose which number to report."""
    words = "Epsilons by round, in the picture of accuracy, are of the run alone."
    return None if proven.chosen is None else f"Attention: {proven.chosen}. {words}"


def server_words(proven: Proven) -> str:
    """Describe what the server sees of a round before it releases anything."""
    plan = proven.content.plan
    if plan.server_sees == "messages":
        return "The server sees every message, and who sent it"
    whole = plan.at(0).whole
    if whole is None:
        return "The server sees who takes part and the sum of their messages"
    known = constants_of_the_sum(plan)
    masked = f" For this each client shares masks with {known['degree']} others." if known["degree"] else ""
    return (
        f"The server sees who takes part, who answers, and the sum of their messages modulo 2^{whole.bits}, with the "
        f"noise that they add, if {known['fewest_survivors']} of {plan.cohort:g} answer; it never sees a message."
        f"{masked} The noise of what it releases has the same deviation whoever took part; an aborted round releases "
        "only such noise, so nobody else can recognise it. Clients of a cohort see who takes part in it: towards them "
        "the guarantees towards the server hold, not those towards the public"
    )


def guarantee_rows(proven: Proven) -> list[dict[str, str]]:
    """The table of guarantees: a row for each cell, by the names of its columns."""
    promised, word = {cell.name: cell for cell in proven.promised}, word_of_authors(proven.settings)
    return [
        {
            "unit": cell.unit,
            "towards": cell.observer,
            "epsilon promised": rounded_up(promised[cell.name].epsilon),
            "epsilon spent": rounded_up(cell.epsilon),
            "delta": asked(cell.delta),
            "adjacency": cell.adjacency,
            "method": method_words(cell, word) + _bounds(cell),
        }
        for cell in proven.cells
    ]


def _bounds(cell: Guarantee) -> str:
    if len(cell.bounds) < 2:
        return ""
    return " (" + ", ".join(f"{bound.method} {rounded_up(bound.epsilon)}" for bound in cell.bounds) + ")"
