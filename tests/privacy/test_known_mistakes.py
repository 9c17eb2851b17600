"""Mistakes found in trusted systems (privacy.md section 6). Each check passes on our code and fails on the mistake."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import flatten, norm, scaled
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.evaluation import PROTOCOL, Benchmark, adapted_accuracy
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, check_records_uncoupled
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.noisy_steps import private_messages
from dpfedmeta.learning.record_dp.per_example_gradients import VmapGradients
from dpfedmeta.learning.server_optimizers.sgd_rule import sgd
from dpfedmeta.learning.server_step import ServerOptimizer, initial_state, step
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policies.constant_policy import ConstantState
from dpfedmeta.privacy.clip_policies.window_policy import Window
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from tests.learning.meta.clients import gradient_of, noise_of, steps_of
from tests.privacy.one_release import SOURCE, gaussian, release, stream

SPEC = NetworkSpec(name="mlp", channels=1, image_size=28, ways=3, width=4, norm="none")
ONE_STEP = Adaptation(adapt="all", steps=1, lr=0.1)
FIRST_ORDER = Maml(order=1, adaptation=ONE_STEP)
NOISE = {"privacy.client.epsilon": "null", "server.noise_multiplier": "0.8"}


def episode(seed, per_class=2):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.rand(3 * per_class, 1, 28, 28, generator=generator)  # noqa: E731
    labels = torch.arange(3).repeat_interleave(per_class)
    return Episode(support_images=draw(), support_labels=labels, query_images=draw(), query_labels=labels)


class UnequalClients:
    """Client i holds i + 1 images of each class."""

    def episode(self, client):
        return episode(client, client + 1)


def backend_of(kind=ClientRunner):
    clients = kind(
        network=SPEC, weights_seed=0, population=UnequalClients(), algorithm=FIRST_ORDER,
        message_clip_ratio=None, engine="auto", source=SOURCE, device=torch.device("cpu"),
    )  # fmt: skip
    return LocalBackend(clients=clients, workers=InProcess())


def cohort_of(*clients):
    return Cohort(round=0, clients=np.array(clients, dtype=np.int64))


@pytest.fixture(scope="module")
def plan():
    return make_plan(resolve("dp-const", "strokes", None, {**NOISE, "server.rounds": "3"}), load_task("strokes")[0])


def test_a_clip_bound_from_raw_client_norms(only_ours):
    optimizer = ServerOptimizer(rule=sgd, lr=0.1, final_lr=None, rounds=9, beta1=0.0, beta2=0.9)
    releases = [release(torch.randn(20, generator=torch.Generator().manual_seed(r)), 1.0, r) for r in range(6)]

    def check(policy_beside):
        """The same releases beside other secret norms: the same bounds."""
        histories = []
        for scale in (1.0, 30.0):
            policy = policy_beside(scale * np.random.default_rng(0).lognormal(size=50))
            state, bounds = initial_state({"w": torch.zeros(20)}, policy), []
            for aggregate in releases:
                state = step(optimizer, policy, state, aggregate, averages=False)
                bounds.append(state.bound)
            histories.append(bounds)
        assert histories[0] == histories[1]

    @dataclass(frozen=True)
    class RawNorms:
        norms: np.ndarray

        def initial(self):
            return ConstantState(bound=1.0)

        def next_bound(self, state, aggregate):
            bound = float(np.percentile(self.norms, 90))
            return ConstantState(bound=bound), bound

    only_ours(check, lambda norms: Window(initial_bound=0.5), RawNorms)
    # A secret value in place of a released one does not even get in.
    with pytest.raises(AttributeError):
        Window(initial_bound=0.5).next_bound(Window(initial_bound=0.5).initial(), Bounded(value={}, sensitivity=1.0))


def test_a_bound_that_can_only_fall(only_ours):
    def check(policy):
        """Noise alone makes the bound fall; then all clients agree far above it."""
        state, bounds = policy.initial(), []
        for round_ in range(50):
            signal = torch.zeros(100)
            signal[0] = 0.0 if round_ < 8 else 0.9 * min(state.bound, 5.0)
            state, bound = policy.next_bound(state, release(signal, state.bound, round_))
            bounds.append(bound)
        assert max(bounds[5:8]) < 0.5
        assert min(bounds[-4:]) > 2 * max(bounds[16:20])

    class OnlyFalls(Window):
        def next_bound(self, state, aggregate):
            following, bound = super().next_bound(state, aggregate)
            lower = min(bound, state.bound)
            return replace(following, bound=lower, centre=min(following.centre, state.centre)), lower

    only_ours(check, Window(initial_bound=1.0), OnlyFalls(initial_bound=1.0))


def test_batch_norm_couples_records(only_ours):
    variants = [{"norm": "group"}, {"norm": "batch"}, {"features": "record"}, {"features": "support"}]

    def first_records_gradient(network, weights, images):
        leaves = {n: v.clone().requires_grad_() for n, v in weights.items()}
        loss = cross_entropy(functional_call(network, leaves, (images,))[:1], torch.tensor([0]))
        return flatten(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))

    def check(accepts):
        """What is accepted is exactly what leaves a record's gradient alone when another record changes."""
        for variant in variants:
            spec = replace(SPEC, **{"name": "conv4-strided", "norm": "none", **variant})
            network, weights = build_network(spec), initial_weights(spec, 0)
            images = episode(0).query_images
            changed = torch.cat([images[:1], 1 - images[1:]])
            before, after = (first_records_gradient(network, weights, x) for x in (images, changed))
            coupled = float((before - after).norm() / before.norm()) > 1e-3
            assert accepts(network, spec) == (not coupled)

    def ours(network, spec):
        try:
            check_records_uncoupled(network, spec)
        except RefusedPlan:
            return False
        return True

    only_ours(check, ours, lambda network, spec: True)


