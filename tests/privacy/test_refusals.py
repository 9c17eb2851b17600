"""What no guarantee covers is refused where it is made: noise, sums, releases, policies and lines of a ledger."""

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.events.sampling import Sampling
from dpfedmeta.accounting.events.toeplitz_noise_cost import ToeplitzNoise
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import _read_lines
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.privacy.charged import check_record_release
from dpfedmeta.privacy.clip_policies.policy_checks import check_policy
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound
from dpfedmeta.privacy.clip_policy import Surroundings, check_counts, clip_limits
from dpfedmeta.privacy.mechanisms import GaussianMechanism, check_mechanism, mechanism_of
from dpfedmeta.privacy.per_example.clip_rows import clip_rows
from tests.privacy.one_release import release

PLAN = PrivacyPlan(clients=50, cohort=5, rounds=6, noise_multiplier=2.0)
SUM = WholeSum(
    bits=16, dimension=64, parts=1, units=9.0, deviation=30.0, least=5, most=9, dropout=0.1, unsure=1
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 7}, "aggregation.bits = 7"), ({"bits": 33}, "aggregation.bits = 33"), ({"dimension": 0}, "dimension"),
        ({"dimension": 63}, "dimension = 63"), ({"units": 0.0}, "too few"), ({"units": math.inf}, "too few"),
        ({"deviation": 0.0}, "too few"), ({"deviation": math.inf}, "too few"), ({"units": math.nan}, "too few"),
    ],
)  # fmt: skip
def test_a_sum_of_whole_numbers_has_a_grid_and_a_noise(change, words):
    with pytest.raises(RefusedPlan, match=words):
        replace(SUM, **change)
    # Counts are not rotated, so they may be of any length.
    assert replace(SUM, exact=True, dimension=63, bits=31).dimension == 63


@pytest.mark.parametrize("exact", [False, True])
def test_a_sum_comes_back_from_a_ledger_as_it_was(exact):
    """Counts that came back as rounded messages would be taken for longer ones."""
    event = replace(PLAN.phases[0].event, whole=replace(SUM, exact=exact))
    assert Event.from_json(json.loads(json.dumps(event.as_json()))) == event


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "2"])
def test_noise_is_a_finite_number_above_0(value):
    for made in (
        lambda: GaussianNoise(multiplier=value),
        lambda: ThresholdedNoise(multiplier=value, missed=0.1),
        lambda: ToeplitzNoise(multiplier=value, rounds=3, participations=1, separation=1),
    ):
        with pytest.raises((ValueError, TypeError)):
            made()
    for missed in (-0.1, 1.0, "a", math.nan):
        with pytest.raises(ValueError, match="expected a probability below 1"):
            ThresholdedNoise(multiplier=1.0, missed=missed)
    for rounds in (0, -1, 1.5):
        with pytest.raises(ValueError, match="rounds = "):
            ToeplitzNoise(multiplier=1.0, rounds=rounds, participations=1, separation=1)
    with pytest.raises(RefusedPlan, match="its coefficients are fixed"):
        ToeplitzNoise(multiplier=1.0, rounds=3, participations=1, separation=1, numbers=(0.5,)).coefficients(3)


class Nobody(Sampling):
    """A sampler that states nothing."""

    neighbours = "add-remove"


def test_a_sampler_that_states_nothing_promises_nothing():
    plan = replace(PLAN, hostile=0.1)
    for ask in (
        lambda: Nobody.one_round(0.1, GaussianNoise(multiplier=1.0), "add-remove", 1e-3),
        lambda: Nobody.largest_of(plan, 5.0),
        lambda: Nobody.hostile_of(plan, 5.0),
    ):
        with pytest.raises(RefusedPlan, match=r"states no loss|nothing is known"):
            ask()


# Releases.


LAYERS = (GaussianNoise(multiplier=0.1), GaussianNoise(multiplier=0.5))


@pytest.mark.parametrize("charged", [(), LAYERS, LAYERS[::-1], LAYERS[:1] * 2, LAYERS[1:]])
def test_a_client_s_message_is_the_releases_that_it_is_charged_with(charged):
    sent = release(torch.ones(3), 1.0, 0)
    assert sent.noises == LAYERS[:1]
    check_record_release(sent, LAYERS[:1])
    with pytest.raises(RefusedPlan, match="but a participation is charged for"):
        check_record_release(sent, charged)
    for none in (sent.value, None, torch.ones(3)):
        with pytest.raises(RefusedPlan, match="expected Released"):
            check_record_release(none, LAYERS[:1])


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_rows_are_clipped_to_a_bound(bound):
    with pytest.raises(ValueError, match="a clip bound must be > 0"):
        clip_rows(torch.ones(2, 3), bound)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (GaussianNoise(multiplier=1.0), "but the plan counts"), (None, "but the plan counts"),
        (GaussianNoise(multiplier=2.0), None),
    ],
)  # fmt: skip
def test_a_mechanism_states_the_noise_of_every_round_of_the_plan(noise, words):
    event = replace(PLAN.phases[0].event, noise=noise)
    stated = SimpleNamespace(event=lambda round_: event)
    if words is None:
        check_mechanism(stated, PLAN)
        return
    with pytest.raises(RefusedPlan, match=words):
        check_mechanism(stated, PLAN)


