"""Terminal text of guarantees, noise and accuracies."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.relations.legend import relation_lines
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import dishonest_words
from dpfedmeta.training.results.evaluation_store import ACCURACY_ROWS, ERRORS, row_label, shown_rows, size_and_count


def as_text(*printed: RenderableType) -> str:
    """Return the text that a terminal would show, without colours."""
    out = io.StringIO()
    console = Console(
        file=out, width=120, emoji=False, markup=False, color_system=None, force_jupyter=False, force_terminal=False
    )
    for each in printed:
        console.print(each, highlight=False, soft_wrap=isinstance(each, str), markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


HOLDS = (
    "What a guarantee says: whatever else the observer knows, what it sees is at most e^epsilon times as likely with "
    "one of two neighbouring data sets as with the other, except with probability delta."
)


def rounds_words(rounds: int) -> str:
    """So many rounds."""
    return f"{rounds:,} round{'' if rounds == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Wording for what moves a sum.

    Attributes:
        by: Name of the largest length by which a client moves it.
        otherwise: What a client does if it has another record.
    """

    by: str = "clip bound"
    otherwise: str = "sends another message"


ANSWERED = Moved(by="answer", otherwise="answers otherwise")


def why_above(guarantees: Sequence[Guarantee], moved: Moved = Moved()) -> list[str]:
    """Why a record's epsilon may lie above that of its client towards the public, where it does."""
    cells = {cell.name: cell for cell in guarantees}
    client, record = cells["(client, public)"], cells["(record, public)"]
    if not client.epsilon < record.epsilon < math.inf or rounded_up(client.epsilon) == rounded_up(record.epsilon):
        return []
    reasons = []
    if client.adjacency == "add-remove":
        reasons.append(
            f"the latter adds or removes a client, which moves a sum by one {moved.by}; the former changes a record, "
            f"so that a client {moved.otherwise}, which may move it by two"
        )
    if record.delta < client.delta:
        reasons.append(f"delta is {asked(record.delta)} for records and {asked(client.delta)} for clients")
    return [f"(record, public) lies above (client, public): {'; '.join(reasons)}"] if reasons else []


_EXPLAINED = "what the words mean: dpfedmeta account --algo NAME --explain"
# Behind the method of a cell that rests on code of the user's own.
BY_WORD = ", by word"


def method_words(cell: Guarantee, word: str | None) -> str:
    """Describe how a cell was computed, and whether it rests on the word of the author of the noise."""
    return cell.method + (BY_WORD if word and math.isfinite(cell.epsilon) else "")


def guarantee_table(
    guarantees: Sequence[Guarantee],
    title: str,
    moved: Moved = Moved(),
    *,
    explained: bool = False,
    word: str | None = None,
) -> Group:
    """The four cells, the relations of a record under them, and what the words mean where that is to be `explained`.

    `word`: on whose word they rest (caveats.word_of_authors); None: on nobody's.
    """
    lines = (
        "client: all records of one client; record: one record of a client",
        "server: sees every message, with secure aggregation only their sum; public: sees what is released (with "
        "secure aggregation: anybody who takes no part, since clients of a cohort see who else is in it)",
        "inf: no guarantee",
        HOLDS,
    )
    table = Table(title=title, title_justify="left")
    for column in ("unit", "towards", "epsilon", "delta", "adjacency", "method"):
        # On a narrow screen a number goes on in the next line; cut short it would be another one.
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left", overflow="fold")
    for cell in guarantees:
        table.add_row(
            cell.unit,
            cell.observer,
            rounded_up(cell.epsilon),
            asked(cell.delta),
            cell.adjacency,
            method_words(cell, word),
        )
    under = [
        *relation_lines(guarantees),
        *(lines if explained else [_EXPLAINED]),
        *why_above(guarantees, moved),
        *([f"by word: {word}"] if word else []),
    ]
    return Group(table, Text("\n".join(under), style="table.caption"))


def guarantee_words(guarantees: Sequence[Guarantee]) -> list[str]:
    """For each cell and each of its bounds: what is seen, and by which formula."""
    lines = []
    for cell in guarantees:
        epsilon = f"epsilon = {rounded_up(cell.epsilon)}"
        lines.append(f"{cell.name}, {cell.adjacency}, delta = {asked(cell.delta)}: {epsilon}")
        others = {name: each for name, each in cell.relations.items() if name != cell.adjacency}
        if others:
            lines.append("  other relations: " + ", ".join(f"{n} {rounded_up(each)}" for n, each in others.items()))
        for bound in cell.bounds:
            mark = "*" if bound is cell.binding and math.isfinite(bound.epsilon) else "-"
            lines.append(f"  {mark} {rounded_up(bound.epsilon)} ({bound.method}): {bound.formula}")
            lines.append(f"    seen: {bound.event}")
    return lines


def noise_lines(plan: PrivacyPlan) -> list[str]:
    """The sizes and the solved noise, a line each, and what it does not limit: clients that are dishonest."""
    return [*_noise_lines(plan), dishonest_words(plan)]


