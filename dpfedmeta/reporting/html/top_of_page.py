"""Top of a report: what was promised and reached, in two lines, and who sees what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.right_guesses import protects
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.training.results.evaluation_store import row_label, size
from dpfedmeta.training.verification.proven import Proven

if TYPE_CHECKING:
    from dpfedmeta.reporting.compare.seed_groups import Group

_SEES = {
    "messages": "Every message, and who sent it",
    "sum": "The sum of the messages, and who takes part; no message",
}
_OBSERVERS = ("public", "server")
# What stands behind the accuracy in the line of what was reached, as far as it was measured.
_BASELINES = (
    ("accuracy_untrained", "untrained weights"),
    ("accuracy_pixel_prototype", "prototypes in pixels"),
    ("accuracy_pixel_neighbour", "nearest neighbour in pixels"),
)


def promised_words(proven: Proven) -> str:
    """Say in one line what was promised, to whom, and what of it is spent; verified again in the page.

    Guarantee:
        Every cell stands in it: with its bound, or among those that hide nobody.
    """
    spent = {cell.name: cell for cell in proven.cells}
    kept = [cell for cell in proven.promised if protects(cell.epsilon, cell.delta)]
    words = [
        f"one {cell.unit}, towards the {cell.observer}: epsilon {rounded_up(cell.epsilon)} at delta "
        f"{asked(cell.delta)} ({rounded_up(spent[cell.name].epsilon)} spent)"
        for cell in kept
    ]
    bare = [f"a {cell.unit} towards the {cell.observer}" for cell in proven.promised if cell not in kept]
    if not kept:
        return "nothing: no bound hides anybody."
    return "; ".join(words) + (f". Not hidden: {', nor '.join(bare)}." if bare else ".")


def reached_words(summary: Mapping[str, Any], rounds: int) -> str:
    """Say in one line what accuracy, or error, was reached, and what is had without training."""
    done = f"{summary['rounds']} of {counted_words(rounds, 'round')}"
    measured, error = summary.get("accuracy"), summary.get("error")
    whose = f", of {summary['judged_on']}" if summary.get("judged_on") else ""
    if measured is None and error is not None:
        before = summary.get("error_untrained")
        start = f"; untrained weights {before['mean']:.4g}" if before else ""
        on = f"{whose}," if whose else ""
        return f"mean absolute error {error['mean']:.4g} ± {error['ci95']:.2g}{on} after {done}{start}."
    if not measured:
        return f"not evaluated; {done} are done."
    beside = [
        f"{row_label(key, label, summary)} {_percent(summary[key])}" for key, label in _BASELINES if summary.get(key)
    ]
    what = ", ".join(filter(None, (Path(summary["dataset"]).name, size(measured))))
    against = f" Without training: {', '.join(beside)}." if beside else ""
    return f"{_percent(measured)} on {what}{whose}, after {done}.{against}"


def observer_rows(cells: Sequence[Guarantee], server_sees: str) -> list[dict[str, str]]:
    """For the public and the server: what each sees, and what hides a client and a record from them.

    Args:
        cells: The guarantees.
        server_sees: "messages" or "sum".
    """
    found = {(str(cell.unit), str(cell.observer)): cell for cell in cells}
    sees = {"public": "The noisy mean of each round, the weights, and this page", "server": _SEES[server_sees]}
    return [
        {
            "who": f"the {observer}",
            "sees": f"{sees[observer]}.",
            **{f"one {unit}": _hidden(found.get((unit, observer))) for unit in ("client", "record")},
        }
        for observer in _OBSERVERS
    ]


def _hidden(cell: Guarantee | None) -> str:
    if cell is None or cell.method == "none":
        return "not hidden"
    words = f"epsilon {rounded_up(cell.epsilon)}"
    return words if protects(cell.epsilon, cell.delta) else f"not hidden ({words})"


def clip_words(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Say how the bound moved, and how much of the last release was noise; None: nothing was clipped."""
    bounds = [row["clip"] for row in rows if row.get("clip") is not None]
    if not bounds:
        return None
    words = f"The clip bound began at {bounds[0]:.3g} and ended at {bounds[-1]:.3g}"
    words += f" (lowest {min(bounds):.3g}, highest {max(bounds):.3g})." if len(bounds) > 2 else "."
    silent = sum(row.get("signal_to_noise") == 0 for row in rows)
    return words + (f" In {silent} of {len(rows)} rounds the release was not told from noise." if silent else "")


def compared_words(groups: Sequence[Group]) -> str:
    """Say in one line what was compared, and what was promised of it."""
    named = sorted({str(group.summaries[0]["algo"]) for group in groups})
    data = sorted({Path(group.summaries[0]["dataset"]).name for group in groups})
    words = f"{len(groups)} settings of {', '.join(named)} on {', '.join(data)}"
    for cell in (("client", "public"), ("record", "server")):
        found = [epsilon for group in groups if (epsilon := group.epsilons.get(cell)) is not None]
        if found:
            least, most = rounded_up(min(found)), rounded_up(max(found))
            words += f"; one {cell[0]}, towards the {cell[1]}: epsilon {least}" + (
                f" to {most}" if most != least else ""
            )
            words += "" if len(found) == len(groups) else f" ({len(groups) - len(found)} without)"
    return f"{words}."


def best_words(groups: Sequence[Group]) -> str:
    """Say in one line how far the settings differ, beside what needs no training."""
    found = [(accuracy, group) for group in groups if (accuracy := group.accuracy()) is not None]
    if not found:
        return "not evaluated."
    found.sort(key=lambda pair: pair[0].mean)
    (least, lowest), (most, highest) = found[0], found[-1]
    words = (
        f"from {_percent(least.as_json())} ({lowest.label}) to {_percent(most.as_json())} ({highest.label})"
        if len(found) > 1
        else ""
    )
    words = words or f"{_percent(most.as_json())} ({highest.label})"
    if least.mean + least.ci95 >= most.mean - most.ci95 and len(found) > 1:
        words += "; their intervals overlap"
    beside = [
        f"{row_label(key, label, highest.summaries[0])} {_percent(value.as_json())}"
        for key, label in _BASELINES
        if all(key in summary for summary in highest.summaries) and (value := highest.accuracy(key)) is not None
    ]
    return words + (f". Without training: {', '.join(beside)}." if beside else ".")


def _percent(value: Mapping[str, Any]) -> str:
    return f"{100 * value['mean']:.1f}% ± {100 * value['ci95']:.1f}"
