"""The page of a run: rendered from its ledger and from what no ledger proves, which the page holds as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib import resources
from typing import Any, cast

from jinja2 import Environment, UndefinedError
from markupsafe import Markup

from dpfedmeta.accounting.relations.legend import RELATION_COLUMNS, relation_rows
from dpfedmeta.accounting.relations.relations import NOT_COVERED
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, complete, first_difference, json_of
from dpfedmeta.core.files.run_directory import DIVERGED, REPORT, SUMMARY
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.version import __version__
from dpfedmeta.planning.caveats import cautions, dishonest_words
from dpfedmeta.reporting.compare.seed_groups import Measured
from dpfedmeta.reporting.html.evaluation_section import audits_section, evaluations_section, evaluations_shown
from dpfedmeta.reporting.html.privacy_statement import chosen_words, guarantee_rows, plan_words, server_words
from dpfedmeta.reporting.html.rerun_command import command, settings_shown
from dpfedmeta.reporting.html.top_of_page import clip_words, observer_rows, promised_words, reached_words
from dpfedmeta.training.results.evaluation_store import (
    ACCURACY_ROWS,
    ERRORS,
    kept_audit,
    row_label,
    shown_rows,
    size,
    size_and_count,
)
from dpfedmeta.training.results.round_rows import TOO_LONG, too_long_words
from dpfedmeta.training.results.snapshot import Snapshot, Stage, state_words
from dpfedmeta.training.results.summary import NOT_FINITE, summary_so_far
from dpfedmeta.training.state.how_to_resume import how_to_go_on, repeated
from dpfedmeta.training.state.private_timings import at_most
from dpfedmeta.training.terminal.progress_bar import clock
from dpfedmeta.training.terminal.tables import HOLDS, lost_words, why_above
from dpfedmeta.training.verification.file_claims import check_facts
from dpfedmeta.training.verification.proven import Proven

# Rounds with a release that is too long, in a report.
_MOST_SHOWN = 5
# Seconds after which the page of a running run looks for a newer one.
REFRESH = 10
# Those of every page; one of an audit besides.
PICTURES = ("accuracy", "clip", "guarantees")
BLOCK = '<script type="application/json" id="shown">'
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
AGREES = "agrees byte for byte with the ledger, and with the scores and names in it"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Everything on the page that no ledger proves.

    Attributes:
        version: Of the program.
        head: Hash of the ledger's last line when the page was written.
        name: Of the run's folder.
        stage: Whether the run went on, or how it ended.
        go_on: Command that resumes it; empty where the page names none.
        summary: Content of summary.json, or as far as it was known.
        rounds: Lines of rounds.jsonl.
        held: Rounds in which the clip policy was holding.
        clip: Sentence on the bound; None: nothing was clipped.
        too_long: Sentences on releases that are longer than honest clients give.
        evaluations: Table of kept evaluations.
        audits: What audits found; None: there was none.
        pictures: SHA-256 of each picture, by its name.
        drawn_by: The library that drew them, and its version.
    """

    version: str
    head: str
    name: str
    stage: str
    go_on: str
    summary: Mapping[str, Any]
    rounds: int
    held: int
    clip: str | None
    too_long: Sequence[str]
    evaluations: Mapping[str, Any]
    audits: Mapping[str, Any] | None
    pictures: Mapping[str, str]
    drawn_by: str


