"""Each preset shows what defines the published algorithm, and what was wrong with it is not there."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import Budget, read, spent
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.params import difference, flatten, norm
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.task import Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.fedavg import FedAvg
from dpfedmeta.learning.evaluation import SharedClassifier
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.learning.server_step import initial_state, step
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.clip_policies.median_policy import Median
from dpfedmeta.privacy.clip_policies.quantile_policy import QuantilePolicy
from dpfedmeta.privacy.clip_policies.window_policy import Window
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.samplers.fixed_sampler import FixedSizeSampler
from dpfedmeta.privacy.samplers.poisson_sampler import PoissonSampler
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import held_out_evaluation, population
from dpfedmeta.training.loop import Training, optimizer
from dpfedmeta.training.results.round_rows import delta_at_limit
from dpfedmeta.training.tracking.callbacks import JsonLines
from dpfedmeta.training.update_variance import update_spread

SMALL = {
    "population.records": "20", "population.clients": "30", "population.cohort": "10", "server.rounds": "4",
    "server.schedule": "[]", "meta.steps": "3", "meta.batch": "5", "clip.window": "2", "clip.count_noise": "5",
    "model.name": "linear", "model.width": "4", "evaluation.every": "2", "evaluation.validation_episodes": "4",
    "track.public_clients": "4", "privacy.client.delta": "1.0e-3",
}  # fmt: skip
TASK = Task(
    name="digits", source={"reader": "mnist"}, image_size=8, channels=1, shared_classes=4
)  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Four classes of bright quarters, 100 training images each and 20 for either other split."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 120, (560, 1, 8, 8)).astype(np.uint8)
    for index in range(560):
        row, column = divmod(index // 140, 2)
        images[index, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 120
    path = tmp_path_factory.mktemp("digits") / "images.npy"
    np.save(path, images)

    def pool(first, count):
        starts = tuple(140 * k + first for k in range(4))
        return ClassPool(path=path, names=tuple("0123"), first=starts, counts=(count,) * 4)

    return Dataset(task=TASK, train=pool(0, 100), val=pool(100, 20), test=pool(120, 20))


def plan_of(algo, **given):
    return make_plan(resolve(algo, "mnist-shards", None, {**SMALL, **given}), TASK)


def side(plan, digits):
    return ClientRunner(
        network=plan.network,
        weights_seed=0,
        population=population(plan, digits),
        algorithm=plan.algorithm,
        message_clip_ratio=plan.message_clip_ratio,
        engine="auto",
        source=KeyedSource(1),
        device=torch.device("cpu"),
        attachment=plan.policy.attachment,
        scope=plan.settings.clip.scope,
        message_noise=plan.message_noise,
    )


def model_of(plan):
    return learned_part(plan.network, initial_weights(plan.network, 0))


def cohort_of(*clients):
    return Cohort(round=0, clients=np.array(clients, dtype=np.int64))


def train(plan, digits, folder, backend=None):
    run = create(folder, "run")
    clients = side(plan, digits)
    training = Training(
        plan=plan,
        run=run,
        backend=backend or LocalBackend(clients=clients, workers=InProcess()),
        workers=InProcess(),
        validation=held_out_evaluation(plan, digits, "val"),
        source=KeyedSource(5),
        trackers=(JsonLines(run.path),),
        budget=Budget.of(plan.planned),
        public_clients=replace(clients, population=replace(clients.population, pool=digits.val)),
    )
    ending = training()
    state, status = ending.state, ending.status
    return run, state, status


@pytest.mark.parametrize(
    "algo", [name for name in algorithm_names() if resolve(name, "mnist-shards").meta.method == "fedavg"]
)
def test_presets_of_local_training_promise_what_they_target_on_its_data_too(algo):
    """Those of meta-learning, and these on strokes: tests/planning/test_run_plan.py."""
    settings = resolve(algo, "mnist-shards")
    plan = make_plan(settings, task_of(settings)[0])
    client, record = plan.settings.privacy.client, plan.settings.privacy.record
    cells = {cell.name: cell.epsilon for cell in plan.planned}
    wanted = client.epsilon or client.limit
    if wanted:
        assert cells["(client, public)"] <= wanted
    if record.epsilon:
        assert cells["(record, server)"] <= record.epsilon
    assert (cells["(client, public)"] < math.inf) == (algo not in ("maml", "local-dp"))


def test_dp_fedavg_sends_the_update_of_local_training(digits):
    plan = plan_of("dp-fedavg")
    clients = side(plan, digits)
    assert isinstance(plan.algorithm, FedAvg)
    assert plan.algorithm.batch == 5
    assert isinstance(plan.policy, Median)
    assert isinstance(clients.population, ShardPopulation)
    (message,) = clients.exact_messages(model_of(plan), 0, [3])
    assert set(message) == set(model_of(plan))
    assert norm(message) > 0


def test_dp_fedavg_ends_before_epsilon_passes_its_limit(digits, tmp_path):
    given = {"server.rounds": "40", "privacy.client.limit": "5", "server.noise_multiplier": "1.5"}
    plan = plan_of("dp-fedavg", **given)
    longer = plan_of("dp-fedavg", **{**given, "privacy.client.limit": "1000"})
    assert longer.privacy.rounds == 40
    assert not longer.shortened
    assert 1 < plan.privacy.rounds < 40
    assert plan.planned[0].epsilon <= 5
    assert delta_at_limit(plan.privacy.phases, 5) <= 1e-3
    assert delta_at_limit(longer.privacy.first(plan.privacy.rounds + 1), 5) > 1e-3
    run, state, status = train(plan, digits, tmp_path)
    assert status == "budget"
    assert state.round == plan.privacy.rounds
    deltas = [row["delta_at_limit"] for row in run.rounds() if "delta_at_limit" in row]
    assert deltas == sorted(deltas)
    assert deltas[-1] <= 1e-3


def test_a_target_displaces_the_limit_that_came_with_a_noise():
    plan = plan_of("dp-fedavg", **{"privacy.client.epsilon": "4", "clip.policy": "constant"})
    assert plan.settings.privacy.client.limit is None
    assert 0.99 * 4 <= plan.planned[0].epsilon <= 4
    assert plan.privacy.rounds == 4


def test_dp_fedavg_follows_its_schedules():
    plan = make_plan(resolve("dp-fedavg", "mnist-shards"), load_task("mnist-shards")[0])
    first, last = plan.privacy.at(0), plan.privacy.at(plan.privacy.rounds - 1)
    assert last.cohort > first.cohort
    assert last.total_noise < first.total_noise


def test_the_spread_of_updates_is_that_of_public_clients(digits):
    plan = plan_of("dp-fedavg")
    clients = side(plan, digits)
    public = replace(clients, population=replace(clients.population, pool=digits.val))
    model = model_of(plan)
    found = update_spread(public, model, 0, 4)
    rows = torch.stack([flatten(m).double() for m in public.exact_messages(model, 0, range(4))])
    assert found.between_client_variance == pytest.approx(float(rows.var(0, correction=0).mean()))
    assert found.update_scale == pytest.approx(float(rows.mean(0).square().mean()))
    # With private clients replaced the numbers stay what they are.
    other = replace(clients, population=replace(clients.population, pool=digits.test))
    assert update_spread(replace(other, population=public.population), model, 0, 4) == found


def test_dp_fedavg_fixed_draws_cohorts_of_one_size_and_says_so():
    plan = plan_of("dp-fedavg-fixed")
    sampler = plan.sampler(0)
    assert isinstance(sampler, FixedSizeSampler)
    sizes = {len(sampler.draw(t, {}, KeyedSource(t).generator(Purpose.COHORT, t)).clients) for t in range(5)}
    assert sizes == {10}
    assert plan.planned[0].adjacency == "replace-one"
    poisson = plan_of("dp-fedavg-fixed", **{"population.sampler": "poisson", "server.abort_on_failure": "false"})
    assert isinstance(poisson.sampler(0), PoissonSampler)
    # A replaced client moves the sum by 2C: fixed-size cohorts need about twice the noise.
    assert plan.privacy.noise_multiplier > 1.3 * poisson.privacy.noise_multiplier


def test_dp_fedavg_fixed_weighs_all_clients_alike(digits):
    plan = plan_of("dp-fedavg-fixed")
    clients = side(plan, digits)
    model = model_of(plan)
    together, _ = clients.clipped_sum(model, 0.1, 0, [4, 9])
    apart = sum(clients.clipped_sum(model, 0.1, 0, [client])[0] for client in (4, 9))
    assert torch.allclose(together, apart)
    assert isinstance(plan.policy, Constant)


def test_noise_split_over_clients_adds_up_to_that_of_the_server(digits):
    plan = plan_of("dp-fedavg-fixed", **{"server.noise_site": "clients", "clip.initial": "1.0e-6"})
    split, model = side(plan, digits), model_of(plan)
    backend = LocalBackend(clients=split, workers=InProcess())
    secret = backend.cohort_sum(model, 1.0, cohort_of(*range(10)))
    z = plan.privacy.noise_multiplier
    assert secret.noise_variance == pytest.approx(z**2)
    released = plan.mechanism.at(0).release(secret, KeyedSource(2).generator(Purpose.SERVER_NOISE, 0))
    exact = LocalBackend(clients=replace(split, message_noise=0.0), workers=InProcess())
    signal = exact.cohort_sum(model, 1.0, cohort_of(*range(10)))
    noises = []
    for seed in range(30):
        noisy = replace(split, source=KeyedSource(seed))
        # The order of mini-batches comes from the same source, so the signal is taken at the same seed.
        whole = LocalBackend(clients=noisy, workers=InProcess()).cohort_sum(model, 1.0, cohort_of(*range(10)))
        plain = LocalBackend(clients=replace(noisy, message_noise=0.0), workers=InProcess())
        noises.append(flatten(difference(whole.value, plain.cohort_sum(model, 1.0, cohort_of(*range(10))).value)))
    assert float(torch.cat(noises).std()) == pytest.approx(z, rel=0.1)
    assert released.noise_deviation == pytest.approx(z / 10)
    assert norm(signal.value) < norm(secret.value)


def test_clients_know_their_own_share_of_a_split_noise():
    at_server = plan_of("dp-fedavg-fixed", **{"server.noise_multiplier": "1.5"})
    split = plan_of("dp-fedavg-fixed", **{"server.noise_multiplier": "1.5", "server.noise_site": "clients"})
    more = plan_of(
        "dp-fedavg-fixed",
        **{"server.noise_multiplier": "1.5", "server.noise_site": "clients", "privacy.client.colluding": "3"},
    )
    epsilons = [plan.planned[0].epsilon for plan in (at_server, split, more)]
    assert epsilons == sorted(epsilons)
    assert split.privacy.at(0).noise.multiplier == pytest.approx(1.5 * math.sqrt(9 / 10))
    assert more.privacy.at(0).noise.multiplier == pytest.approx(1.5 * math.sqrt(7 / 10))
    assert at_server.planned[1].epsilon == math.inf
    assert split.planned[1].epsilon < math.inf  # (client, server): a share, true but large


@pytest.mark.parametrize(
    "given",
    [
        {"population.sampler": "poisson"},
        {"server.schedule": "[{from_round: 2, noise_scale: 0.5}]"},
        {"privacy.client.colluding": "10"},
    ],
)
def test_a_split_noise_that_would_not_add_up_is_refused(given):
    with pytest.raises(RefusedPlan):
        plan_of("dp-fedavg-fixed", **{"server.noise_site": "clients", **given})


class Failing(ClientRunner):
    """Client 3 never answers."""

    def clipped_sum(self, model, bound, round_, clients):
        return super().clipped_sum(model, bound, round_, [client for client in clients if client != 3])


def test_a_round_with_a_failed_client_is_aborted_and_charged(digits, tmp_path):
    plan = plan_of("dp-fedavg-fixed", **{"population.cohort": "30"})
    assert plan.settings.server.abort_on_failure
    failing = Failing(**vars(side(plan, digits)))
    with pytest.raises(RoundAborted):
        LocalBackend(clients=failing, workers=InProcess(), abort_on_failure=True).cohort_sum(
            model_of(plan), 1.0, cohort_of(1, 2, 3)
        )
    patient = LocalBackend(clients=failing, workers=InProcess())
    assert patient.cohort_sum(model_of(plan), 1.0, cohort_of(1, 2, 3)).sensitivity == 1.0
    backend = LocalBackend(clients=failing, workers=InProcess(), abort_on_failure=True)
    run, state, status = train(plan, digits, tmp_path, backend)
    assert status == "completed"
    assert all(row["aborted"] for row in run.rounds())
    start = model_of(plan)
    assert all(torch.equal(state.model[name], start[name]) for name in start)
    planned, events = read(run.ledger)
    assert len(events) == 4
    assert spent(planned, events)[0].epsilon == pytest.approx(plan.planned[0].epsilon)


def test_dp_fedavg_adaptive_moves_the_bound_to_the_quantile(digits):
    plan = plan_of("dp-fedavg-adaptive", **{"server.noise_multiplier": "1.0e-3", "clip.initial": "0.001",
                                            "clip.count_noise": "0.01", "clip.rate": "1.0"})  # fmt: skip
    assert isinstance(plan.policy, QuantilePolicy)
    clients, state = side(plan, digits), initial_state(model_of(plan), plan.policy)
    backend = LocalBackend(clients=clients, workers=InProcess())
    rule = replace(optimizer(plan, 0), lr=1e-9, final_lr=None)
    for round_ in range(25):
        stream = KeyedSource(3).generator(Purpose.SERVER_NOISE, round_)
        secret = backend.cohort_sum(state.model, state.bound, cohort_of(*range(10)))
        assert ATTACHED in secret.value
        state = step(rule, plan.policy, state, plan.mechanism.at(0).release(secret, stream), averages=False)
    norms = [norm(m) for m in clients.exact_messages(state.model, 0, range(10))]
    assert np.quantile(norms, 0.3) < state.bound < np.quantile(norms, 0.7)


def test_local_dp_promises_records_towards_the_server_and_nothing_else(digits, tmp_path):
    plan = plan_of("local-dp", **{"population.cohort": "30", "privacy.record.epsilon": "3"})
    cells = {cell.name: cell for cell in plan.planned}
    assert 3 * 0.99 <= cells["(record, server)"].epsilon <= 3
    assert cells["(record, server)"].method == "pld"
    assert cells["(record, public)"].epsilon <= cells["(record, server)"].epsilon
    assert cells["(client, public)"].epsilon == math.inf
    run, state, status = train(plan, digits, tmp_path)
    assert status == "completed"
    planned, events = read(run.ledger)
    assert [c.epsilon for c in spent(planned, events)] == pytest.approx([c.epsilon for c in plan.planned])
    assert all(torch.isfinite(value).all() for value in state.model.values())


@pytest.mark.parametrize("accountant", ["rdp", "prv", "pld"])
def test_local_dp_takes_the_accountant_it_is_given(accountant):
    plan = plan_of(
        "local-dp", **{"record.accountant": accountant, "record.support_noise": "1.0", "population.cohort": "30"}
    )
    tight = plan_of("local-dp", **{"record.support_noise": "1.0", "population.cohort": "30"})
    epsilons = [p.planned[2].epsilon for p in (plan, tight)]
    assert plan.planned[2].method == accountant
    assert epsilons[0] >= epsilons[1] * (1 - 5e-3)


def test_local_dp_clips_what_it_adds_noise_to(digits):
    plan = plan_of("local-dp", **{"population.cohort": "30", "record.support_clip": "0.25"})
    assert plan.algorithm.private.clip == 0.25
    assert plan.algorithm.records == 20
    assert plan.privacy.record.batch_rate == 5 / 20
    assert plan.algorithm.private.noise == plan.privacy.record.support_noise


@pytest.mark.parametrize(
    ("algo", "given", "words"),
    [
        ("dp-fedavg", {"privacy.client.epsilon": "2", "privacy.client.limit": "8"}, "privacy.client.limit"),
        ("dp-agr", {}, "no adaptation to learn"),
        ("dp-fedavg-fixed", {"meta.batch": "0"}, "meta.batch"),
        ("local-dp", {"meta.batch": "21"}, "a client holds only 20 records"),
        ("local-dp", {"privacy.client.epsilon": "1"}, "clips nothing"),
        ("local-dp", {"record.client_ledgers": "true"}, "record.client_ledgers"),
        ("local-dp", {"record.client_ledgers": "true", "population.sampler": "poisson"}, "not sampled mini-batches"),
        ("dp-fedavg", {"meta.adapt": "head"}, "meta.adapt"),
        ("dp-fedavg", {"population.records": "7"}, "population.records"),
    ],
)
def test_settings_that_do_not_fit_are_named(algo, given, words, digits):
    with pytest.raises((InputError, RefusedPlan), match=words):
        population(plan_of(algo, **given), digits)


@pytest.mark.parametrize(("algo", "policy"), [("dp-agr", Window), ("dp-const", Constant), ("dp-aqc", QuantilePolicy)])
def test_the_meta_learners_differ_in_their_policy_alone(algo, policy):
    plan, other = (make_plan(resolve(a, "omniglot"), load_task("omniglot")[0]) for a in (algo, "dp-agr"))
    assert isinstance(plan.policy, policy)
    assert plan.algorithm == other.algorithm
    assert plan.privacy == other.privacy


def test_validation_looks_at_public_images_and_the_test_at_all_of_its_own(digits):
    plan = plan_of("dp-fedavg")
    validation, test = held_out_evaluation(plan, digits, "val"), held_out_evaluation(plan, digits, "test")
    assert isinstance(validation, SharedClassifier)
    assert validation.images == 60
    assert isinstance(test, SharedClassifier)
    assert test.images is None
