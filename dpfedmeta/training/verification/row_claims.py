"""The epsilons along the way in rounds.jsonl, compared with what the ledger adds up to after each round."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.divergences.pld_composition import GRIDS
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.ledger.published import check_releases
from dpfedmeta.accounting.observers.four_guarantees import four_cells, running_grid
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.rounded import asked
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.comparison import complete
from dpfedmeta.core.files.run_directory import ROUNDS, RunDirectory
from dpfedmeta.data.task import OwnSource
from dpfedmeta.planning.policy_from_settings import OWN
from dpfedmeta.planning.privacy.secure_sum_settings import noise_of_unit_bound
from dpfedmeta.training.results.round_rows import TOO_LONG, cell, delta_at_limit
from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.verification.proven import Proven
from dpfedmeta.training.verification.unproven_words import check_words

# Rows whose epsilons are computed again (about 40 ms each); the others may not fall from line to line.
_EVENLY, _EARLY = 16, 8
# The grid of running epsilons is within 1%.
_ROOM = 1.015
_LAST_DIGITS = 1e-6

Row = Mapping[str, Any]


def check_rows(snapshot: Snapshot, proven: Proven) -> list[str]:
    """rounds.jsonl has a line for each round in order, and none states less, or clearly more, than was spent by then.

    Raises:
        InputError: Names the line, the cell, and both values; or the rounds that the ledger lacks.
    """
    run, rows = snapshot.run, snapshot.rows
    path = run.rounds_file
    if rows is None:
        return []
    with complete(path):
        _check_rounds(run, proven, rows)
        remarks = _check_noise(run, proven, rows)
        check_releases(run.ledger, proven.content, [row.get("release", "") for row in rows], str(path))
        stated = [_epsilons(row, proven) for row in rows]
        along = _Along(proven=proven, finished=snapshot.over)
        for number in _chosen(len(rows)):
            along.check(f"{path}, line {number + 1}", number, stated[number])
            along.check_limit(f"{path}, line {number + 1}", rows[number])
        for number, (before, after) in enumerate(pairwise(stated), start=2):
            fallen = next((name for name in after if after[name] < before[name] * (1 - _LAST_DIGITS)), None)
            if fallen is not None:
                raise InputError(
                    f"{path}, line {number}: epsilons.{fallen}: states {after[fallen]!r} after {before[fallen]!r}, "
                    "but epsilon never falls from round to round"
                )
        for number, row in enumerate(rows, start=1):
            check_words(f"{path}, line {number}", ROUNDS, row)
        # Of a run that goes on, rounds that are done again take the place of lines.
        lines = [] if snapshot.written else path.read_text(encoding="utf-8").splitlines()
        for number, (line, row) in enumerate(zip(lines, rows, strict=False), start=1):
            if line != json.dumps(row):
                raise InputError(f"{path}, line {number}: is not written as a run writes it")
    long = sum(TOO_LONG in row for row in rows)
    if long:
        remarks = [*remarks, f"rounds.jsonl: {long} releases are longer than honest clients give ({TOO_LONG})"]
    return ["rounds.jsonl agrees", *remarks]


def _chosen(rows: int) -> list[int]:
    """The first, the last, some evenly between and some evenly in the logarithm, as epsilon grows."""
    last = rows - 1
    if last < 0:
        return []
    evenly = {round(last * step / (_EVENLY - 1)) for step in range(_EVENLY)}
    return sorted(evenly | {round(rows ** (step / _EARLY)) - 1 for step in range(_EARLY)})


def _check_rounds(run: RunDirectory, proven: Proven, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows):
        if type(row["round"]) is not int or row["round"] != number:
            raise InputError(
                f"{run.rounds_file}, line {number + 1}: has round {row['round']!r}, expected round {number}"
            )
    if len(rows) > proven.rounds:
        raise InputError(
            f"{run.ledger}: ends with round {proven.rounds - 1}, but round {len(rows) - 1} was released "
            f"({run.rounds_file}): lines after {len(proven.content.heads)} are lost; restore the ledger from a "
            "backup"
        )


def _check_noise(run: RunDirectory, proven: Proven, rows: Sequence[Row]) -> list[str]:
    """The expected norm of the noise is z_T C sqrt(d)/L, as the plan, the network and the bound of the round give it.

    Returns:
        A remark where the network cannot be built here: then rows are compared with the first of them, which may state
        no less than the noise of one coordinate.
    """
    unit, remark = _of_unit_bound(proven)
    for number, row in enumerate(rows, start=1):
        constants = proven.content.plan.at(row["round"])
        planned = planned_deviation(constants, row["round"])
        # An aborted round has no release; without the setting, writing the word into a row does not excuse it.
        if planned is None or (row.get("aborted") and proven.settings.server.abort_on_failure):
            continue
        missing = [name for name in ("clip", "noise_norm_expected") if row.get(name) is None]
        if missing and not planned:
            continue
        if missing:
            raise InputError(f"{run.rounds_file}, line {number}: {missing[0]}: is missing, but the round had noise")
        stated = row["noise_norm_expected"]
        due = planned * row["clip"] / constants.cohort
        if unit is None:
            unit = max(stated / due, 1.0) if due else 1.0
        if not math.isclose(stated, unit * due, rel_tol=_LAST_DIGITS):
            raise InputError(
                f"{run.rounds_file}, line {number}: noise_norm_expected: states {stated:.6g} with a clip bound of "
                f"{row['clip']:.6g}, but the ledger's noise {'and the rounds before give' if remark else 'gives'} "
                f"{unit * due:.6g}"
            )
    return remark


def _of_unit_bound(proven: Proven) -> tuple[float | None, list[str]]:
    """(sqrt(d) and what messages carry besides, remarks); None: it takes data or code that is not here."""
    settings, plan = proven.settings, proven.content.plan
    try:
        if settings.clip.policy == OWN:
            raise InputError("its clip policy was an object that was handed over in Python")
        task, _ = task_of(settings)
        if isinstance(task.source, OwnSource) and Path(task.source.path) == Path(settings.dataset):
            raise InputError("no task file states the size of its records, and earlier versions used another size")
        return noise_of_unit_bound(settings, task, plan), []
    except (InputError, RefusedPlan) as error:
        return None, [f"rounds.jsonl: the size of the noise was only compared from round to round: {error}"]


def _epsilons(row: Row, proven: Proven) -> dict[str, float]:
    """By cell; inf where the row says null."""
    names = [cell(guarantee) for guarantee in proven.planned]
    stated = row["epsilons"]
    if sorted(stated) != sorted(names):
        raise ValueError(f"round {row['round']} states epsilons of {sorted(stated)}, not of {sorted(names)}")
    found = {name: math.inf if stated[name] is None else stated[name] for name in names}
    if not all(
        isinstance(value, float | int) and not isinstance(value, bool) and value >= 0 for value in found.values()
    ):
        raise ValueError(f"round {row['round']} states {stated}")
    return found


@dataclass(frozen=True, kw_only=True)
class _Along:
    """Epsilons spent after each round, with which rows are compared.

    Where nothing was done again, that is one number, which a row may exceed by its coarser grid. Where something was,
    a row counts the attempts that had been charged when it was written: at least those up to its round's last one, at
    most everything.

    Attributes:
        proven: The ledger.
        finished: Whether every charge has its row: a row may be of an attempt before the last one otherwise.
    """

    proven: Proven
    finished: bool

    def check(self, where: str, round_: int, stated: Mapping[str, float]) -> None:
        quick = self._after(round_, self._grids)
        # The row's own grid may be finer than the one that is quick here.
        below = any(stated[name] < quick[name] * (1 - _LAST_DIGITS) for name in quick)
        least = self._after(round_, GRIDS) if below else quick
        most = self._most if self._again else least
        for name, value in stated.items():
            if not least[name] * (1 - _LAST_DIGITS) <= value <= most[name] * _ROOM:
                raise InputError(
                    f"{where}: epsilons.{name}: states {value!r}, but the ledger adds up to {asked(least[name])} after "
                    "that round"
                )

    def check_limit(self, where: str, row: Row) -> None:
        """A delta at privacy.client.limit is no smaller than that of the charges."""
        limit, stated = self.proven.settings.privacy.client.limit, row.get("delta_at_limit")
        if limit is None and stated is not None:
            raise InputError(f"{where}: delta_at_limit: states {stated!r}, but the run has no limit")
        if limit is None or stated is None:
            return
        due = delta_at_limit((*self.proven.content.plan.before, *self._charged(row["round"])), limit)
        if not due * (1 - _LAST_DIGITS) <= stated <= 1.0:
            raise InputError(f"{where}: delta_at_limit: states {stated!r}, but the ledger adds up to {asked(due)}")

    @cached_property
    def _grids(self) -> tuple[float, ...]:
        return (running_grid(self.proven.content.plan),)

    @cached_property
    def _again(self) -> bool:
        return any(event.attempt for event in self.proven.content.charges)

    @cached_property
    def _most(self) -> dict[str, float]:
        """Everything, or the promise, which a running epsilon is cut down to."""
        both = zip(self.proven.spent, self.proven.planned, strict=True)
        return {cell(planned): max(spent.epsilon, planned.epsilon) for spent, planned in both}

    def _after(self, round_: int, grids: tuple[float, ...]) -> dict[str, float]:
        done = four_cells(self._charged(round_), Terms.of(self.proven.content.plan), grids)
        return {cell(g): min(g.epsilon, p.epsilon) for g, p in zip(done, self.proven.planned, strict=True)}

    def _charged(self, round_: int) -> tuple[Phase, ...]:
        """Return the fewest charges that the row of a round may count."""
        content = self.proven.content
        if not self._again or not self.finished:
            return content.plan.first(round_ + 1)
        last = max(place for place, event in enumerate(content.charges) if event.round == round_)
        return phases_of(content.charges[: last + 1])
