"""Secure aggregation through the real clients, mechanism and loop."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.discretised.stochastic_rounding import RoundedMessages
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend, SecureSums, added_up, plain_sum, survivors_sum
from dpfedmeta.training.build_data import client_side

SMALL = {
    "model.width": "4", "server.rounds": "3", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "clip.window": "2", "clip.initial": "0.2", "population.clients": "2000", "population.cohort": "60",
    "population.sampler": "fixed", "population.max_participations": "null",
}  # fmt: skip
RECORDS = {
    "record.release": "micro-episodes", "record.enabled": "true", "privacy.record.epsilon": "50",
    "privacy.client.delta": "1e-4",
}  # fmt: skip
POISSON = {"population.sampler": "poisson", "population.cohort": "400"}
BOUND = 0.2


def setting(tiny_strokes, **given):
    # A noise that is given: solving for one takes seconds.
    given = {**SMALL, "aggregation.mode": "secure", "aggregation.dropout": "0.1", **given}
    if "privacy.client.epsilon" not in given:
        given = {"server.noise_multiplier": "1.75", **given}
    plan = make_plan(resolve("dp-agr", "strokes", None, given), tiny_strokes.task)
    population = VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=2000, seed=0)
    side = client_side(plan, population, KeyedSource(1), torch.device("cpu"))
    return plan, side, learned_part(plan.network, initial_weights(plan.network, 0))


def cohort_of(clients, invited=None):
    return Cohort(round=0, clients=np.array(clients, dtype=np.int64), invited=invited)


def sum_of(side, model, clients, invited=60, added=added_up):
    backend = SecureSums(clients=side, workers=InProcess(), added=added)
    return backend.cohort_sum(model, BOUND, cohort_of(clients, invited))


def exact(side, model, clients):
    plain = LocalBackend(clients=replace(side, whole=None), workers=InProcess())
    return flatten(plain.cohort_sum(model, BOUND, cohort_of(clients)).value)


def test_each_stream_of_a_round_names_its_purpose_first_and_none_is_drawn_twice(tiny_strokes, monkeypatch):
    _, side, model = setting(tiny_strokes)
    asked, generator = [], KeyedSource.generator

    def noted(source, purpose, *key):
        asked.append((purpose, *key))
        return generator(source, purpose, *key)

    monkeypatch.setattr(KeyedSource, "generator", noted)
    sum_of(side, model, [4, 7])
    assert all(isinstance(purpose, Purpose) for purpose, *_ in asked)
    for purpose in (Purpose.ROUNDING, Purpose.MESSAGE_NOISE):
        assert [key for each, *key in asked if each == purpose] == [[0, 4], [0, 7]]


@pytest.mark.parametrize("records", [{}, RECORDS], ids=["clients", "micro-episodes"])
def test_the_sum_is_that_of_the_messages_and_the_planned_noise(tiny_strokes, records):
    plan, side, model = setting(tiny_strokes, **records)
    whole = plan.privacy.at(0).whole
    secret = sum_of(side, model, range(60))
    assert secret.sensitivity == whole.of_a_client
    assert secret.noise_variance == pytest.approx(60 * whole.share(60))
    read = flatten(secret.grid.read(secret.value)).double()
    noiseless = flatten(
        secret.grid.read(
            sum_of(replace(side, whole=replace(whole, deviation=1e-3 * whole.deviation)), model, range(60)).value
        )
    )
    noise = (read - noiseless) / secret.grid.width
    assert float(noise.square().mean()) == pytest.approx(secret.noise_variance, rel=6 * math.sqrt(2 / len(noise)))
    if not records:
        near = noiseless.double() - exact(side, model, range(60)).double()
        # Rounding and a thousandth of the noise are left.
        assert float(near.norm()) < 0.02 * float(noiseless.norm())


def test_one_client_moves_the_sum_by_at_most_the_sensitivity(tiny_strokes):
    plan, side, model = setting(tiny_strokes, **RECORDS)
    whole = plan.privacy.at(0).whole
    everybody, without = (sum_of(side, model, clients).value["rotated"] for clients in (range(60), range(1, 60)))
    noise = side.source.generator(Purpose.MESSAGE_NOISE, 0, 0).discrete_normal(whole.share(60), whole.dimension)
    moved = everybody - without - torch.from_numpy(noise).double()
    assert 0 < float(moved.norm()) <= whole.of_a_client


class Nothing:
    """Clients whose data are not of the plan's form: what they send is their share of the noise."""

    clients = 2000

    def episode(self, client):
        raise ValueError("no data")


