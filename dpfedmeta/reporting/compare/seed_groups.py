"""Runs that differ only by their seed, as one line of a comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.relations.relations import RELATIONS, Relation
from dpfedmeta.accounting.rounded import asked
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY, WITH_RESULT, RunDirectory
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml
from dpfedmeta.planning.data_digests import kept_data
from dpfedmeta.training.results.snapshot import read_run, stage_of
from dpfedmeta.training.results.summary import summary_so_far
from dpfedmeta.training.state.resume import code_of
from dpfedmeta.training.verification.proven import Proven


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A mean with the half-width of its 95% interval.

    Attributes:
        mean: The mean.
        ci95: Half the width of its interval.
        runs: How many runs it is from. With one run the interval is over episodes alone.
    """

    mean: float
    ci95: float
    runs: int = 1

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Measured:
        """Read the value in the form of summary.json."""
        return cls(mean=float(value["mean"]), ci95=float(value["ci95"]))

    def as_json(self) -> dict[str, float | int]:
        """The form of summary.json, with the number of runs."""
        return {"mean": self.mean, "ci95": self.ci95, "runs": self.runs}


def pooled(values: Sequence[Measured]) -> Measured:
    """Mean over seeds.

    The spread between seeds holds both the seeds' own and that of the episodes, so Student's interval on the runs'
    means covers both. A few seeds may agree by chance: the interval is never narrower than episodes alone make it.
    """
    count = len(values)
    mean = sum(value.mean for value in values) / count
    episodes = math.sqrt(sum(value.ci95**2 for value in values)) / count
    if count == 1:
        return Measured(mean=mean, ci95=episodes)
    variance = sum((value.mean - mean) ** 2 for value in values) / (count - 1)
    seeds = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return Measured(mean=mean, ci95=max(seeds, episodes), runs=count)