def _noise_lines(plan: PrivacyPlan) -> list[str]:
    lines = [
        f"population {plan.clients:,} clients, {plan.sampling.cohort_words(plan)}, {rounds_words(plan.rounds)}"
        + (f", at most {plan.max_participations} per client" if plan.max_participations else "")
    ]
    lines += [
        f"from round {change.from_round} on: cohort x {change.cohort_scale:g}, server noise x {change.noise_scale:g}"
        for change in plan.schedule
    ]
    if plan.before:
        releases = sum(phase.rounds for phase in plan.before)
        lines.append(f"spent before, counted in every guarantee: {releases} releases of {len(plan.earlier)} analyses")
    record, first = plan.record, plan.at(0)
    if first.whole is not None:
        return [*lines, *_whole_lines(plan, first.whole)]
    if record is not None and record.support_noise is None:
        lines.append(
            f"client noise z_q = {record.query_noise:.4g} on the sum over {record.query_records} {record.parts}"
        )
    elif record is not None:
        drawn = f" (each record with probability {record.batch_rate:.4g})" if record.batch_rate < 1 else ""
        query = f", z_q = {record.query_noise:.4g} in the query step" if record.query_noise is not None else ""
        steps = f"in each of {record.support_steps} support steps{drawn}"
        lines.append(f"client noise z_s = {record.support_noise:.4g} {steps}{query}")
    if plan.noise_multiplier is None:
        lines.append("no noise at the server" if record else "no noise at all: no privacy is promised")
    elif plan.noise_site == "clients":
        lines.append(
            f"noise z = {first.total_noise:.4g} in all, {first.message_noise:.4g} from each client" + _doubt(plan)
        )
    elif record is None:
        lines.append(f"server noise z = {plan.noise_multiplier:.4g}" + _taken_back(first))
    else:
        lines.append(
            f"server noise ({plan.noise_mode}): total z_T = {first.total_noise:.4g}, "
            f"of which {_faced(first)} counts towards the public" + _doubt(plan)
        )
    return lines


def _whole_lines(plan: PrivacyPlan, whole: WholeSum) -> list[str]:
    """The noise of a sum that is all that the server sees."""
    total = math.sqrt(whole.total) / whole.of_a_client
    unit = "what a client adds" if whole.exact else "the clip bound"
    parts = f", each message the sum of {whole.parts} parts that are rounded separately" if whole.parts > 1 else ""
    return [
        f"noise z = {plan.noise_multiplier:.4g} from the clients together; the server adds what is missing to "
        f"{total:.4g}",
        f"whole numbers modulo 2^{whole.bits} in {whole.dimension:,} coordinates, steps of 1/{whole.units:.4g} of "
        f"{unit}{parts}; up to {whole.dropout:.0%} of a cohort may be missing",
        *_graph_lines(plan),
    ]


def _graph_lines(plan: PrivacyPlan) -> list[str]:
    """Behind which masks the messages are."""
    from dpfedmeta.planning.privacy.masking_graph import masking_graph

    graph = masking_graph(plan)
    if graph is None or plan.secure is None:
        return []
    return [
        f"each of {graph.clients} clients shares masks with {graph.degree} others, {graph.threshold} of which can "
        f"recover its secrets; a sum of fewer than {graph.fewest} is not unmasked; a share of "
        f"{plan.secure.adversarial:.3g} of a cohort may collude with the server (aggregation.adversarial)"
    ]


def _faced(event: Event) -> str:
    return f"{1.0 / event.noise.mu(1.0):.4g}" if event.noise else "none"


def _taken_back(event: Event) -> str:
    """Describe correlated noise: what later rounds take back of it, and the client's effect that it is set against."""
    noise = event.noise
    if not isinstance(noise, CorrelatedNoise):
        return ""
    return (
        f", of which later rounds subtract a part; a client moves all rounds together by {noise.sensitivity():.4g} "
        f"clip bounds, in at most {counted_words(noise.participations, 'round')}, {noise.separation} apart"
    )


def _doubt(plan: PrivacyPlan) -> str:
    """Describe how far the clients' own noise is counted on."""
    if plan.noise_site == "server" and plan.noise_mode == "stacked":
        return ""
    if not plan.hostile:
        return "; every message is assumed to carry its noise (privacy.client.hostile = 0)"
    return (
        f"; {plan.at(0).hostile} messages of a round may come without their noise "
        f"(privacy.client.hostile = {plan.hostile:g} of all clients)"
    )


def accuracy_table(summary: Mapping[str, Any]) -> Table:
    """Table of the trained model's accuracies, beside those that need no learning."""
    words = (summary["dataset"], size_and_count(summary["accuracy"]), summary["accuracy"]["protocol"])
    table = Table(
        title=", ".join(filter(None, words)),
        title_justify="left",
    )
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    for key, name in shown_rows(ACCURACY_ROWS, summary):
        value = summary[key]
        table.add_row(row_label(key, name, summary), f"{100 * value['mean']:.1f}% ± {100 * value['ci95']:.1f}")
    return table


def lost_words(summary: Mapping[str, Any]) -> str | None:
    """Say that a run is worse than its untrained weights, on the same records; None: it is not."""
    for name, sign, factor, unit in (("accuracy", 1.0, 100.0, "%"), ("error", -1.0, 1.0, "")):
        ours, untrained = (summary.get(key) for key in (name, f"{name}_untrained"))
        if ours and untrained and sign * ours["mean"] < sign * untrained["mean"]:
            both = " against ".join(f"{factor * each['mean']:.4g}{unit}" for each in (ours, untrained))
            return (
                f"this run is worse than its untrained weights ({name} {both}): what was learned is noise, or does not "
                "help new clients; more clients or a larger epsilon may"
            )
    return None


def error_table(summary: Mapping[str, Any]) -> Table:
    """Table of the trained model's errors on numbers to predict, in their unit."""
    words = (summary["dataset"], size_and_count(summary["error"]), summary["error"]["protocol"])
    table = Table(title=", ".join(filter(None, words)), title_justify="left")
    table.add_column("model")
    table.add_column("mean absolute error", justify="right")
    for key, name in shown_rows(ERRORS, summary):
        value = summary[key]
        table.add_row(name, f"{value['mean']:.4g} ± {value['ci95']:.2g}")
    return table
