"""Privacy statements of report.html: made from the ledger, and read back from the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.published import holds_digests
from dpfedmeta.accounting.relations.legend import RELATION_COLUMNS, relation_rows
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import REPORT
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import word_of_authors
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum
from dpfedmeta.reporting.html.top_of_page import observer_rows, promised_words
from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.results.summary import SIMULATION
from dpfedmeta.training.terminal.tables import method_words
from dpfedmeta.training.verification.chosen_run import CHOSEN
from dpfedmeta.training.verification.file_claims import POPULATION, Proven, check, check_claims, complete

BLOCK = "guarantees"
COMPARED = " in its promise, tables of epsilons and sizes; its other words were not compared"


def claims(proven: Proven) -> dict[str, Any]:
    """The numbers behind the page, in the form of summary.json."""
    plan, content = proven.content.plan, proven.content
    return {
        "guarantees": [cell.as_json() for cell in proven.cells],
        "planned": [cell.as_json() for cell in proven.promised],
        "population": {name: getattr(plan, name) for name in POPULATION},
        "simulation": proven.simulation,
        "ledger": {"rounds": len(content.charges), "head": content.heads[-1]},
        **({} if proven.chosen is None else {CHOSEN: proven.chosen}),
    }


def embedded(content: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


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


def check_report(snapshot: Snapshot, proven: Proven) -> list[str]:
    """report.html shows what the ledger proves: its table, its sizes, its warning, and the numbers that it embeds.

    While a run is written, the page may be of an earlier round, and shows what was proven by then. Pictures are not
    read.

    Raises:
        InputError: It shows something else; names it, with both values.
    """
    path, summary = snapshot.run.path / REPORT, snapshot.summary
    if snapshot.page is None:
        return []
    page, now = _Page(snapshot.page), proven
    with complete(path):
        proven = proven.as_of(json.loads(page.blocks[0])["ledger"]["head"])
        if proven is not now and snapshot.ended and not snapshot.written:
            raise InputError(
                f"{path}: was written after {len(proven.content.charges)} charges, but the run has "
                f"{len(now.content.charges)}; write it again: dpfedmeta report {snapshot.run.path}"
            )
        rounds = summary["rounds"] if summary is not None and snapshot.ended and proven is now else proven.rounds
        due = plan_words(proven, rounds)
        if due not in page.paragraphs[0].split("; "):
            raise InputError(f"{path}: first paragraph: states {page.paragraphs[0]!r}, but the ledger says {due!r}")
        check(path, "simulation", SIMULATION if SIMULATION in page.paragraphs else None, proven.simulation)
        chosen = chosen_words(proven)
        if chosen is not None and chosen not in page.paragraphs:
            raise InputError(
                f"{path}: does not say which number to report of a run that was chosen; write it again: "
                f"dpfedmeta report {snapshot.run.path}"
            )
        if holds_digests(proven.content) and proven.unverified not in page.paragraphs:
            raise InputError(
                f"{path}: does not say what is {proven.unverified!r}; write it again: dpfedmeta report "
                f"{snapshot.run.path}"
            )
        _check_table(path, page, proven)
        _check_top(path, page, proven)
        for block in page.blocks:
            check_claims(path, json.loads(block), proven)
    return [
        f"report.html agrees{COMPARED}"
        if proven is now
        else f"report.html, written after {counted_words(rounds, 'round')}, agrees{COMPARED}"
    ]


def _check_table(path: Path, page: _Page, proven: Proven) -> None:
    found = [table for table in page.tables if {"unit", "towards"} <= set(table[0])]
    check(path, "tables of guarantees", len(found), 1)
    names, *rows = found[0]
    due = guarantee_rows(proven)
    due_rows = [list(row) for row in relation_rows(proven.cells)]
    of_relations = [rows for head, *rows in page.tables if head == list(RELATION_COLUMNS)]
    check(path, "table of relations", of_relations, [due_rows] if due_rows else [])
    check(path, "columns of the table", names, [*due[0]])
    check(path, "rows of the table", [row[:2] for row in rows], [[row["unit"], row["towards"]] for row in due])
    for row, own in zip(rows, due, strict=True):
        for name, text in zip(names, row, strict=True):
            check(path, f"table, ({own['unit']}, {own['towards']}), {name}", text, own[name])


def _check_top(path: Path, page: _Page, proven: Proven) -> None:
    """The first line says what was promised, and a table who sees what."""
    check(path, "what was promised", page.top[:1], [promised_words(proven)])
    due = observer_rows(proven.cells, proven.content.plan.server_sees)
    shown = [table for table in page.tables if table[0][:2] == ["who", "sees"]]
    check(path, "tables of who sees what", len(shown), 1)
    for names, *rows in shown:
        check(path, "who sees what", rows, [[own[name] for name in names if name in own] for own in due])


class _Page(HTMLParser):
    """Text that a page shows.

    Attributes:
        paragraphs: Of the body.
        tables: Texts of the cells, by row; tables without rows are left out.
        blocks: The JSON that it embeds.
        top: What was promised, and what was reached.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.blocks: list[str] = []
        self.top: list[str] = []
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self._into = self.tables[-1][-1]
            self._into.append("")
        elif tag == "p":
            self._into = self.paragraphs
            self._into.append("")
        elif tag == "dd":
            self._into = self.top
            self._into.append("")
        elif tag == "script" and dict(attrs).get("id") == BLOCK:
            self._into = self.blocks
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "p", "dd", "script") and self._into is not None:
            if tag != "script":
                self._into[-1] = " ".join(self._into[-1].split())
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data
