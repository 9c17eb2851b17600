"""Runs that were measured on the same episodes, compared pair by pair from what was kept of each episode."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import EPISODES, EVALUATION, RunDirectory
from dpfedmeta.learning.evaluation.accuracy import KeptEpisodes, PairedDifference
from dpfedmeta.training.results.evaluation_store import size


@dataclass(frozen=True, kw_only=True)
class PairOfRuns:
    """Two runs on the same episodes.

    Attributes:
        first: Name of the one.
        second: Name of the other.
        what: Size of the episodes.
        difference: First minus second.
    """

    first: str
    second: str
    what: str
    difference: PairedDifference

    def __str__(self) -> str:
        return f"{self.first} - {self.second}{', ' * bool(self.what)}{self.what}: {self.difference}, of these two runs"


def kept_episodes(run: RunDirectory) -> list[KeptEpisodes]:
    """Return what a run keeps of single episodes: of its own test at the end, and of evaluate.py.

    Raises:
        InputError: A file is damaged; says which.
    """
    paths = [run.path / EPISODES, run.path / EVALUATION, *sorted((run.path / "evaluations").glob("[!.]*.json"))]
    found: list[KeptEpisodes] = []
    for path in paths:
        if path.exists():
            content = RunDirectory(path.parent).read_json(path.name)
            try:
                found += episodes_of(content)
            except DAMAGED_JSON as error:
                raise InputError(f"{path}: its episodes cannot be read ({error!r}); measure them again") from error
    return found


def episodes_of(content: Mapping[str, Any]) -> list[KeptEpisodes]:
    """Return the kept episodes in the content of a file."""
    protocol = str(content.get("protocol", ""))
    results = content.get("results", [content])
    kept = [KeptEpisodes.of(size(result), protocol, result) for result in results]
    return [each for each in kept if each is not None]


def pairs(kept: Mapping[str, Sequence[KeptEpisodes]]) -> Iterator[PairOfRuns]:
    """Every run against the first one, once for all episodes that both were measured on.

    Args:
        kept: By name of the run, in the order of the runs.
    """
    (first, own), *others = kept.items()
    for name, theirs in others:
        due = {(each.digest, each.protocol): each for each in reversed(theirs)}
        # The same episodes once, with the size in words where a file says it.
        for each in sorted({(e.digest, e.protocol): e for e in sorted(own, key=lambda e: e.what)}.values(), key=_order):
            other = due.get((each.digest, each.protocol))
            if other is not None:
                difference = PairedDifference.of(each.accuracies, other.accuracies, each.counted)
                yield PairOfRuns(first=first, second=name, what=each.what or other.what, difference=difference)


def _order(kept: KeptEpisodes) -> tuple[str, str]:
    return kept.what, kept.digest