def of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of a page that the lines of rounds.jsonl give."""
    found = [_sentence(too_long_words(row)) for row in rows if TOO_LONG in row]
    more = len(found) - _MOST_SHOWN
    further = [f"The same holds for {more} more rounds (see rounds.jsonl)"] if more > 0 else []
    return {
        "rounds": len(rows),
        "held": sum(row.get("clip_mode") == "holding" for row in rows),
        "clip": clip_words(rows),
        "too_long": [*found[:_MOST_SHOWN], *further],
    }


def digest_of(picture: str) -> str:
    """SHA-256 of a picture as it stands in the page."""
    return sha256(picture.encode()).hexdigest()


def rendered(proven: Proven, shown: Shown, pictures: Mapping[str, str]) -> str:
    """The whole page.

    Guarantee:
        Every number about privacy is from the ledger, and so is every sentence about it.

    Args:
        proven: What the ledger proved when the page was written.
        shown: What it does not prove.
        pictures: As data: addresses, by their names.
    """
    summary, plan = shown.summary, proven.content.plan
    measured = summary["accuracy"] or summary.get("error") or {}
    again, left_open = repeated(summary["population"]["kind"], command(proven.settings))
    words = state_words(shown.stage, proven.rounds, plan.rounds, shown.go_on)
    return render(
        "run.html.j2",
        shown=Markup(embedded(asdict(shown))),
        name=shown.name,
        summary=summary,
        measured=size(measured),
        size_and_count=size_and_count(measured),
        rows=shown_rows(ERRORS if summary.get("error") else ACCURACY_ROWS, summary),
        lost=lost_words(summary),
        promised=promised_words(proven),
        reached=reached_words(summary, plan.rounds),
        observers=observer_rows(proven.cells, plan.server_sees),
        server=server_words(proven),
        plan_words=plan_words(proven, summary["rounds"]),
        refresh=refresh(shown.stage),
        ending=ending_words(words, summary),
        warning=warning(shown, words, proven),
        simulation=proven.simulation,
        chosen=chosen_words(proven),
        guarantees=guarantee_rows(proven),
        unverified=proven.unverified,
        dishonest=_sentence(dishonest_words(plan)),
        too_long=shown.too_long,
        whole_numbers=plan.secure is not None,
        clip_words=shown.clip,
        held=shown.held,
        rounds=shown.rounds,
        cautions=cautions(proven.settings, proven.described.task),
        evaluations=evaluations_section(shown.evaluations),
        audits=audits_section(shown.audits, pictures.get("audit", "")),
        holds=HOLDS,
        why_above=why_above(proven.cells),
        relations=relation_rows(proven.cells),
        relation_columns=RELATION_COLUMNS,
        not_covered=NOT_COVERED,
        settings=settings_shown(proven.settings),
        command=again,
        open_words=left_open,
        seed=proven.settings.run.seed,
        pictures=pictures,
    )


def check_report(snapshot: Snapshot, proven: Proven) -> list[str]:
    """report.html is, byte for byte, the page that the ledger and its own JSON give.

    While a run is written, the page may be of an earlier round, and shows what was proven by then. A page of another
    version of the program has other words, so it is refused.

    Returns:
        What was found, in a line.

    Raises:
        InputError: It is another page; names the first line that differs, or the number.
    """
    path = snapshot.run.path / REPORT
    if snapshot.page is None:
        return []
    with complete(path):
        shown = shown_in(snapshot.page)
        now, proven = proven, proven.as_of(shown.head)
        closed = snapshot.ended or now.content.closing is not None
        if proven is not now and closed and not snapshot.written:
            raise InputError(
                f"{path}: was written after {len(proven.content.charges)} charges, but the run has "
                f"{len(now.content.charges)}; write it again: dpfedmeta report {snapshot.run.path}"
            )
        _check_shown(snapshot, proven, shown, latest=proven is now)
        found = {digest_of(picture): picture for picture in _PICTURE.findall(snapshot.page)}
        gone = [name for name, digest in shown.pictures.items() if digest not in found]
        check(path, "pictures that are exchanged", gone, [])
        try:
            page = rendered(proven, shown, {name: found[digest] for name, digest in shown.pictures.items()})
        except UndefinedError as error:
            raise InputError(f"{path}: incomplete or of another version ({error})") from error
        if page != snapshot.page:
            raise first_difference(path, snapshot.page, page, f"dpfedmeta report {snapshot.run.path}")
    of = "" if proven is now else f", written after {counted_words(proven.rounds, 'round')},"
    return [f"report.html{of} {AGREES}"]


def shown_in(page: str) -> Shown:
    """The entries of a page that no ledger proves.

    Raises:
        ValueError: It does not hold it.
        TypeError: Likewise.
    """
    return Shown(**json.loads(page.partition(BLOCK)[2].partition("</script>")[0]))


def _check_shown(snapshot: Snapshot, proven: Proven, shown: Shown, *, latest: bool) -> None:
    """Compare it with the ledger, and with the files beside the page, as far as these are there."""
    run, path = snapshot.run, snapshot.run.path / REPORT
    if shown.version != __version__:
        raise InputError(
            f"{path}: was written by dpfedmeta {shown.version!r}, and this is {__version__}, whose words are others; "
            f"write it again: dpfedmeta report {run.path}"
        )
    # The directory may have been another one then.
    go_on = re.sub("'?PLACE'?", r"('[^'\\n]{1,300}'|[!-~]+)", re.escape(how_to_go_on(run, "PLACE")))
    forms = {"name": r"[\w.+-]{1,200}", "go_on": f"({go_on})?", "drawn_by": r"matplotlib [\w.+-]+ on [\w-]+ [\w-]+"}
    for name, form in forms.items():
        if not re.fullmatch(form, getattr(shown, name)):
            raise InputError(f"{path}: {name}: states {getattr(shown, name)!r}, which no page says there")
    check(path, "head", shown.head, proven.content.heads[-1])
    check(path, "pictures", sorted(shown.pictures), sorted([*PICTURES, *(["audit"] if shown.audits else [])]))
    check_facts(path, SUMMARY, shown.summary, proven)
    if snapshot.summary is None and proven.content.closing is not None:
        raise InputError(f"{path}: states scores of a run that ended, but {SUMMARY} is not there; restore it")
    kept = kept_audit(run.path)
    if shown.audits is not None:
        audits = None if kept is None else {name: kept[name] for name in ("cells", "size")}
        check(path, "audits", shown.audits, json_of(audits))
    # One that was made since is not on the page.
    now = _rows_of(evaluations_shown(run.path)) if shown.evaluations["rows"] else []
    check(path, "evaluations that are not there", [r for r in _rows_of(shown.evaluations) if r not in now], [])
    if shown.stage in ("running", "stopped"):
        of_then = replace(snapshot, content=proven.content, stage=cast("Stage", shown.stage))
        check(path, "summary", shown.summary, json_of(summary_so_far(of_then, proven)))
    if latest and not snapshot.written and (shown.stage, snapshot.stage) != ("running", "stopped"):
        check(path, "stage", shown.stage, snapshot.stage)
    if latest and snapshot.ended:
        check(path, "summary", shown.summary, json_of(snapshot.summary))
    if snapshot.rows is not None:
        for key, value in json_of(of_rows(snapshot.rows[: shown.rounds])).items():
            check(path, key, getattr(shown, key), value)


def _rows_of(evaluations: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rows by the names of their columns, without those that have nothing there."""
    return [
        {"measured": row["measured"], "protocol": row["protocol"]}
        | {name: value for name, value in zip(evaluations["columns"], row["accuracies"], strict=True) if value}
        for row in evaluations["rows"]
    ]


