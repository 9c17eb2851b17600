"""Intervals of every kind hold the true mean as often as they say, however few people or clients there are."""

from typing import Any

import numpy as np
import pytest

from dpfedmeta.learning.evaluation.accuracy import Accuracy, KeptEpisodes, PairedDifference
from dpfedmeta.learning.evaluation.held_out_clients import over_clients
from dpfedmeta.learning.evaluation.people import PersonScores, compared, overall

TRUE, DRAWS = 0.7, 1500


def people(values, others):
    return [
        PersonScores(
            name="", records={}, judged=9, measures={"accuracy": {"a": float(one), "b": float(other)}}, ci95={}
        )
        for one, other in zip(values, others, strict=True)
    ]


def twice(values):
    """Two splits of each client are no independent draws."""
    return [float(value) for value in values for _ in range(2)], [
        place for place in range(len(values)) for _ in range(2)
    ]


INTERVALS = {
    "episodes": lambda one, other: Accuracy.of(one.tolist()),
    "people": lambda one, other: overall(people(one, other))["a"],
    "clients": lambda one, other: over_clients(*twice(one)),
    "clients judged once": lambda one, other: over_clients(one.tolist(), range(len(one))),
    "paired": lambda one, other: PairedDifference.of(one.tolist(), other.tolist()),
    "paired people": lambda one, other: compared(people(one, other), "a", "b"),
}


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("kind", INTERVALS)
def test_an_interval_holds_the_mean_95_times_in_100(kind, count):
    generator, due = np.random.default_rng(count), 0.0 if kind.startswith("paired") else TRUE
    hits = 0
    for _ in range(DRAWS):
        one, other = TRUE + 0.1 * generator.normal(size=(2, count))
        found: Any = INTERVALS[kind](one, other)
        hits += abs((found.people if kind == "people" else found.mean) - due) <= found.ci95
    # Four deviations of a binomial count.
    assert hits / DRAWS == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / DRAWS) ** 0.5)


class Whole:
    """An evaluation on whole clients, as far as what is kept of it."""

    sizes = None

    def episodes_digest(self, workers, episodes):
        return "d"


@pytest.mark.parametrize(("whose", "each"), [([0, 1, 2], "clients"), ([0, 1, 0, 1], "clients"), ([4, 4, 4], "splits")])
def test_what_is_kept_says_what_it_is_of(whose, each):
    values = [0.1 * place for place in range(len(whose))]
    kept = KeptEpisodes.measured(Whole(), None, 0, over_clients(values, whose))
    assert (kept.counted, len(kept.accuracies)) == (each, len(values) if each == "splits" else len({*whose}))
    assert KeptEpisodes.measured(Whole(), None, 0, Accuracy.of(values)).counted == "episodes"
