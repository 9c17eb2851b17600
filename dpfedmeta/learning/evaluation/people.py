"""Judging models on people's own records: each person's part adapts them, and the rest judges them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.evaluation.accuracy import PairedDifference
from dpfedmeta.learning.evaluation.baselines import Learner

LearnersOf = Callable[[tuple[int, ...]], Mapping[str, Learner]]
"""Learners by name, for a person that has so many records of each class that is judged; each predicts once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Person:
    """SECRET: the records of one person, or one client.

    Attributes:
        name: As in the data; empty where they name nobody.
        records: [n, ...], standardised as the network takes them.
        labels: [n], places in `classes`.
        classes: Names.
    """

    name: str
    records: Tensor
    labels: IntArray
    classes: tuple[str, ...]


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

    def episodes(self, person: Person, number: int) -> Iterator[Episode]:
        """Yield the splits of a person's records; none where fewer than two classes have two records.

        Args:
            person: The person.
            number: Place among all persons, which keys the draws.
        """
        kept = [label for label in range(len(person.classes)) if (person.labels == label).sum() > 1]
        if len(kept) < 2:
            return
        for repeat in range(self.repeats):
            generator = public_generator(self.seed, Purpose.EVALUATION, number, repeat)
            support, query = list[int](), list[int]()
            for label in kept:
                rows = generator.permutation(np.flatnonzero(person.labels == label)).tolist()
                share = min(len(rows) - 1, self.shots or max(1, len(rows) // 2))
                support += rows[:share]
                query += rows[share:]
            places = np.searchsorted(kept, person.labels)
            yield Episode(
                support_images=person.records[support],
                support_labels=torch.from_numpy(places[support]),
                query_images=person.records[query],
                query_labels=torch.from_numpy(places[query]),
            )


@dataclass(frozen=True, kw_only=True)
class PersonScores:
    """SECRET: scores of each learner on one person.

    Attributes:
        name: The person.
        records: Records of each class.
        judged: Records that judged in a split; 0: they could not be split.
        accuracy: Mean accuracy over the splits, by learner.
        balanced: Mean over classes of the accuracy on each, likewise.
        ci95: Half the width of the 95% interval of `accuracy`, from the draw of splits alone.
    """

    name: str
    records: Mapping[str, int]
    judged: int
    accuracy: Mapping[str, float]
    balanced: Mapping[str, float]
    ci95: Mapping[str, float]


def judge(person: Person, number: int, split: RecordSplit, learners_of: LearnersOf) -> PersonScores:
    """SECRET: judge all learners on the same splits of one person's records.

    Args:
        person: The person.
        number: Place among all persons.
        split: How the records are split.
        learners_of: What is judged.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    counts = np.bincount(person.labels, minlength=len(person.classes)).tolist()
    learners, judged = learners_of(tuple(count for count in counts if count > 1)), 0
    for episode in split.episodes(person, number):
        judged = len(episode.query_labels)
        for name, learner in learners.items():
            predicted = learner.predictions(episode, transductive=False)[-1]
            found.setdefault(name, []).append(_accuracies(predicted, episode.query_labels))
    return PersonScores(
        name=person.name,
        records=dict(zip(person.classes, counts, strict=True)),
        judged=judged,
        accuracy={name: float(np.mean([each[0] for each in own])) for name, own in found.items()},
        balanced={name: float(np.mean([each[1] for each in own])) for name, own in found.items()},
        ci95={name: _half([each[0] for each in own]) for name, own in found.items()},
    )


def _accuracies(predicted: Tensor, labels: Tensor) -> tuple[float, float]:
    right = (predicted == labels).double()
    each = [float(right[labels == label].mean()) for label in sorted({*labels.tolist()})]
    return float(right.mean()), sum(each) / len(each)


def _half(values: Sequence[float]) -> float:
    return 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Overall:
    """SECRET: one learner over all people that could be judged.

    Attributes:
        people: Mean of their accuracies.
        ci95: Half the width of its 95% interval, over people; None with one person.
        records: Mean weighted by the records that judged.
        balanced: Mean of their balanced accuracies.
        worst: Mean accuracy of the worst tenth of people, of one at least.
    """

    people: float
    ci95: float | None
    records: float
    balanced: float
    worst: float


def overall(scores: Sequence[PersonScores]) -> dict[str, Overall]:
    """Summarise the scores of all people that could be judged, by learner."""
    held = [each for each in scores if each.judged]
    found = {}
    for name in held[0].accuracy if held else ():
        values, weights = [each.accuracy[name] for each in held], [each.judged for each in held]
        found[name] = Overall(
            people=float(np.mean(values)),
            ci95=_half(values) if len(values) > 1 else None,
            records=float(np.average(values, weights=weights)),
            balanced=float(np.mean([each.balanced[name] for each in held])),
            worst=float(np.mean(sorted(values)[: max(1, len(values) // 10)])),
        )
    return found


def compared(scores: Sequence[PersonScores], first: str, second: str) -> PairedDifference | None:
    """The mean difference of two learners over people; None with fewer than two of them."""
    held = [each for each in scores if each.judged]
    if len(held) < 2:
        return None
    return PairedDifference.of([each.accuracy[first] for each in held], [each.accuracy[second] for each in held])


def as_json(scores: Sequence[PersonScores]) -> dict[str, Any]:
    """The scores of all people and over them, as JSON says them."""
    return {
        "clients": [asdict(each) for each in scores],
        "overall": {name: asdict(each) for name, each in overall(scores).items()},
    }