def test_shares_of_the_noise_are_fresh_in_every_round_and_attempt(tiny_strokes):
    plan, side, model = setting(tiny_strokes)
    alone = SecureSums(clients=replace(side, population=Nothing()), workers=InProcess(), added=added_up)
    cohorts = [
        replace(cohort_of([0], 60), clients=np.arange(54), round=round_, again=again)
        for round_, again in ((0, ()), (1, ()), (0, (1,)), (0, (2,)))
    ]
    secrets = [alone.cohort_sum(model, BOUND, cohort) for cohort in cohorts]
    # So is the rotation of every round.
    first, other, *again = (secret.grid._signs.tolist() for secret in secrets)
    assert first != other
    assert again == [first, first]
    sums = torch.stack([secret.value["rotated"] for secret in secrets])
    variance = 54 * side.whole.share(60)
    likeness = (sums @ sums.T) / (variance * sums.shape[1])
    # Each has the noise of its clients, and none anything of another one's.
    assert (likeness - torch.eye(4)).abs().max() < 6 * math.sqrt(2 / sums.shape[1])
    # With what the server adds it is the planned noise, no less and no more.
    released, _ = plan.mechanism.release(0, secrets[0], {}, KeyedSource(5).generator(Purpose.SERVER_NOISE, 0))
    parts = flatten(released.value).double() / released.noise_deviation
    assert float(parts.square().mean()) == pytest.approx(1.0, rel=6 * math.sqrt(2 / len(parts)))


def test_a_release_does_not_tell_whether_the_sum_of_the_clients_wrapped(tiny_strokes):
    """At the edge of the numbers modulo 2^b: what leaves the mechanism is one of these numbers again."""
    plan, side, model = setting(tiny_strokes)
    secret = sum_of(side, model, range(54))
    edge = 2.0 ** (side.whole.bits - 1) - 1
    edges = {"rotated": torch.full_like(secret.value["rotated"], edge)}
    released = []
    for seed in range(3):
        generator = KeyedSource(seed).generator(Purpose.SERVER_NOISE, 0)
        sums, _ = plan.mechanism.release(0, replace(secret, value=edges, grid=_Unread(secret.grid)), {}, generator)
        released.append(flatten(sums.value) * plan.privacy.cohort)
    values = torch.cat(released)
    assert values.min() >= -edge - 1.1
    assert values.max() <= edge + 0.1
    # Half of the noise went over the edge, and came back at the other one.
    assert 0.3 < float((values < 0).double().mean()) < 0.7


class _Unread:
    """A grid that shows the whole numbers as they are."""

    def __init__(self, grid):
        self.centred, self.width = grid.centred, 1.0

    def read(self, released):
        return released


def test_every_round_turns_messages_another_way(tiny_strokes):
    plan, _, model = setting(tiny_strokes)
    first, second = (replace(grid_of(plan.privacy.at(0).whole, model), round=round_) for round_ in (0, 1))
    part = np.random.default_rng(0).normal(size=flatten(model).numel())
    part *= BOUND / np.linalg.norm(part)
    turned = [grid.of([part], KeyedSource(0).generator(Purpose.ROUNDING, 0)) for grid in (first, second)]
    assert abs(turned[0] @ turned[1]) < 6 * (turned[0] @ turned[0]) / math.sqrt(len(turned[0]))


def test_what_a_client_holds_does_not_decide_whether_a_round_is_used(tiny_strokes, monkeypatch):
    """Nobody may be missing here: an unsound message that was left out ended the round, and took all others with it."""
    _, side, model = setting(tiny_strokes, **{"aggregation.dropout": "0"})
    sound, honest = sum_of(side, model, range(60)), ClientRunner._messages

    def unsound(self, model, bound, round_, clients):
        messages = honest(self, model, bound, round_, clients)
        return ({} if client == 5 else message for client, message in zip(clients, messages, strict=True))

    monkeypatch.setattr(ClientRunner, "_messages", unsound)
    without = sum_of(side, model, range(60))
    assert without.noise_variance == sound.noise_variance > 0
    assert 0 < float((without.value["rotated"] - sound.value["rotated"]).norm()) <= sound.sensitivity


def test_too_few_survivors_release_noise_alone(tiny_strokes):
    plan, side, model = setting(tiny_strokes)
    kept, lost = sum_of(side, model, range(54)), sum_of(side, model, range(53))
    assert kept.noise_variance > 0
    assert lost.noise_variance == 0
    assert not lost.value["rotated"].any()
    # What leaves the mechanism has one deviation in all cases.
    whole = plan.privacy.at(0).whole
    made = [
        plan.mechanism.release(0, secret, {}, KeyedSource(5).generator(Purpose.SERVER_NOISE, n))[0]
        for n, secret in enumerate((kept, lost))
    ]
    assert made[0].noise_deviation == made[1].noise_deviation
    alone = flatten(made[1].value).double() / made[1].noise_deviation
    assert float(alone.square().mean()) == pytest.approx(1.0, rel=6 * math.sqrt(2 / len(alone)))
    assert made[1].noises == (plan.privacy.at(0).noise,)
    with pytest.raises(ValueError, match="not of this plan"):
        plan.mechanism.release(
            0, replace(kept, noise_variance=whole.total), {}, KeyedSource(5).generator(Purpose.COHORT)
        )


OTHERS = [pytest.param(policy, marks=pytest.mark.slow) for policy in ("constant", "window", "median")]


