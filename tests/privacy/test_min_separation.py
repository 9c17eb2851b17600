"""Who is free to join, and how likely it does, so that cohorts have the size that the plan counts with."""

import numpy as np
import pytest

from dpfedmeta.accounting.events.participation_pattern import Spacing, joining_rates
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.samplers.poisson_sampler import SpacedSampler


def test_a_client_rests_and_stops_at_its_cap():
    spacing = Spacing(participations=2, separation=5)
    assert spacing.allows(0, 0, None)
    assert not spacing.allows(4, 1, 0)
    assert spacing.allows(5, 1, 0)
    assert not spacing.allows(20, 2, 5)
    # After a crash a round may lie before the last one that the client joined.
    assert not spacing.allows(3, 1, 8)


@pytest.mark.parametrize(("cohort", "spacing"), [(10.0, Spacing(participations=9, separation=9)),
                                                 (8.0, Spacing(participations=2, separation=7))])  # fmt: skip
def test_cohorts_have_the_expected_size_and_nobody_joins_too_early(cohort, spacing):
    clients, rounds, sizes = 100, 24, []
    rates = joining_rates(clients, cohort, rounds, spacing)
    sampler = SpacedSampler(clients=clients, rates=rates, spacing=spacing)
    for run in range(60):
        counts, latest, seen = {}, {}, {}
        source = KeyedSource(run)
        for round_ in range(rounds):
            drawn = sampler.draw(round_, counts, source.generator(Purpose.COHORT, round_), latest).clients.tolist()
            sizes.append((round_, len(drawn)))
            for client in drawn:
                counts[client], latest[client] = counts.get(client, 0) + 1, round_
                seen.setdefault(client, []).append(round_)
        for joined in seen.values():
            before = [None, *joined]
            assert all(spacing.allows(round_, taken, before[taken]) for taken, round_ in enumerate(joined))
        assert max(counts.values()) <= spacing.participations
    by_round = np.array([[size for r, size in sizes if r == round_] for round_ in range(rounds)])
    # Five deviations of a mean of 60 cohorts, each of a variance of at most L.
    assert np.abs(by_round.mean(axis=1) - cohort).max() < 5 * (cohort / 60) ** 0.5


@pytest.mark.parametrize(("cohort", "most", "separation", "rounds"), [(11, 9, 10, 20), (10, 2, 5, 21), (50, 1, 1, 3)])
def test_what_the_population_cannot_keep_is_refused(cohort, most, separation, rounds):
    with pytest.raises(RefusedPlan, match="clients are free on average"):
        joining_rates(100, float(cohort), rounds, Spacing(participations=most, separation=separation))
