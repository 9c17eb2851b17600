"""MLflow: `track.to mlflow`; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where, as MLflow reads them."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpfedmeta.config.run_settings import TrackSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.trackers import Tracked
from dpfedmeta.training.tracking.callbacks import Callback, Row
from dpfedmeta.training.tracking.flatten_rows import flat, flat_settings, flat_summary, last_round

_IDENTITY = "dpfedmeta.identity"
# Milliseconds; MLflow takes 0 for none, and fills in the clock.
_NO_TIME = 1
# MLflow's limits for one call, and for the value of a parameter.
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST = 1000, 100, 6000


class MLflow(Callback):
    """The rows of rounds.jsonl as metrics of an MLflow run, its settings as parameters, and the summary at the end.

    Guarantee:
        Rows and summary are released quantities. Where rows tell no times, nothing of MLflow begins before the run
        ends: a server sees when it is told something. All rows are sent then, with their round as their time, and the
        run begins and ends at time 1. Tags that MLflow's fluent interface would add (user, host, script) are not sent.
    """

    def __init__(self, tracked: Tracked, say: Callable[[str], None]) -> None:
        """`say` is told what a person should know."""
        self._tracked, self._say = tracked, say
        self._open: tuple[Any, str] | None = None
        self._next = 0
        if tracked.timed:
            self._tried(self._begin, "training goes on, and MLflow is tried again at its end")

    def on_round(self, row: Row) -> None:
        """Send the row; the first call also sends those of the processes before."""
        if self._open is not None:
            self._tried(self._catch_up, "training goes on, and MLflow is tried again at its end")

    def on_end(self, summary: Row) -> None:
        """Send what is not there yet, and the summary; whatever happens there, the run itself is whole."""

        def conclude() -> None:
            if self._open is None:
                self._begin()
            self._catch_up()
            assert self._open is not None
            client, run = self._open
            step, numbers = last_round(self._tracked.run.rounds()), _numbers(flat_summary(summary))
            self._send({f"summary/{name}": value for name, value in numbers.items()}, step)
            client.set_terminated(run, "FINISHED", end_time=None if self._tracked.timed else _NO_TIME)

        self._tried(conclude, "the run itself is complete")

    def _tried(self, action: Callable[[], None], words: str) -> None:
        try:
            action()
        except Exception as error:
            # Not the run's trouble: what it spent of privacy is spent.
            self._say(f"MLflow: {' '.join(str(error).split()) or type(error).__name__}; {words}")
            self._open = None

    def _begin(self) -> None:
        from mlflow import MlflowClient

        client, tracked = MlflowClient(), self._tracked
        now = int(time.time() * 1000) if tracked.timed else _NO_TIME
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dpfedmeta")
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        # A resumed run goes on where it was.
        before = client.search_runs([experiment], f"tags.`{_IDENTITY}` = '{tracked.identity}'", max_results=1)
        if before:
            self._open, self._next = (client, before[0].info.run_id), _sent(before[0])
            return
        tags = {_IDENTITY: tracked.identity}
        made = client.create_run(experiment, start_time=now, run_name=tracked.run.path.name, tags=tags)
        self._open, self._next = (client, made.info.run_id), 0
        for group in _groups(list(flat_settings(tracked.settings).items()), _MOST_PARAMETERS):
            client.log_batch(made.info.run_id, params=[_parameter(name, value) for name, value in group])

    def _catch_up(self) -> None:
        for row in self._tracked.run.rounds():
            if row["round"] >= self._next:
                self._send(_numbers(flat(row)), int(row["round"]))
                self._next = int(row["round"]) + 1

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        assert self._open is not None
        client, run = self._open
        # Not the clock's.
        when = int(time.time() * 1000) if self._tracked.timed else step
        for group in _groups(list(numbers.items()), _MOST_METRICS):
            client.log_batch(run, metrics=[Metric(_key(name), value, when, step) for name, value in group])


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _parameter(name: str, value: object) -> Any:
    from mlflow.entities import Param

    return Param(_key(name), str(value)[:_LONGEST])


def _key(name: str) -> str:
    """MLflow takes letters, digits, _ - . space : and / in a name."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)


def _sent(run: Any) -> int:
    """Rounds whose rows are there: `round` is one of a row's numbers."""
    return int(run.data.metrics["round"]) + 1 if "round" in run.data.metrics else 0


def _groups(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


class MLflowTracker:
    """Tracker of `mlflow` in `track.to`."""

    @staticmethod
    def check(settings: TrackSettings, say: Callable[[str], None]) -> None:
        """Refuse to begin without MLflow.

        Raises:
            InputError: It is not installed.
        """
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise InputError(
                "track.to = mlflow: MLflow is not installed; type: pip install 'dpfedmeta[mlflow]'"
            ) from error

    opened = MLflow


MEMBER = MLflowTracker
