"""Comparisons that account.py makes: published claims, presets, other accountants."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.accountants import agreements, all_settings
from benchmarks.algorithm_claims import PresetOrigin, claim
from benchmarks.paper_claims import as_json, compare, published_settings
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli.arguments import DONE, print_json
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names, claimed_of
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.training.terminal.tables import HOLDS


def compare_paper(console: Console, as_text: bool) -> int:
    """Published settings: claimed, and what holds."""
    found = [(published, compare(published)) for published in published_settings()]
    if as_text:
        print_json({"published": [as_json(published, lines) for published, lines in found]})
        return DONE
    for published, lines in found:
        cell = f"{published.claimed.cell}, delta = {asked(published.claimed.delta)}"
        table = Table(title=f"{published.title}: {cell}", title_justify="left")
        for column in ("counted as", "epsilon", "why it differs from the line above"):
            table.add_column(column, justify="right" if column == "epsilon" else "left", overflow="fold")
        for line in lines:
            table.add_row(line.counted, rounded_up(line.epsilon), line.reason)
        console.print(table)
    return DONE


def compare_presets(console: Console, as_text: bool) -> int:
    """Every preset: what its origin would claim, and what holds."""
    rows = []
    caption = f"{HOLDS} claimed: what the origin's documentation gives for this noise."
    table = Table(
        title="The same noise, as its origin counts it and as it holds",
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )
    for column in ("preset", "cell", "claimed", "holds", "claimed by", "why"):
        table.add_column(column, justify="right" if column in ("claimed", "holds") else "left", overflow="fold")
    for algo in algorithm_names():
        claimed = claimed_of(algo)
        if claimed is None:
            continue
        published = PresetOrigin(**claimed)
        plan = make_privacy(resolve(algo, published.dataset), load_task(published.dataset)[0])
        found = claim(published, plan)
        table.add_row(algo, found.cell, rounded_up(found.claimed), rounded_up(found.holds), found.source, found.reason)
        rows.append({"algo": algo, "dataset": published.dataset, **vars(found)})
    if as_text:
        print_json({"presets": rows})
    else:
        console.print(table)
    return DONE


def cross_check(console: Console, as_text: bool) -> int:
    """Our numbers against other accountants."""
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
        print_json({"agreements": rows})
    else:
        console.print(table)
    return DONE
