"""One page on a run for a person or an authority: what was promised to whom, what that means, and how to check it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from shlex import quote

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.client_ledger import open_own_ledger
from dpfedmeta.accounting.ledger.population_register import PopulationRegister
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.relations.legend import relation_lines
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.accounting.right_guesses import NO_PROTECTION, most_right_guesses, protects
from dpfedmeta.accounting.rounded import asked, rounded_down, rounded_up
from dpfedmeta.core.files.run_directory import LEDGER
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.training.terminal.tables import rounds_words

_WHO = {"public": "everybody who sees what was released", "server": "whoever runs the server"}
# A client of a round's cohort sees who else takes part, so under sums the number towards the server holds for it.
_OUTSIDE = "everybody who sees what was released and was in no round as a client"
_OF_CLIENTS = "Towards the other clients of a round, who see who takes part, the numbers towards the server hold."
_WHOSE: Mapping[tuple[str, str], str] = {
    ("client", "add-remove"): "all data of one client taken away",
    ("client", "replace-one"): "all data of one client replaced by others",
} | {
    ("record", name): f"one record of a client changed so that {each.words} ({name})"
    for name, each in RELATIONS.items()
}
NOT_PROMISED = (
    "What is not promised: that nothing can be learned of a group (for k clients epsilon is k times as large, at a "
    "delta that is up to k e^((k-1) epsilon) times as large), of data that others hold of the same person, or by "
    "whoever holds the folder `secret`."
)
_RECORD = (
    "A record is one row or one image, as a client holds it. Where a row is a visit, a person with several visits is "
    "several records, and only the numbers for a client, if the client is that person, hold for all of them."
)
# Here the record is there in one world alone.
_LESS = ("add-remove", "row-deleted")


def statement_lines(
    run: Path,
    plan: PrivacyPlan,
    cells: Sequence[Guarantee],
    rounds: int,
    head: str,
    *,
    cautions: Sequence[str] = (),
    unverified: str = "",
    register: str | None = None,
) -> list[str]:
    """The page.

    Args:
        run: Folder of the run.
        plan: Its plan.
        cells: What its ledger proves that it spent; of a run that may go on, what it may spend.
        rounds: Rounds that were charged.
        head: Hash of the ledger's last line.
        cautions: What is to be said above all: a simulation, a choice among runs.
        unverified: What no comparison with the ledger shows.
        register: The one that it is counted in with other runs.
    """
    return [
        f"Privacy statement of {run.name}",
        "",
        *(f"Attention: {caution}" for caution in cautions),
        *([""] if cautions else []),
        f"What was done: {done_words(plan, rounds)}.",
        "",
        "What was promised, and what it means (strongest for people first):",
        *cell_lines(cells, plan.server_sees),
        "",
        f"{NOT_PROMISED} {others_words(plan, register)}",
        "",
        "How to check it, with nothing but the run's files:",
        f"  dpfedmeta account --verify {quote(str(run))}",
        f"The last line of its ledger has the hash {head}. Whoever noted that hash sees whether the ledger was changed "
        "later.",
        *filter(None, [unverified]),
    ]


def site_lines(home: Path) -> list[str]:
    """SECRET: the page on all that one client spent, for its owner; what a site's auditor reads.

    Args:
        home: The client's own folder, or that of a `ClientRounds`.

    Raises:
        InputError: Its ledger is missing or damaged, or lost a line that this machine wrote.
    """
    from dpfedmeta.federation.client.client_home import check_newest
    from dpfedmeta.federation.identity.home_register import HOME

    told = check_newest(home, keep=False) if (home / HOME).exists() else None
    ledger, budget = open_own_ledger(home / LEDGER)
    whose = "record" if budget.unit == "record" else "client"
    of = f" ({RELATIONS[ledger.relation].words}: {ledger.relation})" if ledger.relation else ""
    limit = "none: the server is trusted" if budget.epsilon is None else f"epsilon = {asked(budget.epsilon)}"
    rounds = "" if budget.participations is None else f", and {budget.participations:,} participations"
    left = ledger.like_last()
    runs = ledger.spent_by_run()
    return [
        f"Privacy statement of the client in {home.name}, for its owner alone",
        "",
        f"Spent in all: ({whose}, server) epsilon = {_or_nothing(ledger.epsilon if runs else 0.0)} at delta = "
        f"{asked(budget.delta)}, for one {whose}{of}, over {ledger.participations:,} participations in {len(runs)} "
        "runs",
        f"Limit: {limit}{rounds}, over all runs",
        *(
            f"Limit before: {words}, changed after {counted_words(count, 'participation')} (no date is kept)"
            for words, count in ledger.former_limits
        ),
        *(f"Attention: {each.words}" for each in ledger.older_copies),
        *([] if left is None else [f"Left: {_further(left)}"]),
        *(
            f"  if {RELATIONS[name].words} ({name}): {_or_nothing(epsilon)}"
            for name, epsilon in ledger.epsilons.items()
        ),
        "",
        "Each run by itself (epsilons of runs do not add up to the total, which is less):",
        *(
            f"- {run[:16] or 'without a name'}: {count:,} participations, epsilon = {_or_nothing(epsilon)}"
            for run, (count, epsilon) in runs.items()
        ),
        *(["- none yet"] if not runs else []),
        "",
        "A participation is counted before its message leaves, so one that a crash kept back is in it too. What other "
        "clients hold of the same person, and the person's other rows, are not covered.",
        f"The last line of its ledger has the hash {ledger.head}. Not verified: what other machines wrote in a copy, "
        "and that nobody wrote it anew (compare this hash with a copy kept elsewhere).",
        *([] if told is None else [f"Attention: {told}"]),
    ]


def register_lines(found: PopulationRegister) -> list[str]:
    """The page on all runs over one population.

    Args:
        found: Its register.
    """
    return [
        f"Privacy statement of the population in {found.path.name}",
        "",
        f"Spent in all: (client, public), all data of one client replaced: epsilon = {rounded_up(found.spent, 4)} at "
        f"delta = {asked(found.delta)}, by {len(found.runs)} runs, whether they finished or not",
        f"Limit: epsilon = {asked(found.epsilon)}, over all runs, fixed when the register was begun",
        f"Left: runs that cost a divergence of {rounded_down(max(0.0, found.left))} of order {found.order} in all"
        f"{_same_noise(found)}; "
        "`account --algo ... --population.register` of a plan says whether it fits",
        "",
        "Each run:",
        *(f"- {each.run}: {rounds_words(each.plan.rounds)} over {each.plan.clients:,} clients" for each in found.runs),
        *(["- none yet"] if not found.runs else []),
        "",
        f"Its last line has the hash {found.head}; a copy that goes on elsewhere is noticed by whoever kept that. A "
        "run that was never registered is not counted.",
    ]


def _same_noise(found: PopulationRegister) -> str:
    """Words for the rest that exact composition leaves beyond the divergences, where all runs have the same rounds."""
    exact = found.exact(found.runs)
    if not found.runs or not exact < found.epsilon:
        return ""
    return f", or more of the same rounds as before, until these reach epsilon = {asked(found.epsilon)} by exact count"


def _or_nothing(epsilon: float) -> str:
    return rounded_up(epsilon, 4) if math.isfinite(epsilon) else "infinite (no bound is stated)"


def _further(count: int) -> str:
    many = "10,000 or more" if count >= 10_000 else f"{count:,}"
    return f"{many} further participations like the last one"


def done_words(plan: PrivacyPlan, rounds: int) -> str:
    """Numbers of rounds and of clients, in all and in a round, and the noise, in words."""
    done = rounds_words(rounds) if rounds >= plan.rounds else f"{rounds} of {rounds_words(plan.rounds)}"
    # A schedule may change the cohort.
    cohorts = list(dict.fromkeys(f"{phase.event.cohort:g}" for phase in plan.phases)) or [f"{plan.cohort:g}"]
    among = f"{' and later '.join(cohorts)} of them in a round on average ({plan.sampler} sampling)"
    if cohorts == [f"{plan.clients:g}"]:
        among = "all of them in each round"
    return f"{done} over {plan.clients:,} clients, {among}, with {plan.noise} noise"


def others_words(plan: PrivacyPlan, register: str | None) -> str:
    """Say of other runs over the same clients whether they are counted, and where."""
    earlier = counted_words(len(plan.earlier), "earlier ledger") if plan.earlier else "none"
    shared = f"Counted with other runs in register {Path(register).name}; ask for its statement." if register else ""
    return f"Other runs over the same clients add to these numbers. {shared or f'The plan counts {earlier}.'}"


def cell_lines(cells: Sequence[Guarantee], server_sees: str) -> list[str]:
    """Every cell and what it means, strongest for people first; below, the relations of a record."""
    # A bound that protects nobody would otherwise be read first.
    ordered = sorted(cells, key=lambda cell: not protects(cell.epsilon, cell.delta))
    of_clients = [_OF_CLIENTS] if server_sees == "sum" else []
    return [*(line for cell in ordered for line in _of_cell(cell, server_sees)), *_of_relations(cells), *of_clients]


def unit_words(cell: Guarantee) -> str:
    """Words for the difference of two neighbouring worlds."""
    return _WHOSE.get((cell.unit, cell.adjacency), f"one {cell.unit} changed ({cell.adjacency})")


def _of_cell(cell: Guarantee, server_sees: str) -> Iterator[str]:
    outside = server_sees == "sum" and cell.observer == "public"
    who, epsilon, delta = _OUTSIDE if outside else _WHO[cell.observer], cell.epsilon, cell.delta
    if not math.isfinite(epsilon):
        yield f"- {cell.name}: nothing. No bound is stated on what the data of one {cell.unit} change for {who}."
        return
    right = most_right_guesses(epsilon, delta)
    yield f"- {cell.name}: epsilon = {rounded_up(epsilon, 4)} at delta = {asked(delta)}."
    if right > NO_PROTECTION:
        yield (
            f"  This protects nobody from {who}: a guess of {_guessed(cell)} may be right more than "
            f"{100 * NO_PROTECTION:g}% of the time."
        )
        return
    yield (
        f"  With {unit_words(cell)}, nothing that {who} could conclude becomes more than "
        f"{rounded_up(math.exp(epsilon), 4)} times as likely, but for a probability of {asked(delta)}."
    )
    yield (
        f"  Who guesses {_guessed(cell)}, and holds both for equally likely, is right at most {_percent_up(right)} of "
        "the time."
    )


def _of_relations(cells: Sequence[Guarantee]) -> list[str]:
    """The epsilons of a record by what happens to it, with what none of them covers."""
    lines = relation_lines(cells)
    return ["By what happens to a record:", *(f"  {line}" for line in lines), _RECORD] if lines else []


def _guessed(cell: Guarantee) -> str:
    if cell.adjacency == "zero-out":
        return "whether the record counted, in its place"
    return "whether the data were there" if cell.adjacency in _LESS else "which of the two data it was"


def _percent_up(share: float) -> str:
    """A share as a percentage with one decimal, never below it."""
    return f"{(100 * Decimal(repr(share))).quantize(Decimal('0.1'), ROUND_CEILING)}%"
