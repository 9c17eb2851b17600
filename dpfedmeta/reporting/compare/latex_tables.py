"""Files for a paper: the runs as a LaTeX table and as CSV, and their pictures as PDF."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.relations.relations import RELATIONS, Relation
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import RunDirectory, write_text
from dpfedmeta.reporting.compare.seed_groups import Group, Measured, costliest_relation, in_brackets
from dpfedmeta.reporting.plots import comparison_plots
from dpfedmeta.reporting.plots import run_plots as plots
from dpfedmeta.training.results.evaluation_store import SIZES, row_label, size, size_and_count

_CELLS = (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))
_ACCURACIES = ("accuracy", "accuracy_untrained", "accuracy_pixel_prototype")
_COMMANDS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def write_paper(
    groups: Sequence[Group], latex: Path | None, table: Path | None, pictures: Path | None
) -> Iterator[str]:
    """Write what was asked for; says where, a line each.

    Guarantee:
        Made of ledgers, summary.json and rounds.jsonl, which hold released quantities only.

    Raises:
        InputError: A file of a run is missing, damaged or incomplete.
    """
    try:
        if latex is not None:
            write_text(latex, latex_table(groups))
            yield f"LaTeX table (needs \\usepackage{{booktabs}}): {latex}"
        if table is not None:
            write_text(table, csv_table(groups))
            yield f"CSV: {table}"
        if pictures is not None:
            yield f"PDF pictures: {', '.join(str(path) for path in write_pictures(groups, pictures))}"
    except DAMAGED_JSON as error:
        runs = ", ".join(str(run.path) for group in groups for run in group.runs)
        raise InputError(f"{runs}: a file of a run is incomplete or of another version ({error!r})") from error


def row_of(group: Group, run: RunDirectory, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's values by CSV column; None: not measured, or nothing is promised (epsilon is infinite)."""
    plan = read_content(run.ledger).plan
    row: dict[str, Any] = {
        "run": str(run.path),
        "setting": group.label,
        "algo": summary["algo"],
        "own_method": group.own_method,
        "dataset": summary["dataset"],
        **{f"task.{name}": summary["task"].get(name) for name in ("ways", "shots", "queries")},
        "status": summary["status"],
        "population.clients": plan.clients,
        "population.cohort": plan.cohort,
        "population.sampler": plan.sampler,
        "population.max_participations": plan.max_participations,
        "server.rounds": summary["rounds"],
        "server.noise_multiplier": plan.noise_multiplier,
        "record.support_noise": plan.record.support_noise if plan.record else None,
        "record.query_noise": plan.record.query_noise if plan.record else None,
    }
    for name in _ACCURACIES:
        found = summary.get(name) or {}
        row |= {f"{name}.mean": found.get("mean"), f"{name}.ci95": found.get("ci95")}
    measured = summary.get("accuracy") or {}
    row |= {f"accuracy.{name}": measured.get(name) for name in ("episodes", *SIZES, "steps")}
    for kind, cells in (("spent", summary["guarantees"]), ("planned", summary["planned"])):
        by_name = {_cell(cell): cell for cell in cells}
        for unit, observer in _CELLS:
            cell = by_name[unit, observer]
            name = f"{kind}.{unit}_{observer}"
            row |= {f"{name}.epsilon": cell["epsilon"], f"{name}.delta": cell["delta"]}
            row |= {f"{name}.adjacency": cell["adjacency"]}
            if unit == "record":
                related = cell.get("relations", {})
                row |= {f"{name}.{relation}": _stated(related, relation) for relation in RELATIONS}
    row |= {"simulation": summary["simulation"] is not None, "ledger.head": summary["ledger"]["head"]}
    return row


def _stated(related: Mapping[str, float | None], relation: str) -> float | str | None:
    """An infinite epsilon is inf; empty: the relation is not stated."""
    return "inf" if relation in related and related[relation] is None else related.get(relation)


def csv_table(groups: Sequence[Group]) -> str:
    """Return the runs as CSV, one row each. Empty: not there; an infinite epsilon is inf."""
    rows = [row_of(group, run, s) for group in groups for run, s in zip(group.runs, group.summaries, strict=True)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(name, value) for name, value in row.items()})
    return text.getvalue()


def _plain(name: str, value: Any) -> Any:
    return "inf" if value is None and name.endswith(".epsilon") else value


