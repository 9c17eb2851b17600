"""Say what a data set holds, whether it can be trained on, and show some of it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.cli.arguments import BAD_INPUT, DONE, parser, print_json, print_line, settings_from
from dpfedmeta.cli.outputs import PICTURE, check_output
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_outside_runs

if TYPE_CHECKING:
    from dpfedmeta.data.inspection import Episodes, SplitReport, TaskReport

SUMMARY = "what a task or a folder of images holds"

_SHOWN = 10


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Show what a task or your own data hold, and whether they can be trained on. Episodes are those of --ways, "
        "--shots, --task.queries and --evaluation.queries, or --population.episodes whole, as in training.",
        settings=False,
        program="dpfedmeta check-task",
    )
    made.add_argument("task", help="a built-in task, a task file, a folder of images, or a .csv, .parquet or .npz file")
    made.add_argument(
        "--client", action="store_true", help="the data are one real client's own: say what of them takes part"
    )
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--out", type=Path, help="write a contact sheet to this PNG file")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, look, tell."""
    options, rest = options_of().parse_known_args(words)
    check_output("--out", options.out, PICTURE, words)
    if options.out is not None:
        check_outside_runs("--out", options.out)  # its images may be of people
    given = settings_from(rest)
    episodes = _episodes(given)
    if options.client:
        if options.out is not None or options.data_dir is not None or "evaluation.queries" in given:
            raise InputError("--client: goes with --json, --ways, --shots and --task.queries alone")
        if episodes.whole is not None:
            raise InputError(
                "--client with --population.episodes whole: real clients hold fixed episodes so far; leave it out"
            )
        return _client(options, episodes, console)
    from dpfedmeta.data.inspection import contact_sheet, inspect_task

    report, dataset = inspect_task(options.task, options.data_dir, episodes)
    if options.json:
        print_json(dataclasses.asdict(report) | {"sound": report.sound})
    else:
        for line in describe(report):
            print_line(console, line)
    if options.out is not None and report.kind != "images":
        raise InputError(f"--out {options.out}: {report.kind} have no contact sheet; the table says what is in them")
    if options.out is not None and dataset is not None:
        try:
            contact_sheet(dataset).save(options.out, format="PNG", dpi=(130, 130))
        except OSError as error:
            raise InputError(f"--out {options.out}: cannot be written ({error.strerror})") from error
        if not options.json:
            print_line(console, f"contact sheet: {options.out}")
    return DONE if report.problem is None else BAD_INPUT


def _client(options: argparse.Namespace, episodes: Episodes, console: Console) -> int:
    from dpfedmeta.data.client_inspection import describe_client, inspect_client

    report = inspect_client(Path(options.task), episodes.shape)
    if options.json:
        print_json(dataclasses.asdict(report) | {"able": report.able, "used": report.used, "sound": report.sound})
    else:
        for line in describe_client(report):
            print_line(console, line)
    return DONE if report.sound else BAD_INPUT


_ASKED = (
    *("task.ways", "task.shots", "task.queries", "evaluation.queries"),
    *("population.episodes", "task.support_share", "task.most_ways", "task.most_records"),
)


def _episodes(given: dict[str, str]) -> Episodes:
    """Return the episodes that training would draw, by the settings of the same names."""
    from dpfedmeta.data.episodes.shape import EpisodeShape
    from dpfedmeta.data.inspection import Episodes
    from dpfedmeta.planning.client_spec import whole_shape

    odd = [name for name in given if name not in _ASKED]
    if odd:
        raise InputError(f"--{odd[0]}: check-task takes only the settings {', '.join('--' + name for name in _ASKED)}")
    settings = resolve("maml", "strokes", None, given)
    task = settings.task
    shape = EpisodeShape(ways=task.ways, shots=task.shots, queries=task.queries)
    return Episodes(
        shape=shape,
        evaluation_queries=settings.evaluation.queries,
        whole=whole_shape(settings),
        ways_given="task.ways" in given,
    )


def describe(report: TaskReport) -> list[str]:
    """The findings as lines."""
    lines = [f"{report.name}: {report.records}"]
    for name, split in report.splits.items():
        lines.append(f"  {name}: {_of_split(split, report)}")
    lines += [f"  {remark}" for remark in report.remarks]
    for what, counts in (("sizes of the files", report.sizes), ("modes of the files", report.modes)):
        if counts:
            shown = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:_SHOWN])
            lines.append(f"  {what}: {shown}{', ...' if len(counts) > _SHOWN else ''}")
    lines += _listed("files do not decode", report.unreadable)
    repeated = "not counted yet" if report.repeated is None else f"{report.repeated:,}"
    lines.append(f"  {report.kind} that repeat another one: {repeated}")
    lines += _listed("of them in two splits", report.across_splits)
    if report.problem is not None:
        lines.append(f"  cannot be used: {report.problem}")
    return lines


def _of_split(split: SplitReport, report: TaskReport) -> str:
    kind = report.kind
    each = f"{split.fewest}" if split.fewest == split.most else f"{split.fewest} ({split.smallest}) to {split.most}"
    what = "sequences" if kind == "tokens" else kind
    # Of numbers to predict all records of a client are one class.
    counted = f"{split.images:,} {what}, {each}"
    words = counted if report.predicts_numbers else f"{split.classes} classes, {counted} per class"
    if split.clients:
        able = "" if split.able is None else f", {split.able} of them with enough for an episode"
        words = f"{split.clients} clients{able}; {words} {'per' if report.predicts_numbers else 'of a'} client"
    if kind == "vectors" and split.numbers:
        low, mean, high = split.numbers
        words += f"; numbers {low:g} to {high:g}, mean {mean:.3g}"
    if kind == "tokens":
        short, long, ids = split.numbers
        words += f"; {short:.0f} to {long:.0f} tokens, {ids:,.0f} different ids"
    return words


def _listed(what: str, entries: tuple[str, ...]) -> list[str]:
    if not entries:
        return []
    more = [f"    ... and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    return [f"  {len(entries)} {what}:", *(f"    {entry}" for entry in entries[:_SHOWN]), *more]
