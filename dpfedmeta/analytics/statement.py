"""Statement of an analysis, one page of text: its result, its guarantees, and what the server sees besides."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.secure_aggregation.crypto.protocol_errors import plain_line
from dpfedmeta.training.terminal.tables import ANSWERED, HOLDS, why_above

STATEMENT = "statement.txt"


def statement(summary: Mapping[str, Any], words: Sequence[str], cells: Sequence[Guarantee]) -> str:
    """Return the statement of an analysis, from summary.json and the lines on its result.

    Args:
        summary: Content of summary.json.
        words: Lines on the result, which may hold names that clients chose.
        cells: The guarantees of the summary, for the reason why one lies above another.
    """
    lines = [
        f"{summary['analysis']}: {summary['clients']:,} clients, {_asked(summary)} asked once",
        "",
        *map(plain_line, words),
        "",
        "spent, from the ledger alone:",
        *(f"  {cell_words(cell)}" for cell in summary["guarantees"]),
        *why_above(cells, ANSWERED),
        f"the server sees besides: {summary['server_sees']}",
        HOLDS,
        "a client that says something here and in training is charged for both: name this folder in "
        "privacy.spent_before",
    ]
    if summary["simulation"]:
        lines.append(summary["simulation"])
    return "\n".join(lines) + "\n"


def cell_words(cell: Mapping[str, Any]) -> str:
    """Return one guarantee in a line."""
    return (
        f"({cell['unit']}, {cell['observer']}): epsilon = {rounded_up(cell['epsilon'])} at "
        f"delta = {asked(cell['delta'])}, {cell['adjacency']}"
    )


def _asked(summary: Mapping[str, Any]) -> str:
    if summary["cohort"] == summary["clients"]:
        return "all"
    if sampling_of(summary.get("sampler", "poisson")).fixed_size:
        return f"{summary['cohort']:g} of them"
    return f"each with probability {float(summary['cohort']) / float(summary['clients']):.4g}"