# Names, places, seeds and machines: runs that differ in these alone are one setting.
_OF_A_RUN = ("run.", "track.")
# They have columns of their own.
_SAID_APART = ("algo", "dataset")
# Modules of the user's own, shown by the end of their digests.
_CODE, _SHOWN = "code of ", 8
Cell = tuple[str, str]
# More differences than this say less than the name of a run.
_MOST_WORDS = 4


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one setting.

    Attributes:
        label: What makes it differ from the others.
        runs: Its runs, one for each seed.
    """

    label: str
    runs: tuple[RunDirectory, ...]

    @classmethod
    def of(cls, label: str, paths: Iterable[Path]) -> Group:
        """Make a group from the folders of runs."""
        return cls(label=label, runs=tuple(RunDirectory(path) for path in paths))

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """summary.json of each run; of one that has not ended, what there is to say so far."""
        return [_summary(run) for run in self.runs]

    @cached_property
    def own_method(self) -> str:
        """Name of a method of the user's own, which computes what clients send; empty: the preset's."""
        method = str(_settings(self.runs[0]).get("meta.method", ""))
        return method if ":" in method else ""

    @cached_property
    def rows(self) -> list[list[dict[str, Any]]]:
        """rounds.jsonl of each run."""
        return [run.rounds() for run in self.runs]

    @cached_property
    def planned_rounds(self) -> int:
        """Rounds of the plan, which all of the runs share; where none is readable, the most that a run has."""
        return max(*(int(_settings(run).get("server.rounds", 0)) for run in self.runs), *map(len, self.rows))

    def accuracy(self, name: str = "accuracy") -> Measured | None:
        """Return an accuracy of summary.json, pooled over the seeds; None where nothing was evaluated."""
        values = [Measured.of(summary[name]) for summary in self.summaries if summary[name]]
        return pooled(values) if values else None

    @property
    def validation(self) -> Measured | None:
        """The last accuracy on public validation classes over the seeds."""
        found = [last_validation(rows) for rows in self.rows]
        values = [value for value in found if value is not None]
        return pooled(values) if values else None

    @property
    def epsilons(self) -> dict[Cell, float | None]:
        """By (unit, observer): of the runs, the weakest; None: infinite."""
        return _weakest([{_cell(cell): cell["epsilon"] for cell in s["guarantees"]} for s in self.summaries])

    @property
    def relations(self) -> dict[Cell, dict[str, float | None]]:
        """The same of a record by relation, for those that all of the runs state."""
        cells = [{_cell(cell): cell.get("relations", {}) for cell in s["guarantees"]} for s in self.summaries]
        return {cell: found for cell in cells[0] if (found := _weakest([each.get(cell, {}) for each in cells]))}

    @property
    def adjacencies(self) -> dict[Cell, str]:
        """By (unit, observer): what neighbours differ in."""
        return {_cell(cell): cell["adjacency"] for cell in self.summaries[0]["guarantees"] if "adjacency" in cell}

    @property
    def deltas(self) -> dict[Cell, float]:
        """By (unit, observer)."""
        return {_cell(cell): cell["delta"] for cell in self.summaries[0]["guarantees"] if "delta" in cell}

    @property
    def minutes(self) -> float | None:
        """Mean minutes of training; None if a run has not ended."""
        seconds = [summary["seconds"] for summary in self.summaries]
        return None if None in seconds else float(sum(seconds)) / len(seconds) / 60


def costliest_relation(groups: Sequence[Group]) -> Relation | None:
    """The costliest relation of a record that all runs state; None: there is none but their own."""
    stated = [set(relations) for group in groups for relations in group.relations.values()]
    shared = [relation for relation in RELATIONS if stated and all(relation in each for each in stated)]
    return shared[-1] if len(shared) > 1 else None


def in_brackets(relation: Relation) -> str:
    """Say for people which epsilon stands in brackets."""
    return f"in brackets: a record, if {RELATIONS[relation].words} ({relation})"


def _weakest(found: Sequence[Mapping[Any, Any]]) -> dict[Any, float | None]:
    values = {name: [cells[name] for cells in found] for name in found[0] if all(name in cells for cells in found)}
    return {
        name: None if None in each else max(value for value in each if value is not None)
        for name, each in values.items()
    }


def _cell(stated: Mapping[str, Any]) -> Cell:
    return stated["unit"], stated["observer"]


def _summary(run: RunDirectory) -> dict[str, Any]:
    if stage_of(run) not in ("running", "stopped"):
        return dict(run.read_json(SUMMARY))
    snapshot = read_run(run)
    return summary_so_far(snapshot, Proven.of(run, snapshot.content))


def last_validation(rows: Sequence[Mapping[str, Any]]) -> Measured | None:
    """The number that W&B's metric ends with."""
    points = [row["validation_accuracy"] for row in rows if "validation_accuracy" in row]
    return Measured.of(points[-1]) if points else None


def group_runs(runs: Sequence[RunDirectory]) -> tuple[Group, ...]:
    """Group by everything in config.yaml but the run itself, and by the data, in the order of first appearance.

    A run without a readable config.yaml stays alone. Data of one name that were edited since are other data, and so is
    a module of the user's own.
    """
    settings = {run: _settings(run) for run in runs}
    groups: dict[str, list[RunDirectory]] = {}
    for run in runs:
        content = [settings[run], _data(run), code_of(run)]
        key = json.dumps(content, sort_keys=True, default=str) if settings[run] else str(run.path)
        groups.setdefault(key, []).append(run)
    differing = _differing([settings[found[0]] for found in groups.values()])
    single = all(len(found) == 1 for found in groups.values())
    # Whoever names runs one by one knows them by these names.
    labels = [
        found[0].path.name if single else _label(found, settings[found[0]], differing) for found in groups.values()
    ]
    if len(set(labels)) < len(labels):
        labels = [str(found[0].path) for found in groups.values()]
    labels = [label + _unfinished(found) for label, found in zip(labels, groups.values(), strict=True)]
    return tuple(Group(label=label, runs=tuple(found)) for label, found in zip(labels, groups.values(), strict=True))


