"""Say what a data set holds, whether it can be trained on, and show some of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.command_line import BAD_INPUT, DONE, parser, print_json
from dpfedmeta.errors import InputError
from dpfedmeta.output_paths import PICTURE_ENDINGS, check_output

if TYPE_CHECKING:
    from dpfedmeta.data.inspection import TaskReport

_SHOWN = 10


def main(words: Sequence[str], console: Console) -> int:
    """Parse, look, tell."""
    arguments = parser("What a task or a folder of images holds.", settings=False, program="dpfedmeta check-task")
    arguments.add_argument("task", help="a built-in task, a task file, or a folder of images")
    arguments.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    arguments.add_argument("--out", type=Path, help="write a contact sheet to this PNG file")
    arguments.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = arguments.parse_args(words)
    check_output("--out", options.out, PICTURE_ENDINGS)
    from dpfedmeta.data.inspection import contact_sheet, inspect_task

    report, dataset = inspect_task(options.task, options.data_dir)
    if options.json:
        print_json(dataclasses.asdict(report) | {"sound": report.sound})
    else:
        for line in describe(report):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    if options.out is not None and dataset is not None:
        try:
            contact_sheet(dataset).save(options.out, format="PNG")
        except OSError as error:
            raise InputError(f"--out {options.out}: cannot be written ({error.strerror})") from error
        if not options.json:
            console.print(f"contact sheet: {options.out}", highlight=False, soft_wrap=True)
    return DONE if report.problem is None else BAD_INPUT


def describe(report: TaskReport) -> list[str]:
    """The findings as lines."""
    lines = [f"{report.name}: {report.channels} x {report.image_size} x {report.image_size} after decoding"]
    for name, split in report.splits.items():
        each = f"{split.fewest}" if split.fewest == split.most else f"{split.fewest} ({split.smallest}) to {split.most}"
        lines.append(f"  {name}: {split.classes} classes, {split.images:,} images, {each} per class")
    for what, counts in (("sizes of the files", report.sizes), ("modes of the files", report.modes)):
        if counts:
            shown = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:_SHOWN])
            lines.append(f"  {what}: {shown}{', ...' if len(counts) > _SHOWN else ''}")
    lines += _listed("files do not decode", report.unreadable)
    lines.append(f"  images that repeat another one: {report.repeated}")
    lines += _listed("of them in two splits", report.across_splits)
    if report.problem is not None:
        lines.append(f"  cannot be used: {report.problem}")
    return lines


def _listed(what: str, entries: tuple[str, ...]) -> list[str]:
    if not entries:
        return []
    more = [f"    ... and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    return [f"  {len(entries)} {what}:", *(f"    {entry}" for entry in entries[:_SHOWN]), *more]