@pytest.mark.parametrize("policy", ["quantile", *OTHERS])
def test_it_works_with_every_clip_policy(tiny_strokes, policy):
    plan, side, model = setting(
        tiny_strokes, **{"clip.policy": policy, "clip.count_noise": "9", "privacy.client.epsilon": "30"}
    )
    secret = sum_of(side, model, range(60))
    released, _ = plan.mechanism.release(0, secret, {}, KeyedSource(5).generator(Purpose.SERVER_NOISE, 0))
    following = plan.policy.next_bound(plan.policy.initial(), released)
    assert following[1] > 0


def grid_of(whole, form, bound=BOUND):
    return RoundedMessages(whole=whole, bound=bound, form=form, seed=0, round=3)


def test_a_rounded_part_is_never_longer_than_planned(tiny_strokes):
    plan, _, model = setting(tiny_strokes)
    whole, size = plan.privacy.at(0).whole, flatten(model).numel()
    # So coarse that rounding decides the length.
    coarse = replace(whole, units=2.0)
    generator = KeyedSource(0).generator(Purpose.ROUNDING, 0)
    rng = np.random.default_rng(0)
    for each in (whole, coarse):
        for _ in range(20):
            part = rng.normal(size=size)
            part *= BOUND / np.linalg.norm(part)
            rounded = grid_of(each, model).of([part], generator)
            assert np.linalg.norm(rounded) <= each.sensitivity
    with pytest.raises(ValueError, match="longer than its bound"):
        grid_of(whole, model).of([part * 3], generator)


def test_a_sum_is_read_modulo_two_to_the_bits(tiny_strokes):
    plan, _, model = setting(tiny_strokes)
    grid = grid_of(plan.privacy.at(0).whole, model)
    values = np.array([-(2**15), -5, 0, 2**15 - 1])
    assert (grid.centred(values + 7 * 2**16) == values).all()
    assert (grid.centred(values % 2**16) == values).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"aggregation.bits": "9"}, "too few"),
        ({"clip.policy": "none", "privacy.client.epsilon": "null"}, "clip"),
        ({**RECORDS, "record.query_noise": "2", "privacy.record.epsilon": "null"}, "there the sum has the noise"),
        ({**RECORDS, "record.release": "steps", "meta.order": "1"}, "stacked"),
        ({"aggregation.mode": "secured"}, "secure"),
        ({**POISSON, "population.dropout": "0.01", "population.availability": "diurnal"}, "reveals something"),
        ({**POISSON, "server.timeout": "3"}, "reveals something about its cohort"),
        ({**POISSON, **RECORDS, "record.client_ledgers": "true"}, r"with record\.client_ledgers: too few"),
        ({"aggregation.mode": "messages", "aggregation.protocol": "true"}, "only for secure aggregation"),
    ],
)
def test_what_is_refused(tiny_strokes, given, words):
    with pytest.raises((InputError, RefusedPlan), match=words):
        setting(tiny_strokes, **given)


def test_a_client_of_one_micro_episode_sends_it(tiny_strokes):
    """An audit found that every such client handed over nothing, silently."""
    one = {"task.shots": "1", "task.queries": "1", "population.clients": "2000"}
    _, side, model = setting(tiny_strokes, **RECORDS, **one)
    assert side.algorithm.parts == 1
    ((vector,),) = side.bounded_parts(model, BOUND, 0, [3])
    assert 0 < float(np.linalg.norm(vector)) <= BOUND


def test_survivors_are_said_to_have_made_their_own_noise_alone():
    whole = WholeSum(bits=16, dimension=64, parts=1, units=9.0, deviation=30.0, least=5, most=9, dropout=0.4, unsure=1)
    grid = SimpleNamespace(centred=lambda total: total)
    fewest, total = whole.fewest(9), np.ones(64, dtype=np.int64)
    assert fewest < 9
    made = {n: survivors_sum("sum", whole, grid, lambda: total, entered=n, invited=9) for n in range(10)}
    for entered, found in made.items():
        share = whole.share(9) if entered >= fewest else 0.0
        assert found.noise_variance == pytest.approx(entered * share)
        assert float(found.value["sum"].sum()) == (64 if share else 0)


@pytest.mark.parametrize(("entered", "sent"), [(0, 0), (3, 3), (2, 5), (0, 4)])
def test_messages_that_were_left_out_of_a_plain_sum_brought_no_noise(entered, sent):
    """What is counted and is not there would be missing in the release: a mechanism tops up what is stated."""
    form = {"w": torch.zeros(3)}
    clients = SimpleNamespace(
        form=lambda model: form, whole_numbers=lambda bound, size: SimpleNamespace(values=lambda total: 0.5 * total),
        message_bound=lambda bound: 2 * bound, message_noise_variance=lambda bound: 7.0 * bound,
    )  # fmt: skip
    found = plain_sum(clients, {}, 0.5, (torch.ones(3, dtype=torch.float64), entered), sent)
    assert found.noise_variance == pytest.approx(entered * 3.5)
    assert (found.left_out, found.sensitivity) == (sent - entered, 1.0)
    assert found.value["w"].tolist() == [0.5] * 3
