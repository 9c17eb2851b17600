"""A run in Python: what it promised, spent and reached, and the model that it learned."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from rich.table import Table

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.ledger import LedgerContent, read_content, spent
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import not_a_run
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training.personal.personal_model import Initialisation, PersonalModel, load
from dpfedmeta.training.personal.user_inputs import Images, Labels
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.terminal.tables import as_text
from dpfedmeta.training.tracking.plan_summary import Guarantees
from dpfedmeta.training.verification.chosen_run import cells_of_choice, verified_selection

_PICTURES = ("accuracy", "clip", "guarantees")
_SHOWN = ("round", "clip", "aggregate_norm", "noise_norm_expected", "epsilon_client_public", "validation_accuracy")


class Rounds(list[dict[str, Any]]):
    """Rows of the rounds, all with the same columns; None where a round has no such number, or where it is infinite.

    round, clip (the bound), clip_mode, aggregate_norm, noise_norm_expected, signal_to_noise; epsilon_client_public,
    epsilon_client_server, epsilon_record_server, epsilon_record_public (spent so far); validation_accuracy and
    validation_ci95 (where validated); validation_accuracy_untrained (before round 0, in its row); seconds and
    clients_per_second (where told); aborted; release (a digest); and what else rounds.jsonl has.
    """

    def frame(self) -> Any:
        """The same as a pandas.DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            return importlib.import_module("pandas").DataFrame(list(self))
        except ImportError as error:
            raise InputError("rounds.frame(): needs pandas (pip install pandas); rounds itself is a list") from error

    def __repr__(self) -> str:
        table = Table()
        for name in _SHOWN:
            table.add_column(name, justify="right")
        few = [*self[:3], *self[-3:]] if len(self) > 6 else self
        for row in few:
            table.add_row(*(_shown(name, row[name]) for name in _SHOWN))
        return as_text(
            table,
            f"{counted_words(len(self), 'round')}, {len(few)} shown; columns: {', '.join(self[0]) if self else ''}",
        )


class Run:
    """A run directory, read when it is asked for; nothing is kept but its path."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """The run at `path`.

        Raises:
            InputError: It is no run directory.
        """
        self.path = Path(path)
        self._directory = RunDirectory(self.path)
        if not (self.path / CONFIG).is_file():
            raise not_a_run(self.path, CONFIG)

    @property
    def settings(self) -> Settings:
        """Settings in the run's config.yaml."""
        return resolve(None, None, self.path / CONFIG)

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json."""
        found: Mapping[str, Any] = self._directory.read_json(SUMMARY)
        return found

    @property
    def status(self) -> str:
        """State of the run: completed, budget (the budget ended it), interrupted (it can be resumed), or diverged.

        Else running, while a process writes it, or stopped: killed, or crashed, and it can be resumed.
        """
        return read_run(self._directory).stage

    @property
    def accuracy(self) -> Accuracy | None:
        """On held-out test data, after adaptation: mean, ci95; of numbers to predict the mean absolute error.

        None where it was not evaluated.
        """
        summary = self.summary
        score = next((name for name in ("accuracy", "error") if summary.get(name) is not None), None)
        return None if score is None else Accuracy.from_json(summary[score], score)

    @property
    def guarantees(self) -> Guarantees:
        """Guarantees of what was spent, from the ledger."""
        ledger = self._ledger()
        return self._of_choice(spent(ledger.plan, ledger.charges))

    @property
    def planned(self) -> Guarantees:
        """Guarantees that were promised before round 0, from the ledger's plan."""
        return self._of_choice(guarantees(self._ledger().plan))

    def _of_choice(self, cells: Sequence[Guarantee]) -> Guarantees:
        """Return the cells; of a run that a private sweep chose, those that hold with the choice."""
        ledger = self._ledger()
        own = spent(ledger.plan, ledger.charges)
        return Guarantees(cells_of_choice(cells, verified_selection(self._directory, ledger, own)))

    @property
    def rounds(self) -> Rounds:
        """Released quantities, one row a round."""
        return _table(self._directory.rounds())

    @property
    def plots(self) -> dict[str, Path]:
        """The report's pictures by name: accuracy, clip, guarantees; drawn if they are not there yet."""
        found = {name: self.path / f"{name}.png" for name in _PICTURES}
        if not all(path.exists() for path in found.values()):
            self.report()
        return found

    def report(self) -> Path:
        """Write report.html and its pictures.

        Raises:
            InputError: A file is missing or damaged, or contradicts the ledger.
        """
        return write_report(self._directory)

    @cached_property
    def initialisation(self) -> Initialisation:
        """Learned initialisation, as load("runs/NAME") gives it."""
        return load(self.path)

    def adapt(
        self,
        images: Images,
        labels: Labels,
        *,
        class_names: Sequence[str] = (),
        ways: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> PersonalModel:
        """Adapt to labelled images of one's own, as Initialisation.adapt does. Nothing leaves the machine."""
        return self.initialisation.adapt(images, labels, class_names=class_names, ways=ways, steps=steps, lr=lr)

    def __repr__(self) -> str:
        lines = [f"run {self.path}: {self._words()}", repr(self.guarantees)]
        return "\n".join(lines)

    def _words(self) -> str:
        snapshot = read_run(self._directory)
        if snapshot.words is not None:
            return snapshot.words
        summary = self.summary
        found = self.accuracy
        reached = f", {found.score} {found}" if found is not None else ""
        done = f"{counted_words(summary['rounds'], 'round')}, {summary['status']}"
        return f"{summary['algo']} on {summary['dataset']}, {done}{reached}"

    def _ledger(self) -> LedgerContent:
        return read_content(self._directory.ledger, torn=True)


def _table(rows: Iterable[Mapping[str, Any]]) -> Rounds:
    """Rows of rounds.jsonl with one level of names, all the same ones."""
    flat = [_one_level(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return Rounds([{name: row.get(name) for name in names} for row in flat])


def _one_level(row: Mapping[str, Any]) -> dict[str, Any]:
    # Of classes an accuracy, of numbers to predict an error.
    validations = {name: value for name, value in row.items() if name.startswith("validation_") and value is not None}
    plain = {name: value for name, value in row.items() if name != "epsilons" and not name.startswith("validation_")}
    epsilons = {f"epsilon_{cell}": value for cell, value in row["epsilons"].items()}
    measured: dict[str, Any] = {"validation_accuracy": None, "validation_ci95": None}
    for name, value in validations.items():
        measured[name] = value["mean"]
        if not name.endswith("_untrained"):
            measured["validation_ci95"] = value["ci95"]
    beside = {name: plain.get(name) for name in ("aggregate_norm", "noise_norm_expected", "aborted")}
    return {**plain, **beside, **epsilons, **measured}


def _shown(name: str, value: Any) -> str:
    if name.startswith("epsilon_"):
        return rounded_up(value)
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