def test_the_mechanism_of_a_plan_is_the_one_that_it_names():
    found: Any = mechanism_of(PLAN)
    assert isinstance(found.at(0), GaussianMechanism)
    with pytest.raises(InputError, match=r"server\.noise = nobody"):
        mechanism_of(replace(PLAN, noise="nobody"))


# Policies.


@dataclass(frozen=True)
class State:
    bound: float = 1.0
    mode: str = "constant"


@dataclass(frozen=True)
class Policy:
    attachment: object = None
    state: object = State()

    def initial(self):
        return self.state

    def next_bound(self, state, aggregate):
        return state, state.bound


class Longer(BelowBound):
    """Another class, which may attach anything."""


def patched(**values):
    found = BelowBound(scale=2.0)
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found


@pytest.mark.parametrize(
    ("attachment", "exact", "words"),
    [
        (BelowBound(scale=2.0), True, None),
        (BelowBound(scale=2.0), False, "counts norms of exact messages"),
        (Longer(scale=2.0), True, "whose sensitivity is not known"),
        (object(), True, "whose sensitivity is not known"),
        (patched(scale=0.0), True, "changes more of BelowBound"),
        (patched(scale=-1.0), True, "changes more of BelowBound"),
        (patched(sensitivity=0.01), True, "changes more of BelowBound"),
        (patched(size=3), True, "changes more of BelowBound"),
        (patched(values=lambda norm, bound: [1e9]), True, "changes more of BelowBound"),
    ],
)
def test_a_policy_attaches_what_is_counted_and_nothing_else(attachment, exact, words):
    policy = Policy(attachment=attachment)
    if words is None:
        check_policy(policy, "own", algo="dp-agr", exact=exact)
        return
    with pytest.raises(RefusedPlan, match=words):
        check_policy(policy, "own", algo="dp-agr", exact=exact)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan, True, "1", 1e300, 5e-324, None])
def test_a_policy_begins_with_a_bound(bound):
    with pytest.raises(InputError, match=r"initial\(\).bound is"):
        check_policy(Policy(state=State(bound=bound)), "own", algo="dp-agr", exact=True)
    with pytest.raises(InputError, match=r"has no attachment"):
        lacking = SimpleNamespace(initial=State, next_bound=lambda state, aggregate: None)
        check_policy(lacking, "own", algo="dp-agr", exact=True)


@pytest.mark.parametrize(
    ("lowest", "highest", "fits"), [(0.1, 2.0, True), (1.0, 2.0, True), (1.1, 2.0, False), (0.1, 0.9, False),
                                    (1.0, 1.0, False), (None, None, True), (None, 0.5, False)],
)  # fmt: skip
def test_a_bound_begins_within_its_limits(lowest, highest, fits):
    clip = SimpleNamespace(initial=1.0, lowest=lowest, highest=highest)
    if fits:
        low, high = clip_limits(clip)
        assert low <= 1.0 <= high
    else:
        with pytest.raises(InputError, match=r"clip\.initial = 1 is not between"):
            clip_limits(clip)


# Lines of a ledger.


LINE = Charge(round=0, event=PLAN.phases[0].event, inputs="x", fresh="ab").as_json()


@pytest.mark.parametrize(
    "change",
    [{"round": "0"}, {"round": True}, {"attempt": 0.0}, {"inputs": 7}, {"fresh": 7}, {"fresh": "xy"}, {"more": 1}],
)
def test_a_line_has_the_kinds_of_its_numbers(change):
    assert Charge.from_json(LINE).as_json() == LINE
    with pytest.raises((TypeError, ValueError)):
        Charge.from_json({**LINE, **change})
    for name in LINE:
        if name != "fresh":
            with pytest.raises((TypeError, LookupError)):
                Charge.from_json({key: value for key, value in LINE.items() if key != name})


def test_a_plan_is_extended_when_all_its_rounds_are_charged_and_in_no_other_way():
    lines = [{**LINE, "round": number} for number in range(6)]
    plan, read = _read_lines(PLAN, [*lines, {"extended_to": 8}])
    # The first line and the extension hold no charge.
    assert (plan.rounds, plan.ends, [line is None for line in read]) == (8, (6,), [True, *[False] * 6, True])
    for wrong in (
        [*lines[:5], {"extended_to": 8}],
        [*lines, {"extended_to": 8.0}],
        [*lines, {"extended_to": 8, "more": 1}],
        [*lines, {"extended_to": 6}],
    ):
        with pytest.raises((ValueError, RefusedPlan)):
            _read_lines(PLAN, wrong)
    with pytest.raises(ValueError, match="its first line holds an extended plan"):
        _read_lines(PLAN.extended(8), lines)


@pytest.mark.parametrize("exact", [True, False])
def test_norms_are_counted_where_messages_are_exact(exact):
    around = Surroundings(algo="own", rounds=6, cohort=5, noise=2.0, exact=exact)
    with nullcontext() if exact else pytest.raises(RefusedPlan, match="counts norms of exact messages, but own"):
        check_counts(SimpleNamespace(policy="quantile"), around)
