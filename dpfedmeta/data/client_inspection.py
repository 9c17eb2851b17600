"""A look at the data of one real client, for their owner: what takes part, and whether a plan can use it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, reasons
from dpfedmeta.data.columns import TARGET, constant_columns, two_units
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.missing import MissingValues, look_for_missing
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.task_file import TASK_ENDINGS, load_task
from dpfedmeta.data.user_sources.csv_table import check_spelled_alike
from dpfedmeta.data.user_sources.readers import columns_in, reader_name
from dpfedmeta.data.user_sources.sound_rows import SoundRows, any_rows, sound_rows


@dataclass(frozen=True, kw_only=True)
class ClientReport:
    """SECRET: what one client holds, and how much of it a plan of this shape would use.

    Attributes:
        path: The data.
        reader: How they were read: folder, manifest, vectors or tokens.
        columns: Names of a vector's numbers; empty for other data.
        classes: Records of each class that take part.
        repeated: Records that repeat another one of their class.
        shape: Of a client's episode.
        unsound: Where each row is that counts as a null record, and why.
        remarks: Other things that its owner may not have meant.
    """

    path: str
    reader: str
    columns: tuple[str, ...]
    classes: dict[str, int]
    repeated: int
    shape: EpisodeShape
    unsound: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def numbers(self) -> bool:
        """True if the table has numbers to predict in the place of classes."""
        return {*self.classes} == {TARGET}

    @property
    def able(self) -> tuple[str, ...]:
        """Classes with enough records for an episode."""
        needed = self.shape.shots + self.shape.queries
        return tuple(name for name, count in self.classes.items() if count >= needed)

    @property
    def sound(self) -> bool:
        """True if enough classes are able; a client with fewer sends only noise."""
        return len(self.able) >= self.shape.ways

    @property
    def used(self) -> int:
        """Records that enter a round: the plan's number of as many classes, or none."""
        return self.shape.support_records + self.shape.query_records if self.sound else 0


def inspect_client(path: Path, shape: EpisodeShape) -> ClientReport:
    """Read the data of one real client as `federate client --data` does; nothing leaves the machine.

    Args:
        path: A folder of images, a list of them, or a table; or a task file of it, whose constants rows must keep to.
        shape: Of a client's episode in the plan.

    Raises:
        InputError: No row of them is sound; says why.
    """
    task = None
    if path.suffix.lower() in TASK_ENDINGS:
        task, _ = load_task(str(path))
        if not isinstance(task.source, OwnSource):
            raise InputError(f"{path}: names no data; give the client's own, or a task file of them")
        path = Path(task.source.path)
    reader = reader_name(path)
    all_rows = any_rows(path) if task is None else sound_rows(path, reader, task, columns_in(reader, path))
    found = all_rows.looked_at() if task is None or task.form.kind == "images" else all_rows
    held = found.digests()
    if {label for label, _ in held} == {TARGET}:
        # Numbers to predict have no classes.
        shape = replace(shape, ways=1)
    return ClientReport(
        path=str(path),
        reader=reader,
        columns=columns_in(reader, path),
        classes=dict(sorted(Counter(label for label, _ in held).items())),
        repeated=len(held) - len(set(held)),
        shape=shape,
        unsound=found.unsound,
        remarks=(
            *_remarks(found),
            *lone_classes((label for label, _ in held), task),
            *missing_remarks(all_rows if task is None else any_rows(path), task.missing if task else None),
        ),
    )


def _remarks(found: SoundRows) -> tuple[str, ...]:
    """Remarks on rows that are sound by themselves, and hardly meant together."""
    said = []
    clients = sorted({row.client for row in found.rows})
    if len(clients) > 1:
        said.append(f"column client names {len(clients)} clients ({listed(clients)}); all rows count as this client's")
    try:
        check_spelled_alike(str(found.path), [replace(row, client="") for row in found.rows])
    except InputError as error:
        said.append(str(error).removeprefix(f"{found.path}: "))
    return tuple(said)


def missing_remarks(found: SoundRows, known: MissingValues | None = None) -> tuple[str, ...]:
    """SECRET: where values of a table are missing, or look so, and which columns say nothing or have two units.

    Args:
        found: Rows under any plan.
        known: What a plan says of missing values.
    """
    if not (names := found.names()):
        return ()
    numbers, absent, words = look_for_missing([values[: len(names)] for values in found.values], names, known)
    held = np.where(absent, np.nan, numbers)
    return (*words, *constant_columns(names, held), *two_units(names, held, [row.label for row in found.rows]))


def lone_classes(labels: Iterable[str], task: Task | None = None) -> tuple[str, ...]:
    """SECRET: classes of clients' own with a single record, of which moments make no pair.

    Args:
        labels: Of all records.
        task: Theirs, if it is known: shared labels and numbers to predict need no pairs.
    """
    if task is not None and (task.labels or task.targets or task.shared_classes):
        return ()
    lone = [label for label, count in Counter(labels).items() if count == 1 and label != TARGET]
    return (f"class(es) with one record, which moments find no pair for: {listed(lone)}",) if lone else ()


def describe_client(report: ClientReport) -> list[str]:
    """The findings as lines, in the owner's words."""
    shape, needed, total = report.shape, report.shape.shots + report.shape.queries, sum(report.classes.values())
    what = "images" if report.reader in ("folder", "manifest") else "records"
    counts = list(report.classes.items())
    shown = ", ".join(f"{name} ({count:,})" for name, count in counts[:10]) + (", ..." if len(counts) > 10 else "")
    lines = [
        f"{report.path}: one client, as federate client --data {report.path} takes part",
        f"  {total:,} {what} with a number to predict take part"
        if report.numbers
        else f"  {total:,} {what} of {len(counts)} classes take part: {shown}",
    ]
    if report.columns:
        lines.append(f"  {len(report.columns)} features, found by their names: {', '.join(report.columns)}")
    if report.repeated:
        lines.append(f"  {report.repeated:,} {what} repeat another one of their class")
    if report.unsound:
        lines.append(f"  {len(report.unsound):,} {what} are wrong and left out: {reasons(report.unsound)}")
    lines += [f"  {words}" for words in report.remarks]
    wanted = f"{shape.ways} classes with {needed} {what} each ({shape.shots} support, {shape.queries} query)"
    if report.numbers:
        uses = (
            f"uses {report.used} of them, chosen once"
            if report.sound
            else "cannot use them; such a client sends only noise"
        )
        lines.append(f"  a plan that asks for {needed} {what} ({shape.shots} support, {shape.queries} query) {uses}")
    elif report.sound:
        lines.append(f"  a plan that asks for {wanted} uses {report.used} of them: {shape.ways} classes, chosen once")
    else:
        lines.append(
            f"  a plan that asks for {wanted} cannot use them: {len(report.able)} classes have so many; such a client "
            "sends only noise. Ask the operator for another plan (--ways, --shots, --task.queries)"
        )
    lines.append(
        f"  a plan that promises something of single {what} decides over each by itself: a hash of it says where it is "
        "used, and where too few meet, they are not"
    )
    return lines
