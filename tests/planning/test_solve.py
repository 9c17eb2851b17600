import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.client_spec import algorithm_of
from dpfedmeta.planning.privacy import solve
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.availability import Availability

FIXED = {"population.sampler": "fixed", "population.max_participations": "null", "server.abort_on_failure": "true"}


def privacy(algo, given):
    return make_privacy(resolve(algo, "strokes", None, given), load_task("strokes")[0])


@pytest.mark.parametrize(
    ("algo", "given", "why"),
    [
        ("dp-agr", {"population.sampler": "poisson"}, "larger cohorts fail more often"),
        ("dp-const", {"population.sampler": "poisson", "population.dropout": "0.3"}, "larger cohorts fail more often"),
        ("dp-const", {"population.availability": "correlated"}, "which clients were drawn"),
        ("dp-const", {"population.availability": "diurnal", "population.dropout": "0.1"}, "which clients were drawn"),
        ("dp-agrlr-micro", {}, "reveals something about the data"),
        ("dp-agrlr", {}, "reveals something about the data"),
    ],
)
def test_an_abort_that_would_tell_something_is_refused(algo, given, why):
    with pytest.raises(RefusedPlan, match=why):
        privacy(algo, {**FIXED, **given})


@pytest.mark.parametrize("given", [{}, {"population.dropout": "0.3"}, {"population.latency_spread": "0.5",
                                                                       "server.timeout": "4"}])  # fmt: skip
def test_an_abort_that_tells_nothing_is_allowed(given):
    privacy("dp-const", {**FIXED, **given})


ROUNDS = 3000


def survived(pattern, clients, rounds=ROUNDS):
    """How often a cohort of these clients answers as a whole."""
    there = Availability(dropout=0.2, pattern=pattern)
    cohort = np.asarray(clients, dtype=np.int64)
    whole = (
        len(there.answering(Cohort(round=r, clients=cohort), KeyedSource(2)).clients) == len(cohort)
        for r in range(rounds)
    )
    return sum(whole) / rounds


def test_only_cohorts_of_one_size_with_equal_coins_survive_equally_often():
    """What the refusals rest on: whether a round was aborted must not depend on who was drawn."""
    error = 5 * math.sqrt(0.25 / ROUNDS)
    one, two = ([0, 24, 48, 72], [3, 17, 40, 61])
    assert survived("independent", one) == pytest.approx(0.8**4, abs=error)
    assert survived("independent", two) == pytest.approx(0.8**4, abs=error)
    assert abs(survived("independent", one[:3]) - survived("independent", one)) > error  # another size
    assert abs(survived("correlated", [0, 10, 20, 30]) - survived("correlated", [0, 1, 2, 3])) > error
    noon = {zone: survived("diurnal", [zone] * 1 + [zone + 24, zone + 48], rounds=24 * 30) for zone in (0, 12)}
    assert all(0 < share < 1 for share in noon.values())


def aborted_flags_epsilon(clients, rate, dropout, rounds, delta):
    """What the flags of Poisson rounds alone give away of one client: the exact binomial hockey-stick divergence."""
    from scipy.stats import binom

    with_, without = ((1 - dropout * rate) ** count for count in (clients, clients - 1))
    counts = np.arange(rounds + 1)
    pairs = [(binom.logpmf(counts, rounds, p), binom.logpmf(counts, rounds, r)) for p, r in
             ((with_, without), (without, with_))]  # fmt: skip

    def delta_at(epsilon):
        return max(float(np.maximum(np.exp(p) - np.exp(epsilon + r), 0).sum()) for p, r in pairs)

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


def test_the_flags_alone_told_more_than_the_whole_promise():
    """N = 100, L = 5, T = 1000, z = 20, a third dropping out: printed was 0.265."""
    assert aborted_flags_epsilon(100, 0.05, 0.3, 1000, 1e-5) == pytest.approx(0.97, abs=0.03)


@pytest.mark.parametrize("solve", ["noise", "bits"])
def test_a_limit_ends_a_secure_plan_whatever_is_solved_for(solve):
    given = {
        "server.noise_multiplier": "1.5", "server.rounds": "20", "population.clients": "1000",
        "population.cohort": "200", "privacy.client.limit": "3",
    }  # fmt: skip
    settings = resolve("dp-agr-secure", "strokes", None, given)
    plan = make_privacy(settings, load_task("strokes")[0], solve=solve)
    assert plan.rounds < 20
    assert guarantees(plan)[0].epsilon <= 3.0 < guarantees(replace(plan, rounds=plan.rounds + 1))[0].epsilon


NOISE = {"server.noise_multiplier": "1.0", "privacy.client.epsilon": "null", "server.rounds": "5"}


@pytest.mark.parametrize("begins", [1, 4, 5, 6])
def test_a_change_that_no_round_of_the_plan_has_is_warned_of(begins):
    schedule = f"[{{from_round: {begins}, noise_scale: 2.0}}]"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan = privacy("dp-const", {**NOISE, "server.schedule": schedule})
    late = [str(each.message) for each in said if "never happens" in str(each.message)]
    changed = {plan.at(round_).noise.multiplier for round_ in range(5)} == {1.0, 2.0}
    assert len(late) == (not changed)


@pytest.mark.parametrize("name", ["population.separation", "server.buffers"])
def test_what_correlated_noise_alone_uses_is_refused_beside_any_other(name):
    with pytest.raises(RefusedPlan, match=rf"^{name} = 2 with server\.noise = independent: .*leave it out"):
        privacy("dp-const", {**NOISE, name: "2"})


ASKED = (None, "zero-out", "row-deleted", "row-exchanged")
MICRO = {"population.clients": "400", "population.cohort": "40", "server.rounds": "3"}


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("relation", ASKED)
@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_the_target_of_a_record_is_met_for_the_relation_of_the_settings(monkeypatch, algo, rows, relation):
    """By default for rows where records are such; refused in a line where it does not hold."""
    real = algorithm_of
    monkeypatch.setattr(solve, "algorithm_of", lambda *given: SimpleNamespace(
        record_layer=lambda: replace(real(*given).record_layer(), rows=rows)))  # fmt: skip
    given = MICRO | ({} if relation is None else {"privacy.record.relation": relation})
    if not rows and relation in ("row-deleted", "row-exchanged"):
        with pytest.raises(RefusedPlan, match=f"relation = {relation}: .*; use --privacy.record.relation zero-out$"):
            privacy(algo, given)
        return
    plan = privacy(algo, given)
    cell = guarantees(plan)[2]
    assert cell.adjacency == plan.relation == (relation or ("row-deleted" if rows else "zero-out"))
    assert 2.45 < cell.epsilon <= 2.5
    assert cell.epsilon == cell.relations[cell.adjacency]


@pytest.mark.parametrize("relation", ["zero-out", "row-deleted", "row-exchanged"])
def test_without_a_layer_of_records_every_relation_costs_the_whole_client(relation):
    given = MICRO | {"privacy.record.relation": relation, "privacy.record.observer": "public"}
    cell = guarantees(privacy("dp-agr", given))[3]
    assert cell.adjacency == relation
    assert len(set(cell.relations.values())) == 1
