"""account.py --advise: which noise for a federation, its rounds and a target."""

import math
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from dpfedmeta.accounting.compare_noises import Advice, FederationFacts, advise, best
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.rounded import asked
from dpfedmeta.cli.arguments import DONE, print_json, print_line
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.policy_from_settings import bounds_clients


def question_of(settings: Settings) -> FederationFacts:
    """N, T, L, R and the target that the settings state.

    Raises:
        InputError: There is no target, nothing is clipped, or more messages than the clients may send.
    """
    population, client, rounds = settings.population, settings.privacy.client, settings.server.rounds
    if not bounds_clients(settings):
        raise InputError(f"--advise: {settings.algo} clips nothing, so no noise protects a client; use --algo dp-agr")
    if client.epsilon is None:
        raise InputError("--advise: needs a target for (client, public); give one with --epsilon")
    if population.cohort > population.clients or rounds > population.clients:
        name = "population.cohort" if population.cohort > population.clients else "server.rounds"
        raise InputError(f"--advise: {name} is more than population.clients = {population.clients}; lower it")
    cohort: float = sampling_of(population.sampler).planned(settings)["cohort"]
    least = max(math.ceil(cohort * rounds / population.clients - 1e-9), 1)
    return FederationFacts(
        clients=population.clients,
        rounds=rounds,
        cohort=cohort,
        participations=population.max_participations or least,
        epsilon=client.epsilon,
        delta=client.delta,
    )


def show(console: Console, settings: Settings, as_text: bool) -> int:
    """Print the table, or JSON."""
    question = question_of(settings)
    rows = advise(question)
    chosen = best(rows, question.rounds)
    if as_text:
        print_json(
            {
                "question": asdict(question) | {"separation": question.separation},
                "advice": [{**vars(row), "error_per_message": _finite(row, question.rounds)} for row in rows],
                "least_error_per_message": chosen.name,
            }
        )
        return DONE
    console.print(_table(question, rows, chosen))
    print_line(console, f"* {chosen.name}: {chosen.options}")
    for row in rows:
        if row.refused:
            print_line(console, f"{row.name}: {row.refused}", style="yellow")
    return DONE


def _finite(row: Advice, rounds: int) -> float | None:
    return None if row.error is None else row.per_message(rounds)


def _table(question: FederationFacts, rows: tuple[Advice, ...], chosen: Advice) -> Table:
    q = question
    apart = f", {q.separation} rounds apart" if q.participations > 1 else ""
    lines = (
        f"each client joins at most {counted_words(q.participations, 'round')}{apart} (check-ins: one); noise: "
        "standard deviation of the noise of a round over the clip bound C",
        "error: root mean square per coordinate of the noise in the sum of all releases, in C; a message: that error "
        "divided by the number of messages of the run, in thousandths of C; * is the smallest",
        "the error is a proxy: Adam, decay and normalised bounds change the effect of noise, which only training "
        "measures (docs/which-noise.md)",
        *_assumptions(rows),
    )
    table = Table(
        title=f"Which noise: {q.clients:,} clients, {counted_words(q.rounds, 'round')}, (client, public) epsilon "
        f"{asked(q.epsilon)}, delta {asked(q.delta)}",
        title_justify="left",
        caption="\n".join(lines),
        caption_justify="left",
    )
    for column in ("", "noise", "a round", "error", "a message", "neighbours"):
        right = column in ("noise", "a round", "error", "a message")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        mark = f"{row.name} *" if row is chosen else row.name
        if row.noise is None or row.error is None or row.cohort is None:
            table.add_row(mark, "refused", "", "", "", row.adjacency)
            continue
        message = f"{1000 * row.per_message(q.rounds):.3g}"
        table.add_row(mark, f"{row.noise:.3g}", f"{row.cohort:.4g}", f"{row.error:.3g}", message, row.adjacency)
    return table


def _assumptions(rows: tuple[Advice, ...]) -> list[str]:
    """List the assumptions, each with the names of the rows that rest on it."""
    return [
        f"{', '.join(row.name for row in rows if row.assumes == words)}: {words}"
        for words in dict.fromkeys(row.assumes for row in rows)
    ]