def embedded(content: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


def render(template: str, **values: Any) -> str:
    """A page from its template."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["epsilon"] = rounded_up
    environment.filters["delta"] = asked
    environment.filters["percent"] = _percent
    environment.filters["row_label"] = row_label
    style = Markup(_text("page.css"))
    return environment.from_string(_text(template)).render(style=style, **values)


def _text(name: str) -> str:
    return (resources.files("dpfedmeta.reporting.html") / name).read_text(encoding="utf-8")


def _percent(value: Any) -> str:
    if not value:
        return "not evaluated"
    if isinstance(value, Measured):
        value = value.as_json()
    return f"{100 * value['mean']:.1f}% ± {100 * value['ci95']:.1f}"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def ending_words(words: str | None, summary: Mapping[str, Any]) -> str:
    """Return a sentence that says how the run ended and how long it took, or what its present state is (`words`)."""
    if words is not None:
        return f"{words}."
    speed = f"{summary['clients_per_second']:.0f} clients/s"
    if summary.get("times"):
        took = f"{at_most(summary['seconds'])} of training (about {speed}; {summary['times']})"
    else:
        took = f"{clock(summary['seconds'])} of training ({speed})"
    return f"{summary['status']} after {took}."


def warning(shown: Shown, words: str | None, proven: Proven) -> str | None:
    """Return the warning about all numbers of the page; None where the run completed, or its budget ended it."""
    planned = counted_words(proven.content.plan.rounds, "round")
    if shown.stage == "interrupted":
        # A round that was cut off is charged, and has no row.
        more = f" ({proven.rounds - shown.rounds} more charged)" if proven.rounds > shown.rounds else ""
        return (
            f"INTERRUPTED after {shown.rounds} of {planned}{more}, to which all results refer; go on with: "
            f"{shown.go_on}"
        )
    if shown.stage == DIVERGED:
        return f"DIVERGED after {proven.rounds} of {planned}; {NOT_FINITE}"
    if words is None:
        return None
    return f"{words}. Accuracies and the epsilon spent are for these rounds; the epsilon promised is for all rounds."


def refresh(stage: str) -> Markup:
    """Lets a browser read the page again while the run goes on; the page of its end has no such line."""
    if stage != "running":
        return Markup()
    return Markup('<meta http-equiv="refresh" content="{}">').format(REFRESH)
