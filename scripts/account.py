"""Who is promised what: the four cells for a plan, for a run, or from a run's ledger. Needs no data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfedmeta.accounting.cells import epsilon_curve, guarantees
from dpfedmeta.accounting.claims import claim
from dpfedmeta.accounting.cross_checks import agreements, all_settings
from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.accounting.published import as_json, compare, published_settings
from dpfedmeta.command_line import DONE, parse_with_settings, parser, run_command
from dpfedmeta.config import algorithm_names, resolve
from dpfedmeta.data.task import load_task
from dpfedmeta.errors import InputError
from dpfedmeta.planning.cautions import cautions
from dpfedmeta.planning.privacy import make_privacy
from dpfedmeta.report.plots import curve_plot
from dpfedmeta.report.statement import check_report
from dpfedmeta.run_directory import RunDirectory
from dpfedmeta.runs.verification import Audit, audit, compose, realised
from dpfedmeta.tracking.terminal import guarantee_table, guarantee_words, noise_lines, number


def options_of() -> argparse.ArgumentParser:
    """The script's own options; everything else is a setting."""
    made = parser("Print the guarantees of a plan, or what a run promised and spent.", settings=True)
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    made.add_argument("--plot", type=Path, metavar="PNG", help="also draw epsilon against rounds")
    made.add_argument(
        "--solve",
        choices=("noise", "rounds", "cohort"),
        default="noise",
        help="what follows from the targets; rounds and cohort need a noise as well",
    )
    made.add_argument("--explain", action="store_true", help="for each cell, what is seen and by which formula")
    other = made.add_mutually_exclusive_group()
    other.add_argument("--run", type=Path, metavar="RUN", help="what a run promised and spent")
    other.add_argument(
        "--verify",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="recompute what a run spent from its ledger alone; several copies of one run: what they spent together",
    )
    other.add_argument(
        "--realised",
        type=Path,
        metavar="RUN",
        help="what really happened, from the server's private folder; not for publication",
    )
    other.add_argument("--compare-paper", action="store_true", help="published settings: claimed, and what holds")
    other.add_argument(
        "--compare-presets", action="store_true", help="every preset: what its origin would claim, and what holds"
    )
    other.add_argument("--cross-check", action="store_true", help="our numbers against other accountants (minutes)")
    return made


def main(console: Console) -> int:
    """Parse, account, print."""
    made = options_of()
    known, _ = made.parse_known_args()
    chosen = known.run or (known.verify and known.verify[0]) or known.realised
    if chosen is not None or known.compare_paper or known.compare_presets or known.cross_check:
        if known.algo or known.config:
            raise InputError("--run, --verify, --realised, --compare-..., --cross-check take no --algo or --config")
        made.parse_args()
    if known.compare_presets:
        return _compare_presets(console, known.json)
    if known.compare_paper:
        return _compare_paper(console, known.json)
    if known.cross_check:
        return _cross_check(console, known.json)
    if known.realised is not None:
        return _realised(console, RunDirectory(known.realised), known.json)
    if known.verify is not None and len(known.verify) > 1:
        return _of_copies(console, known, [RunDirectory(path) for path in known.verify])
    if chosen is not None:
        return _of_run(console, known, RunDirectory(chosen))
    options, settings = parse_with_settings(
        made, None, default_dataset="omniglot", keep_both=lambda given: given.solve != "noise"
    )
    task, _ = load_task(settings.dataset)
    plan = make_privacy(settings, task, options.solve)
    code = _show(console, options, plan, guarantees(plan), "What this plan promises")
    for caution in cautions(settings, task) if not options.json else ():
        console.print(f"note: {caution}", style="yellow", highlight=False, soft_wrap=True)
    return code


def _of_run(console: Console, options: argparse.Namespace, run: RunDirectory) -> int:
    found, shown = _verified(run)
    title = f"What was spent in {len(found.charges)} rounds, from the ledger alone"
    if options.run is not None and not options.json:
        console.print(guarantee_table(guarantees(found.plan), f"What was promised for {found.plan.rounds} rounds"))
    code = _show(console, options, found.plan, found.guarantees, title, {"simulation": found.simulation})
    if options.verify is not None and not options.json:
        for remark in (*found.remarks, *shown):
            console.print(f"verified: {remark}", highlight=False, soft_wrap=True)
    return code


def _verified(run: RunDirectory) -> tuple[Audit, list[str]]:
    """The ledger against everything beside it, and what is to be said of report.html."""
    found = audit(run)
    assert found.proven is not None
    return found, check_report(run, found.proven)


def _of_copies(console: Console, options: argparse.Namespace, runs: list[RunDirectory]) -> int:
    each = [_verified(run)[0] for run in runs]
    found = compose(runs)
    if found is None:
        raise InputError("--verify: these are not copies of one run; verify them one at a time")
    for remark in found.remarks if not options.json else ():
        console.print(f"verified: {remark}", highlight=False, soft_wrap=True)
    simulation = next((one.simulation for one in each if one.simulation), None)
    title = "What the copies spent together"
    return _show(console, options, found.plan, found.guarantees, title, {"simulation": simulation})