def test_second_order_terms_bypass_the_inner_noise(only_ours, monkeypatch):
    given = {"meta.order": "2", "server.rounds": "3"}
    with pytest.raises(RefusedPlan, match="Hessian"):
        make_plan(resolve("dp-agrlr", "strokes", None, given), load_task("strokes")[0])
    network, weights = build_network(SPEC), initial_weights(SPEC, 0)
    frozen = {n: 0.1 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in weights.items()}
    honest = GaussianMechanism.release

    def replayed(self, query, generator):
        fixed = replace(query, value=scaled(frozen, self.denominator))
        return honest(self, query if self.denominator == 9 else fixed, generator)

    def check(message):
        """The support releases stay what they were: then other support records change nothing."""
        queries = episode(0, 3)
        one, two = (
            replace(queries, support_images=episode(s).support_images, support_labels=episode(s).support_labels)
            for s in (1, 2)
        )
        assert torch.equal(message(one), message(two))

    def ours(data):
        spec = replace(steps_of(FIRST_ORDER, noise=1.0, records=6, clip=1.0), query_records=9)
        noise = noise_of(stream(1), stream(2))
        monkeypatch.setattr(GaussianMechanism, "release", replayed)
        (sent,) = private_messages(network, weights, {}, [data], 1.0, [noise], spec, VmapGradients())
        monkeypatch.undo()
        return flatten(sent.value)

    def second_order(data):
        leaves = {n: v.clone().requires_grad_() for n, v in weights.items()}
        names, values = list(leaves), list(leaves.values())
        loss = cross_entropy(functional_call(network, leaves, (data.support_images,)), data.support_labels)
        exact = torch.autograd.grad(loss, values, create_graph=True)
        # The value is the noisy release, the derivative that of the exact gradient.
        noisy = {n: frozen[n] + g - g.detach() for n, g in zip(names, exact, strict=True)}
        theta = {n: leaves[n] - 0.1 * noisy[n] for n in names}
        loss = cross_entropy(functional_call(network, theta, (data.query_images,)), data.query_labels)
        return flatten(dict(zip(names, torch.autograd.grad(loss, values), strict=True)))

    only_ours(check, ours, second_order)


def test_noise_scaled_with_another_bound_than_the_one_that_clipped(only_ours):
    backend, model, z = backend_of(), initial_weights(SPEC, 0), 1.5

    def check(release_of):
        """The next bound is a tenth of this one; the noise has to fit this one."""
        secret = backend.cohort_sum(model, 0.5, cohort_of(1, 2))
        released = release_of(secret, 0.05)
        noise = flatten(released.value).double() * 10.0 - flatten(secret.value).double()
        assert norm(secret.value) > 0.5
        assert float(noise.std()) == pytest.approx(z * 0.5, rel=0.05)

    only_ours(
        check,
        lambda secret, following: gaussian(z).release(secret, stream(0)),
        lambda secret, following: gaussian(z).release(replace(secret, sensitivity=following), stream(0)),
    )


