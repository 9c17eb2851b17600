"""The real loop over clients whose gradients all count as 0: what comes out is noise, and it is what was planned.

Every seed is fixed. Without a mistake a limit is passed with probability RARE in all checks of one test together, by
Bonferroni. What is seen: a standard deviation that is wrong by 2%, or one stream that any two keys have in common.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedmeta.accounting.ledger.ledger import Budget, read
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.episode import null_episode
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.privacy.aggregation import aggregation_of
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism
from dpfedmeta.privacy.mechanisms import GaussianMechanism, NoMechanism
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import client_side
from dpfedmeta.training.loop import Training

RARE = 1e-6
LARGE = {
    "model.name": "mlp", "model.width": "8", "model.norm": "none", "model.features": "raw", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "clip.policy": "constant", "clip.initial": "0.7", "clip.window": "2",
    "population.clients": "90", "population.cohort": "9", "population.max_participations": "null", "server.rounds": "7",
    "evaluation.every": "100", "privacy.client.delta": "0.001", "run.checkpoint_every": "1", "server.schedule": "[]",
    "server.noise_multiplier": "2.5",
}  # fmt: skip
FIXED = {"population.sampler": "fixed"}
SPLIT = {**FIXED, "server.noise_site": "clients"}
LOCAL = {**FIXED, "clip.policy": "none", "meta.steps": "3", "meta.batch": "4", "meta.lr": "0.5",
         "server.noise_multiplier": "null", "record.support_clip": "0.4"}  # fmt: skip
# So few that every cohort here holds more messages than may lack their noise.
HOSTILE = {"privacy.client.hostile": "0.03"}
STEPPING = {"meta.adapt": "all", "meta.steps": "3", "record.support_clip": "0.4"}


class Blank:
    """Clients whose images are all NaN: every gradient of theirs counts as 0."""

    def __init__(self, plan):
        shape, network = plan.shape, plan.network
        image = (network.channels, network.image_size, network.image_size)
        self.template = nowhere_finite(shape, image)

    def episode(self, client):
        return self.template


def nowhere_finite(shape, image):
    def labels(count):
        return torch.arange(shape.ways).repeat_interleave(count // shape.ways)

    return null_episode(image, shape.support_records, shape.query_records, labels)


class NoAccuracy:
    """Of noise there is nothing to measure."""

    score_name = "accuracy"

    def accuracy(self, *words):
        return self

    def as_json(self):
        return {}


@dataclass(frozen=True)
class Release:
    """One call of a mechanism."""

    mechanism: Any
    query: Any
    released: Any

    @property
    def sum(self):
        """What was released, before the division."""
        return flatten(self.released.value).double() * self.mechanism.denominator

    @property
    def added(self):
        """What the mechanism added."""
        return self.sum - flatten(self.query.value).double()


@pytest.fixture
def releases(monkeypatch):
    """Every release of the whole program, in order."""
    seen = []
    for kind in (GaussianMechanism, NoMechanism, WholeNumberMechanism):

        def recorded(self, query, generator, honest=kind.release):
            released = honest(self, query, generator)
            seen.append(Release(self, query, released))
            return released

        monkeypatch.setattr(kind, "release", recorded)
    return seen


def plan_of(task, algo, **given):
    return make_plan(resolve(algo, "strokes", None, {**LARGE, **given}), task)


def backend_of(plan, seed=11):
    side = client_side(plan, Blank(plan), KeyedSource(seed), torch.device("cpu"))
    return aggregation_of(plan.settings).made(plan.settings, side, InProcess())


def training_of(plan, folder, backend=None, trackers=(), **changes):
    run = create(folder, "run") if not (folder / "run").exists() else changes.pop("run")
    return run, Training(
        plan=plan, run=run, backend=backend or backend_of(plan), workers=InProcess(), validation=NoAccuracy(),
        source=KeyedSource(11), trackers=trackers, budget=changes.pop("budget", Budget.of(plan.planned)), **changes,
    )  # fmt: skip


def of_server(plan, releases):
    return [each for each in releases if each.mechanism.denominator == plan.privacy.at(0).cohort]


def assert_deviation(values, deviation, checks=1):
    """Normal with mean 0 and this deviation: both moments, by the chi-squared and the normal limit."""
    values = torch.as_tensor(values).double().flatten().numpy() / deviation
    count, limit = len(values), stats.norm.isf(RARE / 4 / checks)
    assert count > 15_000
    assert abs((values**2).mean() - 1) < limit * math.sqrt(2 / count)
    assert abs(values.mean()) < limit / math.sqrt(count)


def assert_every_coordinate(vectors, deviation):
    """No coordinate has another deviation, or none: sums of squares over the vectors, by the chi-squared limits."""
    rows = torch.stack([torch.as_tensor(vector).double().flatten() for vector in vectors]).numpy() / deviation
    squares, rare = (rows**2).sum(0), RARE / 2 / rows.shape[1]
    low, high = stats.chi2.ppf(rare, len(rows)), stats.chi2.isf(rare, len(rows))
    assert low < squares.min() <= squares.max() < high


def assert_independent(vectors):
    """No two of them are correlated, nor are the coordinates of one with those that follow."""
    rows = torch.stack([torch.as_tensor(vector).double().flatten() for vector in vectors]).numpy()
    rows = rows / np.sqrt((rows**2).mean(1, keepdims=True))
    count = rows.shape[1]
    products = rows @ rows.T / math.sqrt(count)
    pairs = products[np.triu_indices(len(rows), 1)]
    assert np.abs(pairs).max(initial=0) < stats.norm.isf(RARE / 4 / max(len(pairs), 1))
    # All pairs together: a small part in common to all of them.
    assert abs(pairs.sum()) < stats.norm.isf(RARE / 4) * math.sqrt(max(len(pairs), 1))
    for lag in (1, 2, count // 2):
        follows = (rows[:, lag:] * rows[:, :-lag]).sum() / math.sqrt(rows[:, lag:].size)
        assert abs(follows) < stats.norm.isf(RARE / 12)


class Ended(Exception):
    """The process ends before the round is written down."""


class EndsAfterTheRelease:
    """A tracker that fails at one round, after its release."""

    def __init__(self, round_):
        self.round = round_

    def on_round(self, row):
        if row["round"] == self.round:
            raise Ended

    def on_rewind(self, round_):
        pass


class Noting:
    """A generator that notes its key when it is drawn from at first."""

    def __init__(self, seen, note, honest):
        self.seen, self.notes, self.honest = seen, [note], honest

    def __getattr__(self, name):
        while self.notes:
            self.seen.append(self.notes.pop())
        return getattr(self.honest, name)


@dataclass(frozen=True)
class Watched:
    """A secret source that notes which streams are drawn from."""

    seen: list
    honest: KeyedSource
    reproducible: bool = True
    needs_fresh: bool = False

    def generator(self, purpose, *key):
        return Noting(self.seen, (purpose, key, self.honest.attempt), self.honest.generator(purpose, *key))

    def again(self, key, fresh=b""):
        return replace(self, honest=self.honest.again(key, fresh))


@pytest.mark.parametrize(
    ("algo", "given", "purposes"),
    [
        ("dp-agrlr", {"population.dropout": "0.3"}, {"SUPPORT_NOISE", "QUERY_NOISE", "AVAILABILITY"}),
        ("dp-const", SPLIT, {"MESSAGE_NOISE"}),
        ("local-dp", LOCAL, {"LOCAL_BATCHES"}),
    ],
)
def test_every_stream_has_a_key_of_its_own(tiny_strokes, tmp_path, algo, given, purposes):
    """Two attempts at each of two rounds: no key is drawn from twice, and each names round and client."""
    given = {**given, "server.rounds": "2", "population.cohort": "20"}
    plan, asked = plan_of(tiny_strokes.task, algo, **given), []
    side = client_side(plan, Blank(plan), Watched(asked, KeyedSource(11)), torch.device("cpu"))
    backend = LocalBackend(clients=side, workers=InProcess())
    budget = Budget(limits=(math.inf,) * 4)
    run, training = training_of(plan, tmp_path, backend, budget=budget, environment=None)
    training = replace(training, source=Watched(asked, KeyedSource(11)), trackers=(EndsAfterTheRelease(1),))
    with pytest.raises(Ended):
        training()
    replace(training, trackers=())()
    assert [(event.round, event.attempt) for event in read(run.ledger)[1]] == [(0, 0), (1, 0), (1, 1)]
    assert len(set(asked)) == len(asked)
    servers = {"COHORT", "SERVER_NOISE"} if plan.private else {"COHORT"}
    assert {purpose.name for purpose, _, _ in asked} == purposes | servers
    for own in {"COHORT", "SERVER_NOISE", "AVAILABILITY"} & {purpose.name for purpose, _, _ in asked}:
        assert [(key, bool(again)) for purpose, key, again in asked if purpose.name == own] == [
            ((0,), False), ((1,), False), ((1,), True),
        ]  # fmt: skip
    for own in purposes - {"AVAILABILITY"}:
        keys = {(key, bool(again)) for purpose, key, again in asked if purpose.name == own}
        assert {(key[0], again) for key, again in keys} == {(0, False), (1, False), (1, True)}
        assert len(keys) > 15
        assert all(len(key) == 2 and 0 <= key[1] < 90 for key, _ in keys)


LOOPS = [
    ("dp-const", {}),
    ("dp-const", FIXED),
    ("dp-agr-checkins", {"clip.policy": "constant", "population.cohort": "90"}),
    ("dp-const", SPLIT),
    ("dp-const", {**SPLIT, **HOSTILE}),
    ("dp-const", {"clip.scope": "per-layer"}),
    ("dp-const", {"server.schedule": "[{from_round: 3, noise_scale: 2.0}]"}),
    ("dp-aqc", {"clip.policy": "quantile", "clip.rate": "1e-9", "clip.count_noise": "9"}),
    ("dp-agr", {"clip.policy": "median", "clip.lowest": "0.1", "clip.highest": "9", "clip.count_noise": "9"}),
    ("dp-fedavg", {"meta.batch": "null", "meta.steps": "1"}),
    ("dp-agrlr-micro", HOSTILE),
    ("dp-agrlr-micro", {**HOSTILE, "privacy.client.colluding": "3"}),
    ("dp-agrlr-micro", {**HOSTILE, **FIXED}),
    ("dp-agrlr", {**HOSTILE, **STEPPING}),
    ("dp-agrlr", {**HOSTILE, "meta.adapt": "head", "model.width": "16"}),
]


@pytest.mark.parametrize(("algo", "given"), LOOPS, ids=[f"{algo}-{'-'.join(given.values())}" for algo, given in LOOPS])
def test_what_is_released_carries_the_noise_that_it_states_and_that_is_charged(
    tiny_strokes, tmp_path, releases, algo, given
):
    plan = plan_of(tiny_strokes.task, algo, **given)
    run, training = training_of(plan, tmp_path)
    status = training().status
    assert status == "completed"
    released, events = of_server(plan, releases), read(run.ledger)[1]
    assert len(released) == plan.privacy.rounds == len(events)
    everything = [each.sum for each in released]
    # Nothing but noise leaves the loop, and it is independent from round to round and from coordinate to coordinate.
    assert_independent(everything)
    for round_, each in enumerate(released):
        # Measured in all rounds together, in units of what each of them states.
        stated = each.released.noise_deviation * each.mechanism.denominator
        constants = plan.privacy.at(round_)
        assert stated == pytest.approx(constants.total_noise * each.query.sensitivity)
    stated = [each.released.noise_deviation * each.mechanism.denominator for each in released]
    assert_deviation(torch.cat([v / s for v, s in zip(everything, stated, strict=True)]), 1.0)
    assert_every_coordinate([v / s for v, s in zip(everything, stated, strict=True)], 1.0)
    # The multiplier in the ledger is that of the noise which nobody who colludes knows, without what may be missing.
    record = plan.privacy.record
    own = 0.0 if record is None else (record.query_noise / record.query_records) ** 2
    own += plan.privacy.at(0).message_noise ** 2
    unsure = plan.privacy.colluding + plan.privacy.at(0).hostile
    for event, each in zip(events, released, strict=True):
        assert each.released.noises == (event.event.noise,)
        measured = float((each.sum / each.query.sensitivity).square().mean())
        faced = measured - unsure * own
        assert faced == pytest.approx(event.event.noise.multiplier**2, rel=6 * math.sqrt(2 / len(each.sum)))
    if ATTACHED in released[0].query.value:
        check_attached(plan, released)


# Under Poisson sampling so small a cohort is not rare enough. In the last one rounds are aborted now and then.
SUMS = [
    ("dp-agrlr-secure", {**FIXED, "record.micro_shots": "1", "record.micro_queries": "1", "meta.divisions": "2"}),
    ("dp-agr-secure", {**FIXED, "population.cohort": "20", "population.dropout": "0.08"}),
]


@pytest.mark.parametrize(("algo", "given"), SUMS, ids=["micro-episodes", "aborted"])
def test_a_sum_carries_the_clients_noise_inside_and_one_deviation_outside(
    tiny_strokes, tmp_path, releases, algo, given
):
    plan = plan_of(tiny_strokes.task, algo, **given)
    run, training = training_of(plan, tmp_path)
    assert training().status == "completed"
    released, events = of_server(plan, releases), read(run.ledger)[1]
    assert len(released) == plan.privacy.rounds == len(events)
    whole, cohort = plan.privacy.at(0).whole, int(plan.privacy.cohort)
    # Outside: noise of one law, whoever answered, and none that two rounds have in common.
    plain = [each.sum / (math.sqrt(whole.total) * each.query.grid.width) for each in released]
    (stated,) = {each.released.noise_deviation for each in released}
    assert stated == pytest.approx(math.sqrt(whole.total) * released[0].query.grid.width / cohort)
    assert_deviation(torch.cat(plain), 1.0)
    assert_every_coordinate(plain, 1.0)
    assert_independent(plain)
    # What the ledger says that the server faces is what clients made, without those whose share is not counted on.
    survivors = [each for each in released if each.query.noise_variance]
    assert (len(survivors) < len(released)) == ("population.dropout" in given)
    assert survivors
    for each in survivors:
        entered = each.query.noise_variance / whole.share(cohort)
        assert whole.fewest(cohort) <= round(entered) <= cohort
        sums = flatten(each.query.value).double()
        faced = float(sums.square().mean()) * (whole.fewest(cohort) - whole.unsure) / entered
        stated = (whole.of_a_client / events[0].event.sum_noise.mu(1.0)) ** 2 + 1 / 12
        assert faced == pytest.approx(stated, rel=6 * math.sqrt(2 / len(sums)))
    # An aborted round releases no part of the sum.
    assert not any(flatten(each.query.value).any() for each in released if not each.query.noise_variance)


def check_attached(plan, released):
    """What a policy attaches carries the noise that was asked for, within one sensitivity with the rest."""
    attachment, bound = plan.policy.attachment, released[0].query.sensitivity
    clip = 0.7
    # A message that counts as 0 attaches nothing either.
    assert not any(each.query.value[ATTACHED].any() for each in released)
    assert bound == pytest.approx(clip * math.hypot(1.0, attachment.scale * attachment.sensitivity))
    stated = released[0].released.noise_deviation * plan.privacy.cohort / (attachment.scale * clip)
    assert stated == pytest.approx(9.0)


def test_local_updates_carry_the_noise_of_every_step(tiny_strokes, tmp_path, releases):
    plan = plan_of(tiny_strokes.task, "local-dp", **LOCAL)
    _, training = training_of(plan, tmp_path)
    training()
    steps = [each for each in releases if isinstance(each.mechanism, GaussianMechanism)]
    means = [each for each in releases if isinstance(each.mechanism, NoMechanism)]
    assert (len(steps), len(means)) == (7 * 9 * 3, 7)
    noise = plan.privacy.record.support_noise * 0.4
    assert_deviation(torch.cat([each.added for each in steps]), noise)
    assert_independent([each.added for each in steps])
    # The public batch size divides, not what the coins drew.
    update = 0.5 * math.sqrt(3) * noise / 4
    assert_deviation(torch.cat([each.sum for each in means]), math.sqrt(9) * update)
    assert_independent([each.sum for each in means])


# What a client sends, alone in its cohort: (algorithm, settings, deviation of its noise over the clip bound).
MESSAGES = [
    ("dp-const", SPLIT, lambda plan: plan.privacy.noise_multiplier / 3.0),
    (
        "dp-aqc",
        {**SPLIT, "clip.policy": "quantile", "clip.count_noise": "9"},
        lambda plan: plan.privacy.noise_multiplier / 3.0 * math.hypot(1.0, 0.5 * plan.policy.attachment.scale),
    ),
    ("dp-agrlr-micro", {}, lambda plan: plan.privacy.record.query_noise / plan.privacy.record.query_records),
    ("dp-agrlr", STEPPING, lambda plan: plan.privacy.record.query_noise / 6.0),
    ("dp-agrlr", {"meta.steps": "3", "model.width": "16"}, lambda plan: plan.privacy.record.query_noise / 6.0),
]
KEYS = list(itertools.product((0, 1, 5), (0, 1, 77), ((), (1, 99), (2, 99))))


def cohort_of(round_, again, *clients):
    return Cohort(round=round_, clients=np.array(clients, dtype=np.int64), again=again)


@pytest.mark.parametrize(("algo", "given", "deviation"), MESSAGES, ids=lambda value: str(value)[:20])
def test_a_message_carries_noise_of_its_own_for_every_round_client_and_attempt(tiny_strokes, algo, given, deviation):
    plan = plan_of(tiny_strokes.task, algo, **given)
    model = learned_part(plan.network, initial_weights(plan.network, 0))
    backend, messages = backend_of(plan), {}
    for round_, client, again in KEYS:
        sent = backend.cohort_sum(model, 0.7, cohort_of(round_, again, client))
        assert sent.noise_variance == pytest.approx((0.7 * deviation(plan)) ** 2)
        messages[round_, client, again] = flatten(sent.value)
    assert_independent(list(messages.values()))
    assert_deviation(torch.cat(list(messages.values())), 0.7 * deviation(plan))
    assert_every_coordinate(list(messages.values()), 0.7 * deviation(plan))
    # Clients side by side send what they send alone.
    together = flatten(backend.cohort_sum(model, 0.7, cohort_of(5, (1, 99), 0, 1, 77)).value)
    assert torch.allclose(together, sum(messages[5, client, (1, 99)] for client in (0, 1, 77)), atol=1e-5)
    again = flatten(backend.cohort_sum(model, 0.7, cohort_of(5, (1, 99), 77)).value)
    assert torch.equal(again, messages[5, 77, (1, 99)])


def test_a_client_whose_data_are_not_sound_adds_its_share_of_the_noise_like_any_other(tiny_strokes):
    plan = plan_of(tiny_strokes.task, "dp-const", **SPLIT)
    backend, model = backend_of(plan), flat_model(plan)
    episode = backend.clients.population.template
    backend.clients.population.template = replace(episode, query_images=episode.query_images[:0])
    sums = [backend.cohort_sum(model, 0.7, cohort_of(0, (), client)) for client in range(8)]
    assert {each.noise_variance for each in sums} == {(plan.message_noise * 0.7) ** 2}
    assert_deviation(torch.cat([flatten(each.value) for each in sums]), plan.privacy.noise_multiplier / 3.0 * 0.7)


@pytest.mark.parametrize("given", [STEPPING, {"meta.steps": "3", "model.width": "128"}], ids=["all", "head"])
@pytest.mark.parametrize("message", ["query", "update"])
def test_every_support_step_has_noise_of_its_own(tiny_strokes, releases, given, message):
    reptile = {"meta.method": "reptile", "meta.order": "1", "meta.learn": "all", "server.noise_mode": "stacked",
               "meta.adapt": "all", "server.noise_multiplier": "2"}  # fmt: skip
    given = {**given, **(reptile if message == "update" else {}), "record.support_clip": "0.4"}
    plan = plan_of(tiny_strokes.task, "dp-agrlr", **given)
    model = learned_part(plan.network, initial_weights(plan.network, 0))
    backend = backend_of(plan)
    for round_, again in itertools.product((0, 1, 4), ((), (1, 7))):
        backend.cohort_sum(model, 0.7, cohort_of(round_, again, 0, 1, 5))
    layer = plan.privacy.record
    support = [each for each in releases if each.mechanism.total_multiplier == layer.support_noise]
    query = [each for each in releases if each.mechanism.total_multiplier == layer.query_noise]
    assert (len(support), len(query)) == (3 * 2 * 3 * 3, 3 * 2 * 3 if message == "query" else 0)
    assert all(each.query.sensitivity == 0.4 for each in support)
    size = min(len(each.added) for each in (*support, *query))
    assert_deviation(torch.cat([each.added for each in support]), layer.support_noise * 0.4)
    # The query's noise is another stream too.
    assert_independent([each.added[:size] for each in (*support, *query)])


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
def test_a_stacked_round_adds_its_full_noise_to_clipped_messages(tiny_strokes, tmp_path, releases, algo):
    given = {"server.noise_mode": "stacked", "record.message_clip_ratio": "1.5", "server.noise_multiplier": "2"}
    plan = plan_of(tiny_strokes.task, algo, **given)
    _, training = training_of(plan, tmp_path)
    training()
    released = of_server(plan, releases)
    assert_deviation(torch.cat([each.added for each in released]), 2 * 1.5 * 0.7)
    assert_independent([each.added for each in released])
    one = backend_of(plan).cohort_sum(flat_model(plan), 0.7, cohort_of(0, (), 3))
    assert float(flatten(one.value).norm()) <= 1.5 * 0.7
    assert one.noise_variance == 0.0


def flat_model(plan):
    return learned_part(plan.network, initial_weights(plan.network, 0))


@pytest.mark.parametrize(("algo", "given"), [("dp-const", {}), ("dp-const", SPLIT), ("dp-agrlr-micro", {})])
def test_a_further_attempt_shares_nothing_with_the_first(tiny_strokes, tmp_path, releases, algo, given):
    """The round is done three times as new releases: server, message and cohort are all drawn anew."""
    plan = plan_of(tiny_strokes.task, algo, **given, **{"server.rounds": "3"})
    budget = Budget(limits=(math.inf,) * 4)
    run, first = training_of(plan, tmp_path, trackers=(EndsAfterTheRelease(1),), environment=None, budget=budget)
    for training in (first, first, training_of(plan, tmp_path, run=run, environment=None, budget=budget)[1]):
        if training is first:
            with pytest.raises(Ended):
                training()
        else:
            training()
    attempts = [(event.round, event.attempt) for event in read(run.ledger)[1]]
    assert attempts == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    released = of_server(plan, releases)
    assert_independent([each.sum for each in released])
    assert_deviation(
        torch.cat([each.sum / (each.released.noise_deviation * plan.privacy.cohort) for each in released]), 1.0
    )
    drawn = (run.secret / "participations.jsonl").read_text().splitlines()
    assert len({line.partition('"clients"')[2].partition("]")[0] for line in drawn}) == 5


def test_done_again_identically_a_round_has_the_same_noise(tiny_strokes, tmp_path, releases):
    plan = plan_of(tiny_strokes.task, "dp-agrlr-micro", **{"server.rounds": "2"})
    run, first = training_of(plan, tmp_path, trackers=(EndsAfterTheRelease(1),))
    with pytest.raises(Ended):
        first()
    training_of(plan, tmp_path, run=run)[1]()
    # No row was written, so both rounds are done again.
    before, after = (of_server(plan, releases)[which] for which in (slice(2), slice(2, None)))
    assert [each.sum.tolist() for each in before] == [each.sum.tolist() for each in after]
    assert len(read(run.ledger)[1]) == 2