def _show(
    console: Console,
    options: argparse.Namespace,
    plan: PrivacyPlan,
    cells: tuple[Guarantee, ...],
    title: str,
    of_run: Mapping[str, str | None] | None = None,
) -> int:
    """Print the cells; `of_run` is what there is to say of a run besides."""
    if options.plot is not None:
        if not options.plot.parent.is_dir():
            raise InputError(f"--plot {options.plot}: there is no folder {options.plot.parent}")
        curve_plot(options.plot, *epsilon_curve(plan))
    if options.json:
        content = {"guarantees": [cell.as_json() for cell in cells], "parameters": parameters(plan)}
        print(_json({**content, **(of_run or {})}))
        return DONE
    for line in noise_lines(plan):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(guarantee_table(cells, title))
    for warning in filter(None, (of_run or {}).values()):
        console.print(warning, style="bold yellow")
    if options.explain:
        for line in guarantee_words(cells):
            console.print(line, highlight=False, soft_wrap=True)
    if options.plot is not None:
        console.print(f"epsilon against rounds: {options.plot}", highlight=False, soft_wrap=True)
    return DONE


def parameters(plan: PrivacyPlan) -> dict[str, object]:
    """The noise and sizes behind the table; null where an algorithm has none."""
    record = plan.record
    return {
        "noise_multiplier": plan.noise_multiplier,
        "support_noise": record.support_noise if record else None,
        "query_noise": record.query_noise if record else None,
        "total_noise": plan.at(0).total_noise,
        "rounds": plan.rounds,
        "clients": plan.clients,
        "cohort": plan.cohort,
        "max_participations": plan.max_participations,
    }


def _compare_paper(console: Console, as_text: bool) -> int:
    found = [(published, compare(published)) for published in published_settings()]
    if as_text:
        print(_json({"published": [as_json(published, lines) for published, lines in found]}))
        return DONE
    for published, lines in found:
        cell = f"{published.claimed.cell}, delta = {published.claimed.delta:g}"
        table = Table(title=f"{published.title}: {cell}", title_justify="left")
        for column in ("counted as", "epsilon", "why it differs from the line above"):
            table.add_column(column, justify="right" if column == "epsilon" else "left", overflow="fold")
        for line in lines:
            table.add_row(line.counted, number(line.epsilon), line.reason)
        console.print(table)
    return DONE


def _compare_presets(console: Console, as_text: bool) -> int:
    rows = []
    table = Table(title="The same noise, as its origin counts it and as it holds", title_justify="left")
    for column in ("preset", "cell", "claimed", "holds", "claimed by", "why"):
        table.add_column(column, justify="right" if column in ("claimed", "holds") else "left", overflow="fold")
    for algo in algorithm_names():
        dataset = "mnist-shards" if resolve(algo, "mnist-shards").meta.method == "fedavg" else "omniglot"
        found = claim(algo, make_privacy(resolve(algo, dataset), load_task(dataset)[0]))
        if found is not None:
            table.add_row(algo, found.cell, number(found.claimed), number(found.holds), found.source, found.reason)
            rows.append({"algo": algo, "dataset": dataset, **vars(found)})
    if as_text:
        print(_json({"presets": rows}))
    else:
        console.print(table)
    return DONE


def _cross_check(console: Console, as_text: bool) -> int:
    rows = []
    table = Table(title="Worst relative differences, ours / other - 1", title_justify="left")
    for column in ("ours", "other", "settings", "lowest", "highest", ""):
        table.add_column(column, justify="right" if column in ("settings", "lowest", "highest") else "left")
    for row in agreements(all_settings()):
        note = "an upper bound" if row.bound else ""
        table.add_row(row.ours, row.other, str(row.settings), f"{row.lowest:+.2e}", f"{row.highest:+.2e}", note)
        rows.append({**vars(row)})
        if not as_text:
            console.print(f"{row.ours} against {row.other}: done", highlight=False, soft_wrap=True)
    if as_text:
        print(_json({"agreements": rows}))
    else:
        console.print(table)
    return DONE


def _realised(console: Console, run: RunDirectory, as_text: bool) -> int:
    plan = audit(run).plan
    found = realised(run, plan)
    if as_text:
        print(_json({"realised": {**vars(found), "record_server": found.as_number}}))
        return DONE
    least, mean, most = found.cohort_sizes
    console.print("From the server's private folder: do not publish, and do not promise.", style="bold yellow")
    console.print(f"clients that took part: {found.participants:,}", highlight=False)
    console.print(f"most participations of one client: {found.most_participations}", highlight=False)
    console.print(f"cohort sizes: {least} to {most}, mean {mean:.1f}", highlight=False)
    console.print(f"(record, server) of that client's records: epsilon {number(found.record_server)}", highlight=False)
    return DONE


def _json(content: object) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


if __name__ == "__main__":
    run_command(main)
