"""Trackers of released quantities, one file each, by the names in `track.to`.

A tracker sees rows of plain numbers, never a bounded value.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpfedmeta.config.run_settings import TrackSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.plugins.plugin_registry import check_protocol, find
from dpfedmeta.training.tracking.callbacks import Callback

SUFFIX = "_tracker"


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Run and its settings, as trackers need them.

    Attributes:
        run: Its directory.
        settings: What it was asked for.
        identity: What stays the same when it is resumed.
        timed: Whether its rows may tell the times of rounds.
        pictures: Draws the report's pictures, when summary.json is there.
    """

    run: RunDirectory
    settings: Settings
    identity: str
    timed: bool
    pictures: Callable[[RunDirectory], Sequence[Path]]


class Tracker(Protocol):
    """Destination of a run's rows: the `MEMBER` of a file here, or package.module:name in `track.to`.

    It may have a function `check_variables(settings)` too, which a dry run calls: it looks at variables, and reaches
    nobody.
    """

    def check(self, settings: TrackSettings, say: Callable[[str], None]) -> None:
        """Refuse what cannot work, before anything is written.

        Raises:
            InputError: One line says what to do.
        """

    def opened(self, tracked: Tracked, say: Callable[[str], None]) -> Callback:
        """Begin for a run; the callback is told its rows and its end.

        Raises:
            InputError: It cannot begin.
        """


def trackers_of(settings: TrackSettings) -> Iterator[Tracker]:
    """Yield the trackers that settings name, each once.

    Raises:
        InputError: One is not known, or lacks a part.
    """
    named = [*settings.to]
    named += ["wandb"] if settings.wandb != "off" else []
    named += ["tensorboard"] if settings.tensorboard else []
    for name in dict.fromkeys(named):
        tracker: Tracker = find("track.to", name, __name__)
        check_protocol("track.to", name, tracker, "check", "opened")
        yield tracker


def check_variables(settings: TrackSettings) -> None:
    """Look at what trackers read of the environment, by their function of this name, and reach nobody.

    Raises:
        InputError: A variable holds what its tracker does not take.
    """
    for tracker in trackers_of(settings):
        look: Callable[[TrackSettings], object] = getattr(tracker, "check_variables", lambda settings: None)
        look(settings)