def latex_table(groups: Sequence[Group]) -> str:
    """Return the settings as a LaTeX table, one line each, with seeds pooled as on a comparison page."""
    head = ["setting", "algorithm", "data", r"accuracy (\%)", r"untrained (\%)", "$N$", "$L$", "$T$", "$z$"]
    head += [rf"$\varepsilon$ ({unit}, {observer})" for unit, observer in _CELLS]
    beside = costliest_relation(groups)
    lines = [" & ".join(_line(group, beside)) + r" \\" for group in groups]
    return "\n".join(
        [
            r"% by dpfedmeta report; needs \usepackage{booktabs}",
            *(f"% {note}" for note in _notes(groups)),
            r"\begin{tabular}{lll" + "r" * (len(head) - 3) + "}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _line(group: Group, beside: Relation | None) -> list[str]:
    summary, plan = group.summaries[0], read_content(group.runs[0].ledger).plan
    name = latex(group.label) + (r"$^{\dagger}$" if any(each["simulation"] for each in group.summaries) else "")
    measured = ", ".join(filter(None, (summary["dataset"], size(summary.get("accuracy") or {}))))
    sizes = [f"{plan.clients:,}".replace(",", r"\,"), f"{plan.cohort:g}", str(summary["rounds"])]
    noise = "--" if plan.noise_multiplier is None else f"{plan.noise_multiplier:.3g}"
    return [
        name,
        latex(", ".join(filter(None, (summary["algo"], group.own_method)))),
        latex(measured),
        _measured(group.accuracy()),
        _measured(group.accuracy("accuracy_untrained")),
        *(f"${value}$" for value in sizes),
        noise,
        *(_epsilon(group, cell, beside) for cell in _CELLS),
    ]


def _notes(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the further statements that the table's caption needs."""
    yield "accuracy: mean and 95% interval on held-out test classes, over episodes, or over several seeds"
    if encoded := [group.label for group in groups if group.summaries[0].get("encoder")]:
        yield f"untrained, of {', '.join(encoded)}: {row_label('accuracy_untrained', '', {'encoder': True})}"
    measured = (size_and_count(summary.get("accuracy") or {}) for group in groups for summary in group.summaries)
    yield from dict.fromkeys(filter(None, measured))
    beside = costliest_relation(groups)
    for cell in _CELLS:
        stated = [each for g in groups for s in g.summaries for each in s["guarantees"] if _cell(each) == cell]
        found = {(each["delta"], each["adjacency"]) for each in stated}
        words = "; ".join(f"delta = {asked(delta)}, {adjacency}" for delta, adjacency in sorted(found))
        more = f", {in_brackets(beside)}" if beside is not None and cell[0] == "record" else ""
        yield f"({cell[0]}, {cell[1]}): {words}{more}"
    yield "z: noise multiplier of the server; -- where it adds none by design"
    if any(summary["simulation"] for group in groups for summary in group.summaries):
        yield "dagger: simulation, no guarantee towards whoever knows the seed"


def _cell(stated: Mapping[str, Any]) -> tuple[str, str]:
    return stated["unit"], stated["observer"]


def _measured(value: Measured | None) -> str:
    return "--" if value is None else rf"${100 * value.mean:.1f} \pm {100 * value.ci95:.1f}$"


def _epsilon(group: Group, cell: tuple[str, str], beside: str | None) -> str:
    shown, related = _finite(group.epsilons.get(cell)), group.relations.get(cell, {})
    return f"{shown} ({_finite(related[beside])})" if beside in related and shown != _INFINITE else shown


_INFINITE = r"$\infty$"
_TOGETHER = "comparison"


def _finite(value: float | None) -> str:
    return _INFINITE if value is None else f"${rounded_up(value)}$"


def latex(text: str) -> str:
    """Plain text that LaTeX prints as it is."""
    return "".join(_COMMANDS.get(letter, letter) for letter in text)


def write_pictures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """The pictures of every run and, of several settings, those of the comparison; one file each.

    Raises:
        InputError: Two runs have one name.
    """
    runs = [(run, s, r) for g in groups for run, s, r in zip(g.runs, g.summaries, g.rows, strict=True)]
    names = [run.path.resolve().name for run, _, _ in runs]
    # Pictures of several settings together begin with this name.
    taken = [*names, *([_TOGETHER] if len(groups) > 1 else [])]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"--pdf {folder}: two runs, or a run and the comparison, have the name {twice}, so their pictures would "
            "overwrite each other; give one at a time, or rename a run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (_, summary, rows) in zip(names, runs, strict=True):
        accuracy, clip, cells = (folder / f"{name}-{what}.pdf" for what in ("accuracy", "clip", "guarantees"))
        plots.accuracy_plot(accuracy, rows, summary)
        plots.clip_plot(clip, rows)
        plots.guarantee_plot(cells, summary["guarantees"])
        written += [accuracy, clip, cells]
    if len(groups) > 1:
        for what, plot in (
            ("accuracy", comparison_plots.final_plot),
            ("validation", comparison_plots.validation_plot),
            ("clip", comparison_plots.bound_plot),
            ("signal", comparison_plots.signal_plot),
        ):
            path = folder / f"{_TOGETHER}-{what}.pdf"
            if plot(path, groups):
                written.append(path)
            else:
                path.unlink(missing_ok=True)
    return written
