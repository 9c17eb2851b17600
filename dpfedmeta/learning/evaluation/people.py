"""Judging models on people's own records: each person's part adapts them, and the rest judges them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpfedmeta.core.random.random_sources import FloatArray, IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.evaluation.accuracy import PairedDifference, half_width
from dpfedmeta.learning.evaluation.baselines import Scorer
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES

ScorersOf = Callable[[tuple[int, ...]], Mapping[str, Scorer]]
"""Scorers by name, for a person that has so many records of each class that is judged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Person:
    """SECRET: the records of one person, or one client.

    Attributes:
        name: As in the data; empty where they name nobody.
        records: [n, ...], standardised as the network takes them.
        labels: [n], places in `classes`; or numbers to predict, scaled.
        classes: Names: the person's own, or the task's public list; of numbers to predict one.
        adapts: [n], which records adapt, where the data say it; the others judge. None: they are split at random.
    """

    name: str
    records: Tensor
    labels: IntArray | FloatArray
    classes: tuple[str, ...]
    adapts: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class RecordSplit:
    """Split of a person's records into a part to adapt on and a part to be judged on, within classes, at random.

    Attributes:
        shots: Records of each class to adapt on, at most all but one; None: half of each.
        repeats: How often, by other draws.
        seed: Of the draws.
    """

    shots: int | None
    repeats: int
    seed: int

    def episodes(self, person: Person, number: int, targets: TargetKind = OWN_CLASSES) -> Iterator[Episode]:
        """Yield the splits of a person's records; none where fewer than two classes have two records.

        Of numbers to predict all records are one class. Where the data say which records adapt, there is one split, if
        there are two classes.

        Args:
            person: The person.
            number: Place among all persons, which keys the draws.
            targets: Kind of the labels.
        """
        if person.adapts is not None:
            adapting, judging = (np.flatnonzero(part).tolist() for part in (person.adapts, ~person.adapts))
            several = targets.numbers or len(np.unique(person.labels)) > 1
            if adapting and judging and several:
                yield _episode(person.records, _own_numbers(person, targets), adapting, judging)
            return
        groups = [np.arange(len(person.labels))] if targets.numbers else _classes(person)
        groups = [rows for rows in groups if len(rows) > 1]
        if len(groups) < (1 if targets.numbers else 2):
            return
        kept = np.sort(np.concatenate(groups))
        places = _own_numbers(person, targets, kept)
        for repeat in range(self.repeats):
            generator = public_generator(self.seed, Purpose.EVALUATION, number, repeat)
            support, query = list[int](), list[int]()
            for group in groups:
                rows = generator.permutation(group).tolist()
                share = min(len(rows) - 1, self.shots or max(1, len(rows) // 2))
                support += rows[:share]
                query += rows[share:]
            yield _episode(person.records, places, support, query)


def _classes(person: Person) -> list[IntArray]:
    return [np.flatnonzero(person.labels == label) for label in range(len(person.classes))]


def _own_numbers(person: Person, targets: TargetKind, kept: IntArray | None = None) -> npt.NDArray[Any]:
    """Labels as a network has them: of a client's own classes those that are kept, numbered from 0."""
    if targets.numbers:
        return person.labels.astype(np.float32)
    if not targets.masked:
        return person.labels
    held = np.unique(person.labels if kept is None else person.labels[kept])
    return np.searchsorted(held, person.labels)


def _episode(records: Tensor, labels: npt.NDArray[Any], support: list[int], query: list[int]) -> Episode:
    return Episode(
        support_images=records[support],
        support_labels=torch.from_numpy(labels[support]),
        query_images=records[query],
        query_labels=torch.from_numpy(labels[query]),
    )


@dataclass(frozen=True, kw_only=True)
class PersonScores:
    """SECRET: scores of each model on one person.

    Attributes:
        name: The person.
        records: Records of each class.
        judged: Records that judged in a split; 0: they could not be split.
        measures: Mean over the splits where it is defined, by measure and model; None: it is defined in none. The first
            measure is the one that models are compared by.
        ci95: Half the width of the 95% interval of the first measure, from the draw of splits alone; None of one split.
    """

    name: str
    records: Mapping[str, int]
    judged: int
    measures: Mapping[str, Mapping[str, float | None]]
    ci95: Mapping[str, float | None]

    @property
    def first(self) -> Mapping[str, float]:
        """The first measure, which is always defined, by model."""
        for own in self.measures.values():
            return {name: value for name, value in own.items() if value is not None}
        return {}


def judge(
    person: Person, number: int, split: RecordSplit, scorers_of: ScorersOf, targets: TargetKind = OWN_CLASSES
) -> PersonScores:
    """SECRET: judge all models on the same splits of one person's records.

    Args:
        person: The person.
        number: Place among all persons.
        split: How the records are split.
        scorers_of: What is judged.
        targets: Kind of the labels.
    """
    found: dict[str, list[Mapping[str, float | None]]] = {}
    records, judged = _records_of(person, targets), 0
    for episode in split.episodes(person, number, targets):
        judged = len(episode.query_labels)
        outputs = targets.outputs(_ways(episode) if targets.masked else 1)
        for name, scorer in scorers_of(_counts(person, episode, outputs, targets)).items():
            own = targets.measures(scorer.outputs(episode, outputs), episode.query_labels)
            found.setdefault(name, []).append(own)
    first = targets.measure_names[0]
    return PersonScores(
        name=person.name,
        records=records,
        judged=judged,
        measures={
            measure: {name: _mean([each[measure] for each in own]) for name, own in found.items()}
            for measure in targets.measure_names
        },
        ci95={
            name: _half([value for each in own if (value := each[first]) is not None]) for name, own in found.items()
        },
    )


def _records_of(person: Person, targets: TargetKind) -> dict[str, int]:
    if targets.numbers:
        return {person.classes[0]: len(person.labels)}
    return dict(zip(person.classes, [len(rows) for rows in _classes(person)], strict=True))


def _ways(episode: Episode) -> int:
    return 1 + int(max(labels.max() for labels in (episode.support_labels, episode.query_labels)))


def _counts(person: Person, episode: Episode, outputs: int, targets: TargetKind) -> tuple[int, ...]:
    """Records of each class: of those that adapt where the data say it, else of all that are split.

    A split with as many shots of each class does not tell which is the most frequent.
    """
    if targets.numbers:
        return (len(episode.support_labels),)
    known = [episode.support_labels] if person.adapts is not None else [episode.support_labels, episode.query_labels]
    return tuple(torch.bincount(torch.cat(known), minlength=outputs).tolist())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _half(values: Sequence[float]) -> float | None:
    return half_width(values) if len(values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Overall:
    """SECRET: one model over all people that could be judged.

    Attributes:
        people: Mean of their first measures.
        ci95: Half the width of its 95% interval, over people; None with one person.
        records: Mean weighted by the records that judged.
        others: Means of the other measures over the people where these are defined; None: nowhere.
        worst: Mean of the first measure over the worst tenth of people, of one at least.
    """

    people: float
    ci95: float | None
    records: float
    others: Mapping[str, float | None]
    worst: float


def overall(scores: Sequence[PersonScores], *, higher_is_better: bool = True) -> dict[str, Overall]:
    """Summarise the scores of all people that could be judged, by model."""
    held = [each for each in scores if each.judged]
    found = {}
    for name in held[0].first if held else ():
        values, weights = [each.first[name] for each in held], [each.judged for each in held]
        ordered = sorted(values, reverse=not higher_is_better)
        found[name] = Overall(
            people=float(np.mean(values)),
            ci95=_half(values),
            records=float(np.average(values, weights=weights)),
            others={
                measure: _mean([each.measures[measure][name] for each in held]) for measure in [*held[0].measures][1:]
            },
            worst=float(np.mean(ordered[: max(1, len(values) // 10)])),
        )
    return found


def compared(scores: Sequence[PersonScores], first: str, second: str) -> PairedDifference | None:
    """The mean difference of two models over people; None with fewer than two of them."""
    held = [each for each in scores if each.judged]
    if len(held) < 2:
        return None
    return PairedDifference.of([each.first[first] for each in held], [each.first[second] for each in held])


def as_json(scores: Sequence[PersonScores], *, higher_is_better: bool = True) -> dict[str, Any]:
    """The scores of all people and over them, as JSON says them; what is not defined is null."""
    return {
        "clients": [_flat(asdict(each), "measures") for each in scores],
        "overall": {
            name: _flat(asdict(each), "others")
            for name, each in overall(scores, higher_is_better=higher_is_better).items()
        },
    }


def _flat(content: dict[str, Any], inside: str) -> dict[str, Any]:
    return {**{name: value for name, value in content.items() if name != inside}, **content[inside]}