def test_clients_weighted_by_examples_while_the_noise_assumes_equal_weights(only_ours):
    model, everyone = initial_weights(SPEC, 0), (0, 1, 2, 3, 4)

    def check(backend):
        whole = backend.cohort_sum(model, 0.01, cohort_of(*everyone))
        for left in everyone:
            without = backend.cohort_sum(model, 0.01, cohort_of(*(c for c in everyone if c != left)))
            change = norm({n: whole.value[n].double() - without.value[n].double() for n in model})
            assert 0 < change <= whole.sensitivity * (1 + 1e-5)

    class ByExamples(ClientRunner):
        def _messages(self, model, bound, round_, clients):
            for client, message in zip(clients, super()._messages(model, bound, round_, clients), strict=True):
                yield scaled(message, (client + 1) / 3)

    only_ours(check, backend_of(), backend_of(ByExamples))


def test_normalising_by_the_realised_cohort(only_ours, plan):
    def check(mechanism_of):
        """Who took part changes neither the scale of the mean nor its noise."""
        query = Bounded(value={"w": torch.ones(5)}, sensitivity=1.0)
        releases = [mechanism_of(took_part).release(query, stream(3)) for took_part in (1, 7, 1500)]
        for other in releases[1:]:
            assert torch.equal(other.value["w"], releases[0].value["w"])
            assert other.noise_deviation == releases[0].noise_deviation

    only_ours(
        check,
        lambda took_part: plan.mechanism.at(0),
        lambda took_part: replace(plan.mechanism.at(0), denominator=took_part),
    )


def test_a_parameter_without_gradient_still_gets_its_noise(only_ours):
    class Spare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used = torch.nn.Linear(784, 3)
            self.spare = torch.nn.Parameter(torch.zeros(2000))

        def forward(self, images):
            return self.used(images.flatten(1))

    network = Spare()
    weights = {n: torch.zeros_like(v) for n, v in network.named_parameters()}
    gradient = gradient_of(network, weights, {}, episode(0), FIRST_ORDER)
    query = Bounded(value=gradient, sensitivity=1.0)

    def check(release_of):
        assert not gradient["spare"].any()
        value = release_of(query)
        assert set(value) == set(weights)
        assert float(value["spare"].std()) == pytest.approx(1.0 / 10.0, rel=0.1)

    def guarded(query):
        noisy = gaussian().release(query, stream(5)).value
        return {n: noisy[n] if g.any() else g for n, g in query.value.items()}

    only_ours(check, lambda query: gaussian().release(query, stream(5)).value, guarded)


@pytest.mark.parametrize("features", ["raw", "support"])
def test_transductive_batch_norm_reported_as_plain_accuracy(only_ours, features):
    spec = replace(SPEC, name="conv4-strided", norm="batch", features=features)
    network, weights = build_network(spec), initial_weights(spec, 0)

    def check(logits):
        """The prediction for one query image stays when the other query images change."""
        data = episode(0)
        others = torch.cat([data.query_images[:1], 1 - data.query_images[1:]])
        kept, moved = logits(data), logits(replace(data, query_images=others))
        assert not torch.allclose(kept[1:], moved[1:], rtol=1e-4, atol=1e-5)
        assert torch.allclose(kept[0], moved[0], rtol=1e-4, atol=1e-5)

    only_ours(
        check,
        lambda data: adapted_logits(network, weights, data, ONE_STEP),
        lambda data: functional_call(network, weights, (data.query_images,)),
    )


def test_an_ensemble_of_checkpoints_reported_as_plain_accuracy(only_ours, tiny_strokes):
    shape = EpisodeShape(ways=3, shots=2, queries=5)
    benchmark = Benchmark(pool=tiny_strokes.test, shape=shape, seed=0, split="test")
    spec, adaptation = replace(SPEC, name="conv4-strided", norm="group"), Adaptation(adapt="all", steps=10, lr=0.5)
    network = build_network(spec)
    earlier = initial_weights(spec, 0)
    checkpoints = [earlier, {n: torch.zeros_like(v) for n, v in earlier.items()}]

    def check(accuracy_of):
        """The last checkpoint is all zeros: alone it names class 0 whatever it sees, adapted or not."""
        assert accuracy_of(checkpoints) == pytest.approx(1 / 3)

    def ensemble(models):
        data = [benchmark.episode(number) for number in range(10)]
        named = [sum(adapted_logits(network, model, d, adaptation) for model in models).argmax(1) for d in data]
        return np.mean([float((n == d.query_labels).double().mean()) for n, d in zip(named, data, strict=True)])

    def ours(models):
        return adapted_accuracy(InProcess(), spec, models[-1], benchmark, adaptation, 10).mean

    only_ours(check, ours, ensemble)
    assert PROTOCOL.startswith("single model, inductive")