def code_words(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a line for the settings that several groups share, whose code of the user's own is not the same."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        found = {k: v for k, v in _settings(group.runs[0]).items() if not k.startswith(_CODE)}
        alike.setdefault(json.dumps(found, sort_keys=True, default=str), []).append(group)
    for each in alike.values():
        code = [code_of(group.runs[0]) for group in each]
        names = sorted(name for name in {*code[0]}.union(*code) if len({found.get(name) for found in code}) > 1)
        if names:
            runs = "; ".join(", ".join(str(run.path) for run in group.runs) for group in each)
            yield f"not pooled: {runs}: same settings, but not the same code ({', '.join(names)})"


def check_different(runs: Sequence[RunDirectory]) -> None:
    """Refuse one run that is given twice, or a copy of it: it would count as a further seed.

    Raises:
        InputError: Names both.
    """
    first: dict[str, Path] = {}
    for run in runs:
        other = first.setdefault(read_content(run.ledger, torn=True).identity.run, run.path)
        if other is not run.path:
            raise InputError(f"{run.path}: is the same run as {other}, and no second seed; leave one of them out")


def _data(run: RunDirectory) -> str | None:
    """SECRET: digest of the data, which is compared and never shown; None where a copy of the run lacks it."""
    try:
        held = kept_data(run)
    except InputError:
        return None
    return held.clients if held.own else held.sha256


def _unfinished(runs: Iterable[RunDirectory]) -> str:
    """Behind the name of a setting, wherever its accuracy stands: that not all of its runs ended as planned."""
    stages = dict.fromkeys(stage_of(run) for run in runs)
    left = [stage.upper() for stage in stages if stage not in WITH_RESULT]
    return f" ({', '.join(left)})" if left else ""


def _label(runs: Sequence[RunDirectory], settings: Mapping[str, Any], differing: Sequence[str]) -> str:
    if not differing or not settings:
        return runs[0].path.name
    if len(differing) > _MOST_WORDS:
        return runs[0].path.name
    return describe({name: settings.get(name) for name in differing})


def describe(values: Mapping[str, Any]) -> str:
    """Settings in few words: the last part of each name, where no other has it; a file by its name alone."""
    words = []
    lasts = [name.rsplit(".", 1)[-1] for name in values]
    for name, value in values.items():
        last = name.rsplit(".", 1)[-1]
        written = asked if last in ("epsilon", "delta") else "{:g}".format
        shown = written(value) if isinstance(value, float) else str(value)
        words.append(Path(shown).stem if name == "config" else f"{last if lasts.count(last) == 1 else name}={shown}")
    return ", ".join(words)


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({str(each.get(name)) for each in settings}) > 1]


def differing_settings(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """By label, the settings in which not all groups are alike, as text; nothing where one has no config.yaml."""
    each = {group.label: _settings(group.runs[0]) for group in groups}
    if not all(each.values()):
        return {}
    names = [name for name in _differing(list(each.values())) if name not in _SAID_APART]
    return {
        label: {name: "null" if found.get(name) is None else str(found[name]) for name in names}
        for label, found in each.items()
    }


def _settings(run: RunDirectory) -> dict[str, Any]:
    path = run.path / CONFIG
    if not path.exists():
        return {}
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, *YAML_ERRORS) as error:
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    found = {name: value for name, value in _flat(content) if not name.startswith(_OF_A_RUN)}
    # config.yaml is that of the first plan; a run that was extended since has more rounds.
    plan = read_content(run.ledger, torn=True).plan if run.ledger.exists() else None
    found |= {"server.rounds": plan.rounds} if plan is not None and plan.ends else {}
    return found | {_CODE + name: digest[-_SHOWN:] for name, digest in code_of(run).items()}


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(content, Mapping):
        return
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
